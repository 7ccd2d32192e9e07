"""Passes of an operating point, and their operations."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_grid, load_hardware, serving_grid
from perfmodel.analysis.serving_explain import explain_point, point_passes
from perfmodel.base.errors import StrategyError

LOAD = load_grid(input_length=3000, output_length=200, prefix=1000, concurrency=8)


def grid(**axes):
    return serving_grid("llama-3.1-8b", "dgx-h200", **{"tensor_parallel": 1, **axes})


def test_a_prompt_takes_the_room_that_decoding_sequences_leave() -> None:
    found = point_passes(grid(token_budget=1024), LOAD, 24.0)
    assert found["decode"][3:6] == (24.0, 3100.0, 1.0)
    assert found["prefill"][:3] == (1.0, 1000.0, 1000.0)
    assert found["prefill"].decoding == 24.0
    assert found["prefill"].finished == 0.0
    alone = point_passes(grid(engine="sglang"), LOAD, 24.0)["prefill"]
    assert (alone.chunk, alone.decoding, alone.finished) == (2000.0, 0.0, 1.0)


def test_stages_share_the_batch_and_drafts_are_verified() -> None:
    found = point_passes(grid(pipeline_parallel=4), LOAD, 24.0)
    assert found["decode"].decoding == 6.0
    drafting = serving_grid(
        "deepseek-r1", tensor_parallel=8, expert_parallel=8, draft_length=3, acceptance=0.5
    )
    assert point_passes(drafting, LOAD, 24.0)["decode"].verified == 4.0


def test_a_phase_without_a_batch_has_prompts_only() -> None:
    assert set(point_passes(grid(), LOAD, np.nan)) == {"prefill"}


def test_prompts_of_a_pool_of_their_own_run_in_its_layout() -> None:
    two = grid(prefill_workers=1, prefill_tensor_parallel=4)
    found = explain_point(two, LOAD, load_hardware("dgx-h200"), {"batch": 8.0})
    names = {name: {item.name for item in items} for name, items in found.items()}
    assert "mlp.output.all_reduce" in names["prefill"]
    assert "mlp.output.all_reduce" not in names["decode"]
    assert "full decode" not in names["prefill"]


def test_more_than_one_point_is_refused() -> None:
    several = serving_grid("llama-3.1-8b", tensor_parallel=[1, 2])
    with pytest.raises(StrategyError, match="exactly one point, not 2 deployments"):
        explain_point(several, LOAD, load_hardware("dgx-h200"), {"batch": 1.0})
    broken = serving_grid("llama-3.1-8b", tensor_parallel=3, keep_impossible=True)
    with pytest.raises(StrategyError, match="impossible deployment: attention heads"):
        explain_point(broken, LOAD, load_hardware("dgx-h200"), {"batch": 1.0})
