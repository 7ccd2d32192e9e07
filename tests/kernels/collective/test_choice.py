"""The choice of an algorithm: the fastest, or that of the library."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.collective.choice import AUTO
from perfmodel.kernels.collective.times import (
    ALL_REDUCE,
    DOUBLE_BINARY_TREE,
    ONE_SHOT,
    TWO_SHOT,
    collective_choices,
    collective_time,
    serving_all_reduce_times,
)
from tests.kernels.collective.networks import KINDS, algorithm_time, tuned


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
