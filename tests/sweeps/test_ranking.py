"""A sweep that keeps the best has what `best` and `pareto` find in a sweep that keeps all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.software.framework import load_framework
from perfmodel.store.results import best, decide_safely, pareto
from perfmodel.strategy.enumerate import strategies_from_rows, strategy_grid
from perfmodel.sweeps import ranking
from perfmodel.sweeps.ranking import objectives_of, rank_problems
from perfmodel.sweeps.several import sweep
from perfmodel.sweeps.sweep import Problem, sweep_table

BATCHES = [16, 32, 48, 64, 96, 128, 256]
FRONT = ["step_time", "memory_total"]
NUMBERS = ("strategy",)  # places, which differ where others are left out


def listed(rows) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if name not in NUMBERS} for row in rows]


def dense_grid(model, devices=16, **axes):
    fields: dict[str, Any] = {
        **{"sequence_length": 2048, "global_batch_size": BATCHES, "context_parallel": 1},
        **{"zero_stage": [0, 1, 3], "micro_batch_size": [1, 2]},
    }
    return strategy_grid(model, devices, **fields | axes)


def assert_the_same(model, grid, hardware, *, top=10, by="", front=FRONT, framework="megatron"):
    given = {"by": by} if by else {}
    whole = sweep(model, grid, hardware, framework=framework, threads=1, dtype="float64")
    few = sweep(
        model,
        grid,
        hardware,
        framework=framework,
        threads=1,
        keep="best",
        top=top,
        pareto=front,
        **given,
    )
    expected = listed(best(whole, top, **given))
    assert listed(best(few, top, **given)) == expected
    for row in np.unique(whole["hardware"]).tolist():
        where = f"hardware == '{row}'"
        of_one = listed(best(whole, top, where=where, **given))
        assert listed(best(few, top, where=where, **given)) == of_one
        if front:
            of_one = listed(pareto(whole, front, where=where))
            assert listed(pareto(few, front, where=where)) == of_one
    assert few.sizes["strategy"] < whole.sizes["strategy"]
    return whole, few


@pytest.mark.parametrize("by", ["", "step_time", "memory_total", "model_flops_utilization"])
def test_the_best_of_two_devices(small_dense, h100, a100, by):
    grid = dense_grid(small_dense)
    whole, few = assert_the_same(small_dense, grid, [h100, a100], by=by)
    assert few.sizes["hardware"] == 2
    assert whole.sizes["strategy"] > 4 * few.sizes["strategy"]


@pytest.mark.parametrize("top", [1, 3, 100])
def test_any_number_of_the_best(small_dense, h100, top):
    grid = dense_grid(small_dense, tensor_parallel=[1, 2], recompute="none")
    assert_the_same(small_dense, grid, [h100], top=top, front=())


def test_experts_and_a_front_of_three(small_moe, h100):
    grid = dense_grid(small_moe, expert_parallel=[1, 2, 4], tensor_parallel=[1, 2])
    front = ["tokens_per_second_per_device", "memory_total", "step_time"]
    assert_the_same(small_moe, grid, [h100], front=front)


@pytest.mark.parametrize("framework", ["megatron", "fsdp"])
def test_pipelines_that_run_by_events(small_dense, h100, framework):
    grid = dense_grid(
        small_dense,
        8,
        pipeline_schedule="all",
        pipeline_parallel=[1, 2, 4],
        tensor_parallel=1,
        zero_stage=1,
        micro_batch_size=1,
        recompute="none",
        global_batch_size=[16, 32, 48],
    )
    assert_the_same(small_dense, grid, [h100], top=5, framework=framework)


def test_stages_of_unequal_layers(small_dense, h100):
    """Eight layers on three stages: even 1F1B runs by events."""
    grid = dense_grid(small_dense, 12, pipeline_parallel=[1, 3], recompute=["none", "full"])
    assert (grid["pipeline_parallel"] == 3).any()
    assert_the_same(small_dense, grid, [h100], by="step_time")


def test_what_waits_elsewhere(small_dense, a100):
    grid = dense_grid(
        small_dense,
        8,
        offload_optimizer=[0.0, 1.0],
        offload_activations=[0.0, 0.5],
        offload_activations_to=["host", "stage"],
        micro_batch_size=1,
        zero_stage=1,
        recompute="none",
        pipeline_parallel=[1, 4],
    )
    assert_the_same(small_dense, grid, [a100], by="memory_total")


def test_families_part_by_part_and_few_that_wait(small_dense, h100, monkeypatch):
    monkeypatch.setattr(ranking, "FAMILIES", 7)
    monkeypatch.setattr(ranking, "MOST_WAITING", 20)
    assert_the_same(small_dense, dense_grid(small_dense, recompute="none"), [h100], top=3)


def test_safely_the_90th_percentile_decides(llama_8b, h100):
    grid = dense_grid(llama_8b, 8, sequence_length=4096)
    whole = sweep_table(llama_8b, grid, [h100], threads=1)
    before = int(whole["fits"].values.sum())
    decide_safely(whole)
    assert 0 < whole["fits"].values.sum() < before
    problem = Problem(llama_8b, load_framework("megatron"), grid)
    found = rank_problems([problem], [h100], objectives_of(10, pareto=FRONT, safe=True), threads=1)
    assert listed(best(found.table, 10)) == listed(best(whole, 10))
    assert listed(pareto(found.table, FRONT)) == listed(pareto(whole, FRONT))
    assert found.counts[0].fitting == whole["fits"].values.sum()
    assert found.counts[0].strategies == len(grid)


def test_where_nothing_fits_one_strategy_stands_for_all(llama_8b, h100):
    rows = [{"sequence_length": 8192, "global_batch_size": batch} for batch in (1, 2, 3)]
    grid = strategies_from_rows(llama_8b, 1, rows)
    found = sweep(llama_8b, grid, h100, keep="best", threads=1)
    assert found.sizes["strategy"] == 1
    assert not found["fits"].values.any()
    assert found["global_batch_size"].values.tolist() == [1]


def test_the_one_that_stands_for_all_is_possible(llama_8b, h100):
    run = {"sequence_length": 8192, "micro_batch_size": 2}
    grid = strategies_from_rows(llama_8b, 1, [{**run, "global_batch_size": it} for it in (5, 2, 4)])
    found = sweep(llama_8b, grid, h100, keep="best", threads=1)
    assert found["global_batch_size"].values.tolist() == [2]


def test_what_cannot_be_ranked_is_refused(small_dense, h100):
    grid = dense_grid(small_dense, recompute="none")

    def refused(match, error=DataError, hardware=h100, **given):
        with pytest.raises(error, match=match):
            sweep(small_dense, grid, hardware, **{"keep": "best"} | given)

    refused("top: 0 is not a positive number", top=0)
    refused("'step_tim' .*did you mean step_time", by="step_tim")
    refused("cannot be ranked by 'recompute'", pareto=["step_time", "recompute"])
    refused("needs two or more variables", pareto=["step_time"])
    refused("keep: 'some' is not one of all, best", keep="some")
    refused("at least one strategy and one hardware", StrategyError, hardware=[])
