"""Banks and bytes of boxes, against counting element by element."""

from __future__ import annotations

import numpy as np

from perfmodel.wafer.twin.core_lines import traffic
from perfmodel.wafer.twin.layouts import fresh
from tests.wafer.twin.test_layouts import elements


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
