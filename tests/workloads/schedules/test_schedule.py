"""Schedules of collectives: every algorithm is run on data, its bytes and steps are counted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.schedules.algorithms import ALGORITHMS, LEVEL_CHOICES
from perfmodel.workloads.schedules.schedule import REDUCER, Schedule, available, schedule

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


CASES = [(collective, name) for collective in ALGORITHMS for name in available(collective)]


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
def test_every_algorithm_performs_its_collective(collective, algorithm):
    groups = [2] if collective == "point_to_point" else GROUPS
    for members in groups:
        for option in variants(collective, algorithm, members):
            run(schedule(collective, algorithm, members, SIZE, **option))


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
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


@given(members=st.integers(2, 9), seed=st.integers(0, 99))
def test_traffic_matrix_is_delivered(members, seed):
    traffic = np.random.default_rng(seed).integers(0, 50, (members, members)).astype(float)
    moved = traffic * (1 - np.eye(members))
    for algorithm in available("all_to_all"):
        for option in variants("all_to_all", algorithm, members):
            plan = schedule("all_to_all", algorithm, members, traffic=traffic, **option)
            run(plan)
            assert plan.bytes.sum() >= moved.sum() * (1 - 1e-12)
    direct = schedule("all_to_all", "direct", members, traffic=traffic)
    np.testing.assert_allclose(direct.sent(), moved.sum(axis=1))
    np.testing.assert_allclose(direct.received(), moved.sum(axis=0))
    assert direct.size == traffic.sum(axis=1).max()


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
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
        ("all_gather", "ring", {"traffic": np.zeros((4, 4))}, "only an all_to_all"),
        ("all_to_all", "direct", {"traffic": np.zeros((4, 4))}, "not both"),
    ],
)
def test_bad_options(collective, algorithm, options, message):
    with pytest.raises(StrategyError, match=message):
        schedule(collective, algorithm, 4, 1.0, **options)


@pytest.mark.parametrize(
    ("traffic", "message"), [(np.zeros((3, 4)), "4 x 4"), (np.full((4, 4), np.inf), "finite")]
)
def test_bad_traffic(traffic, message):
    with pytest.raises(StrategyError, match=message):
        schedule("all_to_all", "direct", 4, traffic=traffic)
