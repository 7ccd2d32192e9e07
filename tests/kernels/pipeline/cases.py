"""Random pipelines with uneven stages and sends, for several tests."""

from __future__ import annotations

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.base.pipelines import SCHEDULE_FACTS, SCHEDULES
from perfmodel.kernels.pipeline.actions import KINDS
from perfmodel.kernels.pipeline.events import Durations
from perfmodel.strategy.pipelines import Pipeline, named_pipeline

MOST_RANKS, MOST_MICRO_BATCHES = 6, 20


def random_pipeline(random: np.random.Generator, schedule: str | None = None) -> Pipeline:
    """Return a pipeline with any schedule and any numbers that it takes."""
    name = schedule or str(random.choice(SCHEDULES))
    while True:
        ranks = int(random.integers(1, MOST_RANKS + 1))
        micro_batches = int(random.integers(1, MOST_MICRO_BATCHES + 1))
        chunks = None
        step = SCHEDULE_FACTS[name].chunk_step
        if step:
            chunks = step * int(random.integers(1, 4 if step == 1 else 3))
        try:
            return named_pipeline(name, ranks, micro_batches, chunks)
        except StrategyError:
            continue


def random_durations(random: np.random.Generator, stages: int) -> Durations:
    """Return durations of uneven stages, a share of them without sends, without overlap."""
    work = random.uniform(0.1, 2.0, (KINDS, stages))
    send = random.uniform(0.0, 0.5, (KINDS, stages)) * random.integers(0, 2)
    pairs = stages * int(random.integers(0, 2))
    together = random.uniform(0.2, 3.0, (pairs, pairs))
    shares = random.choice([0.0, 0.3, 1.0], 2)
    return Durations(work, send, together, float(shares[0]), float(shares[1]))
