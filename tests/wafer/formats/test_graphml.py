"""Graphs as GraphML, read back as XML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from perfmodel.wafer.formats.graphml import write_graphml

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
