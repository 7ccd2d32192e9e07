"""Operations over the links of a topology, ASTRA-sim's network files, and drawings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import DataError, FormatError, StrategyError
from perfmodel.base.units import GIB
from perfmodel.formats.astra.records import TOPOLOGIES, AstraNetwork
from perfmodel.formats.astra.topology import (
    KIND_OF,
    astra_of_topology,
    read_topology,
    topology_of_astra,
    write_topology,
)
from perfmodel.hwprofiles import load_hardware
from perfmodel.network.links import operations as topology_operations
from perfmodel.network.links.layout import vertex_positions
from perfmodel.network.links.operations import operation_loads, operation_schedule
from perfmodel.network.links.topology import Dimension, Topology
from perfmodel.network.schedules import schedule as collective_schedules
from perfmodel.network.schedules.schedule import schedule
from perfmodel.sweeps.figures import save_topology, topology_figure

GB = 1e9
MESH = Topology((Dimension("mesh", (4, 4), 200 * GB, 1e-6),))
RING = Topology((Dimension("ring", (16,), 100 * GB, 1e-6),))
NODE = Topology((Dimension("switch", (8,), 450 * GB, 0.3e-6, name="nvlink"),))
RAILS = Topology((*NODE.dimensions, Dimension("rail", (2,), 50 * GB, 1e-6)))


# Operations -----------------------------------------------------------------------------


def test_the_reducer_of_schedules_is_the_one_that_loads_know():
    assert topology_operations.REDUCER == collective_schedules.REDUCER


def test_ring_all_reduce_loads_every_clockwise_link_alike():
    # 2 (n-1)/n S over each of the n links in the direction of the ring.
    size = 16 * 2**20
    loads = operation_loads(RING, schedule("all_reduce", "ring", 16, size), np.arange(16))
    assert loads[:16] == pytest.approx(np.full(16, 2 * 15 / 16 * size))
    assert np.all(loads[16:] == 0.0)


def test_row_major_ring_on_a_mesh_shares_its_long_way_back():
    # 3 → 4 passes 2, 1, 0: the row's links back to x = 0 carry the ring too.
    loads = operation_loads(MESH, schedule("all_gather", "ring", 16, 16.0), np.arange(16))
    back = MESH.route_links(3, 4)
    assert MESH.route(3, 4).tolist() == [3, 2, 1, 0, 4]
    assert loads[back].tolist() == [15.0] * 4
    # 15 → 0 goes along x first, then up the column.
    assert MESH.route(15, 0).tolist() == [15, 14, 13, 12, 8, 4, 0]


def test_groups_at_the_same_time_add_up():
    rows = [np.arange(4) + 4 * row for row in range(4)]
    each = [operation_loads(MESH, schedule("all_reduce", "ring", 4, 8.0), row) for row in rows]
    together = sum(each)
    assert together.max() == max(load.max() for load in each)
    columns = operation_loads(MESH, schedule("all_reduce", "ring", 4, 8.0), [0, 4, 8, 12])
    assert (together + columns).sum() == pytest.approx(together.sum() + columns.sum())


def test_a_switch_that_reduces_takes_the_buffer_once_up_and_once_down():
    loads = operation_loads(NODE, schedule("all_reduce", "in_network", 8, 1e6), np.arange(8))
    assert loads == pytest.approx(np.full(16, 1e6))
    across = operation_loads(RAILS, schedule("all_reduce", "in_network", 2, 1e6), [3, 11])
    assert np.count_nonzero(across) == 4
    assert set(RAILS.link_dimension[np.flatnonzero(across)]) == {1}
    with pytest.raises(StrategyError, match="not on one switch or rail"):
        operation_loads(RAILS, schedule("all_reduce", "in_network", 2, 1e6), [3, 12])
    with pytest.raises(StrategyError, match="not on one switch or rail"):
        operation_loads(RING, schedule("all_reduce", "in_network", 16, 1e6), np.arange(16))


@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "halving_doubling"),
        ("all_to_all", "direct"),
        ("all_gather", "bidirectional_ring"),
        ("broadcast", "double_binary_tree"),
    ],
)
def test_loads_conserve_bytes_times_hops(operation, algorithm):
    found = schedule(operation, algorithm, 16, 1e6)
    order = np.random.default_rng(2).permutation(16)
    for topology in (MESH, RING, RAILS):
        loads = operation_loads(topology, found, order)
        hops = topology.hops(order[found.source], order[found.target])
        assert loads.sum() == pytest.approx((found.bytes * hops).sum())


def test_two_level_algorithms_take_the_innermost_dimension_as_domain():
    aligned = operation_schedule(RAILS, "all_to_all", "rail_aligned", np.arange(16), 16e6)
    loads = operation_loads(RAILS, aligned, np.arange(16))
    outer = loads[RAILS.link_dimension == 1]
    # Every device brings the 8 blocks of 1 MB for the other node over its own rail.
    assert outer == pytest.approx(np.full(outer.size, 8e6))
    every_other = operation_schedule(RAILS, "all_to_all", "rail_aligned", range(0, 16, 2), 8e6)
    assert every_other.members == 8
    assert operation_schedule(RAILS, "all_reduce", None, [0, 1], 1.0).algorithm == "ring"


def test_groups_that_do_not_fit_are_refused():
    ring = schedule("all_reduce", "ring", 4, 1.0)
    for members in ([0, 1, 2], [0, 1, 2, 2]):
        with pytest.raises(StrategyError, match="4 members needs as many different devices"):
            operation_loads(MESH, ring, members)
    with pytest.raises(StrategyError, match="source 16 does not exist"):
        operation_loads(MESH, ring, [0, 1, 2, 16])
    with pytest.raises(StrategyError, match="did you mean all_reduce"):
        operation_schedule(MESH, "all_reduced", None, [0, 1], 1.0)


# ASTRA-sim ------------------------------------------------------------------------------

astra_networks = st.lists(
    st.tuples(
        st.sampled_from(TOPOLOGIES),
        st.integers(2, 9),
        st.sampled_from([12.5, 25.0, 50.0, 400.0, 1 / 3]),
        st.sampled_from([0.0, 50.0, 500.0, 123.25]),
    ),
    min_size=1,
    max_size=4,
).map(lambda rows: AstraNetwork(*map(tuple, zip(*rows, strict=True))))


@given(astra_networks)
def test_networks_of_astra_sim_come_back_as_they_were(network):
    topology = topology_of_astra(network)
    assert topology.device_count == network.devices
    back = astra_of_topology(topology)
    assert back.topology == network.topology
    assert back.npus_count == network.npus_count
    assert back.bandwidth_gib_per_second == pytest.approx(network.bandwidth_gib_per_second)
    assert back.latency_nanoseconds == pytest.approx(network.latency_nanoseconds)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("size", [2, 4, 6])
def test_bandwidth_of_astra_sim_is_that_of_every_link(name, size):
    topology = topology_of_astra(AstraNetwork((name,), (size,), (50.0,), (500.0,)))
    assert topology.dimensions[0].kind == KIND_OF[name]
    assert topology.link_bandwidth == pytest.approx(np.full(topology.link_count, 50 * GIB))
    assert topology.link_latency == pytest.approx(np.full(topology.link_count, 500e-9))


def test_hops_are_those_of_the_analytical_backend():
    # Ring min(d, n-d), FullyConnected 1, Switch 2, Mesh2D |dx| + |dy| with rows of width 2.
    def hops(name):
        network = AstraNetwork((name,), (6,), (50.0,), (500.0,))
        return topology_of_astra(network).hops(0, np.arange(6)).tolist()

    assert hops("Ring") == [0, 1, 2, 3, 2, 1]
    assert hops("FullyConnected") == [0, 1, 1, 1, 1, 1]
    assert hops("Switch") == [0, 2, 2, 2, 2, 2]
    assert hops("Mesh2D") == [0, 1, 2, 1, 2, 3]


def test_a_torus_is_written_as_one_ring_per_axis():
    torus = Topology((Dimension("torus", (4, 2, 3), 6 * GIB, 1e-6),))
    network = astra_of_topology(torus)
    assert network == AstraNetwork(
        ("Ring",) * 3, (4, 2, 3), (1.0, 2.0, 1.0), (1000.0, 1000.0, 1000.0)
    )
    again = topology_of_astra(network)
    assert np.array_equal(again.link_source, torus.link_source)
    assert np.array_equal(again.link_target, torus.link_target)
    assert again.link_bandwidth == pytest.approx(torus.link_bandwidth)


def test_a_topology_file_is_written_and_read(tmp_path):
    path = tmp_path / "network.yml"
    write_topology(RAILS, path)
    assert read_topology(path).link_bandwidth == pytest.approx(RAILS.link_bandwidth)
    assert [item.kind for item in read_topology(path).dimensions] == ["switch", "switch"]


def test_a_fat_tree_is_written_as_rails_only_where_asked(tmp_path):
    topology = Topology.from_hardware(load_hardware("dgx-h100"), 32)
    with pytest.raises(FormatError, match=r"dimension 1 \('infiniband'\) is a fat-tree"):
        write_topology(topology, tmp_path / "network.yml")
    assert not (tmp_path / "network.yml").exists()
    network = astra_of_topology(topology, rails=True)
    assert network.topology == ("Switch", "Switch")
    assert network.npus_count == (8, 4)
    # Two hops between neighbours in place of four: the same 2.7 µs.
    assert network.latency_nanoseconds == (300.0, 1350.0)


@pytest.mark.parametrize(
    ("dimension", "message"),
    [
        (Dimension("fat-tree", (4,), 1.0, 0.0, 2.0), "fat-tree of oversubscription 2"),
        (Dimension("mesh", (8, 2), 1.0, 0.0), "mesh of 8x2.*its Mesh2D of 16 is 4x4"),
        (Dimension("mesh", (4,), 1.0, 0.0), "Mesh2D of 4 is 2x2"),
        (Dimension("mesh", (2, 2, 2), 1.0, 0.0), "mesh of 2x2x2"),
        (Dimension("ring", (1,), 1.0, 0.0), "one device"),
    ],
)
def test_what_astra_sim_lacks_is_refused(dimension, message):
    with pytest.raises(FormatError, match=message):
        astra_of_topology(Topology((dimension,)), rails=True)


# Drawings -------------------------------------------------------------------------------

DRAWN = {
    "mesh": MESH,
    "ring": RING,
    "node": NODE,
    "rails": RAILS,
    "torus": Topology((Dimension("torus", (3, 3, 3), 1.0, 0.0),)),
    "rings": Topology((Dimension("ring", (4,), 1.0, 0.0),) * 4),
    "tree": Topology(
        (Dimension("fully-connected", (8,), 1.0, 0.0), Dimension("fat-tree", (4,), 1.0, 0.0))
    ),
    "pods": Topology(
        (
            Dimension("switch", (8,), 1.0, 0.0),
            Dimension("rail", (4,), 1.0, 0.0),
            Dimension("fat-tree", (2,), 1.0, 0.0, 2.0),
        )
    ),
    "one": Topology((Dimension("switch", (1,), 1.0, 0.0),)),
    "largest": Topology((Dimension("switch", (256,), 1.0, 0.0),)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_no_two_vertices_stand_in_one_place(name):
    topology = DRAWN[name]
    places = vertex_positions(topology)
    assert places.shape == (topology.vertex_count, 2)
    apart = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    np.fill_diagonal(apart, 9.0)
    assert apart.min() > 0.3


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize("name", DRAWN)
def test_drawings_are_written(name, suffix, tmp_path):
    if suffix != ".png" and name in ("largest", "rings", "pods"):
        pytest.skip("slow, and no different from the others")
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
    assert figure.axes[1].get_ylabel() == "bytes over a link"


def test_a_drawing_that_could_not_be_read_is_refused(tmp_path):
    large = Topology((Dimension("torus", (8, 8, 8), 1.0, 0.0),))
    with pytest.raises(DataError, match=r"512 devices .* could not be read; at most 256"):
        save_topology(large, tmp_path / "large.png")
    with pytest.raises(DataError, match=r"ends in \.png"):
        save_topology(MESH, tmp_path / "mesh.bmp")
    with pytest.raises(DataError, match="does not exist"):
        save_topology(MESH, tmp_path / "nowhere" / "mesh.png")
    assert not list(tmp_path.iterdir())
