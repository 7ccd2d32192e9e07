"""What is remembered of a kind and group gives the same as working it out for every size."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.collective import remembered
from perfmodel.kernels.collective.choice import algorithm_cost, library_choice
from perfmodel.kernels.collective.cost import Filling, filled_transfer, longest
from perfmodel.kernels.collective.times import ALL_TO_ALL, DIRECT, RAIL_ALIGNED
from tests.kernels.collective.networks import EVERY, tuned


def columns(rows):
    random = np.random.default_rng(7)
    kinds, members = random.integers(0, 9, rows), random.integers(2, 40, rows)
    groups = zip(kinds, members, random.integers(1, 9, rows), strict=True)
    sizes = 10 ** random.uniform(1, 10, rows)
    return [(*map(int, group), float(size)) for group, size in zip(groups, sizes, strict=True)]


@pytest.mark.parametrize("slots", [8, 1024])
@pytest.mark.parametrize("has_table", [False, True])
def test_choices_are_the_library_s_however_many_slots_there_are(realistic, slots, has_table):
    network = tuned(realistic) if has_table else realistic
    memo = np.zeros((slots, remembered.WIDTH))
    groups = columns(30)
    for size in (64.0, 1e5, 3e9):
        for kind, members, stride, factor in groups:
            call = kind, size * factor / 1e5, members, stride, network
            assert remembered.remembered_choice(*call, memo) == library_choice(*call)


def test_costs_hold_for_all_sizes(realistic):
    memo = np.zeros((remembered.slots_for(1000), remembered.WIDTH))
    for kind, algorithm in EVERY:
        for size in (8.0, 1e6, 1e10):
            shape = size, 24, 2, realistic
            one = remembered.remembered_cost(kind, algorithm, *shape, memo)
            other = algorithm_cost(kind, algorithm, *shape)
            assert one == other
            assert filled_transfer(size, one) == filled_transfer(size, other)


def test_what_depends_on_the_size_is_not_remembered(realistic):
    memo = np.zeros((64, remembered.WIDTH))
    for algorithm, steady in ((DIRECT, 1.0), (RAIL_ALIGNED, 0.0)):
        slot = remembered.recall(ALL_TO_ALL, algorithm, 16, 1, realistic, memo)
        assert memo[slot, remembered.STEADY] == steady
        assert remembered.recall(ALL_TO_ALL, algorithm, 16, 1, realistic, memo) == slot


def test_the_longest_of_times_that_cross_is_kept():
    first, crowded = longest(Filling(0.0, 0.0, 0.0, 0.0), 1.0, 4.0)
    both, again = longest(first, 2.0, 1.0)
    assert not crowded
    assert not again
    assert longest(both, 1.5, 1.0) == (both, False)  # never the longest
    assert longest(both, 1.5, 3.0)[1]  # between the two, perhaps
    steeper = longest(both, 3.0, 2.0)[0]
    assert {steeper[:2], steeper[2:]} == {(1.0, 4.0), (3.0, 2.0)}


def test_slots_are_a_power_of_two_and_enough():
    for rows in (0, 1, 5, 100, 10**6):
        slots = remembered.slots_for(rows)
        assert slots & (slots - 1) == 0
        assert slots >= min(2 * rows, remembered.MOST_SLOTS)
