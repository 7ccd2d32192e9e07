"""Core traces beside a tree of nodes: what is written, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import DataError, FormatError
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.core_tree import read_nodes, write_traces
from perfmodel.wafer.twin.tree import write_tree
from tests.wafer.twin.examples import ITERATIONS, routed
from tests.wafer.twin.test_cores import mapped, text

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
