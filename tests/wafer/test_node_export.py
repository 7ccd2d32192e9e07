"""Graphs as GraphML, read back as XML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.model.presets import load_model
from perfmodel.store.netcdf import read_netcdf
from perfmodel.wafer import node_export as wafer_nodes
from perfmodel.wafer.node_export import write_graphml, write_nodes
from perfmodel.wafer.routing import core_routing
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import WaferSystem
from perfmodel.workloads.formats.chakra.files import read_traces
from perfmodel.workloads.trace import COLLECTIVE, RECEIVE, SEND

SPACE = "{http://graphml.graphdrawing.org/xmlns}"


def test_a_graph_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "graph.graphml"
    vertices = [{"name": "a<b", "node": 3, "sent": 1.5}, {"name": "c&d", "node": 4, "sent": 0.0}]
    keys = {"name": str, "node": int, "sent": float}
    assert write_graphml(path, vertices, [(0, 1)], keys) == (2, 1)
    root = ElementTree.parse(path).getroot()
    kinds = {key.get("id"): key.get("attr.type") for key in root.iter(f"{SPACE}key")}
    assert kinds == {"name": "string", "node": "long", "sent": "double"}
    found = [{data.get("key"): data.text for data in node} for node in root.iter(f"{SPACE}node")]
    assert found == [{key: str(value) for key, value in one.items()} for one in vertices]
    edge = next(root.iter(f"{SPACE}edge"))
    assert (edge.get("source"), edge.get("target")) == ("n0", "n1")


SYSTEM = WaferSystem(
    nodes=8,
    node_grid=(2, 4),
    core_grid=(2, 2),
    tensor_parallel=2,
    sequence_parallel=2,
    pipeline_parallel=2,
    expert_parallel=2,
    ffn_tensor_parallel=2,
)
LAYERS = ["decode0", "decode60", "lm_head"]


def setting() -> CoreSetting:
    return CoreSetting(load_model("deepseek-v3"), SYSTEM, "decode", 4, 32)


def test_files_of_the_node_level(tmp_path: Path) -> None:
    routing = core_routing(setting(), "two_level")
    written = write_nodes(tmp_path / "out", setting(), (0, 9), routing, layers=LAYERS)
    table = read_netcdf(tmp_path / "out/nodes.nc")
    assert dict(table.sizes) == dict(written.table.sizes)
    np.testing.assert_array_equal(table["macs"].values, written.table["macs"].values)
    assert all(table[name].attrs.get("units") for name in ("reads", "sent", "flops"))
    assert "all_reduce" in table["kind"].attrs["flag_meanings"]
    traces = read_traces(tmp_path / "out/chakra/nodes")
    assert traces.devices == 8
    kinds = [set(trace.kinds.tolist()) for trace in traces.traces]
    assert SEND in kinds[0]
    assert {RECEIVE, COLLECTIVE} <= kinds[4]
    flops = sum(int(trace.num_ops[trace.num_ops > 0].sum()) for trace in traces.traces)
    products = written.table["macs"].values[:, 0].sum()
    assert flops >= 2 * products > 0
    assert written.vertices > 0 < written.links


def test_graphs_that_nobody_could_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wafer_nodes, "MOST_VERTICES", 10)
    routing = core_routing(setting(), "uniform")
    with pytest.raises(DataError, match="exceed 10; choose --layers, or --no-graph"):
        write_nodes(tmp_path / "out", setting(), (0,), routing, layers=LAYERS)
    assert not list(tmp_path.iterdir())
