"""Order of mapping, against a retelling of networkx's sort by generations."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.routing import read_counts
from perfmodel.model.config import read_config
from perfmodel.wafer.core_trace import format_pieces
from perfmodel.wafer.cores.instructions import GEMM, OPCODE, core_totals
from perfmodel.wafer.generator_files import GraphNode
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.cores import CoreMapping, mapping_order
from perfmodel.wafer.twin.routing import GeneratorRouting
from perfmodel.wafer.twin.run import iteration_rows
from tests.data import WAFER, needed
from tests.wafer.twin.examples import ITERATIONS, routed
from tests.wafer.twin.examples import iteration as iteration_of


def told(graphs):
    """Visit what each operation feeds, operation by operation."""
    makers, readers = {}, {}
    for node, graph in enumerate(graphs):
        for at, one in enumerate(graph):
            for tensor in one.inputs:
                readers.setdefault(tensor, []).append((node, at))
                makers.setdefault(tensor, [])
            for tensor in one.outputs:
                makers.setdefault(tensor, []).append((node, at))
    feeds = {}
    for tensor, sources in makers.items():
        for source in sources or ["root"]:
            feeds.setdefault(source, {}).update(dict.fromkeys(readers.get(tensor, [])))
    waits = {}
    for targets in feeds.values():
        for target in targets:
            waits[target] = waits.get(target, 0) + 1
    order, ready = [], ["root"]
    while ready:
        order += ready
        following = []
        for one in ready:
            for target in feeds.get(one, ()):
                waits[target] -= 1
                if not waits[target]:
                    following.append(target)
        ready = following
    return order[1:]


def test_order_of_graphs_of_any_shape():
    random = np.random.default_rng(5)
    for _ in range(20):
        names = ["0:queries", "1:queries"]
        graphs = [[], []]
        for at in range(40):
            node = int(random.integers(2))
            chosen = [names[one] for one in random.integers(0, len(names), random.integers(1, 4))]
            made = [f"{int(random.integers(2))}:t{at}_{n}" for n in range(random.integers(1, 3))]
            graphs[node].append(GraphNode(f"o{at}", "View", tuple(chosen), tuple(made)))
            names += made
        assert mapping_order(graphs) == told(graphs)


def test_nothing_and_circles():
    assert mapping_order([[], []]) == []
    circle = [
        GraphNode("a", "View", ("0:y",), ("0:x",)),
        GraphNode("b", "View", ("0:x",), ("0:y",)),
    ]
    with pytest.raises(FormatError, match="graph of node 0: operation 'a' waits for itself"):
        mapping_order([circle])


SMALL = WaferSystem(4, (2, 2), (4, 4), 1, 2, 2, expert_parallel=4)


def nodes_of(iteration, routing=None):
    """Return tables and graphs of all nodes."""
    if routing is None and iteration.routes:
        routing = routed(iteration)
    tables = [[] for _ in range(iteration.system.nodes)]
    graphs = [[] for _ in range(iteration.system.nodes)]
    for rows in iteration_rows(iteration, routing):
        tables[rows.node] += rows.table
        graphs[rows.node] += rows.graph
    return tables, graphs


def mapped(iteration, cores=4, **options):
    return list(CoreMapping(*nodes_of(iteration), cores, **options).pieces())


def text(pieces, node, cores):
    """Return what each core of a node runs."""
    texts = dict.fromkeys(range(cores), b"")
    mine = [piece for made in pieces if made.node == node for piece in made.pieces]
    for core, part in format_pieces(mine, np.zeros(cores, np.int64)):
        texts[core] += part
    return texts


@pytest.fixture(scope="module")
def small():
    """The generator's run on four nodes, whose routing it drew from the counts."""
    model = read_config(needed(WAFER / "configs/deepseekv3.json"))
    iteration = iteration_of(model, SMALL, 8, 1, 1024, layers=("decode10",))
    counts = np.array(read_counts(needed(WAFER / "bincounts.json")))
    routing = GeneratorRouting({0: iteration}, "empirical", counts)(0)
    return list(CoreMapping(*nodes_of(iteration, routing), SMALL.cores).pieces())


def test_traces_equal_the_generators(small):
    texts = text(small, 0, SMALL.cores)
    for core, name in ((0, "core_0.csv.gz"), (1, "core_1.csv.gz"), (15, "core_15.csv")):
        theirs = (WAFER / "out_small/traces_node_0" / name).read_bytes()
        assert texts[core] == (gzip.decompress(theirs) if name.endswith("gz") else theirs)


@pytest.mark.parametrize(
    ("name", "cores"),
    [
        ("one node", 1),
        ("one node", 9),
        ("clusters", 4),
        ("multicast, tensor", 9),
        ("fewer sequences than clusters", 4),
    ],
)
def test_products_of_cores_are_those_of_nodes(name, cores):
    tables, graphs = nodes_of(ITERATIONS[name])
    pieces = list(CoreMapping(tables, graphs, cores).pieces())
    macs: dict[tuple[int, str], int] = {}
    for made in pieces:
        for piece in made.pieces:
            lines, arguments, _ = piece.instructions
            products = arguments[lines[:, OPCODE] == GEMM, :3].prod(axis=1).sum()
            key = made.node, made.operation
            macs[key] = macs.get(key, 0) + int(products)
    counted = {
        (node, row.name): row.macs for node, table in enumerate(tables) for row in table if row.macs
    }
    assert {key: value for key, value in macs.items() if value} == counted


def test_barriers_stand_between_operations_of_a_node():
    pieces = mapped(ITERATIONS["multicast, tensor"])
    for node in range(4):
        names = [made.operation for made in pieces if made.node == node]
        assert names[0] != "cross_layer"
        assert names[1::2] == ["cross_layer"] * (len(names) // 2)
    numbers = [made.pieces[0].numbers.item() for made in pieces if made.operation == "cross_layer"]
    assert numbers == list(range(len(numbers)))


def test_layers_that_are_chosen():
    every = {made.operation for made in mapped(ITERATIONS["one node"])}
    one = {made.operation for made in mapped(ITERATIONS["one node"], layers=["decode0"])}
    assert one == {name for name in every if name.startswith("decode0_")} | {"cross_layer"}
    with pytest.raises(DataError, match=r"layer 'decode7' has no operation; there are decode0, "):
        mapped(ITERATIONS["one node"], layers=["decode7"])


def test_elements_of_one_byte_are_half_the_bytes():
    two, one = (
        [
            core_totals(piece.instructions)
            for made in mapped(ITERATIONS["one node"], element_bytes=size)
            for piece in made.pieces
        ]
        for size in (2, 1)
    )
    assert len(two) == len(one)
    for more, less in zip(two, one, strict=True):
        assert (more.counts == less.counts).all()
        assert (more.moved == 2 * less.moved).all()


@pytest.mark.parametrize(
    ("iteration", "message"),
    [
        (ITERATIONS["guessed"], "one position per sequence"),
        (ITERATIONS["allgather"], "stops at AllGather: it has no all-gather"),
        (ITERATIONS["llama"], "stops at SelfAttention"),
        (ITERATIONS["prefill"], "stops at MLANaiveAttention"),
    ],
)
def test_says_where_the_generator_stops(iteration, message):
    with pytest.raises(DataError, match=message):
        mapped(iteration)


def test_refuses_trees_that_do_not_fit():
    tables, graphs = nodes_of(ITERATIONS["clusters"])
    with pytest.raises(DataError, match="tables of 8 nodes, but graphs of 7"):
        CoreMapping(tables, graphs[:7], 4)
    with pytest.raises(DataError, match="of its group has no such one"):
        CoreMapping(tables[:1], graphs[:1], 4)
    at, row = next((at, row) for at, row in enumerate(tables[0]) if row.operation == "View")
    tables[0][at] = row._replace(dimensions="[1] -> ")
    with pytest.raises(DataError, match=r"dimensions .* are not those of View"):
        list(CoreMapping(tables, graphs, 4).pieces())
    tables[0][at] = row._replace(operation="Peek")
    with pytest.raises(DataError, match="unknown operation Peek"):
        list(CoreMapping(tables, graphs, 4).pieces())
