"""What operations load the links of a network with."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.schedules.loads import operation_loads, operation_schedule
from perfmodel.workloads.schedules.schedule import schedule
from tests.workloads.links.drawn import MESH, NODE, RAILS, RING


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
