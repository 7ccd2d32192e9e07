"""The best layout is as good as any: held against all of them."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.model.presets import load_model
from perfmodel.strategy.factors import strategy_space
from perfmodel.sweeps.sweep import sweep_table
from perfmodel.training.best_layout import best_layout, distinct_ways, least_slowest, longest_runs
from perfmodel.training.schedule import chunk_stages
from tests.amount import cases

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


@settings(max_examples=cases(50), deadline=None)
@given(st.lists(TIMES, min_size=3, max_size=8), st.integers(2, 4), st.floats(0, 2), st.floats(0, 3))
def test_nothing_is_better_with_one_chunk_a_stage(layers, pipeline, first, last):
    stages = list(range(pipeline))
    found = best_layout(layers, (first, last), stages)
    assert sum(found) == len(layers)
    assert min(found) >= 0
    own = slowest(found, layers, (first, last), stages)
    assert own == pytest.approx(least(layers, (first, last), stages), rel=1e-9)


@settings(max_examples=cases(60), deadline=None)
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


AXES = {
    "sequence_length": 512,
    "global_batch_size": 16,
    "tensor_parallel": 1,
    "pipeline_parallel": [1, 2, 4],
    "virtual_pipeline": [1, 2],
    "micro_batch_size": 1,
    "recompute": ["none", "full"],
    "recompute_method": "all",
    "recompute_num_layers": list(range(14)),
    "zero_stage": 1,
}


@pytest.mark.parametrize("split", ["even", "first=2", "best"])
def test_all_that_one_way_stands_for_have_its_results(split: str) -> None:
    from perfmodel.software.framework import load_framework

    model = load_model("gpt2")
    axes = AXES if split != "first=2" else {**AXES, "pipeline_parallel": [3], "virtual_pipeline": 1}
    space = strategy_space(model, 12 if split == "first=2" else 8, axes)
    ways = distinct_ways(space, split)
    rows, layouts, firsts = [], [], []
    for layout, kind in enumerate(ways.kind):
        listed = [*ways.single, *range(ways.offset[kind], ways.offset[kind + 1])]
        own = np.concatenate([ways.members[way] for way in listed])
        assert sorted(own) == list(range(len(space.layers)))  # each way once
        for way in listed:
            assert ways.row[way] == ways.members[way][0]
            firsts += [len(rows)] * ways.members[way].size
            rows += ways.members[way].tolist()
            layouts += [layout] * ways.members[way].size
    grid = space.grid(np.array(layouts), **space.layers.columns(space.free, np.array(rows)))
    framework = load_framework("megatron", stage_split=split)
    table = sweep_table(model, grid, "dgx-h100", framework=framework)
    for name in ("step_time", "memory_total"):
        np.testing.assert_array_equal(table[name].values, table[name].values[firsts])


def test_chunks_and_ranks_hold_no_more_than_their_layers() -> None:
    model = load_model("gpt2")  # 12 layers
    assert longest_runs(model, 4, 1, "loop", "even") == (3, 3)
    assert longest_runs(model, 2, 3, "loop", "even") == (2, 6)
    assert longest_runs(model, 2, 1, "loop", "7,5") == (7, 7)
    assert longest_runs(model, 2, 1, "loop", "best") == (12, 12)
