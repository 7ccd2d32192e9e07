"""Micro-batches whose activations a stage holds at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.step.memory import in_flight
from perfmodel.kernels.step.tables import GPIPE, INTERLEAVED, ONE_F_ONE_B


@given(
    st.sampled_from([GPIPE, ONE_F_ONE_B, INTERLEAVED]),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 8),
    st.integers(0, 63),
)
def test_micro_batches_in_flight(schedule, batches, p, v, stage):
    stage = min(stage, p - 1)
    found = in_flight(schedule, stage, batches, p, v)
    assert 0 < found <= batches
    assert found <= in_flight(GPIPE, stage, batches, p, v)  # GPipe keeps most
    if stage:
        assert found <= in_flight(schedule, stage - 1, batches, p, v)  # later stages keep less
    if schedule == ONE_F_ONE_B:
        assert found == min(batches, p - stage)
        assert found <= in_flight(INTERLEAVED, stage, batches, p, v)  # interleaving keeps more


def test_micro_batches_in_flight_on_a_grid_of_stages(project, h100, small_dense):
    def run(schedule, batches):
        return project(
            small_dense,
            h100,
            pipeline_parallel=4,
            micro_batches=batches,
            pipeline_schedule=schedule,
        )

    # 1F1B: the first stage (whose embedding keeps no activations) holds 4 micro-batches.
    one, more = run("1f1b", 8), run("1f1b", 16)
    assert more["memory_activations"] == one["memory_activations"]
    # GPipe: every stage holds all of them, the last one their logits too.
    same, twice = run("gpipe", 8), run("gpipe", 16)
    assert twice["memory_activations"] == pytest.approx(2 * same["memory_activations"])
    assert same["memory_activations"] > 2 * one["memory_activations"]
    assert same["step_time"] == one["step_time"]
