"""Memory of stages at the moments of a step."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.variables import MEMORY_COMPONENTS
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.strategy.single import one_strategy
from perfmodel.sweeps.sweep import sweep_table
from perfmodel.training.stage_memory import MOMENTS, stage_memories
from perfmodel.training.timeline import pipeline_timeline

STRATEGY = {
    "tensor_parallel": 2,
    "pipeline_parallel": 4,
    "data_parallel": 2,
    "virtual_pipeline": 2,
    "micro_batch_size": 1,
    "global_batch_size": 16,
    "sequence_length": 4096,
    "zero_stage": 1,
    "precision": "bf16",
}


def memories(framework="megatron", **changes):
    model, hardware = load_model("llama-3.1-8b"), load_hardware("dgx-h100")
    grid = strategies_from_rows(model, 16, [{**STRATEGY, **changes}])
    found = load_framework(framework)
    table = sweep_table(model, grid, hardware, framework=found, threads=1)
    return stage_memories(model, grid, hardware, found), table


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "fsdp", "nanotron"])
def test_the_projected_peak_is_the_worst_moment_of_the_worst_stage(framework):
    stages, table = memories(framework)
    assert sum(stage.stages for stage in stages) == 4
    assert all(stage.held.shape == (len(MOMENTS), len(MEMORY_COMPONENTS)) for stage in stages)
    worst = max(stages, key=lambda stage: stage.totals.max())
    assert worst.totals.max() == pytest.approx(table["memory_total"].values[0, 0], rel=1e-12)
    for name, value in worst.at_peak().items():
        assert value == pytest.approx(table[name].values[0, 0], rel=1e-12)


def test_gradients_without_buffers_appear_in_the_first_backward():
    """FSDP2 frees them with zero_grad(set_to_none=True); Megatron's buffers are always there."""
    column = MEMORY_COMPONENTS.index("memory_gradients")
    flat = {"pipeline_parallel": 1, "virtual_pipeline": 1, "data_parallel": 8}
    fields = {**flat, "zero_stage": 3, "global_batch_size": 8}
    ((stage,), _), ((accumulating,), _) = (
        memories("torchtitan", **fields),
        memories("torchtitan", **{**fields, "global_batch_size": 16}),
    )
    assert np.all(stage.held[:2, column] == 0.0)
    assert np.all(stage.held[2:, column] > 0.0)
    assert np.all(accumulating.held[:, column] > 0.0)
    ((kept,), _) = memories("megatron", **{**fields, "zero_stage": 1})
    assert np.ptp(kept.held[:, column]) == 0.0


def test_fsdp_holds_twelve_bytes_a_parameter_until_gradients_come():
    """4 of the fp32 shard and 8 of moments; 16 behind backward (torch, MemTracker)."""
    flat = {"tensor_parallel": 1, "pipeline_parallel": 1, "virtual_pipeline": 1}
    ((stage,), _) = memories("fsdp", **flat, data_parallel=16, zero_stage=3)
    owned = load_model("llama-3.1-8b").parameter_count() / 16
    state = stage.held[:, :3].sum(axis=1) / owned
    assert state == pytest.approx([12.0, 12.0, 16.0, 16.0])


def test_a_light_first_chunk_keeps_less():
    """126 layers of Llama 3.1 405B on 8 stages of 8 chunks: 71 passes ahead, 15 of the first chunk.

    Of the first stage's chunks the first has one layer and the others two.
    """
    model = load_model("llama-3.1-405b")
    fields = {"tensor_parallel": 8, "pipeline_parallel": 8, "virtual_pipeline": 8}
    axes = {**fields, "global_batch_size": 256, "sequence_length": 2048}
    grid = one_strategy(model, 64, axes)
    hardware, framework = load_hardware("dgx-h100"), load_framework("megatron")
    first = stage_memories(model, grid, hardware, framework)[0]
    timeline = pipeline_timeline(model, grid, hardware, framework)
    assert timeline.stages[0].layers == (1, *[2] * 7)
    activations = first.held[0, list(MEMORY_COMPONENTS).index("memory_activations")]
    assert activations == pytest.approx(timeline.stages[0].kept, rel=1e-9)
