"""Schedules of collectives: every algorithm is run on data, its bytes and steps are counted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.links.topology import Dimension, Topology
from perfmodel.workloads.schedules.algorithms import ALGORITHMS, LEVEL_CHOICES
from perfmodel.workloads.schedules.schedule import (
    REDUCER,
    Schedule,
    available,
    operation_loads,
    operation_schedule,
    schedule,
)
from tests.workloads.links.drawn import MESH, NODE, RAILS, RING
from tests.workloads.schedules.laid import link_loads
from tests.workloads.schedules.networks import CASES, GB, TOPOLOGIES, US, one, options_of

GROUPS = range(1, 18)
SIZE = 5040.0


def run(plan: Schedule) -> None:
    """Perform a schedule on bit masks of contributors, then look whether the job is done.

    ``held[p, b]`` has bit r set when position p's copy of block b contains the part of r.
    """
    members, blocks = plan.members, plan.block_bytes.size
    held = np.zeros((members + 1, blocks), dtype=object)  # the last row is the switch
    complete = np.zeros(blocks, dtype=object)
    for block, origin in enumerate(plan.block_origin):
        contributors = range(members) if origin < 0 else [int(origin)]
        for position in contributors:
            held[position, block] = 1 << position
            complete[block] |= 1 << position
    for step in range(plan.steps):
        before = held.copy()
        changed = set()
        for message in np.flatnonzero(plan.step == step):
            source, target = plan.source[message], plan.target[message]
            assert source != target
            for block in plan.blocks[slice(*plan.block_offsets[message : message + 2])]:
                assert before[source, block], "sends what it does not have"
                if plan.reduces[message]:
                    assert not held[target, block] & before[source, block], "adds a part twice"
                    held[target, block] |= before[source, block]
                else:
                    assert (target, block) not in changed, "stores two versions"
                    changed.add((target, block))
                    held[target, block] = before[source, block]
    for block, destination in enumerate(plan.block_destination):
        wanted = plan.receivers if destination < 0 else [destination]
        if destination >= 0 and plan.block_origin[block] == destination:
            continue  # what one sends to oneself never moves
        for position in wanted:
            assert held[position, block] == complete[block], (plan.algorithm, position, block)


def domains(members: int) -> list[int]:
    return [size for size in range(1, members + 1) if members % size == 0]


def variants(collective: str, algorithm: str, members: int) -> list[dict]:
    """Options to test an algorithm with: domains with inner algorithms, roots, targets."""
    options: list[dict] = [{}]
    if ALGORITHMS[collective][algorithm].two_level:
        names = LEVEL_CHOICES[collective]
        options = [
            {"domain": size, **({} if names == ("direct",) else {"inside": a, "across": b})}
            for size in domains(members)
            for a, b in itertools.product(names, names)
        ]
    if collective in ("broadcast", "gather", "scatter", "point_to_point"):
        roots = {0, members // 2, members - 1}
        options = [{**option, "root": root} for option in options for root in roots]
    if collective == "multicast":
        options = [
            {"root": root, "targets": [p for p in range(members) if p != root][::every]}
            for root in {0, members // 2}
            for every in (1, 2, 3)
        ]
    return options


EVERY = [(collective, name) for collective in ALGORITHMS for name in available(collective)]


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_every_algorithm_performs_its_collective(collective, algorithm):
    groups = [2] if collective == "point_to_point" else GROUPS
    for members in groups:
        for option in variants(collective, algorithm, members):
            run(schedule(collective, algorithm, members, SIZE, **option))


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_bytes_are_those_of_the_blocks_and_are_conserved(collective, algorithm):
    for members in (2,) if collective == "point_to_point" else (1, 2, 6, 9, 16):
        for option in variants(collective, algorithm, members):
            plan = schedule(collective, algorithm, members, SIZE, **option)
            switch = plan.bytes[plan.source == REDUCER].sum()
            to_switch = plan.bytes[plan.target == REDUCER].sum()
            assert plan.sent().sum() + switch == pytest.approx(plan.bytes.sum())
            assert plan.received().sum() + to_switch == pytest.approx(plan.bytes.sum())
            carried = np.add.reduceat(
                np.append(plan.block_bytes[plan.blocks], 0.0), plan.block_offsets[:-1]
            )
            np.testing.assert_allclose(carried, plan.bytes)
            source, target, total = plan.pairs()
            assert total.sum() == pytest.approx(plan.bytes.sum())
            assert len({*zip(source, target, strict=True)}) == source.size


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_no_schedule_beats_the_lower_bounds(collective, algorithm):
    """Chan et al. 2007: bytes through the busiest member, and steps.

    A member that receives from f others in a step knows the parts of at most 1 + f times as
    many afterwards; a switch that adds halves the bytes of an all-reduce.
    """
    reduced = 1 if algorithm == "in_network" else 2
    for members in (2,) if collective == "point_to_point" else (2, 3, 6, 8, 13):
        share = (members - 1) / members * SIZE
        bounds = {"all_reduce": reduced * share, "broadcast": SIZE, "point_to_point": SIZE}
        for option in variants(collective, algorithm, members):
            plan = schedule(collective, algorithm, members, SIZE, **option)
            bound = bounds.get(collective, share)
            if collective == "multicast":
                bound = SIZE if plan.receivers.size > 1 else 0.0
            assert max(plan.sent().max(), plan.received().max()) >= bound * (1 - 1e-12)
            if collective in ("all_reduce", "all_gather") and algorithm != "in_network":
                known = 1
                for step in range(plan.steps):
                    known *= 1 + np.bincount(plan.target[plan.step == step]).max()
                assert known >= members


def test_a_single_member_and_no_bytes():
    assert schedule("all_reduce", "ring", 1, SIZE).steps == 0
    assert schedule("broadcast", "in_network", 1, SIZE).step.size == 0
    assert schedule("all_reduce", "ring", 4, 0).bytes.sum() == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduc", "ring", 4, 1.0), "did you mean all_reduce"),
        (("all_to_all", "double_binary_tree", 4, 1.0), "it has: direct, ring, hierarchical"),
        (("reduce_scatter", "one_shot", 4, 1.0), "it has: ring"),
        (("all_reduce", "ring", 0, 1.0), "members must lie between 1"),
        (("all_reduce", "ring", 2.5, 1.0), "members must be a whole number"),
        (("all_reduce", "ring", 4, math.nan), "size must be finite"),
        (("all_reduce", "ring", 4, -1.0), "size must be finite"),
        (("all_reduce", "ring", 4, "8 MiB"), "size must be finite"),
        (("all_reduce", "ring", 4), "needs size"),
        (("point_to_point", "direct", 3, 1.0), "has 2 members"),
        (("multicast", "direct", 4, 1.0), "needs targets"),
        (("all_reduce", "hierarchical", 4, 1.0), "needs domain"),
    ],
)
def test_bad_requests(arguments, message):
    with pytest.raises(StrategyError, match=message):
        schedule(*arguments)


@pytest.mark.parametrize(
    ("collective", "algorithm", "options", "message"),
    [
        ("all_reduce", "hierarchical", {"domain": 3}, "must divide members, got 3 and 4"),
        ("all_reduce", "hierarchical", {"domain": 2, "inside": "tree"}, "one of ring, direct"),
        ("all_reduce", "ring", {"domain": 2}, "has no levels"),
        ("all_reduce", "ring", {"root": 1}, "has no root"),
        ("broadcast", "ring", {"root": 4}, "root must lie between 0 and 3"),
        ("broadcast", "ring", {"targets": [1]}, "only a multicast has targets"),
        ("multicast", "ring", {"targets": [1, 1]}, "distinct"),
        ("multicast", "ring", {"targets": [0]}, "without the root"),
    ],
)
def test_bad_options(collective, algorithm, options, message):
    with pytest.raises(StrategyError, match=message):
        schedule(collective, algorithm, 4, 1.0, **options)


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


def test_double_binary_tree_uses_the_full_bandwidth():
    """Every port of a switch carries at most 2 S each way, as Sanders et al. 2009 promise."""
    switch = one("switch", 8)
    loads = link_loads(switch, "all_reduce", "double_binary_tree", GB, range(8))
    assert switch.load_time(loads) == pytest.approx(2 * GB / (100 * GB))


def test_all_to_all_on_a_line_crosses_the_middle():
    """Line of 4: 2 × 2 blocks of 1 GB cross the middle link each way, 3 the outer ones."""
    loads = link_loads(one("mesh", 4), "all_to_all", "direct", 4 * GB, range(4))
    np.testing.assert_allclose(sorted(loads / GB), [3, 3, 3, 3, 4, 4])


def test_groups_at_the_same_time_share_links():
    """Line 0-1-2-3: {0, 2} and {1, 3} meet on the link 1-2, {0, 1} and {2, 3} do not."""
    line = one("mesh", 4)
    for groups, time in (([0, 2], 0.02), ([[0, 2], [1, 3]], 0.04), ([[0, 1], [2, 3]], 0.02)):
        loads = link_loads(line, "all_gather", "direct", 2 * GB, groups)
        assert line.load_time(loads) == pytest.approx(time)


@pytest.mark.parametrize(("name", "collective", "algorithm"), CASES)
def test_nothing_beats_the_bisection(name, collective, algorithm):
    """What the halves owe each other, over the bandwidth between them.

    For all-reduce, the sum of one half has to reach the other: S. For all-gather, half of
    the output; for reduce-scatter, as much in partial sums. For all-to-all, n²/4 blocks.
    """
    topology, size = TOPOLOGIES[name], 8 * GB
    options = options_of(collective, algorithm)
    owed = {"all_reduce": size, "all_gather": size / 2, "reduce_scatter": size / 2}
    crosses = owed.get(collective, 16 * size / 8)
    time = topology.load_time(
        link_loads(topology, collective, algorithm, size, range(8), **options)
    )
    assert time >= crosses / topology.bisection_bandwidth() * (1 - 1e-12)
    # and of one device: what it has to receive, through all of its links
    single = topology.link_bandwidth[topology.link_source == 0].sum()
    assert time >= size * (1 if collective == "all_reduce" else 7 / 8) / single * (1 - 1e-12)


@pytest.mark.parametrize("algorithm", [a for n, c, a in CASES if (n, c) == ("ring", "all_reduce")])
def test_a_symmetric_ring_has_no_first_device(algorithm):
    ring, options = TOPOLOGIES["ring"], options_of("all_reduce", algorithm)
    turned = [
        link_loads(ring, "all_reduce", algorithm, GB, np.roll(np.arange(8), turn), **options)
        for turn in range(8)
    ]
    np.testing.assert_allclose([loads.max() for loads in turned], turned[0].max())
    np.testing.assert_allclose([loads.sum() for loads in turned], turned[0].sum())


def test_example_of_channels_in_the_document():
    """Four rings that leave through four adapters: 2 × 7/8 GB over 4 × 50 GB/s."""
    two = Topology((Dimension("switch", 4, 400 * GB, US), Dimension("rail", 2, 50 * GB, 3 * US)))
    channels = [[(c + i) % 4 + 4 * node for node in (0, 1) for i in range(4)] for c in range(4)]
    one_ring = link_loads(two, "all_reduce", "ring", GB, range(8))
    assert two.load_time(one_ring) == pytest.approx(1.75 / 50)
    four = link_loads(two, "all_reduce", "ring", GB / 4, channels)
    assert two.load_time(four) == pytest.approx(1.75 / 200)
