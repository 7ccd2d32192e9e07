"""Until which batch drafts pay, on tables of a real model."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_grid, load_hardware, serve, serving_grid
from perfmodel.serving.speculation import last_paying_batches


@pytest.fixture(scope="module")
def batches() -> np.ndarray:
    grid = serving_grid(
        "deepseek-v3", tensor_parallel=8, draft_length=[0, 1], acceptance=[0.01, 0.4, 0.9]
    )
    found = last_paying_batches(grid, load_hardware("dgx-h200"), most=256)
    return np.column_stack((grid["draft_length"], grid["acceptance"], found))


def test_drafts_pay_the_longer_the_more_are_taken(batches: np.ndarray) -> None:
    drafted = batches[batches[:, 0] == 1]
    assert drafted[:, 2].tolist() == sorted(drafted[:, 2])
    assert drafted[0, 2] == 0.0
    assert drafted[-1, 2] == 256.0


def test_without_drafts_there_is_no_such_batch(batches: np.ndarray) -> None:
    assert np.isnan(batches[batches[:, 0] == 0][:, 2]).all()


def test_closed_loops_agree(batches: np.ndarray) -> None:
    loads = load_grid(input_length=1984, output_length=128, concurrency=8)
    times = [
        float(
            serve(
                "deepseek-v3",
                {"tensor_parallel": 8, "draft_length": drafted, "acceptance": 0.9 * drafted},
                loads,
                "dgx-h200",
            )["time_per_output_token_mean"].min()
        )
        for drafted in (0, 1)
    ]
    assert times[1] < times[0]
