"""Schedules of collectives: every algorithm is run on data, its bytes and steps are counted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import StrategyError
from perfmodel.network.schedules.algorithms import ALGORITHMS, LEVEL_CHOICES
from perfmodel.network.schedules.schedule import REDUCER, Schedule, available, schedule
from perfmodel.network.schedules.trees import tree_parents

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


def doublings(members: int) -> int:
    """Steps of recursive doubling: log2 of the core, two more for the rest."""
    core = 1 << (members.bit_length() - 1)
    return core.bit_length() - 1 + (2 if core < members else 0)


# (collective, algorithm): (bytes each member sends / S, steps), as functions of n.
TABLE = {
    # Patarasuk & Yuan 2009, theorem 1: 2 (n-1)/n S per rank, 2 (n-1) steps
    ("all_reduce", "ring"): (lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1)),
    ("all_reduce", "bidirectional_ring"): (lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1)),
    ("all_reduce", "two_shot"): (lambda n: 2 * (n - 1) / n, lambda n: 2),
    ("all_reduce", "direct"): (lambda n: 2 * (n - 1) / n, lambda n: 2),
    ("all_reduce", "one_shot"): (lambda n: n - 1, lambda n: 1),
    ("all_reduce", "in_network"): (lambda n: 1, lambda n: 2),
    # Chan et al. 2007: all-gather, reduce-scatter (n-1)/n S; buckets take n-1 steps
    ("all_gather", "ring"): (lambda n: (n - 1) / n, lambda n: n - 1),
    ("all_gather", "bidirectional_ring"): (lambda n: (n - 1) / n, lambda n: n - 1),
    ("all_gather", "direct"): (lambda n: (n - 1) / n, lambda n: 1),
    ("all_gather", "in_network"): (lambda n: 1 / n, lambda n: 2),
    ("reduce_scatter", "ring"): (lambda n: (n - 1) / n, lambda n: n - 1),
    ("reduce_scatter", "bidirectional_ring"): (lambda n: (n - 1) / n, lambda n: n - 1),
    ("reduce_scatter", "direct"): (lambda n: (n - 1) / n, lambda n: 1),
    ("reduce_scatter", "in_network"): (lambda n: (n - 1) / n, lambda n: 2),
    ("all_to_all", "direct"): (lambda n: (n - 1) / n, lambda n: 1),
    # a block for the k-th neighbour makes k hops: sum of k, k < n
    ("all_to_all", "ring"): (lambda n: (n - 1) / 2, lambda n: n - 1),
}


@pytest.mark.parametrize(("collective", "algorithm"), TABLE)
def test_bytes_per_member_and_steps(collective, algorithm):
    factor, steps = TABLE[collective, algorithm]
    for members in range(2, 18):
        plan = schedule(collective, algorithm, members, SIZE)
        np.testing.assert_allclose(plan.sent(), factor(members) * SIZE)
        assert plan.steps == steps(members)


@pytest.mark.parametrize("members", [2, 4, 8, 16, 32])
def test_powers_of_two_reach_both_lower_bounds_by_halving_and_doubling(members):
    # Chan et al. 2007: 2 log2(n) steps and 2 (n-1)/n S; recursive doubling log2(n) and S
    plan = schedule("all_reduce", "halving_doubling", members, SIZE)
    np.testing.assert_allclose(plan.sent(), 2 * (members - 1) / members * SIZE)
    assert plan.steps == 2 * math.log2(members)
    plan = schedule("all_reduce", "recursive_doubling", members, SIZE)
    np.testing.assert_allclose(plan.sent(), math.log2(members) * SIZE)
    assert plan.steps == math.log2(members)
    for collective in ("all_gather", "reduce_scatter"):
        plan = schedule(collective, "halving_doubling", members, SIZE)
        np.testing.assert_allclose(plan.sent(), (members - 1) / members * SIZE)
        assert plan.steps == math.log2(members)


@pytest.mark.parametrize("members", [3, 5, 6, 7, 9, 12, 17])
def test_other_groups_fold_the_rest_first_and_unfold_it_last(members):
    # Thakur, Rabenseifner & Gropp 2005: S to the partner before, S back after
    core = 1 << (members.bit_length() - 1)
    rest = members - core
    halving = schedule("all_reduce", "halving_doubling", members, SIZE)
    assert halving.steps == 2 * math.log2(core) + 2
    assert halving.bytes.sum() == pytest.approx((2 * (core - 1) + 2 * rest) * SIZE)
    doubling = schedule("all_reduce", "recursive_doubling", members, SIZE)
    assert doubling.steps == doublings(members)
    assert doubling.bytes.sum() == pytest.approx((core * math.log2(core) + 2 * rest) * SIZE)
    gather = schedule("all_gather", "recursive_doubling", members, SIZE)
    assert gather.steps == doublings(members)
    assert gather.bytes.sum() == pytest.approx((members - 1) * SIZE)  # nobody gets a block twice


@pytest.mark.parametrize("members", range(2, 18))
def test_trees_of_a_broadcast(members):
    # Chan et al. 2007: ceil(log2 n) steps are the lower bound of a broadcast
    rounds = math.ceil(math.log2(members))
    plan = schedule("broadcast", "recursive_doubling", members, SIZE)
    assert (plan.steps, plan.bytes.sum()) == (rounds, (members - 1) * SIZE)
    for collective in ("gather", "scatter"):
        plan = schedule(collective, "recursive_doubling", members, SIZE)
        assert plan.steps == rounds
        root = (plan.received() if collective == "gather" else plan.sent())[0]
        assert root == pytest.approx((members - 1) / members * SIZE)


@pytest.mark.parametrize("members", [*range(2, 18), 64, 100])
def test_sanders_2009_two_trees_balance(members):
    """Who has children in one tree is a leaf of the other, so nobody sends more than S."""
    plan = schedule("broadcast", "double_binary_tree", members, SIZE)
    parents: list[set[int]] = [set(), set()]
    for message in range(plan.step.size):
        for block in plan.blocks[slice(*plan.block_offsets[message : message + 2])]:
            parents[block].add(int(plan.source[message]))
    assert parents[0] & parents[1] <= {0}
    np.testing.assert_allclose(plan.received(), [0.0] + [SIZE] * (members - 1))
    assert plan.sent().max() <= SIZE
    assert plan.steps <= math.ceil(math.log2(members)) + 1
    both = schedule("all_reduce", "double_binary_tree", members, SIZE)
    assert both.bytes.sum() == pytest.approx(2 * (members - 1) * SIZE)
    assert both.sent().max() <= 2 * SIZE


def test_in_order_tree_of_sixteen_by_hand():
    # The drawing in NCCL's src/graph/trees.cc: 0 over 8, 8 over 4 and 12, odd ones are leaves
    assert tree_parents(16).tolist() == [-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 14, 12, 14]
    # and of 14, where 13's parent 14 is missing: 12 takes it
    assert tree_parents(14)[13] == 12


def test_rings_go_one_way():
    """Reduction and distribution use the same links, in both levels of a hierarchy too."""
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        plan = schedule(collective, "ring", 6, SIZE)
        assert np.all((plan.source + 1) % 6 == plan.target)
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        plan = schedule(collective, "hierarchical", 12, SIZE, domain=4)
        inside = plan.source // 4 == plan.target // 4
        assert np.all((plan.source + 1)[inside] % 4 == plan.target[inside] % 4)
        assert np.all((plan.source + 4)[~inside] % 12 == plan.target[~inside])


def test_hierarchical_all_reduce_by_hand():
    """2 domains of 4: 2 × 3/4 S inside, 2 × 1/2 × S/4 across, per member."""
    plan = schedule("all_reduce", "hierarchical", 8, SIZE, domain=4)
    inside = plan.source // 4 == plan.target // 4
    assert plan.bytes[inside].sum() / 8 == pytest.approx(1.5 * SIZE)
    assert plan.bytes[~inside].sum() / 8 == pytest.approx(0.25 * SIZE)
    assert np.all(plan.source[~inside] % 4 == plan.target[~inside] % 4)
    assert plan.steps == 3 + 1 + 1 + 3


@pytest.mark.parametrize("algorithm", ["hierarchical", "rail_aligned"])
def test_two_level_all_to_all_stays_on_rails(algorithm):
    """16 members on 4 nodes: each sends (n-d)/n S over its own adapter, in 3 messages of 4."""
    plan = schedule("all_to_all", algorithm, 16, SIZE, domain=4)
    across = plan.source // 4 != plan.target // 4
    assert np.all(plan.source[across] % 4 == plan.target[across] % 4)
    sent = np.bincount(plan.source[across], weights=plan.bytes[across])
    np.testing.assert_allclose(sent, 12 / 16 * SIZE)
    assert np.bincount(plan.source[across]).tolist() == [3] * 16  # direct sends 12
    assert set(plan.step[across]) == {1 if algorithm == "rail_aligned" else 0}
    # inside: 3 places, each with what it forwards to (or gets from) 4 nodes
    np.testing.assert_allclose(
        np.bincount(plan.source[~across], weights=plan.bytes[~across]), 3 * 4 / 16 * SIZE
    )


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
