"""Bytes and steps of every algorithm against the closed forms of the literature."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.workloads.schedules.schedule import schedule

SIZE = 5040.0


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


SIZE = 5040.0


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
    # Jeaugey 2025 (PAT): log2(n) transfers for any number of ranks
    ("all_gather", "aggregated_trees"): (
        lambda n: (n - 1) / n,
        lambda n: math.ceil(math.log2(n)),
    ),
    ("reduce_scatter", "aggregated_trees"): (
        lambda n: (n - 1) / n,
        lambda n: math.ceil(math.log2(n)),
    ),
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
