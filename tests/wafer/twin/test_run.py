"""Runs in the generator's terms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import DataError, FormatError, PerfModelError
from perfmodel.model.presets import load_model
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.run import read_nodes, run_nodes, write_traces
from perfmodel.wafer.twin.tree import write_tree
from tests.data import ROUTING_COUNTS, WAFER, needed
from tests.wafer.twin.examples import ITERATIONS, routed, system
from tests.wafer.twin.test_cores import mapped, text

DEEPSEEK, LLAMA = load_model("deepseek-v3"), load_model("llama-3-70b")
SMALL = system(4, tensor_parallel=2, sequence_parallel=2)
SYSTEMS = {"prefill": SMALL, "decode": SMALL}


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
    run_nodes(tmp_path, LLAMA, SYSTEMS, 2, 8, 3, phase="both", steps="all", layers="lm_head")
    assert len(files(tmp_path / "nodes")) == 4 * (1 + 3)
    run_nodes(tmp_path, LLAMA, SYSTEMS, 2, 8, 3, phase="prefill", layers="decode0")
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
