"""The choice of an algorithm: the fastest, or that of the library."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.collective import choice
from perfmodel.kernels.collective.algorithms import (
    ALL_REDUCE,
    ALL_TO_ALL,
    DIRECT,
    DOUBLE_BINARY_TREE,
    ONE_SHOT,
    RAIL_ALIGNED,
    TWO_SHOT,
)
from perfmodel.kernels.collective.choice import AUTO, algorithm_cost, library_choice
from perfmodel.kernels.collective.cost import Filling, filled_transfer, longest
from perfmodel.kernels.collective.times import (
    collective_choices,
    collective_time,
    serving_all_reduce_times,
)
from tests.kernels.collective.networks import EVERY, KINDS, algorithm_time, tuned


def test_engines_take_the_fastest(realistic):
    realistic.levels["shot_fraction"] = 0.6
    realistic.facts.shot_base = 2e-6
    sizes = np.array([1e3, 2e6, 1e9, 0.0])
    rows = np.ones(4, np.int64)
    times = serving_all_reduce_times(sizes, 8 * rows, rows, realistic)
    small, middle = (
        algorithm_time(ALL_REDUCE, shot, AUTO, size, 8, 1, realistic)
        for shot, size in ((ONE_SHOT, 1e3), (TWO_SHOT, 2e6))
    )
    assert times[:2].tolist() == [small, middle]
    assert times[2] == collective_time(ALL_REDUCE, 1e9, 8, 1, realistic)
    assert times[3] == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_has_the_time_of_its_algorithm(kind, realistic):
    random = np.random.default_rng(5)
    for network in (realistic, tuned(realistic)):
        for members, stride in ((2, 1), (8, 1), (5, 1), (32, 1), (16, 8)):
            for size in 10 ** random.uniform(3, 10, 6):
                group = (size, members, stride, network)
                (time,), (algorithm,), (protocol,) = collective_choices(
                    np.array([kind]),
                    *(np.array([value]) for value in group[:3]),
                    network,
                )
                alone = algorithm_time(kind, algorithm, protocol, *group)
                if network is realistic or algorithm != DOUBLE_BINARY_TREE:
                    assert time == pytest.approx(alone, rel=1e-12)
                else:  # NCCL corrects trees at middle sizes
                    assert alone <= time <= 2.6 * alone


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
    memo = np.zeros((slots, choice.WIDTH))
    groups = columns(30)
    for size in (64.0, 1e5, 3e9):
        for kind, members, stride, factor in groups:
            call = kind, size * factor / 1e5, members, stride, network
            assert choice.memoised_choice(*call, memo) == library_choice(*call)


def test_costs_hold_for_all_sizes(realistic):
    memo = np.zeros((choice.slots_for(1000), choice.WIDTH))
    for kind, algorithm in EVERY:
        for size in (8.0, 1e6, 1e10):
            shape = size, 24, 2, realistic
            one = choice.memoised_cost(kind, algorithm, *shape, memo)
            other = algorithm_cost(kind, algorithm, *shape)
            assert one == other
            assert filled_transfer(size, one) == filled_transfer(size, other)


def test_what_depends_on_the_size_is_not_remembered(realistic):
    memo = np.zeros((64, choice.WIDTH))
    for algorithm, steady in ((DIRECT, 1.0), (RAIL_ALIGNED, 0.0)):
        slot = choice.recall(ALL_TO_ALL, algorithm, 16, 1, realistic, memo)
        assert memo[slot, choice.STEADY] == steady
        assert choice.recall(ALL_TO_ALL, algorithm, 16, 1, realistic, memo) == slot


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
        slots = choice.slots_for(rows)
        assert slots & (slots - 1) == 0
        assert slots >= min(2 * rows, choice.MOST_SLOTS)
