"""Which points are run pass by pass unasked."""

from __future__ import annotations

import numpy as np

from perfmodel import load_grid, serving_grid
from perfmodel.serving.methods import (
    MOST_HARD,
    MOST_REQUESTS,
    hard_points,
    is_small,
    requests_run,
    requests_to_run,
)
from tests.kernels.serving.cases import deployment, load


def test_hard_points_are_ranks_in_step_and_caches_that_answers_outgrow() -> None:
    loads = load(input_length=100.0, output_length=4000.0, concurrency=[8.0, 64.0, 4096.0])
    room = {"blocks": 8400.0, "block_tokens": 16.0}  # of about 64 such requests
    preempting = hard_points(deployment("fused", admission="preemption", **room), loads)
    assert preempting.tolist() == [[False, True, False]]
    reserving = deployment("fused", admission="guaranteed_no_evict", **room)
    assert not hard_points(reserving, loads).any()
    step = deployment("fused", lockstep_ranks=8.0, ranks=8.0, token_budget=64.0)
    assert hard_points(step, loads).all()


def test_large_points_and_large_questions_are_closed() -> None:
    grid = serving_grid("llama-3.1-8b", "dgx-h100", tensor_parallel=1)
    loads = load_grid(input_length=1024, output_length=128, concurrency=[8, 4096])
    few, many = requests_run(grid, loads)[0]
    assert few <= MOST_REQUESTS < MOST_HARD < many
    assert is_small(grid, loads)
    assert not is_small(grid, loads, devices=1000)
    given = deployment("fused")
    found = requests_to_run(grid, loads, "auto", True, given)
    assert found is not None
    assert (found > 0.0).tolist() == [[True, False]]
    assert requests_to_run(grid, loads, "auto", False, given) is None
    assert np.isfinite(requests_to_run(grid, loads, "recursion", False, given)).all()
