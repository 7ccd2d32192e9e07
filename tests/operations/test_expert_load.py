"""The busiest rank of an expert-parallel group."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.operations.expert_load import busiest_ranks
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.sweeps.several import sweep


def test_loads_of_real_routing_are_those_that_were_measured() -> None:
    """58 layers of DeepSeek-V3 on MMLU, imbalance of 8 to 64 ranks: docs/routing.md."""
    found = busiest_ranks("two_level", 256, 8, np.array([8.0, 16.0, 32.0, 64.0]))
    np.testing.assert_allclose(found, [1.285, 1.467, 1.762, 2.324], rtol=0.11)  # five draws


def test_balanced_loads_and_single_ranks_wait_for_nobody() -> None:
    ranks = np.array([1.0, 8.0])
    np.testing.assert_array_equal(busiest_ranks("balanced", 64, 8, ranks), 1.0)
    assert busiest_ranks("two_level", 64, 8, ranks)[0] == 1.0


def test_more_ranks_wait_longer() -> None:
    found = busiest_ranks("two_level", 128, 8, np.array([2.0, 4.0, 8.0, 16.0, 32.0]))
    assert np.all(np.diff(found) > 0.0)


def test_a_step_with_real_routing_takes_longer(small_moe) -> None:
    row = {"expert_parallel": 8, "data_parallel": 8, "sequence_length": 2048}
    grid = strategies_from_rows(small_moe, 8, [{**row, "global_batch_size": 64}])

    def step(**changes: str) -> float:
        framework = load_framework("megatron", graph_launch=True, **changes)
        return float(
            sweep(small_moe, grid, "dgx-h100", framework=framework, dtype="float64")[
                "step_time"
            ].item()
        )

    assert step(routing="two_level") > step()


def test_a_distribution_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match="routing"):
        busiest_ranks("two_levels", 64, 8, np.array([8.0]))
