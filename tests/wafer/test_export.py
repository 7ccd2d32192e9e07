"""Graphs as GraphML, read back as XML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.model.presets import load_model
from perfmodel.store.netcdf import read_netcdf
from perfmodel.wafer import export as wafer_nodes
from perfmodel.wafer.core_columns import read_cores
from perfmodel.wafer.core_trace import read_core_trace
from perfmodel.wafer.cores.expert_routes import Routes
from perfmodel.wafer.cores.instructions import BARRIER, CORE, OPCODE, OPCODES
from perfmodel.wafer.export import write_cores, write_graphml, write_nodes
from perfmodel.wafer.routing import core_routing
from perfmodel.wafer.setting import CoreSetting, check_layers
from perfmodel.wafer.system import WaferSystem
from tests.wafer.cores.examples import operations, setting

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


def node_setting() -> CoreSetting:
    return CoreSetting(load_model("deepseek-v3"), SYSTEM, "decode", 4, 32)


def test_files_of_the_node_level(tmp_path: Path) -> None:
    routing = core_routing(node_setting(), "two_level")
    written = write_nodes(tmp_path / "out", node_setting(), (0, 9), routing, layers=LAYERS)
    table = read_netcdf(tmp_path / "out/nodes.nc")
    assert dict(table.sizes) == dict(written.table.sizes)
    np.testing.assert_array_equal(table["macs"].values, written.table["macs"].values)
    assert all(table[name].attrs.get("units") for name in ("reads", "sent", "flops"))
    assert "all_reduce" in table["kind"].attrs["flag_meanings"]
    assert written.vertices > 0 < written.links


def test_graphs_that_nobody_could_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wafer_nodes, "MOST_VERTICES", 10)
    routing = core_routing(node_setting(), "uniform")
    with pytest.raises(DataError, match="exceed 10; choose --layers, or --no-graph"):
        write_nodes(tmp_path / "out", node_setting(), (0,), routing, layers=LAYERS)
    assert not list(tmp_path.iterdir())


def write(folder: Path, name: str = "stages", **options: object) -> object:
    made = setting(name)
    return write_cores(
        folder,
        made,
        Routes(made, core_routing(made, "two_level")),
        nodes=[1, 6],
        steps=[1],
        layers=check_layers(made, ["decode0", "decode15", "decode16", "lm_head"]),
        **options,  # type: ignore[arg-type]
    )


def test_text_and_columns_hold_the_same(tmp_path: Path) -> None:
    written = write(tmp_path / "out")
    _, found = read_cores(tmp_path / "out")
    by_node = {1: operations("stages")[1], 6: operations("stages")[6]}
    assert [name for _, _, name, _ in found] == [
        one.name for node in (1, 6) for one in by_node[node]
    ]
    for node in (1, 6):
        for core in range(6):
            path = tmp_path / f"out/traces/decode/node_{node}/decode1/core_{core}.csv"
            lines = list(read_core_trace(path))
            assert [one.number for one in lines] == list(range(len(lines)))
            wanted = [
                (OPCODES[row[OPCODE]], one.name)
                for one in by_node[node]
                for row in one.instructions.lines
                if row[CORE] == node * 6 + core
            ]
            assert [(one.name, one.comment) for one in lines] == wanted
            names = [one.arguments for one in lines if one.name == OPCODES[BARRIER]]
            assert len(set(names)) == len(names)
    totals = written
    assert totals.counts.sum() == sum(  # type: ignore[attr-defined]
        len(one.instructions.lines) for several in by_node.values() for one in several
    )
    assert totals.occupancy > 0.95  # type: ignore[attr-defined]


def test_only_what_is_asked_for_is_written_and_replaced(tmp_path: Path) -> None:
    write(tmp_path, forms=["columns"])
    assert [path.name for path in tmp_path.iterdir()] == ["cores.nc"]
    write(tmp_path, forms=["text"])
    (tmp_path / "traces/decode/node_1/decode1/core_0.csv").write_text("old")
    write(tmp_path, forms=["text"])
    assert len(list(tmp_path.glob("traces/*/*/*/*.csv"))) == 12
    assert "old" not in (tmp_path / "traces/decode/node_1/decode1/core_0.csv").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cores.nc", "traces"]


def test_nothing_is_left_of_what_fails(tmp_path: Path) -> None:
    made = setting("absorbed")

    def wrong(step: int, layer: int) -> np.ndarray:
        raise DataError("no routing")

    for form in ("text", "columns"):
        with pytest.raises(DataError, match="no routing"):
            write_cores(
                tmp_path / "new",
                made,
                Routes(made, wrong),
                nodes=[0],
                steps=[0],
                layers=check_layers(made, ["decode3"]),
                forms=[form],
            )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="cannot write"):
        write(tmp_path / "a/b")
    with pytest.raises(DataError, match="name a folder"):
        write("")  # type: ignore[arg-type]


def test_tiles_have_to_fit_a_bank(tmp_path: Path) -> None:
    small = replace(setting("absorbed"), bank_size=4096)
    routes = Routes(small, core_routing(small, "two_level"))
    layers = check_layers(small, ["decode0"])
    with pytest.raises(StrategyError, match=r"key 'bank_size': the tile .* of decode0_"):
        write_cores(tmp_path / "new", small, routes, nodes=[0], steps=[0], layers=layers)
    assert not (tmp_path / "new").exists()
    large = replace(small, bank_size=2**31)
    routes = Routes(large, core_routing(large, "two_level"))
    assert write_cores(
        tmp_path / "new", large, routes, nodes=[0], steps=[0], layers=layers, forms=["columns"]
    ).macs
