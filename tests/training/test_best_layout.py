"""The best layout is as good as any: held against all of them."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.training.best_layout import best_layout, least_slowest
from perfmodel.training.schedule import chunk_stages

TIMES = st.sampled_from([1.0, 1.0, 2.5])


def slowest(sizes, layers, ends, stages):
    """Time of the slowest stage; written anew."""
    borders = np.concatenate(([0], np.cumsum(sizes)))
    chunks = [sum(layers[a:b]) for a, b in pairwise(borders)]
    chunks[0] += ends[0]
    chunks[-1] += ends[1]
    busy = [
        sum(chunk for chunk, own in zip(chunks, stages, strict=True) if own == stage)
        for stage in range(max(stages) + 1)
    ]
    return max(busy)


def least(layers, ends, stages):
    """Of all layouts."""
    cuts = combinations_with_replacement(range(len(layers) + 1), len(stages) - 1)
    return min(
        slowest(np.diff([0, *borders, len(layers)]), layers, ends, stages) for borders in cuts
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(TIMES, min_size=3, max_size=8), st.integers(2, 4), st.floats(0, 2), st.floats(0, 3))
def test_nothing_is_better_with_one_chunk_a_stage(layers, pipeline, first, last):
    stages = list(range(pipeline))
    found = best_layout(layers, (first, last), stages)
    assert sum(found) == len(layers)
    assert min(found) >= 0
    own = slowest(found, layers, (first, last), stages)
    assert own == pytest.approx(least(layers, (first, last), stages), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1.0, 1.3, 2.5, 4.0]), min_size=3, max_size=7),
    st.sampled_from([[0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 2, 0, 1, 2], [0, 1, 2, 2, 1, 0]]),
    st.floats(0, 2),
    st.floats(0, 3),
)
def test_nothing_is_better_with_several(layers, stages, first, last):
    found = best_layout(layers, (first, last), stages)
    assert (len(found), sum(found)) == (len(stages), len(layers))
    own = slowest(found, layers, (first, last), stages)
    assert own == pytest.approx(least(layers, (first, last), stages), rel=1e-9)
    assert own >= least_slowest(layers, (first, last), stages) * (1 - 1e-12)


@pytest.mark.parametrize("stages", [[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3, 3, 2, 1, 0]])
def test_layers_give_way_to_the_output(stages):
    """Of 32 equal layers and ends of 0.2 and 1.3 of them: no stage above the mean by a layer."""
    found = best_layout([1.0] * 32, (0.2, 1.3), stages)
    assert sum(found) == 32
    assert slowest(found, [1.0] * 32, (0.2, 1.3), stages) < 33.5 / 4 + 1.0
    even = slowest([4] * 8, [1.0] * 32, (0.2, 1.3), stages)
    assert slowest(found, [1.0] * 32, (0.2, 1.3), stages) < even


@pytest.mark.parametrize("placement", ["loop", "wave"])
@pytest.mark.parametrize("pipeline", [4, 8, 16])
def test_three_dense_layers_ahead_of_experts_are_near_the_bound(pipeline, placement):
    """As DeepSeek-V3: 3 layers of 0.6, 58 of 1, two chunks a stage; no layout has less than 0.4."""
    layers = [0.6] * 3 + [1.0] * 58
    stages = chunk_stages(placement, pipeline, 2)
    own = slowest(best_layout(layers, (0.1, 0.9), stages), layers, (0.1, 0.9), stages)
    assert own <= least_slowest(layers, (0.1, 0.9), stages) + 0.4


def test_many_chunks_are_cut_in_time():
    found = best_layout([1.0] * 126, (0.2, 1.3), list(range(16)) * 8)
    assert (len(found), sum(found)) == (128, 126)
