"""Execution traces of the nodes of a wafer, read back."""

from __future__ import annotations

from pathlib import Path

from perfmodel.cli.wafer.node_traces import write_node_traces
from perfmodel.wafer.export import write_nodes
from perfmodel.wafer.routing import core_routing
from perfmodel.workloads.formats.chakra.files import read_traces
from perfmodel.workloads.trace import COLLECTIVE, RECEIVE, SEND
from tests.wafer.test_export import LAYERS, node_setting


def test_traces_of_the_node_level(tmp_path: Path) -> None:
    routing = core_routing(node_setting(), "two_level")
    written = write_nodes(tmp_path / "out", node_setting(), (0, 9), routing, layers=LAYERS)
    files = write_node_traces(tmp_path / "out", node_setting(), written)
    assert len(files) == 9  # one of every node, and the groups
    traces = read_traces(tmp_path / "out/chakra/nodes")
    assert traces.devices == 8
    kinds = [set(trace.kinds.tolist()) for trace in traces.traces]
    assert SEND in kinds[0]
    assert {RECEIVE, COLLECTIVE} <= kinds[4]
    flops = sum(int(trace.num_ops[trace.num_ops > 0].sum()) for trace in traces.traces)
    products = written.table["macs"].values[:, 0].sum()
    assert flops >= 2 * products > 0
