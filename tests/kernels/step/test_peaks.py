"""Memory that neighbours share is what each of them has when it is alone."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.variables import STEP_VARIABLES
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategy_grid
from perfmodel.strategy.grid import families_of
from perfmodel.training.project import project_grid
from perfmodel.training.workload import Workload

MEMORY = [row for row, item in enumerate(STEP_VARIABLES) if item.name.startswith("memory_")]
NAMES = [STEP_VARIABLES[row].name for row in MEMORY]
BATCHES = [*range(1, 14), 16, 17, 20, 24, 28, 32, 64]
CLOSED = ["gpipe", "1f1b", "interleaved"]
BY_EVENTS = ["looped_bfs", "interleaved_zero_bubble", "zb_h1", "zb_v", "dualpipe", "hanayo"]
SHAPE = {
    **{"sequence_length": 1024, "tensor_parallel": 1, "context_parallel": 1, "zero_stage": 1},
    **{"micro_batch_size": 1, "recompute": "none", "virtual_pipeline": [1, 2]},
}


def memory(model, grid, hardware, framework="megatron"):
    """Rows of memory of every strategy of a grid, float64[variables, strategies]."""
    out = np.empty((len(STEP_VARIABLES), len(grid)))
    project_grid(Workload(model, grid), hardware, load_framework(framework), out, threads=1)
    return out[MEMORY]


def assert_shared_is_own(model, hardware, devices=4, framework="megatron", **axes):
    """Compare a sweep of many batches with a sweep of each batch, whose families are of one."""
    fields = SHAPE | {"pipeline_parallel": devices} | axes
    grid = strategy_grid(model, devices, global_batch_size=BATCHES, **fields)
    families = families_of(grid)
    assert families.size.max() > 8
    shared = memory(model, grid, hardware, framework)
    for batch in np.unique(grid["global_batch_size"]):
        rows = np.flatnonzero(grid["global_batch_size"] == batch)
        alone = memory(model, grid.take(rows), hardware, framework)
        np.testing.assert_array_equal(shared[:, rows], alone, err_msg=str(batch))
    one = np.arange(0, len(grid), max(len(grid) // 5, 1))
    for row in one:  # nor does it matter what else there is
        alone = memory(model, grid.take(np.array([row])), hardware, framework)
        np.testing.assert_array_equal(shared[:, [row]], alone)
    return shared


@pytest.mark.parametrize("framework", ["megatron", "fsdp", "nanotron"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_schedules_in_closed_form(small_dense, h100, framework, recompute):
    assert load_framework("fsdp").receives_ahead  # keeps buffers for every micro-batch
    assert_shared_is_own(
        small_dense, h100, framework=framework, pipeline_schedule=CLOSED, recompute=recompute
    )


@pytest.mark.parametrize("framework", ["megatron", "fsdp"])
def test_schedules_that_run_by_events(small_dense, h100, framework):
    assert_shared_is_own(small_dense, h100, framework=framework, pipeline_schedule=BY_EVENTS)


def test_stages_of_unequal_layers(small_moe, h100):
    """One dense layer among eight: no two stages of four keep the same."""
    assert_shared_is_own(small_moe, h100, pipeline_schedule=[*CLOSED, "zb_h1"], expert_parallel=1)


@pytest.mark.parametrize("place", ["host", "stage"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb_h1"])
def test_activations_that_wait_elsewhere(small_dense, h100, place, schedule):
    assert_shared_is_own(
        small_dense,
        h100,
        pipeline_schedule=schedule,
        offload_activations=[0.0, 0.4, 1.0],
        offload_activations_to=place,
    )


def test_shards_of_parameters_and_several_micro_batch_sizes(small_dense, h100):
    assert_shared_is_own(
        small_dense,
        h100,
        devices=8,
        pipeline_parallel=[1, 2, 4],
        pipeline_schedule=CLOSED,
        zero_stage=[0, 1, 2, 3],
        micro_batch_size=[1, 2],
    )


@pytest.mark.parametrize("framework", ["fsdp", "maxtext", "internevo"])
def test_gradients_that_come_with_the_first_micro_batch(small_dense, h100, framework):
    """One micro-batch more than are in flight finds them there; short sequences show it."""
    assert not load_framework(framework).persistent_gradients
    shared = assert_shared_is_own(
        small_dense,
        h100,
        framework=framework,
        sequence_length=64,
        pipeline_parallel=[1, 2, 4],
        pipeline_schedule="1f1b",
        virtual_pipeline=1,
    )
    gradients = shared[NAMES.index("memory_gradients")]
    assert np.unique(gradients).size > 1


def test_a_full_pipeline_keeps_no_more(small_dense, h100):
    """What makes sharing worth it, by hand: 1F1B keeps at most as many as it has stages."""
    fields = SHAPE | {"pipeline_parallel": 4, "virtual_pipeline": 1}
    for schedule in ("1f1b", "gpipe"):
        grid = strategy_grid(
            small_dense, 4, global_batch_size=[4, 8, 16], pipeline_schedule=schedule, **fields
        )
        held = memory(small_dense, grid, h100)[NAMES.index("memory_activations")]
        if schedule == "1f1b":
            assert held[1] == held[2]
        else:
            np.testing.assert_allclose(held[2], 2.0 * held[1])
