"""The tree of files: the generator's own byte for byte, and folders that are left alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.files import read_unpacked
from perfmodel.compute.routing_counts import read_counts
from perfmodel.model.config import read_config
from perfmodel.wafer.formats.node_graph import read_node_graph
from perfmodel.wafer.formats.node_table import read_node_table
from perfmodel.wafer.twin import tree
from perfmodel.wafer.twin.node_rows import footprints
from perfmodel.wafer.twin.nodes import PREFILL, iterations
from perfmodel.wafer.twin.routing import GeneratorRouting
from perfmodel.wafer.twin.tree import write_tree
from tests.data import WAFER, needed
from tests.wafer.twin.examples import ITERATIONS, routed, system

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
    monkeypatch.setattr(tree, "OPEN_NODES", 3)
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
