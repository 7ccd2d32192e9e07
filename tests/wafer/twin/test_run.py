"""Runs in the generator's terms."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError, PerfModelError
from perfmodel.base.files import read_unpacked
from perfmodel.base.routing import read_counts
from perfmodel.model.config import read_config
from perfmodel.model.presets import load_model
from perfmodel.wafer.generator_files import read_node_graph, read_node_table
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.cores import mapping_order
from perfmodel.wafer.twin.routing import GeneratorRouting
from perfmodel.wafer.twin.run import (
    footprints,
    iteration_rows,
    read_nodes,
    run_nodes,
    write_traces,
    write_tree,
)
from perfmodel.wafer.twin.setting import PREFILL, iterations
from tests.data import ROUTING_COUNTS, WAFER, needed
from tests.wafer.twin.examples import ITERATIONS, LATENT, LLAMA, latent, routed, system
from tests.wafer.twin.examples import iteration as iteration_of
from tests.wafer.twin.test_cores import mapped, text


def tokens_of(iteration):
    return routed(iteration) if iteration.expert_layers else None


DEEPSEEK = load_model("deepseek-v3")
DEFAULT = system(56, data_parallel=7, tensor_parallel=4, sequence_parallel=2, shared_copies=4)
# huawei-csl/wse-workload-generator 85e1ae7, batch 1024, context 2048, fp16: node 0, sum of 56.
MACS = {
    "absorb_wkva": (606_928_896, 33_822_867_456),
    "absorb_absorbattn": (5_240_782_848, 292_057_776_128),
    "absorb_wo": (4_315_938_816, 240_518_168_576),
}


def named(iteration, quantity, layers=("decode0",)):
    """A quantity of every node, by the name of the row without its layer."""
    iteration = dataclasses.replace(iteration, layers=layers)
    found = {}
    for rows in iteration_rows(iteration, tokens_of(iteration)):
        for row in rows.table:
            name = row.name.removeprefix(f"{layers[0]}_").removeprefix("attn_")
            found.setdefault(name, []).append(getattr(row, quantity))
    return found


def test_anchors_of_the_default_example():
    iteration = iteration_of(DEEPSEEK, DEFAULT, 1024, 1, 2048)
    found = named(iteration, "macs")
    for name, (first, total) in MACS.items():
        assert (found[name][0], sum(found[name])) == (first, total)
    cache = named(iteration, "reads")["absorb_absorbattn"]
    assert (cache[0], sum(cache)) == (173_408_256, 9_663_676_416)
    sent = named(iteration, "sent")
    assert (sent["absorb_ar_sp"][0], sent["absorb_ar_tp"][0]) == (4_816_896, 2_107_392)


def test_prefill_is_naive_without_cache_or_causal_half():
    iteration = iteration_of(LATENT, system(2, sequence_parallel=2), 3, 5)
    found = named(iteration, "macs")
    assert "absorb_absorbattn" not in found
    assert found["naive_naiveattn"] == [3 * 3 * 4 * (4 + 2 + 4) * 5] * 2
    assert named(iteration, "reads")["naive_naiveattn"] == [0, 0]


def test_keys_of_few_heads_are_held_on_every_tensor_rank():
    found = named(iteration_of(LLAMA, system(8, tensor_parallel=8), 3, 1, 10), "footprint")
    assert found["kproj"] == [2 * 32 * 4] * 8
    assert found["selfattn"] == [2 * 2 * 3 * 10 * 1 * 4] * 8


def test_head_is_reduced_where_a_gather_would_do():
    width = -(-51 // 6)
    assert named(ITERATIONS["llama"], "macs", ("lm_head",))["head"] == [4 * 32 * width] * 6
    assert named(ITERATIONS["llama"], "sent", ("lm_head",))["ar"] == [4 * width * 2] * 6


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
def test_bytes_follow_the_precision(precision):
    iteration = iteration_of(LATENT, system(4, tensor_parallel=4), 3, 1, 9, precision)
    assert named(iteration, "footprint")["dense_down"] == [16 * 6 * iteration.element] * 4


def test_footprints_count_experts_that_are_not_used():
    every = ITERATIONS["clusters"]
    held = footprints(every, 12)
    # 12 experts on 8 nodes: two on the first four; shared ones on nodes 0 and 4.
    expert = 2 * 2 * 3 * 16 * 10
    cache = 3 * 6 * (6 + 2) * 2  # of the sequence that clusters differ in
    assert np.diff(held).tolist() == [-expert, 0, 0, -cache, -expert, 0, 0]
    assert (
        footprints(iteration_of(LATENT, every.system, 7, 1, 9, layers=("lm_head",)), 12).sum() == 0
    )
    longer = footprints(every, 14)
    assert (longer - held == 3 * every.local_batch * (6 + 2) * 2).all()


@pytest.mark.parametrize("name", ["clusters", "guessed", "prefill", "multicast", "allgather"])
def test_rows_of_experts_counted_token_by_token(name):
    iteration = ITERATIONS[name]
    experts = routed(iteration).of_layer(0)
    nodes = iteration.system.nodes
    dispatched, tokens, returned, produced = (np.zeros(nodes, int) for _ in range(4))
    pairs = set()
    for sequence in range(iteration.batch):
        owner, shared = iteration.owners[sequence], iteration.shared_nodes[sequence]
        for chosen in experts[sequence]:
            homes = [*iteration.expert_nodes[chosen], shared]
            others = set(homes) - {owner}
            dispatched[owner] += len(others)
            tokens[owner] += bool(others)
            for home in homes:
                produced[home] += 1
                returned[home] += home != owner
                pairs.add((home, owner))
    sent = np.zeros((3, nodes), int)
    receivers, multicasts = np.zeros(nodes, int), np.zeros(nodes, int)
    products, ways = 0, ("a2a_disp", "combine_a2a", "ag_comb")
    for rows in iteration_rows(
        dataclasses.replace(iteration, layers=("decode1",)), tokens_of(iteration)
    ):
        for row in rows.table:
            part = row.name.removeprefix("decode1_moe_")
            if part in ways:
                sent[ways.index(part), rows.node] = row.sent
            sent[1, rows.node] += row.sent * part.startswith("unicast_")
            receivers[rows.node] += row.operation == "Unicast"
            multicasts[rows.node] += part.startswith("multicast_exp_")
            products += row.macs * part.endswith("_down")
    vector = iteration.model.hidden_size * iteration.element
    assert products == produced.sum() * 16 * 10
    exchange = iteration.system.expert_exchange
    if exchange == "allgather":
        assert (sent[2] == produced * vector).all()
        return
    assert (sent[1] == returned * vector).all()
    if exchange == "multicast":
        assert (multicasts == tokens).all()
        assert receivers.tolist() == [sum(a == node for a, _ in pairs) for node in range(nodes)]
    else:
        assert (sent[0] == dispatched * vector).all()


def test_one_node_sends_nothing():
    assert {
        size
        for sizes in named(ITERATIONS["one node"], "sent", ("decode1",)).values()
        for size in sizes
    } == {0}


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (RoutedTokens(np.arange(3).reshape(1, 1, 1, 3), 12), r"are \(7, 1, 3\)"),
        (RoutedTokens(np.zeros((1, 7, 1, 1), int), 64), "64 experts; the model has 12"),
        (
            RoutedTokens(np.broadcast_to(np.arange(3), (2, 7, 1, 3)), 12),
            "2 layers; 'decode3' is the model's layer 2 with experts",
        ),
    ],
)
def test_wrong_routing(tokens, said):
    iteration = iteration_of(latent(4), ITERATIONS["clusters"].system, 7, 1, 9)
    with pytest.raises(DataError, match=said):
        list(iteration_rows(iteration, tokens))


@pytest.mark.parametrize("name", ITERATIONS)
def test_graphs_of_all_nodes_together_have_no_cycle(name):
    iteration = ITERATIONS[name]
    graphs = [[] for _ in range(iteration.system.nodes)]
    for rows in iteration_rows(iteration, tokens_of(iteration)):
        graphs[rows.node] += rows.graph
    assert len(mapping_order(graphs)) == sum(map(len, graphs))
    made = {tensor for graph in graphs for node in graph for tensor in node.outputs}
    read = {tensor for graph in graphs for node in graph for tensor in node.inputs}
    unmade = {tensor.partition(":")[2] for tensor in read - made}
    # Buffers that nothing is in are made by nothing.
    assert "queries" in unmade
    assert all("empty" in tensor for tensor in unmade - {"queries"})
    for graph in graphs:
        names = [node.name for node in graph]
        assert len(set(names)) == len(names)


def test_chosen_nodes_alone_are_as_among_all():
    iteration = ITERATIONS["clusters"]
    every = {}
    for rows in iteration_rows(iteration, tokens_of(iteration)):
        every.setdefault(rows.node, []).extend(rows.table)
    alone = [
        row for rows in iteration_rows(iteration, tokens_of(iteration), [5]) for row in rows.table
    ]
    assert alone == every[5]
    with pytest.raises(DataError, match="there is no node 8; known: 0 to 7"):
        next(iteration_rows(iteration, None, [8]))


def test_layers_with_experts_need_a_routing():
    iteration = ITERATIONS["clusters"]
    with pytest.raises(DataError, match="layer 'decode1' has experts"):
        list(iteration_rows(iteration, None))


def test_barriers_are_rows_and_not_in_the_graph():
    iteration = ITERATIONS["multicast"]
    parts = list(iteration_rows(iteration, tokens_of(iteration), [0]))
    barriers = [row.name for rows in parts for row in rows.table if row.operation == "Barrier"]
    assert barriers[:3] == [
        "decode1_moe_barrier_disp_mc",
        "decode1_moe_barrier_uc",
        "decode1_moe_barrier_mc",
    ]
    graph = {node.name for rows in parts for node in rows.graph}
    assert not graph & set(barriers)


SMALL = system(4, node_grid=(2, 2), core_grid=(4, 4), tensor_parallel=2, sequence_parallel=2)


def test_small_run_of_the_generator(tmp_path):
    model = read_config(needed(WAFER / "configs/deepseekv3.json"))
    asked = iterations(model, {"decode": SMALL}, 8, 1024, (0, 9), layers="decode10")
    counts = np.array(read_counts(WAFER / "bincounts.json"))
    routing = GeneratorRouting(asked, "empirical", counts)
    write_tree(tmp_path, asked, routing, kept=1034, nodes=[0])
    for name, reference in {
        "nodes/decode/node_0/decode0.csv": "nodes_node_0/decode0.csv",
        "nodes/decode/node_0/decode9.csv": "nodes_node_0/decode9.csv",
        "graph/node_0/decode0.csv": "graph_node_0/decode0.csv",
        "graph/node_0/decode9.csv": "graph_node_0/decode9.csv.gz",
    }.items():
        theirs = read_unpacked(WAFER / "out_small" / reference)
        assert (tmp_path / name).read_bytes() == theirs, name


def write(folder, name="clusters", **options):
    iteration = ITERATIONS[name]
    return write_tree(folder, {3: iteration}, lambda step: routed(iteration), kept=12, **options)


def test_every_file_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr("perfmodel.wafer.twin.run.OPEN_NODES", 3)
    count = write(tmp_path / "deep/out")
    files = sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()
    )
    assert files == sorted(
        [
            "deep/out/footprint.json",
            *(f"deep/out/nodes/decode/node_{node}/decode3.csv" for node in range(8)),
            *(f"deep/out/graph/node_{node}/decode3.csv" for node in range(8)),
        ]
    )
    tables = [read_node_table(path) for path in tmp_path.rglob("nodes/**/*.csv")]
    assert sum(map(len, tables)) == count
    assert all(read_node_graph(path) for path in tmp_path.rglob("graph/**/*.csv"))
    held = json.loads((tmp_path / "deep/out/footprint.json").read_text())
    assert held == footprints(ITERATIONS["clusters"], 12).tolist()


def test_prefill_has_its_own_names(tmp_path):
    iteration = ITERATIONS["prefill"]
    write_tree(tmp_path, {PREFILL: iteration}, lambda step: routed(iteration), kept=4, nodes=[1])
    assert (tmp_path / "nodes/prefill/node_1/prefill.csv").is_file()
    assert (tmp_path / "graph/node_1/prefill.csv").is_file()
    assert len(json.loads((tmp_path / "footprint.json").read_text())) == 1


def test_an_earlier_tree_is_replaced_and_other_files_are_not(tmp_path):
    write(tmp_path)
    (tmp_path / "mine.txt").write_text("kept")
    write(tmp_path, nodes=[2])
    assert [path.name for path in (tmp_path / "graph").iterdir()] == ["node_2"]
    (tmp_path / "nodes/notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds 'notes.txt', which is none of the generator's"):
        write(tmp_path)
    assert (tmp_path / "nodes/notes.txt").exists()
    assert (tmp_path / "mine.txt").exists()


def test_nothing_is_left_of_a_run_that_fails(tmp_path):
    with pytest.raises(DataError, match="no node 9"):
        write(tmp_path, nodes=[9])
    with pytest.raises(DataError, match="has experts"):
        write_tree(tmp_path, {0: ITERATIONS["clusters"]}, kept=12)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        write(tmp_path / "file")
    (tmp_path / "nodes").write_text("")
    with pytest.raises(DataError, match="is no folder"):
        write(tmp_path)


LLAMA_70B = load_model("llama-3-70b")
SYSTEMS = dict.fromkeys(("prefill", "decode"), system(4, tensor_parallel=2, sequence_parallel=2))


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.csv"))


def test_the_generators_small_run(tmp_path):
    rows = run_nodes(
        tmp_path,
        DEEPSEEK,
        SYSTEMS,
        8,
        1024,
        routing=f"empirical:{needed(ROUTING_COUNTS)}",
        nodes=[0],
        layers="decode10",
    )
    reference = (WAFER / "out_small/nodes_node_0/decode0.csv").read_bytes()
    assert (tmp_path / "nodes/decode/node_0/decode0.csv").read_bytes() == reference
    assert rows == 212 + 242
    assert files(tmp_path / "graph") == ["node_0/decode0.csv", "node_0/decode9.csv"]


def test_phases(tmp_path):
    run_nodes(tmp_path, LLAMA_70B, SYSTEMS, 2, 8, 3, phase="both", steps="all", layers="lm_head")
    assert len(files(tmp_path / "nodes")) == 4 * (1 + 3)
    run_nodes(tmp_path, LLAMA_70B, SYSTEMS, 2, 8, 3, phase="prefill", layers="decode0")
    assert files(tmp_path / "nodes") == [f"prefill/node_{node}/prefill.csv" for node in range(4)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"phase": "decod"}, "unknown 'decod'; known: decode, prefill, both"),
        ({"routing": "two_level"}, "does not draw 'two_level'; it has identical, uniform and"),
        ({"routing": "empirical"}, "does not draw 'empirical'"),
        ({"routing": "empirical:nowhere.json"}, "nowhere.json"),
        ({"generated": 0}, "key 'osl'"),
        ({"generated": 2**40}, "key 'osl'"),
        ({"generated": 2.0}, "key 'osl'"),
        ({"steps": "some"}, "unknown 'some'; known: ends, all"),
        ({"steps": [3, 10]}, "key 'steps': 10 is not among steps 0 to 9"),
        ({"layers": "decode99"}, "has no 'decode99'"),
        ({"nodes": [4]}, "no node 4"),
    ],
)
def test_wrong(tmp_path, changes, said):
    asked = {"batch": 8, "prompt": 16, "layers": "decode10", "routing": "uniform"}
    with pytest.raises(PerfModelError, match=said):
        run_nodes(tmp_path / "out", DEEPSEEK, SYSTEMS, **asked | changes)
    assert files(tmp_path) == []


ITERATION = replace(ITERATIONS["clusters"], layers=("decode0", "lm_head"))
SYSTEM = WaferSystem(8, (2, 4), (2, 2), 2, 2, 2, expert_parallel=8, shared_copies=2)


@pytest.fixture
def tree(tmp_path):
    """The nodes of one step."""
    write_tree(tmp_path, {0: ITERATION}, lambda _: routed(ITERATION), kept=10)
    return tmp_path


def test_traces_of_all_cores_are_written(tree):
    lines = write_traces(tree, "decode0", SYSTEM, element_bytes=1)
    files = sorted((tree / "traces").rglob("core_*.csv"))
    assert len(files) == 8 * 4
    assert sum(file.read_bytes().count(b"\n") for file in files) == lines
    expected = text(mapped(ITERATION, 4, element_bytes=1), 5, 4)
    folder = tree / "traces/decode/node_5/decode0"
    assert {core: (folder / f"core_{core}.csv").read_bytes() for core in range(4)} == expected


def test_some_nodes_and_layers_replace_what_was_there(tree):
    write_traces(tree, "decode0", SYSTEM, nodes=[2])
    write_traces(tree, "decode0", SYSTEM, nodes=[3], layers=["lm"])
    files = sorted((tree / "traces").rglob("core_*.csv"))
    assert {file.parent.parent.name for file in files} == {"node_3"}
    assert "decode0_" not in files[0].read_text()
    assert "lm_head" in files[0].read_text()


def test_says_what_is_missing(tree, tmp_path):
    with pytest.raises(DataError, match=r"decode4.csv' is missing: traces of cores need all 8"):
        write_traces(tree, "decode4", SYSTEM)
    with pytest.raises(DataError, match=r"step 'prefill': .* only, such as 'decode0'"):
        write_traces(tree, "prefill", SYSTEM)
    with pytest.raises(DataError, match="there is no node 8; there are 8"):
        write_traces(tree, "decode0", SYSTEM, nodes=[8])
    with pytest.raises(DataError, match="layer 'decode9' has no operation"):
        write_traces(tree, "decode0", SYSTEM, layers=["decode9"])
    with pytest.raises(DataError, match="holds no tree of nodes"):
        read_nodes(tmp_path / "nowhere", "decode0", 8)
    assert not (tree / "traces").exists()
    graph = tree / "graph/node_2/decode0.csv"
    lines = graph.read_text().splitlines()
    graph.write_text("\n".join(lines[:-1]))
    with pytest.raises(FormatError, match=r"node_2/decode0.csv: has no 'lm_head_ar', which"):
        read_nodes(tree, "decode0", 8)


def test_other_folders_of_that_name_stay(tree):
    (tree / "traces/mine").mkdir(parents=True)
    (tree / "traces/mine/notes").mkdir()
    with pytest.raises(DataError, match="holds something else than traces"):
        write_traces(tree, "decode0", SYSTEM)
    assert (tree / "traces/mine/notes").is_dir()
    assert not list(tree.glob(".traces*"))
