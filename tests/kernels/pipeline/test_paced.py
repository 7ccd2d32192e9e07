"""Many cases of one pipeline at once."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.pipelines import SCHEDULE_FACTS, SCHEDULES
from perfmodel.kernels.pipeline.actions import KINDS
from perfmodel.kernels.pipeline.events import Durations, run_order
from perfmodel.kernels.pipeline.paced import (
    BLOCK,
    INTO,
    SOURCE,
    makespans_of_all,
    paced_makespans,
    repetitions,
    steps_of,
)
from perfmodel.strategy.pipelines import named_pipeline
from perfmodel.training import scheduled
from perfmodel.training.scheduled import run_cases
from tests.kernels.pipeline.cases import random_pipeline

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


@pytest.mark.parametrize("cases", [1, BLOCK - 1, BLOCK, 3 * BLOCK + 1])
def test_many_cases_are_single_ones(cases):
    random = np.random.default_rng(cases)
    for schedule in SCHEDULES:
        pipeline = random_pipeline(random, schedule)
        stages = pipeline.order.rank_of.size
        work, sends = random.uniform(0.1, 2.0, (KINDS, 3, cases)), random.uniform(0.0, 0.5, cases)
        work_of, keeps = random.permutation(np.arange(stages) % 3), float(random.integers(0, 2))
        makespan, growth = run_cases(pipeline, work, work_of, sends, keeps, False)
        assert np.isnan(growth).all()
        for case in range(cases):
            for one in range(2):
                send = np.full((KINDS, stages), sends[case] * one)
                durations = Durations(work[:, work_of, case], send, np.empty((0, 0)), keeps, 0.0)
                alone = run_order(pipeline.order, pipeline.program, durations)
                assert alone.makespan == makespan[one, case]


def test_an_end_stays_until_all_have_read_it():
    """Every step finds what the program says it waits for."""
    random = np.random.default_rng(2)
    for _ in range(30):
        program = random_pipeline(random).program
        steps, places, last, _ = steps_of(
            program, np.zeros((KINDS, program.stage.max() + 1), np.int64)
        )
        lies = np.full(places, -1)
        for action, step in enumerate(steps):
            assert lies[step[SOURCE]] == program.needs[action]
            lies[step[INTO]] = action
        ends = [np.flatnonzero(program.rank == rank)[-1] for rank in np.unique(program.rank)]
        assert sorted(lies[last]) == sorted(ends)


def test_few_places_hold_a_long_pipeline():
    program = named_pipeline("1f1b", 8, 400).program
    assert steps_of(program, np.zeros((KINDS, 8), np.int64)).places < 50


@pytest.mark.parametrize("cases", [1, BLOCK + 3])
def test_numpy_finds_the_same_digits(cases):
    order, program = named_pipeline("interleaved", 4, 24, 3, 4)
    random = np.random.default_rng(cases)
    steady = repetitions(order, program, 4)
    steps = steps_of(program, np.arange(KINDS * 12).reshape(KINDS, 12), steady)
    work, sends = random.uniform(0.1, 2.0, (KINDS * 12, cases)), random.uniform(0.0, 0.5, cases)
    work[:, 0] = 1.0  # equal stages, which settle at once
    found, expected = (it(*steps, work, sends, 1.0) for it in (makespans_of_all, paced_makespans))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert np.isfinite(found[1][0, 0])
