"""Collectives side by side on shared links: worked by hand, and by property."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.links.topology import Dimension, Topology
from perfmodel.workloads.schedules.contention import Operation, concurrent_times
from perfmodel.workloads.schedules.on_links import (
    link_loads,
    scheduled_time,
)
from tests.workloads.schedules.networks import CASES, GB, TOPOLOGIES, US, nodes, one, options_of


def p2p(source: int, target: int, size: float, **more) -> Operation:
    return Operation("point_to_point", "direct", size, [source, target], **more)


@pytest.mark.parametrize("pipelined", [False, True])
def test_two_collectives_on_one_ring_take_twice_as_long(pipelined):
    """Equal all-reduces on the same links: half of the bandwidth for each, to the end.

    Alone, 2 × 3/4 of 4 GB go round over links of 50 GB/s.
    """
    operation = Operation("all_reduce", "ring", 4 * GB, range(4), pipelined=pipelined)
    times = concurrent_times(one("ring", 4), [operation, operation])
    np.testing.assert_allclose(times.alone, 0.120)
    np.testing.assert_allclose(times.finish, 0.240)
    np.testing.assert_allclose(times.slowdown, 2.0)


@pytest.mark.parametrize("pipelined", [False, True])
def test_gradients_under_a_pipeline_send(pipelined):
    """All-reduce of 4 GB over 4 adapters of 100 GB/s, under a send of 3 GB from device 0.

    Alone they keep device 0's adapter busy for 6 GB and 3 GB: 60 ms and 30 ms. Shared, both
    have 50 GB/s until the send is through at 60 ms; 3 GB of the all-reduce are left: 90 ms.
    """
    gradients = Operation("all_reduce", "ring", 4 * GB, range(4), pipelined=pipelined)
    times = concurrent_times(one("switch", 8), [gradients, p2p(0, 4, 3 * GB)])
    np.testing.assert_allclose(times.alone, [0.060, 0.030])
    np.testing.assert_allclose(times.finish, [0.090, 0.060])


def test_parking_lot_of_sends():
    """0→3 of 1 GB meets 2 GB on each of three links of 50 GB/s: 25 each until 40 ms.

    The short ones then have 1 GB left at 50 GB/s: 60 ms.
    """
    sends = [p2p(0, 3, GB), *(p2p(i, i + 1, 2 * GB) for i in range(3))]
    times = concurrent_times(one("mesh", 4), sends)
    np.testing.assert_allclose(times.finish, [0.040, 0.060, 0.060, 0.060])
    np.testing.assert_allclose(times.alone, [0.020, 0.040, 0.040, 0.040])


def test_a_later_start_slows_the_rest_only():
    """4 GB at 100 GB/s; after 20 ms a send of 1 GB halves it until 40 ms: 1 GB left, 50 ms."""
    times = concurrent_times(one("switch", 4), [p2p(0, 1, 4 * GB), p2p(0, 2, GB, start=0.020)])
    np.testing.assert_allclose(times.finish, [0.050, 0.040])
    np.testing.assert_allclose(times.duration, [0.050, 0.020])
    np.testing.assert_allclose(times.slowdown, [1.25, 2.0])


def test_weights_divide_an_adapter():
    """3 channels against 1: 75 and 25 GB/s; 3 GB are through at 40 ms, as is 1 GB."""
    times = concurrent_times(one("switch", 4), [p2p(0, 1, 3 * GB, weight=3.0), p2p(0, 2, GB)])
    np.testing.assert_allclose(times.finish, [0.040, 0.040])


def test_disjoint_groups_do_not_disturb_each_other():
    groups = [Operation("all_to_all", "direct", GB, range(4 * i, 4 * i + 4)) for i in range(4)]
    times = concurrent_times(nodes(US), groups)
    np.testing.assert_allclose(times.slowdown, 1.0)


def test_groups_of_one_operation_are_the_same_as_operations():
    line = one("mesh", 4, latency=US)
    together = Operation("all_gather", "direct", 2 * GB, [[0, 2], [1, 3]])
    apart = [Operation("all_gather", "direct", 2 * GB, group) for group in ([0, 2], [1, 3])]
    joint = concurrent_times(line, [together])
    assert joint.finish[0] == pytest.approx(0.04 + 2 * US)
    np.testing.assert_allclose(concurrent_times(line, apart).finish, joint.finish[0])


def test_a_single_member_is_done_when_it_begins():
    alone = Operation("all_reduce", "ring", GB, [3], start=0.5)
    times = concurrent_times(one("switch", 4), [p2p(0, 1, GB), alone])
    assert times.finish.tolist() == pytest.approx([0.01, 0.5])
    assert times.slowdown.tolist() == pytest.approx([1.0, 1.0])
    empty = concurrent_times(one("switch", 4), [alone])
    assert empty.finish.tolist() == [0.5]


@pytest.mark.parametrize(("name", "collective", "algorithm"), CASES)
def test_alone_it_is_the_schedule(name, collective, algorithm):
    """Max-min fairness is never faster than the busiest link, and as fast if all are alike."""
    topology = TOPOLOGIES[name]
    options = options_of(collective, algorithm)
    for pipelined in (False, True):
        operation = Operation(
            collective, algorithm, GB, range(8), pipelined=pipelined, options=options
        )
        alone = concurrent_times(topology, [operation]).alone[0]
        least = scheduled_time(
            topology, collective, algorithm, GB, range(8), pipelined=pipelined, **options
        )
        assert alone >= least * (1 - 1e-9)
        if name in ("ring", "switch", "fully-connected") and algorithm in (
            "ring",
            "direct",
            "two_shot",
            "one_shot",
            "in_network",
        ):
            assert alone == pytest.approx(least)


@given(
    seed=st.integers(0, 50),
    name=st.sampled_from(sorted(TOPOLOGIES)),
    count=st.integers(2, 4),
)
def test_company_never_beats_the_links(seed, name, count):
    """All operations together take at least what the busiest link needs for their bytes."""
    random = np.random.default_rng(seed)
    topology = TOPOLOGIES[name]
    operations, loads = [], np.zeros(topology.link_count)
    for _ in range(count):
        collective, algorithm = [("all_reduce", "ring"), ("all_to_all", "direct")][
            random.integers(2)
        ]
        group = random.permutation(8)[: random.integers(2, 9)]
        size = random.uniform(0.1, 2.0) * GB
        operations.append(Operation(collective, algorithm, size, group, pipelined=True))
        loads += link_loads(topology, collective, algorithm, size, group)
    times = concurrent_times(topology, operations)
    assert times.finish.max() >= topology.load_time(loads) * (1 - 1e-9)
    assert (times.finish <= times.alone.sum() * (1 + 1e-9) + count * 40 * US).all()
    backwards = concurrent_times(topology, operations[::-1])
    np.testing.assert_allclose(backwards.finish[::-1], times.finish, rtol=1e-6)


def test_bad_operations():
    with pytest.raises(StrategyError, match="start must be finite"):
        p2p(0, 1, GB, start=math.nan)
    with pytest.raises(StrategyError, match="weight must be finite and above 0"):
        p2p(0, 1, GB, weight=0.0)
    with pytest.raises(StrategyError, match="one or more operations"):
        concurrent_times(one("switch", 4), [])
    with pytest.raises(StrategyError, match="has no algorithm"):
        concurrent_times(one("switch", 4), [Operation("all_reduce", "tree", GB, [0, 1])])


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
