"""Hanayo's waves."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.pipeline.events import plain_durations, run_order
from perfmodel.kernels.pipeline.held import peaks
from perfmodel.strategy.pipelines import named_pipeline, schedule_rows


def test_one_wave_by_hand():
    """Two ranks, two micro-batches; a backward pass takes as long as two forward passes."""
    order = named_pipeline("hanayo", 2, 2).order
    assert [" ".join(row) for row in schedule_rows(order)] == [
        "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1",
        "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1",
    ]


@pytest.mark.parametrize(("ranks", "waves"), [(2, 1), (4, 1), (4, 2), (4, 4), (8, 2)])
def test_more_waves_waste_a_smaller_part(ranks, waves):
    """Liu et al. 2023 (arXiv:2308.15762), section 3: bubbles shrink as waves are added."""

    def wasted(count):
        pipeline = named_pipeline("hanayo", ranks, ranks, 2 * count)
        one = np.ones(pipeline.order.rank_of.size)
        timeline = run_order(pipeline.order, pipeline.program, plain_durations(one, one, one))
        return 1.0 - timeline.busy.max() / timeline.makespan

    assert wasted(2 * waves) < wasted(waves)


def test_no_rank_holds_more_than_a_micro_batch_per_rank():
    for micro_batches in (3, 8, 24):
        order = named_pipeline("hanayo", 4, micro_batches, 4).order
        one = np.ones(order.rank_of.size)
        assert peaks(order, one, 0 * one).max() <= 4 * 4
