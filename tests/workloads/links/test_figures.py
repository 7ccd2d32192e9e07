"""Drawings of networks."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.workloads.links.figures import save_topology, topology_figure
from perfmodel.workloads.links.topology import Dimension, Topology
from tests.workloads.links.drawn import DRAWN, MESH, NODE, RAILS


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        *((name, ".png") for name in DRAWN),
        *((name, suffix) for name in ("mesh", "tree") for suffix in (".svg", ".pdf")),
    ],
)
def test_drawings_are_written(name, suffix, tmp_path):
    topology = DRAWN[name]
    loads = np.arange(topology.link_count, dtype=float)
    path = tmp_path / f"figure{suffix}"
    save_topology(topology, path, loads, name)
    start = path.read_bytes()[:200]
    assert start.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    assert path.stat().st_size > 3000
    assert [item.name for item in tmp_path.iterdir()] == [path.name], "no temporary file is left"


def test_equal_drawings_are_equal_files(tmp_path):
    for name in ("a.png", "b.png"):
        save_topology(RAILS, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    save_topology(MESH, tmp_path / "a.svg")
    assert "<dc:date>" not in (tmp_path / "a.svg").read_text()


def test_busy_links_are_wider_and_darker():
    loads = np.zeros(MESH.link_count)
    loads[MESH.route_links(1, 7)] = [10.0, 20.0, 40.0]
    figure = topology_figure(MESH, loads, "three links")
    idle, busy = figure.axes[0].collections[:2]
    assert len(idle.get_paths()) == MESH.link_count - 3
    assert len(busy.get_paths()) == 3
    widths = busy.get_linewidths()
    assert widths[0] < widths[1] < widths[2]
    brightness = busy.get_colors()[:, :3].sum(axis=1)
    assert brightness[0] > brightness[1] > brightness[2]
    assert len(figure.axes) == 2, "a colour bar stands beside the drawing"
    assert figure.axes[1].get_ylabel() == "time of a link: bytes / bandwidth"


def test_colours_say_time_so_that_equal_bytes_over_a_slower_link_stand_out():
    loads = np.zeros(RAILS.link_count)
    fast, slow = (np.flatnonzero(RAILS.link_dimension == index)[0] for index in (0, 1))
    loads[[fast, slow]] = 1e9  # 2.2 ms over 450 GB/s, 20 ms over 50 GB/s
    figure = topology_figure(RAILS, loads)
    busy = figure.axes[0].collections[1]
    assert busy.get_linewidths()[1] > 2 * busy.get_linewidths()[0]
    assert busy.get_colors()[0, :3].sum() > busy.get_colors()[1, :3].sum()
    assert figure.axes[1].get_ylim()[1] == pytest.approx(1e9 / 50e9)


def test_a_large_network_is_drawn_by_its_nodes():
    nodes = Topology((NODE.dimensions[0], Dimension("fat-tree", 18, 50e9, 1e-6)))
    loads = np.zeros(nodes.link_count)
    loads[nodes.route_links(7, 8)] = 1e9
    figure = topology_figure(nodes, loads, "ring")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"0–7", "136–143"} <= set(texts)
    idle, busy = figure.axes[0].collections[:2]
    assert len(busy.get_paths()) == 4  # up to the leaf, to the core, and down again
    assert len(idle.get_paths()) == 4 * 18 - 4
    title = " ".join(figure.axes[0].get_title().split())
    assert title.startswith("ring a box is 8 devices joined by nvlink, a line up to 8 parallel")
    assert "(1 of them busy)" in title


def test_a_drawing_that_could_not_be_read_is_refused(tmp_path):
    large = Topology((Dimension("torus", (8, 8, 8), 1.0, 0.0),))
    with pytest.raises(DataError, match=r"512 devices .* could not be read; at most 256"):
        save_topology(large, tmp_path / "large.png")
    with pytest.raises(DataError, match=r"ends in \.png"):
        save_topology(MESH, tmp_path / "mesh.bmp")
    with pytest.raises(DataError, match="does not exist"):
        save_topology(MESH, tmp_path / "nowhere" / "mesh.png")
    assert not list(tmp_path.iterdir())
