"""What strategies share is found once: layer keys, and stages of the same composition."""

from __future__ import annotations

import numpy as np

from perfmodel.base.axes import columns_from_rows
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.training.workload import Workload


def test_what_strategies_share_is_kept_once(small_dense):
    rows = [
        {
            "pipeline_parallel": p,
            "data_parallel": 8 // p,
            "zero_stage": zero,
            "precision": precision,
        }
        for p in (1, 2)
        for precision in ("bf16", "fp8")
        for zero in (0, 1)
    ]
    work = Workload(small_dense, StrategyGrid(8, columns_from_rows(rows), np.zeros(8, np.uint8)))
    assert len(work.keys) == 2  # one per precision
    assert len(work.stage_layer_key) == 4  # each with one stage and with two
    assert len(work.strategies) == 8
    stages = np.diff(work.stage_offset)[work.strategies.stage_key]
    assert stages.tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
    layers = [part.layer is not None for part in work.parts]
    held = work.counts[:, layers].sum(axis=1)
    assert (
        sorted(held.tolist()) == [len(small_dense.layers) / 2] * 4 + [len(small_dense.layers)] * 2
    )


def test_a_part_of_the_families_keeps_what_all_share(small_dense):
    rows = [{"global_batch_size": 16, "zero_stage": zero} for zero in (0, 1)]
    work = Workload(small_dense, StrategyGrid(1, columns_from_rows(rows), np.zeros(2, np.uint8)))
    half = work.part(np.array([1]))
    assert half.strategies.zero_stage.tolist() == [1]
    assert half.stage_offset is work.stage_offset
