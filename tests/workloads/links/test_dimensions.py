"""Dimensions of a network: what one holds, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.workloads.links.topology import Dimension
from tests.workloads.links.networks import GB, NODES, network, one


def test_oversubscription_of_a_rail_narrows_its_ports():
    nodes = one("switch", 4, bandwidth=100 * GB)
    full, half = (
        network(nodes, one("rail", 8, bandwidth=50 * GB, oversubscription=over))
        for over in (1.0, 2.0)
    )
    # device 0 of node 0 to device 0 of node 1, over the first rail
    assert full.message_time(0, 4, 1e9) == pytest.approx(1e9 / (50 * GB), rel=1e-3)
    assert half.message_time(0, 4, 1e9) == pytest.approx(1e9 / (25 * GB), rel=1e-3)
    assert half.message_time(0, 1, 1e9) == full.message_time(0, 1, 1e9)
    assert half.bisection_bandwidth() == pytest.approx(full.bisection_bandwidth() / 2)


def test_oversubscription_narrows_the_uplinks_of_the_leaves():
    tree = network(
        one("switch", 8, bandwidth=450 * GB),
        one("fat-tree", 2, bandwidth=50 * GB, oversubscription=4.0),
    )
    # Eight devices send 1 GB each to the other node: 8 GB through 8 × 50 / 4 = 100 GB/s.
    loads = tree.link_loads(np.arange(8), np.arange(8, 16), 1 * GB)
    assert tree.load_time(loads) == pytest.approx(8 / 100)
    assert NODES.load_time(loads) == pytest.approx(1 / 50)


def test_a_dimension_outside_a_fat_tree_follows_it():
    topology = network(one("ring", 3), one("fat-tree", 2), one("ring", 4))
    # 1 = (1, 0, 0), 17 = (2, 1, 2): from adapter to adapter at (2, 1, 0) = 5, then two hops.
    route = topology.route(1, 17).tolist()
    assert [vertex for vertex in route if vertex < 24] == [1, 5, 11, 17]
    # Without a change of domain the inner ring does it: (0, 1, 0) → (2, 1, 0) is one hop.
    assert topology.route(3, 5).tolist() == [3, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rings", (4,), 1.0, 0.0), "did you mean ring"),
        (("ring", (4, 4), 1.0, 0.0), "a ring has one side"),
        (("mesh", (2, 2, 2, 2), 1.0, 0.0), "1 to 3 sides"),
        (("ring", (0,), 1.0, 0.0), "at least 1"),
        (("ring", (2.5,), 1.0, 0.0), "whole number"),
        (("ring", (), 1.0, 0.0), "one side"),
        (("ring", (4,), 0.0, 0.0), "above 0"),
        (("ring", (4,), float("nan"), 0.0), "finite"),
        (("ring", (4,), float("inf"), 0.0), "finite"),
        (("ring", (4,), "fast", 0.0), "finite"),
        (("ring", (4,), 1.0, -1e-9), "at least 0"),
        (("fat-tree", (4,), 1.0, 0.0, 0.5), "at least 1"),
        (("switch", (4,), 1.0, 0.0, 2.0), "only a fat-tree and a rail have uplinks"),
    ],
)
def test_malformed_dimensions_are_refused(arguments, message):
    with pytest.raises(HardwareError, match=message):
        Dimension(*arguments)
