"""Distances of lines of cores, and shares of contexts, counted one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.kernels.wafer import tiles
from perfmodel.kernels.wafer.tiles import block_overlaps
from perfmodel.wafer.tiles import lines_of
from perfmodel.wafer.twin.core_lines import traffic
from perfmodel.wafer.twin.layouts import fresh
from tests.wafer.twin.test_layouts import elements


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


def test_overlaps_count_every_element_once() -> None:
    random = np.random.default_rng(3)
    rows, columns = np.array([0, 3, 3, 7]), np.array([0, 2, 5, 6])
    banks = random.integers(0, 4, (3, 3))
    owner = np.repeat(np.repeat(banks, np.diff(rows), axis=0), np.diff(columns), axis=1)
    boxes = np.array([[0, 1, 6, 1, 6], [1, 0, 7, 0, 6], [0, 6, 7, 0, 1], [2, 4, 4, 0, 3]])
    moved = np.zeros((4, 3), np.int64)
    block_overlaps(rows, columns, banks, boxes, moved)
    wanted = np.zeros_like(moved)
    for slot, top, bottom, left, right in boxes:
        np.add.at(wanted, (owner[top:bottom, left:right].ravel(), slot), 1)
    assert (moved == wanted).all()


def test_equals_counting_elements():
    random = np.random.default_rng(3)
    for _ in range(20):
        axes = int(random.integers(1, 5))
        dims = tuple(random.integers(1, 7, axes).tolist())
        tile = tuple(random.integers(1, 4, axes).tolist())
        layout = fresh(dims, tile, int(random.integers(5)), int(random.integers(1, 6)))
        begin = random.integers(0, dims, (4, axes))
        end = np.minimum(begin + random.integers(1, 4, (4, axes)), dims)
        boxes = np.stack((begin, end), axis=1)
        found = traffic(layout, boxes, 2)
        everything = elements(layout)
        for at, box in enumerate(boxes):
            part = everything[tuple(slice(*edges) for edges in box.T)]
            mine = slice(found.starts[at], found.starts[at + 1])
            banks, counts = np.unique(part, return_counts=True)
            order = np.argsort(found.bank[mine])
            assert found.bank[mine][order].tolist() == banks.tolist()
            assert found.size[mine][order].tolist() == (2 * counts).tolist()
            assert found.bank[mine][0] == part.flat[0]
