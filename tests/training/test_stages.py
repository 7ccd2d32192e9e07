"""Memory of stages at the moments of a step."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.analysis.single import one_strategy
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.variables import MEMORY_COMPONENTS, STEP_VARIABLES
from perfmodel.model.layers import layer_parameters
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.sweeps.sweep import sweep_table
from perfmodel.training.activations import Scope
from perfmodel.training.memory import gathered_working
from perfmodel.training.project import project_grid
from perfmodel.training.stages import MOMENTS, pipeline_timeline, stage_memories
from perfmodel.training.workload import Workload
from tests.training.gpt import keys_of

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
    gradients = stage.held[:, column]
    assert gradients[0] == 0.0
    # The output's come first; the embedding's and those of a layer last.
    model = load_model("llama-3.1-8b")
    table, layer = 128256 * 4096, layer_parameters(model.layers[0], 4096).total
    parameters = model.parameter_count()
    assert gradients[1] / gradients[3] == pytest.approx((table + 4096) / parameters, rel=1e-4)
    assert 1.0 - gradients[2] / gradients[3] == pytest.approx(
        (table + layer) / parameters, rel=1e-3
    )
    assert np.all(accumulating.held[:, column] > 0.0)
    ((kept,), _) = memories("megatron", **{**fields, "zero_stage": 1})
    assert np.ptp(kept.held[:, column]) == 0.0


def test_fsdp_holds_twelve_bytes_a_parameter_until_gradients_come():
    """4 of the fp32 shard and 8 of moments; 16 behind backward (torch, MemTracker)."""
    flat = {"tensor_parallel": 1, "pipeline_parallel": 1, "virtual_pipeline": 1}
    ((stage,), _) = memories("fsdp", **flat, data_parallel=16, zero_stage=3)
    owned = load_model("llama-3.1-8b").parameter_count() / 16
    state = stage.held[:, :3].sum(axis=1) / owned
    assert state[[0, 3]] == pytest.approx([12.0, 16.0])
    assert 12.0 < state[1] < state[2] < 16.0


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


NANOTRON = {
    **{"tensor_parallel": 2, "pipeline_parallel": 1, "virtual_pipeline": 1},
    **{"data_parallel": 8, "global_batch_size": 32},
}


def held_by(name, **changes):
    """Columns of one component over the moments of a lone stage of nanotron."""
    ((stage,), _) = memories("nanotron", **{**NANOTRON, **changes})
    return stage.held[:, MEMORY_COMPONENTS.index(name)], stage.held[0, 0] / 2.0


def test_nanotron_gathers_updated_parameters_in_one_buffer():
    """Flat shares of all ranks and the buffer that receives them, 2 B a parameter each.

    distributed.py, all_gather_coalesced; the allocator holds the buffer beside the next step.
    """
    idle, parameters = held_by("memory_fragmentation")
    without, _ = held_by("memory_fragmentation", zero_stage=0)
    assert idle[:3] - without[:3] == pytest.approx(2.0 * parameters, rel=1e-3)
    at_update, whole = (held_by("memory_buffers", zero_stage=zero)[0][3] for zero in (1, 0))
    bucket = 5e7  # of gradients, on its way to those that own them
    assert at_update == pytest.approx((4.0 + 2.0 / 8) * parameters + bucket)
    assert whole == 0.0
    alone, _ = held_by("memory_buffers", data_parallel=1, tensor_parallel=16)
    assert alone[3] == 0.0


def test_nanotron_holds_autograds_gradients_until_a_pass_ends():
    """4 B of main gradients; 2 B more of the output, then of all; 2 B of buckets without ZeRO."""
    gradients, parameters = held_by("memory_gradients")
    output = 128256 // 2 * 4096 + 4096
    assert gradients[[0, 3]] == pytest.approx(4.0 * parameters)
    assert gradients[1] - gradients[0] == pytest.approx(2.0 * output)
    assert gradients[2] == pytest.approx(6.0 * parameters)
    replicated, _ = held_by("memory_gradients", zero_stage=0)
    assert replicated == pytest.approx(gradients + 2.0 * parameters)


def test_tensor_ranks_hold_whole_hidden_states_in_backward():
    """Beside the gradient of a gathered input that input again, and nanotron's global buffer."""
    whole = 2.0 * 4096 * 4096
    found = {}
    for framework in ("megatron", "nanotron", "torchtitan"):
        keys = keys_of(sequence_length=4096, tensor_parallel=2, sequence_parallel=True)
        at = Scope(keys, load_framework(framework))
        found[framework] = float(np.asarray(gathered_working(at, 4096)).reshape(-1)[0])
    assert found == {"megatron": 2 * whole, "nanotron": 3 * whole, "torchtitan": whole}


def test_graphs_of_layers_and_eager_code_have_pools_of_their_own():
    """What either needs at its peak is reserved at once (Megatron-Core, CudaGraphManager)."""
    model, hardware = load_model("llama-3.1-8b"), load_hardware("dgx-h100")
    fields = {"pipeline_parallel": 1, "virtual_pipeline": 1, "data_parallel": 8}
    grid = strategies_from_rows(model, 16, [{**STRATEGY, **fields}])
    (eager,), (graphs,) = (
        stage_memories(model, grid, hardware, load_framework("megatron", layer_graphs=captured))
        for captured in (False, True)
    )
    more = graphs.held - eager.held
    hidden = 2.0 * 4096 * 4096 / 2  # one gradient, of a rank's share of the tokens
    buffers = MEMORY_COMPONENTS.index("memory_buffers")
    idle = MEMORY_COMPONENTS.index("memory_fragmentation")
    assert more[:, buffers] == pytest.approx(hidden)
    # The loss leaves the graphs' working set alone, and a backward pass the logits.
    working = eager.held[1, buffers] - eager.held[3, buffers]
    assert more[0, idle] == pytest.approx(working, rel=0.1)
    logits = eager.held[0, buffers] + eager.held[0, 3] - eager.held[1, 3]
    assert more[1, idle] == pytest.approx(logits, rel=0.1)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb_v", "dualpipe", "hanayo"])
def test_stages_shown_are_those_projected(h100, name):
    model = load_model("llama-3.1-8b")
    run = {"pipeline_parallel": 4, "pipeline_schedule": name}
    run |= {"global_batch_size": 64, "sequence_length": 2048}
    grid = one_strategy(model, 8, run)
    found = pipeline_timeline(model, grid, h100, load_framework("megatron"))
    assert sum(sum(stage.layers) for stage in found.stages) == 32 * found.pipeline.order.copies
    for stage in found.stages:
        whole = stage.busy + stage.sending + stage.waiting
        assert whole == pytest.approx(found.makespan, rel=1e-9)
    out = np.empty((len(STEP_VARIABLES), 1))
    project_grid(Workload(model, grid), h100, load_framework("megatron"), out, threads=1)
    projected = {item.name: out[i, 0] for i, item in enumerate(STEP_VARIABLES)}
    most = max(stage.kept for stage in found.stages)
    assert projected["memory_activations"] <= most * (1 + 1e-9)
    busy = max(stage.busy for stage in found.stages)
    shown = ("forward_time", "backward_time", "recompute_time", "tensor_parallel_exposed")
    work = sum(projected[part] for part in (*shown, "host_time"))
    overhead = h100.calibrated("host", "step_overhead")
    assert busy == pytest.approx(work - overhead, rel=1e-9)
