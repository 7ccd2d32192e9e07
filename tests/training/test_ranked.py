"""The best of a workload on one device: bounds, counts, and rooms that grow."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.step.ranking import write_bounds
from perfmodel.kernels.variables import STEP_VARIABLES
from perfmodel.software.framework import load_framework
from perfmodel.store.results import LARGER_IS_BETTER, best_rows, front_rows
from perfmodel.strategy.enumerate import strategy_grid
from perfmodel.sweeps.sweep import sweep_table
from perfmodel.training import ranked
from perfmodel.training.project import add_waits, project_grid, shares_of
from perfmodel.training.ranked import Best, Objectives
from perfmodel.training.workload import Workload

ROWS = {item.name: row for row, item in enumerate(STEP_VARIABLES)}
BASE = {
    **{"sequence_length": 2048, "global_batch_size": [32, 64, 96, 128], "micro_batch_size": [1, 2]},
    **{"context_parallel": 1, "tensor_parallel": [1, 2], "recompute": ["none", "full"]},
}
OFFLOAD = {
    **{"offload_optimizer": [0.0, 1.0], "offload_activations": [0.0, 0.5], "zero_stage": 1},
    **{"offload_activations_to": ["host", "stage"], "pipeline_parallel": [1, 4]},
}
FEW = {
    **{"recompute": "none", "zero_stage": [1, 3], "micro_batch_size": 1, "tensor_parallel": 1},
    **{"pipeline_parallel": 4, "global_batch_size": [16, 32, 48]},
}
SCHEDULES = ["zb_h1", "zb_v", "dualpipe", "dualpipe_v", "hanayo"]
CASES = {
    "dense": ("small_dense", 8, {}),
    "moe": ("small_moe", 8, {"expert_parallel": [1, 2], "pipeline_parallel": [1, 2]}),
    "offload": ("small_dense", 8, OFFLOAD),
    "schedules": ("small_dense", 8, {"pipeline_schedule": SCHEDULES, **FEW}),
    "uneven": ("small_dense", 12, {"pipeline_parallel": [1, 3, 6], "zero_stage": 1}),
}


@pytest.mark.parametrize("framework", ["megatron", "fsdp"])
@pytest.mark.parametrize("case", CASES)
def test_no_strategy_is_better_than_the_bounds_of_its_family(request, h100, case, framework):
    name, devices, axes = CASES[case]
    model, software = request.getfixturevalue(name), load_framework(framework)
    grid = strategy_grid(model, devices, **BASE | axes)
    out, row = np.empty((len(STEP_VARIABLES), len(grid))), np.empty(len(STEP_VARIABLES))
    project_grid(Workload(model, grid), h100, software, out, threads=1)
    nearest = 0.0
    for share in shares_of(Workload(model, grid), h100, software):
        strategies, batch, keys, stages, *_ = share.arguments(
            share.work.strategies, add_waits(share, bounds=True)
        )
        for strategy in strategies:
            key = keys.of[stages.of[strategy.stage_key].layer_key]
            write_bounds(strategy, batch, key, stages, share.settings, row)
            size = strategy.behind - strategy.first
            exact = out[:, strategy.number : strategy.number + size]
            for variable, number in ROWS.items():
                if variable in LARGER_IS_BETTER:
                    assert (exact[number] <= row[number]).all(), (variable, strategy)
                else:
                    assert (exact[number] >= row[number]).all(), (variable, strategy)
            nearest = max(nearest, row[ROWS["step_time"]] / exact[ROWS["step_time"], 0])
    assert 0.7 < nearest <= 1.0


FRONT = ("step_time", "memory_total")
RATE = "tokens_per_second_per_device"


def best_of(model, grid, hardware, *, top=4, by=RATE, front=(), framework="megatron", threads=1):
    """What may be among the best, and how many strategies were what."""
    found = Best(Objectives(top, by, front, frozenset(LARGER_IS_BETTER)), hardware)
    numbers = found.add(Workload(model, grid), load_framework(framework), threads=threads)
    return numbers, found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("by", [RATE, "memory_total"])
def test_counts_are_those_of_a_sweep_of_all(request, a100, case, by):
    name, devices, axes = CASES[case]
    model = request.getfixturevalue(name)
    grid = strategy_grid(model, devices, **BASE | axes)
    needed = sweep_table(model, grid, [a100], threads=1)["memory_total"].values
    small = a100.with_values({"device.memory.capacity": float(np.median(needed))})
    whole = sweep_table(model, grid, [small], threads=1)
    numbers, found = best_of(model, grid, small, by=by, front=FRONT)
    fits = int(whole["fits"].values.sum())
    assert 0 < fits < len(grid)  # about half of them
    assert found.counts.strategies == len(grid)
    assert found.counts.fitting == fits
    assert found.counts.lacking == 0
    assert found.counts.ruled_out < len(grid)
    few, without = best_of(model, grid, small, top=1, by=by)  # more is ruled out
    assert without.counts.ruled_out >= found.counts.ruled_out
    assert without.counts.fitting == fits
    assert set(best_rows(whole, 1, by)) <= set(few.tolist())
    assert set(best_rows(whole, 4, by)) | set(front_rows(whole, FRONT)) <= set(numbers.tolist())


def test_bounds_rule_most_out(small_dense, h100):
    grid = strategy_grid(small_dense, 8, **BASE)
    numbers, found = best_of(small_dense, grid, h100, top=1)
    assert found.counts.ruled_out > len(grid) // 4
    assert numbers.size < len(grid) // 4


def test_what_the_device_lacks_is_counted_and_never_ranked(small_dense, a100):
    grid = strategy_grid(small_dense, 8, **BASE, precision=["bf16", "fp8"])
    numbers, found = best_of(small_dense, grid, a100)
    names = np.array([row == 0 for row in grid["precision"]])
    assert found.counts.lacking == np.count_nonzero(~names) > 0
    assert found.counts.fitting <= np.count_nonzero(names)
    assert names[numbers].all()


@pytest.mark.parametrize("case", ["dense", "schedules"])
def test_rooms_that_grow_change_nothing(request, h100, case, monkeypatch):
    name, devices, axes = CASES[case]
    model = request.getfixturevalue(name)
    grid = strategy_grid(model, devices, **BASE | axes)
    expected, before = best_of(model, grid, h100, front=FRONT)
    monkeypatch.setattr(ranked, "ROOM", 1)
    numbers, found = best_of(model, grid, h100, front=FRONT)
    assert numbers.tolist() == expected.tolist()
    assert found.counts == before.counts
    np.testing.assert_array_equal(found.costs, before.costs)
    np.testing.assert_array_equal(found.front, before.front)


def test_what_was_added_before_counts(small_dense, h100):
    """Two halves, one after the other, leave the costs of the whole."""
    grid = strategy_grid(small_dense, 8, **BASE)
    expected, whole = best_of(small_dense, grid, h100, front=FRONT)
    halves = Best(whole.objectives, h100)
    families = Workload(small_dense, grid).families
    middle, numbers = families.size.size // 2, []
    for half in (slice(0, middle), slice(middle, None)):
        work = Workload(small_dense, families.take(half))
        numbers += halves.add(work, load_framework("megatron"), threads=1).tolist()
    assert set(expected.tolist()) <= set(numbers)
    assert halves.counts.strategies == len(grid)
    assert halves.counts.fitting == whole.counts.fitting
    np.testing.assert_array_equal(halves.costs, whole.costs)
    np.testing.assert_array_equal(halves.front, whole.front)
