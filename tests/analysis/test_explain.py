"""Operation lists add up to the projected step and name what bounds each operation."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from perfmodel import load_grid, load_hardware, serving_grid
from perfmodel.analysis.explain import component, explain_point, operation_costs, point_passes
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.step.tables import ResultRows
from perfmodel.kernels.variables import OPERATION_COMPONENTS
from perfmodel.model.presets import load_model
from perfmodel.strategy.enumerate import strategies_from_rows
from tests.data import table_of

CASES: dict[str, tuple[str, dict[str, Any]]] = table_of(__file__, "cases")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("framework", ["megatron", "fsdp", "maxtext"])
def test_operations_add_up_to_the_step(request, name, framework, grid_of, project, h100):
    model = request.getfixturevalue(CASES[name][0])
    fields = CASES[name][1]
    costs = operation_costs(model, grid_of(model, **fields), h100, framework=framework)
    found = project(model, h100, framework, **fields)
    sums: dict[str, float] = defaultdict(float)
    for cost in costs:
        sums[component(cost)] += cost.exposed
    for item in OPERATION_COMPONENTS:
        assert sums[item] == pytest.approx(found[item], rel=1e-9, abs=1e-15), item
    assert set(sums) <= set(OPERATION_COMPONENTS)


@pytest.mark.parametrize("name", CASES)
def test_every_operation_is_fully_described(request, name, grid_of, h100):
    model = request.getfixturevalue(CASES[name][0])
    for cost in operation_costs(model, grid_of(model, **CASES[name][1]), h100):
        assert cost.calls > 0
        assert cost.time > 0
        assert 0 <= cost.exposed <= cost.calls * cost.time * (1 + 1e-12)
        assert cost.traffic > 0
        assert math.isfinite(cost.flops)
        assert cost.bound
        assert cost.shape
        assert (cost.flops > 0) == (cost.kind in ("gemm", "attention"))
        if cost.kind == "gemm":
            assert cost.bound in ("compute", "l2", "memory", "latency")
        if cost.flops:
            # No operation beats the datasheet rate (fp8 here is the fastest used).
            assert cost.flops / cost.time < h100.device.peak("fp8")


def test_shapes_are_readable(grid_of, h100, small_dense):
    costs = operation_costs(small_dense, grid_of(small_dense, tensor_parallel=2), h100)
    shapes = {(cost.name, cost.phase): cost.shape for cost in costs}
    assert shapes["mlp.up", "forward"] == "2048×5632×2048"  # tokens × 2·5632/2 × hidden
    assert shapes["attention.core", "forward"] == "b1 q2048 k2048 h8/4 d128"
    assert "over 2 ranks, 1 apart" in shapes["mlp.output.reduce_scatter", "forward"]


def test_calls_count_layers_and_micro_batches(grid_of, h100, small_dense):
    costs = operation_costs(small_dense, grid_of(small_dense, micro_batches=5), h100)
    calls = {(cost.name, cost.phase): cost.calls for cost in costs}
    assert calls["mlp.up", "forward"] == 8 * 5
    assert calls["output.logits", "forward"] == 5
    assert all(type(count) is float for count in calls.values())


def test_the_slowest_stage_is_explained(grid_of, h100, project):
    """With a large vocabulary the last of two stages is the slowest."""
    model = load_model("gemma-3-27b")
    fields = {"tensor_parallel": 8, "pipeline_parallel": 2}
    costs = operation_costs(model, grid_of(model, **fields), h100)
    assert any(cost.part == "output" for cost in costs)
    assert not any(cost.part == "embedding" for cost in costs)


def test_exactly_one_possible_strategy(small_dense, h100):
    run = {"sequence_length": 2048, "global_batch_size": 8}
    with pytest.raises(StrategyError, match="exactly one strategy, not 2"):
        operation_costs(small_dense, strategies_from_rows(small_dense, 8, [run, run]), h100)
    impossible = strategies_from_rows(small_dense, 8, [{**run, "tensor_parallel": 3}])
    with pytest.raises(StrategyError, match="impossible strategy: tensor × context"):
        operation_costs(small_dense, impossible, h100)


def test_an_unsupported_precision_is_refused(small_dense, a100):
    run = {"sequence_length": 2048, "global_batch_size": 8, "precision": "fp8"}
    grid = strategies_from_rows(small_dense, 8, [run])
    with pytest.raises(StrategyError, match="precision"):
        operation_costs(small_dense, grid, a100)


def test_components_are_rows_of_the_result():
    assert set(OPERATION_COMPONENTS) < set(ResultRows._fields)
    assert np.unique(OPERATION_COMPONENTS).size == len(OPERATION_COMPONENTS)


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
