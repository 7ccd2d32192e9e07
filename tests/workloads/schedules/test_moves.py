"""Trees and rings of broadcasts and gathers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.workloads.schedules.moves import tree_parents
from perfmodel.workloads.schedules.schedule import schedule

SIZE = 5040.0


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
