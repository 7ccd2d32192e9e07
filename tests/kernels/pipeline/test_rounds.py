"""1F1B round by round against its events."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD
from perfmodel.kernels.pipeline.events import KINDS, Durations, run_order
from perfmodel.kernels.pipeline.rounds import ROOM, one_f_one_b_time, one_f_one_b_times
from perfmodel.strategy.pipelines import named_pipeline


def by_events(forward, backward, forward_send, backward_send, sender, micro_batches):
    stages = forward.size
    work, send = np.zeros((KINDS, stages, 1)), np.zeros((KINDS, stages, 1))
    work[FORWARD, :, 0], work[BACKWARD, :, 0] = forward, backward
    send[FORWARD, :, 0], send[BACKWARD, :, 0] = forward_send, backward_send
    pipeline = named_pipeline("1f1b", stages, micro_batches)
    durations = Durations(work, send, np.empty((0, 0, 1)), sender, 0.0)
    return run_order(pipeline.order, pipeline.program, durations).makespan


@pytest.mark.parametrize("sends", [0.0, 0.2])
@pytest.mark.parametrize("whole", [True, False])
def test_rounds_are_events(sends, whole):
    random = np.random.default_rng(7)
    for _ in range(400):
        stages, micro_batches = int(random.integers(1, 9)), int(random.integers(1, 90))
        times = random.uniform(0.5, 3.0, (2, stages))
        if whole:
            times = np.ceil(times)
        send = random.uniform(0.0, sends, (2, stages))
        sender = float(random.choice([0.0, 0.5, 1.0]))
        arguments = (*times, *send, sender, micro_batches)
        least, growth, steady = one_f_one_b_time(*arguments, np.empty((ROOM, stages)))
        assert steady <= micro_batches
        found = least + (micro_batches - steady) * growth
        assert found == pytest.approx(by_events(*arguments), rel=1e-12)


def test_a_million_micro_batches_take_the_slowest_stage_each():
    forward, backward = np.array([1.0, 2.0, 1.5]), np.array([2.0, 3.0, 2.0])
    none = np.zeros(3)
    times = np.stack([forward, backward, none, none])[:, np.newaxis]
    few, many = one_f_one_b_times(*times, 0.0, np.array([100, 10**6]), np.array([0, 0]))
    assert many - few == pytest.approx((10**6 - 100) * 5.0, rel=1e-12)


def test_cases_that_share_work_are_what_each_is_alone():
    random = np.random.default_rng(3)
    times = random.uniform(0.5, 3.0, (4, 5, 7))
    work, micro_batches = random.integers(0, 5, 200), random.integers(1, 60, 200)
    together = one_f_one_b_times(*times, 0.4, micro_batches, work)
    alone = [
        one_f_one_b_times(*times, 0.4, micro_batches[i : i + 1], work[i : i + 1])[0]
        for i in range(200)
    ]
    assert together.tolist() == alone
