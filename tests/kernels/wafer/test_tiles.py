"""Distances of lines of cores, and shares of contexts, counted one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.kernels.wafer import tiles
from perfmodel.wafer.tiles import lines_of


@pytest.mark.parametrize("side", [1, 2, 5, 6])
def test_hops_of_lines_are_those_counted(side: int) -> None:
    lines = lines_of(side)
    span, pairs = np.empty(lines.factors.shape), np.empty(lines.factors.shape)
    tiles.measure_lines(lines.factors, lines.strides, span, pairs)
    for line, (factors, strides) in enumerate(zip(lines.factors, lines.strides, strict=True)):
        places = {
            index: int(np.dot(index, strides)) for index in itertools.product(*map(range, factors))
        }
        assert sorted(places.values()) == list(range(np.prod(factors)))  # no core twice
        for axis in range(4):
            sharing: dict[tuple[int, ...], list[int]] = {}
            for index, place in places.items():
                sharing.setdefault(index[:axis] + index[axis + 1 :], []).append(place)
            far = [
                abs(one - other) / len(cores)
                for cores in sharing.values()
                for one in cores
                for other in cores
            ]
            assert pairs[line, axis] == pytest.approx(sum(far), rel=1e-12)
            assert span[line, axis] == sum(max(one) - min(one) for one in sharing.values())


def test_lines_differ() -> None:
    for side in (6, 12, 64):
        lines = lines_of(side)
        both = np.hstack([lines.factors, np.where(lines.factors > 1, lines.strides, 0)])
        assert len(np.unique(both, axis=0)) == len(both)
