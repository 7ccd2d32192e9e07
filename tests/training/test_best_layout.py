"""The best layout is as good as any: held against all of them."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.training.best_layout import best_layout

TIMES = st.sampled_from([1.0, 1.0, 2.5])


def step(sizes, layers, ends, stages, passes):
    """Slowest stage m times, and the bubble; written anew."""
    borders = np.concatenate(([0], np.cumsum(sizes)))
    chunks = [sum(layers[a:b]) for a, b in pairwise(borders)]
    chunks[0] += ends[0]
    chunks[-1] += ends[1]
    busy = [
        sum(chunk for chunk, own in zip(chunks, stages, strict=True) if own == stage)
        for stage in range(max(stages) + 1)
    ]
    virtual = len(stages) / len(busy)
    return passes * max(busy) + (sum(busy) - max(busy)) / virtual


@settings(max_examples=50, deadline=None)
@given(st.lists(TIMES, min_size=3, max_size=8), st.integers(2, 4), st.floats(0, 2), st.floats(0, 3))
def test_nothing_is_better_with_one_chunk_a_stage(layers, pipeline, first, last):
    stages = list(range(pipeline))
    found = best_layout(layers, (first, last), stages, 16.0)
    assert sum(found) == len(layers)
    assert min(found) >= 0
    least = min(
        step(sizes, layers, (first, last), stages, 16.0)
        for sizes in product(range(len(layers) + 1), repeat=pipeline)
        if sum(sizes) == len(layers)
    )
    assert step(found, layers, (first, last), stages, 16.0) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("stages", [[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3, 3, 2, 1, 0]])
def test_layers_give_way_to_the_output(stages):
    """Of 32 equal layers and ends of 0.2 and 1.3 of them: no stage above the mean by a layer."""
    found = best_layout([1.0] * 32, (0.2, 1.3), stages, 64.0)
    assert sum(found) == 32
    mean = 33.5 / 4
    assert step(found, [1.0] * 32, (0.2, 1.3), stages, 1e9) / 1e9 < mean + 1.0
    even = step([4] * 8, [1.0] * 32, (0.2, 1.3), stages, 64.0)
    assert step(found, [1.0] * 32, (0.2, 1.3), stages, 64.0) < even


def test_many_chunks_are_cut_in_time():
    found = best_layout([1.0] * 126, (0.2, 1.3), list(range(16)) * 8, 64.0)
    assert (len(found), sum(found)) == (128, 126)
