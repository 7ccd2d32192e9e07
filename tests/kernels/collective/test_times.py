"""Times of collectives by row: scalars and columns agree, levels that a group does not see."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.collective.times import (
    algorithm_times,
    collective_time,
    collective_times,
)
from tests.kernels.collective.networks import EVERY, KINDS, algorithm_time


@pytest.mark.parametrize("kind", KINDS)
def test_levels_of_size_one_change_nothing(kind, realistic):
    padded = realistic._replace(levels=realistic.levels[[0, 0, 1]])
    padded.levels[1].domains = padded.levels[1].bandwidth = 1.0
    for members, stride in ((8, 1), (32, 1), (16, 8)):
        assert collective_time(kind, 1e8, members, stride, padded) == collective_time(
            kind, 1e8, members, stride, realistic
        )


def test_named_algorithms_equal_scalars(realistic):
    random = np.random.default_rng(4)
    picks = [EVERY[i] for i in random.integers(0, len(EVERY), 200)]
    kind, algorithm = (np.array(column) for column in zip(*picks, strict=True))
    protocol = random.integers(-1, 3, 200)
    group = (10 ** random.uniform(2, 10, 200), random.integers(1, 70, 200))
    stride = random.integers(1, 12, 200)
    times, taken = algorithm_times(kind, algorithm, protocol, *group, stride, realistic)
    for row in range(200):
        shape = (group[0][row], group[1][row], stride[row], realistic)
        if group[1][row] == 1:
            assert (times[row], taken[row]) == (0.0, -1)
            continue
        if np.isfinite(times[row]):
            alone = algorithm_time(kind[row], algorithm[row], taken[row], *shape)
            assert times[row] == alone
            least = algorithm_time(kind[row], algorithm[row], protocol[row], *shape)
            assert times[row] == least or protocol[row] >= 0


def test_columns_equal_scalars(realistic):
    random = np.random.default_rng(3)
    rows = 300
    kind = random.integers(0, 9, rows)
    size = 10 ** random.uniform(2, 10, rows)
    members = random.integers(1, 100, rows)
    stride = random.integers(1, 20, rows)
    times = collective_times(kind, size, members, stride, realistic)
    expected = [
        collective_time(*row, realistic) for row in zip(kind, size, members, stride, strict=True)
    ]
    np.testing.assert_array_equal(times, expected)
    assert all(math.isfinite(time) for time in times)
