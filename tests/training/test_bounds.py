"""Lower bounds: never above what is projected, of any strategy that they are about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.base.strategy_fields import OFFLOAD, RECOMPUTE
from perfmodel.base.table import Table
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import enumerate_strategies
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.sweeps.sweep import sweep_table
from perfmodel.training.bounds import Bounds, Open, lower_bounds
from perfmodel.training.project import framework_of_run
from tests.amount import cases

SLACK = 1.0 + 1e-9


@st.composite
def spaces(draw: Any) -> dict[str, Any]:
    """Draw axes: of everything a little."""
    batch = draw(st.sampled_from([16, 48]))
    axes: dict[str, Any] = {
        "sequence_length": draw(st.sampled_from([512, 4096])),
        "global_batch_size": batch,
        "tensor_parallel": draw(st.sampled_from([[1], [2], [1, 4]])),
        "context_parallel": draw(st.sampled_from([[1], [1, 2]])),
        "pipeline_parallel": draw(st.sampled_from([[1], [2], [1, 4], [5]])),
        "virtual_pipeline": draw(st.sampled_from([[1], [1, 2]])),
        "expert_parallel": draw(st.sampled_from([[1], [1, 2]])),
        "micro_batch_size": draw(st.sampled_from([[1], [1, 2]])),
        "zero_stage": [0, 1, 2, 3],
        "shard_group": draw(st.sampled_from([[0], [0, 2]])),
        "mapping": draw(
            st.sampled_from(
                [
                    ["tensor-context-data-pipeline"],
                    ["tensor-context-data-pipeline", "data-pipeline-context-tensor"],
                    ["pipeline-tensor-data-context"],
                ]
            )
        ),
        "precision": draw(st.sampled_from(["bf16", "fp8"])),
        "recompute": "all",
        "recompute_method": draw(
            st.sampled_from([["single"], ["single", "block", "every"], "all"])
        ),
        "recompute_num_layers": [0, 1, 3],
    }
    if draw(st.booleans()):
        axes["pipeline_schedule"] = draw(
            st.sampled_from(["gpipe", "zb_h1", "dualpipe", "zb_v", ["1f1b", "interleaved"]])
        )
    for name in draw(st.sets(st.sampled_from(OFFLOAD), max_size=2)):
        axes[name] = [0, draw(st.sampled_from([0.4, 1.0]))]
    if axes.get("offload_activations"):
        axes["offload_activations_to"] = draw(st.sampled_from(["host", ["host", "stage"]]))
    return axes


@settings(
    max_examples=cases(15), deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
@given(
    axes=spaces(),
    model=st.sampled_from(["gpt2", "mixtral-8x7b", "deepseek-v2-lite"]),
    devices=st.sampled_from([8, 10, 16]),
    hardware=st.sampled_from(["dgx-h100", "dgx-a100", "l40s-server"]),
    framework=st.sampled_from(["megatron", "fsdp", "megatron-deepspeed", "best"]),
    share=st.sampled_from([1.0, 0.5, 0.1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_strategy_is_better_than_its_bounds(
    axes: dict[str, Any],
    model: str,
    devices: int,
    hardware: str,
    framework: str,
    share: float,
    seed: int,
) -> None:
    spec, device = load_model(model), load_hardware(hardware)
    grid = enumerate_strategies(spec, devices, axes, hardware=device).grid
    if (axes["precision"] == "fp8" and hardware == "dgx-a100") or not len(grid):
        return
    rows = np.random.default_rng(seed).permutation(len(grid))[:60]
    grid = grid.take(np.sort(rows))
    software = (
        load_framework("megatron", stage_split="best")
        if framework == "best"
        else load_framework(framework)
    )
    table = sweep_table(spec, grid, device, framework=software)
    run = framework_of_run(software, spec, device, grid)
    step, memory = (table[name].values[:, 0] for name in ("step_time", "memory_total"))
    capacity = float(np.quantile(memory, share))
    fits = memory <= capacity
    stages = (grid["offload_activations_to"] == 2).any()
    shares = [float(grid[name].max()) for name in OFFLOAD[1:]]
    asked = capacity, tuple(sorted({0.0, *grid["offload_activations"].tolist()})), *shares, stages
    several = grid["recompute_method"] > 0
    blank = np.zeros(len(grid), np.int64)
    nothing = {name: blank * 0.0 for name in OFFLOAD}
    kept = {
        "recompute": np.where(several, RECOMPUTE.index("none"), grid["recompute"]),
        "recompute_method": blank,
        "recompute_num_layers": blank,
    }
    open_zero = {"zero_stage": blank, "shard_group": blank}
    for changed, zero, layers in (
        (open_zero | kept, (0, 1, 2, 3), several),  # a layout
        (kept, (), several),  # its sharding chosen
        ({}, (), np.zeros(len(grid), bool)),  # and its layers
    ):
        columns = {**grid.columns, **nothing, **changed}
        rest = StrategyGrid(devices, columns, grid.status)
        still = Open(asked[0], zero, *asked[1:])
        found = lower_bounds(spec, rest, device, run, still, layers)
        assert (found.memory <= memory * SLACK).all()
        for bound in (found.compute, found.passes + found.shown):
            assert (bound[fits] <= step[fits] * SLACK).all()


def _bounds(axes: dict[str, Any], capacity: float, several: bool = False) -> tuple[Bounds, Table]:
    spec, device = load_model("llama-3.1-8b"), load_hardware("dgx-h100")
    given = {"sequence_length": 4096, "global_batch_size": 64, "micro_batch_size": 4, **axes}
    grid = enumerate_strategies(spec, 8, given, hardware=device).grid
    software = framework_of_run(load_framework("megatron"), spec, device, grid)
    layers = np.full(len(grid), several)
    still = Open(capacity, tuple(given.get("zero_stage", (1,))))
    found = lower_bounds(spec, grid, device, software, still, layers)
    return found, sweep_table(spec, grid, device)


ONE = {
    "tensor_parallel": 2,
    "context_parallel": 1,
    "pipeline_parallel": 2,
    "virtual_pipeline": 1,
    "recompute": "none",
    "zero_stage": [1],
}


def test_they_are_close_where_little_is_open() -> None:
    found, table = _bounds(ONE, np.inf)
    assert found.memory[0] > 0.8 * table["memory_total"].values[0, 0]
    assert found.passes[0] + found.shown[0] > 0.9 * table["step_time"].values[0, 0]


def test_too_little_memory_costs_what_has_to_be_computed_again() -> None:
    roomy, table = _bounds(ONE, np.inf, several=True)
    full = _bounds({**ONE, "recompute": "full"}, np.inf)[0]
    need = float(table["memory_total"].values[0, 0])
    tight = _bounds(ONE, 0.6 * need, several=True)[0]
    assert roomy.passes[0] == roomy.compute[0]
    assert roomy.passes[0] < tight.passes[0] < full.passes[0]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_memory_falls_with_what_is_sharded(stage: int) -> None:
    less = _bounds({**ONE, "pipeline_parallel": 1, "zero_stage": (stage,)}, np.inf)[0].memory[0]
    all_of_them = _bounds({**ONE, "pipeline_parallel": 1, "zero_stage": [0]}, np.inf)[0].memory[0]
    assert less <= all_of_them
    assert (less < all_of_them) == (stage > 0)
