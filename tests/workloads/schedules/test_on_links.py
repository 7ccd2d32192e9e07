"""One collective on the links of a network: worked by hand, and by property."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.links.topology import Dimension, Topology
from perfmodel.workloads.schedules.on_links import (
    link_loads,
    scheduled_time,
    step_times,
)
from perfmodel.workloads.schedules.schedule import schedule
from tests.workloads.schedules.networks import CASES, GB, TOPOLOGIES, US, nodes, one, options_of


def test_ring_all_reduce_on_a_ring():
    """6 steps of 1 GB over links of 50 GB/s, 1 µs each; both directions halve the bytes."""
    ring = one("ring", 4, latency=US)
    assert scheduled_time(ring, "all_reduce", "ring", 4 * GB, range(4)) == pytest.approx(
        6 * (0.020 + US)
    )
    both = scheduled_time(ring, "all_reduce", "bidirectional_ring", 4 * GB, range(4))
    assert both == pytest.approx(6 * (0.010 + US))
    np.testing.assert_allclose(
        step_times(ring, "all_reduce", "ring", 4 * GB, range(4)), [0.020 + US] * 6
    )


def test_two_shot_on_a_switch():
    """Each way 3/4 of 4 GB through every port of 100 GB/s, two links of 1 µs."""
    time = scheduled_time(one("switch", 4, latency=US), "all_reduce", "two_shot", 4 * GB, range(4))
    assert time == pytest.approx(2 * (0.030 + 2 * US))


def test_reduction_in_the_switch():
    """4 GB up, 4 GB down, one link of 1 µs each; chunks let both directions overlap."""
    switch = one("switch", 4, latency=US)
    arguments = (switch, "all_reduce", "in_network", 4 * GB, range(4))
    assert scheduled_time(*arguments) == pytest.approx(2 * (0.040 + US))
    assert scheduled_time(*arguments, pipelined=True) == pytest.approx(0.040 + 2 * US)
    # on rails, a group of equal places has the switch of its rail
    loads = link_loads(nodes(), "all_reduce", "in_network", GB, range(1, 16, 4))
    np.testing.assert_allclose(loads[loads > 0], [GB] * 8)


def test_double_binary_tree_pipelines_to_full_bandwidth():
    """Every port of a switch carries at most 2 S each way, as Sanders et al. 2009 promise."""
    time = scheduled_time(
        one("switch", 8), "all_reduce", "double_binary_tree", GB, range(8), pipelined=True
    )
    assert time == pytest.approx(2 * GB / (100 * GB))


def test_all_to_all_on_a_line_crosses_the_middle():
    """Line of 4: 2 × 2 blocks of 1 GB cross the middle link each way, 3 the outer ones."""
    line = one("mesh", 4)  # links of 50 GB/s
    arguments = (line, "all_to_all", "direct", 4 * GB, range(4))
    loads = link_loads(*arguments)
    np.testing.assert_allclose(sorted(loads / GB), [3, 3, 3, 3, 4, 4])
    assert scheduled_time(*arguments) == pytest.approx(4 / 50)


def test_traffic_matrix_has_the_loads_of_its_messages():
    mesh = TOPOLOGIES["mesh"]
    traffic = np.random.default_rng(3).uniform(0, GB, (8, 8))
    np.fill_diagonal(traffic, 0.0)
    loads = link_loads(mesh, "all_to_all", "direct", None, range(8), traffic=traffic)
    np.testing.assert_allclose(loads, mesh.link_loads_of_matrix(traffic))
    # a group in another order: position i of the matrix is the i-th device
    order = [3, 1, 4, 0, 5, 7, 2, 6]
    moved = np.zeros_like(traffic)
    moved[np.ix_(order, order)] = traffic
    loads = link_loads(mesh, "all_to_all", "direct", None, order, traffic=traffic)
    np.testing.assert_allclose(loads, mesh.link_loads_of_matrix(moved))


def test_rails_carry_what_leaves_the_node():
    """16 devices in 4 nodes: (n-d)/n S = 12 GB per adapter of 50 GB/s, 12 GB inside."""
    for algorithm, inside_first in (("rail_aligned", True), ("hierarchical", False)):
        steps = step_times(nodes(), "all_to_all", algorithm, 16 * GB, range(16), domain=4)
        inside, across = steps if inside_first else steps[::-1]
        assert inside == pytest.approx(12 / 400)
        assert across == pytest.approx(12 / 50)
        pipelined = scheduled_time(
            nodes(), "all_to_all", algorithm, 16 * GB, range(16), domain=4, pipelined=True
        )
        assert pipelined == pytest.approx(12 / 50)


def test_groups_at_the_same_time_share_links():
    """Line 0-1-2-3: {0, 2} and {1, 3} meet on the link 1-2, {0, 1} and {2, 3} do not."""
    line = one("mesh", 4)

    def time(groups):
        return scheduled_time(line, "all_gather", "direct", 2 * GB, groups)

    assert time([0, 2]) == pytest.approx(0.02)
    assert time([[0, 2], [1, 3]]) == pytest.approx(0.04)
    assert time([[0, 1], [2, 3]]) == pytest.approx(0.02)


@pytest.mark.parametrize(("name", "collective", "algorithm"), CASES)
def test_nothing_beats_bisection_and_latency(name, collective, algorithm):
    """What the halves owe each other, over the bandwidth between them; one route at least.

    For all-reduce, the sum of one half has to reach the other: S. For all-gather, half of
    the output; for reduce-scatter, as much in partial sums. For all-to-all, n²/4 blocks.
    """
    topology, size = TOPOLOGIES[name], 8 * GB
    options = options_of(collective, algorithm)
    owed = {"all_reduce": size, "all_gather": size / 2, "reduce_scatter": size / 2}
    crosses = owed.get(collective, 16 * size / 8)
    bound = crosses / topology.bisection_bandwidth()
    least = topology.link_latency.min()
    for pipelined in (False, True):
        time = scheduled_time(
            topology, collective, algorithm, size, range(8), pipelined=pipelined, **options
        )
        assert time >= bound * (1 - 1e-12) + least
    # and of one device: what it has to receive, through all of its links
    single = topology.cut_bandwidth([0])
    assert time >= size * (1 if collective == "all_reduce" else 7 / 8) / single * (1 - 1e-12)
    plan = schedule(collective, algorithm, 8, size, **options)
    assert time >= plan.steps * least + plan.sent().max() / topology.link_bandwidth.sum()


@pytest.mark.parametrize(("name", "collective", "algorithm"), CASES)
def test_time_grows_with_size_and_falls_with_bandwidth(name, collective, algorithm):
    options = options_of(collective, algorithm)
    slow = TOPOLOGIES[name]
    fast = Topology(
        tuple(
            Dimension(d.kind, d.shape, 2 * d.bandwidth, d.latency, d.oversubscription)
            for d in slow.dimensions
        )
    )

    def time(topology, size):
        return scheduled_time(topology, collective, algorithm, size, range(8), **options)

    empty, small, large = (time(slow, size) for size in (0.0, GB, 2 * GB))
    assert empty < small < large
    assert large == pytest.approx(2 * small - empty)  # latency plus a multiple of the size
    assert time(fast, 2 * GB) == pytest.approx(small)


@pytest.mark.parametrize("algorithm", [a for n, c, a in CASES if (n, c) == ("ring", "all_reduce")])
def test_a_symmetric_ring_has_no_first_device(algorithm):
    options = options_of("all_reduce", algorithm)
    times = [
        scheduled_time(
            TOPOLOGIES["ring"], "all_reduce", algorithm, GB, np.roll(np.arange(8), turn), **options
        )
        for turn in range(8)
    ]
    np.testing.assert_allclose(times, times[0])


def test_loads_are_conserved():
    """Bytes over all links are bytes of messages times their hops."""
    for name, topology in TOPOLOGIES.items():
        for collective in ("all_reduce", "all_to_all"):
            plan = schedule(collective, "ring", 8, GB)
            hops = topology.hops(plan.source, plan.target)
            loads = link_loads(topology, collective, "ring", GB, range(8))
            assert loads.sum() == pytest.approx((plan.bytes * hops).sum()), name


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ([0, 1, 1], "device 1 stands twice"),
        ([0, 1, 8], "device 8 does not exist; ids are 0 to 7"),
        ([0, -1], "device -1 does not exist"),
        ([], "whole numbers of devices"),
        ([0.5, 1.0], "whole numbers of devices"),
        ([[0, 1], [2]], "one list or several of equal length"),
    ],
)
def test_bad_groups(group, message):
    with pytest.raises(StrategyError, match=message):
        scheduled_time(TOPOLOGIES["ring"], "all_reduce", "ring", GB, group)


@pytest.mark.parametrize(
    ("topology", "group"),
    [(TOPOLOGIES["ring"], range(8)), (nodes(), range(8)), (TOPOLOGIES["fat-tree"], [0, 2, 4])],
)
def test_reduction_needs_one_switch(topology, group):
    with pytest.raises(StrategyError, match="no common switch that reduces"):
        scheduled_time(topology, "all_reduce", "in_network", GB, group)


def test_example_of_channels_in_the_document():
    """Four rings that leave through four adapters: 2 × 7/8 GB over 4 × 50 GB/s, 14 steps."""
    two = Topology((Dimension("switch", 4, 400 * GB, US), Dimension("rail", 2, 50 * GB, 3 * US)))
    ring = list(range(8))
    channels = [[(c + i) % 4 + 4 * node for node in (0, 1) for i in range(4)] for c in range(4)]
    arguments = {"collective": "all_reduce", "algorithm": "ring", "pipelined": True}
    latency = 14 * 8 * US  # inside, to another rail, and two links of that rail
    one_ring = scheduled_time(two, size=GB, groups=ring, **arguments)
    assert one_ring == pytest.approx(1.75 / 50 + latency)
    four = scheduled_time(two, size=GB / 4, groups=channels, **arguments)
    assert four == pytest.approx(1.75 / 200 + latency)
