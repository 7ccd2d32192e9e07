"""Pipelines that repeat themselves: few micro-batches tell what many take."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.kernels.pipeline.actions import KINDS
from perfmodel.kernels.pipeline.repetition import repetitions
from perfmodel.strategy.pipelines import named_pipeline
from perfmodel.training import scheduled
from perfmodel.training.scheduled import run_cases

CASES = 40
FILLED = scheduled.FILLED[0]


def pipelines(schedule):
    """Yield ranks, chunks and the repetitions that are left out."""
    for ranks in (1, 2, 3, 5):
        for chunks in (1, 2, 3) if schedule == "interleaved" else (None,):
            for more in (1, 4, 11):
                yield ranks, chunks, more


@pytest.mark.parametrize(
    "schedule", [name for name, item in SCHEDULE_FACTS.items() if item.repeats]
)
def test_what_is_left_out_follows(schedule):
    random = np.random.default_rng(3)
    steady = 0
    shapes = list(pipelines(schedule))
    for ranks, chunks, more in shapes:
        few = named_pipeline(schedule, ranks, FILLED * ranks, chunks)
        many = named_pipeline(schedule, ranks, (FILLED + more) * ranks, chunks)
        shown = repetitions(few.order, few.program, ranks)
        assert shown.size  # so many show what repeats itself
        stages = few.order.rank_of.size
        durations = (
            random.uniform(0.1, 2.0, (KINDS, stages, CASES)),
            np.arange(stages),
            random.uniform(0.0, 0.5, CASES),
            float(random.integers(0, 2)),
        )
        makespan, growth = run_cases(few, *durations, True)
        found = makespan + more * growth
        known = np.isfinite(found)
        steady += known.sum()
        whole = run_cases(many, *durations, False)[0]
        np.testing.assert_allclose(found[known], whole[known], 1e-12)
    assert steady > 0.8 * 2 * len(shapes) * CASES


def test_what_has_not_settled_says_so():
    """The first stage is a little slower, and gets behind only after many repetitions."""
    few = named_pipeline("interleaved", 4, FILLED * 4, 2)
    work = np.ones((4, 8, 1))
    work[:, 0] += 1e-3
    work[:, 7] += 0.9
    work[:, 4] += 0.9
    durations = work, np.arange(8), np.zeros(1), 0.0
    (makespan, _), (growth, _) = run_cases(few, *durations, True)
    many = named_pipeline("interleaved", 4, 400, 2)
    whole = run_cases(many, *durations, False)[0][0]
    assert np.isnan(growth[0]) or makespan[0] + (100 - FILLED) * growth[0] == pytest.approx(
        whole[0]
    )


def test_a_pipeline_that_is_hardly_full_shows_nothing():
    few = named_pipeline("1f1b", 4, 8)
    assert repetitions(few.order, few.program, 4).shape == (2, 0)
    looped = named_pipeline("looped_bfs", 4, 40, 2)  # all of a chunk, then all of the next
    assert repetitions(looped.order, looped.program, 4).shape == (2, 0)
