"""Ways to recompute that come to the same: same stages, same results."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.model.presets import load_model
from perfmodel.strategy.factors import strategy_space
from perfmodel.sweeps.sweep import sweep_table
from perfmodel.training.ways import distinct_ways, longest_runs

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
