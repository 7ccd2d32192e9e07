"""Pipelines of all schedules, uneven stages and sends among it, against a slow scheduler.

``PERFMODEL_PIPELINES=10000 pytest tests/oracles/test_pipelines.py`` draws as many.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from perfmodel.kernels.pipeline.events import run_order
from perfmodel.strategy.pipelines import schedule_rows
from tests.kernels.pipeline.cases import random_durations, random_pipeline
from tests.oracles import slow_pipeline

COUNT = int(os.environ.get("PERFMODEL_PIPELINES", "500"))
CLOSE = {"rtol": 5e-13, "atol": 5e-13}


def reference(pipeline, durations):
    order = pipeline.order
    return slow_pipeline.run(
        schedule_rows(order),
        order.rank_of.tolist(),
        order.copies,
        durations.work.tolist(),
        durations.send.tolist(),
        durations.together.tolist(),
        durations.sender,
        durations.receiver,
    )


@pytest.mark.parametrize("seed", range(10))
def test_random_pipelines_run_as_the_slow_scheduler_says(seed):
    random = np.random.default_rng(seed)
    for _ in range(COUNT // 10):
        pipeline = random_pipeline(random)
        durations = random_durations(random, pipeline.order.rank_of.size)
        timeline = run_order(pipeline.order, pipeline.program, durations)
        begun, ended, kept = reference(pipeline, durations)
        names = [
            name
            for row in schedule_rows(pipeline.order)
            for cell in row
            for name in (cell if isinstance(cell, list) else [cell])
        ]
        started, done = ([times[name] for name in names] for times in (begun, ended))
        np.testing.assert_allclose(timeline.start, started, **CLOSE)
        np.testing.assert_allclose(timeline.end, done, **CLOSE)
        np.testing.assert_allclose(timeline.makespan, max(done), **CLOSE)
        np.testing.assert_allclose(timeline.sending, kept, **CLOSE)
