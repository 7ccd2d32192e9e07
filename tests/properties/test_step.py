"""What must hold of every projected step, over random strategies and profiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.strategy_fields import MAPPINGS
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.variables import MEMORY_COMPONENTS, STEP_VARIABLES, TIME_COMPONENTS
from perfmodel.software.framework import FRAMEWORKS, load_framework
from perfmodel.strategy.enumerate import strategies_from_rows, strategy_grid
from perfmodel.strategy.grid import VALID
from perfmodel.training.project import project_grid
from perfmodel.training.workload import Workload
from tests.amount import cases

AXES = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline", "data_parallel")
ROUNDING = 1 + 1e-9
H100 = "dgx-h100"

STRATEGIES = st.fixed_dictionaries(
    {
        "tensor_parallel": st.sampled_from([1, 2, 4, 8]),
        "context_parallel": st.sampled_from([1, 2, 4]),
        "context_parallel_kind": st.sampled_from(["ring", "all_gather", "all_to_all"]),
        "pipeline": st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)]),
        "pipeline_schedule": st.sampled_from(["1f1b", "gpipe"]),
        "data_parallel": st.sampled_from([1, 2, 8]),
        "expert": st.sampled_from([(1, 1), (2, 1), (8, 1), (2, 2)]),
        "zero_stage": st.sampled_from([0, 1, 2, 3]),
        "shard_group": st.sampled_from([0, 0, 2]),
        "micro_batch_size": st.sampled_from([1, 2]),
        "micro_batches": st.sampled_from([4, 8, 32]),
        "sequence_length": st.sampled_from([1024, 8192]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "precision": st.sampled_from(["bf16", "bf16", "fp8"]),
        "mapping": st.sampled_from(MAPPINGS),
    }
)


def possible(drawn, *, experts):
    """Turn a drawn strategy into one that keeps the rules."""
    fields = dict(drawn)
    fields["pipeline_parallel"], fields["virtual_pipeline"] = fields.pop("pipeline")
    if fields["virtual_pipeline"] > 1:
        fields["pipeline_schedule"] = "interleaved"
    if fields["context_parallel_kind"] == "all_to_all":
        # Exchange cuts the key-value heads, of which both models have 8.
        heads = 8 // fields["context_parallel"]
        fields["tensor_parallel"] = min(fields["tensor_parallel"], heads)
    expert, inner = fields.pop("expert")
    plane = fields["tensor_parallel"] * fields["context_parallel"] * fields["data_parallel"]
    if experts and plane % (expert * inner) == 0:
        fields |= {"expert_parallel": expert, "expert_tensor_parallel": inner}
    replicas = fields["data_parallel"] * fields["context_parallel"]
    if fields["zero_stage"] == 0 or replicas % 2:
        fields["shard_group"] = 0
    return fields


MODELS = st.sampled_from(["small_dense", "small_moe"])


@settings(max_examples=cases(60))
@given(drawn=STRATEGIES, name=MODELS, framework=st.sampled_from(sorted(FRAMEWORKS)))
def test_every_step_adds_up(request, project, drawn, name, framework):
    model = request.getfixturevalue(name)
    fields = possible(drawn, experts=name == "small_moe")
    found = project(model, H100, framework, **fields)
    assert all(np.isfinite(value) for value in found.values())
    assert all(value >= 0 for value in found.values())
    assert sum(found[item] for item in TIME_COMPONENTS) == pytest.approx(
        found["step_time"], rel=1e-12
    )
    assert sum(found[item] for item in MEMORY_COMPONENTS) == pytest.approx(
        found["memory_total"], rel=1e-14
    )
    for axis in AXES:
        assert found[f"{axis}_exposed"] <= found[f"{axis}_total"] * ROUNDING
    degrees = {
        "tensor_parallel": fields["tensor_parallel"] * fields.get("expert_tensor_parallel", 1),
        "context_parallel": fields["context_parallel"],
        "expert_parallel": fields.get("expert_parallel", 1),
        "pipeline": fields["pipeline_parallel"],
        "data_parallel": fields["data_parallel"] * fields["context_parallel"],
    }
    for axis, degree in degrees.items():
        if axis == "data_parallel" and name == "small_moe":
            continue  # experts have replicas of their own
        if axis == "context_parallel" and not load_framework(framework).flash_attention:
            continue  # `test_workload` has a test of its own for this
        assert (found[f"{axis}_total"] > 0) == (degree > 1), axis
    # Nothing is faster than its FLOPs at the datasheet rate.
    assert 0 < found["hardware_flops_utilization"] < 1
    assert 0 < found["model_flops_utilization"] <= found["model_flops_utilization_non_causal"]
    assert found["model_flops_utilization"] <= found["hardware_flops_utilization"] * ROUNDING
    devices = int(
        np.prod(
            [
                fields[name]
                for name in (
                    "tensor_parallel",
                    "context_parallel",
                    "pipeline_parallel",
                    "data_parallel",
                )
            ]
        )
    )
    tokens = (
        fields["micro_batches"]
        * fields["data_parallel"]
        * fields["micro_batch_size"]
        * fields["sequence_length"]
    )
    assert found["tokens_per_second_per_device"] == pytest.approx(
        tokens / (found["step_time"] * devices), rel=1e-12
    )


RATES = (
    "device.memory.bandwidth",
    "device.peak_flops.bf16",
    "system.network.0.bandwidth",
    "system.network.1.bandwidth",
)


@settings(max_examples=cases(40))
@given(
    drawn=STRATEGIES,
    name=MODELS,
    path=st.sampled_from(RATES),
    factor=st.sampled_from([1.01, 1.3, 4.0]),
    framework=st.sampled_from(sorted(FRAMEWORKS)),
)
def test_more_rate_never_costs_time(request, project, drawn, name, path, factor, framework):
    model = request.getfixturevalue(name)
    fields = possible(drawn | {"precision": "bf16"}, experts=name == "small_moe")
    h100 = load_hardware(H100)
    faster = h100.with_values({path: float(h100.value(path)) * factor})
    before = project(model, H100, framework, **fields)
    after = project(model, faster, framework, **fields)
    assert after["step_time"] <= before["step_time"] * ROUNDING
    assert after["memory_total"] == before["memory_total"]


@settings(max_examples=cases(20))
@given(drawn=STRATEGIES, name=MODELS, network=st.sampled_from([0, 1]))
def test_less_latency_never_costs_time(request, project, drawn, name, network):
    model = request.getfixturevalue(name)
    fields = possible(drawn, experts=name == "small_moe")
    h100 = load_hardware(H100)
    path = f"system.network.{network}.latency"
    quicker = h100.with_values({path: float(h100.value(path)) / 4})
    before, after = (project(model, item, **fields) for item in (h100, quicker))
    assert after["step_time"] <= before["step_time"] * ROUNDING


@settings(max_examples=cases(20))
@given(drawn=STRATEGIES, name=MODELS)
def test_more_work_takes_longer(request, project, drawn, name):
    model = request.getfixturevalue(name)
    fields = possible(drawn, experts=name == "small_moe")
    base = project(model, H100, **fields)
    for name in ("micro_batches", "sequence_length", "micro_batch_size"):
        more = project(model, H100, **(fields | {name: 2 * fields[name]}))
        # Larger kernels are free where the device waits for its host.
        assert more["step_time"] >= base["step_time"] / ROUNDING
        assert name != "micro_batches" or more["step_time"] > base["step_time"]
        assert more["memory_total"] >= base["memory_total"]


@settings(max_examples=cases(20))
@given(drawn=STRATEGIES, name=MODELS)
def test_recomputation_trades_time_for_memory(request, project, drawn, name):
    model = request.getfixturevalue(name)
    fields = possible(drawn, experts=name == "small_moe")
    none, selective, full = (
        project(model, H100, **(fields | {"recompute": level}))
        for level in ("none", "selective", "full")
    )
    assert none["recompute_time"] == 0
    assert 0 < full["recompute_time"] <= full["forward_time"] * ROUNDING
    for more, less in ((none, selective), (selective, full)):
        assert more["memory_total"] >= less["memory_total"] / ROUNDING
        if fields["pipeline_parallel"] == 1:  # else another stage may become the slowest
            assert more["recompute_time"] < less["recompute_time"]
            assert more["forward_time"] == pytest.approx(less["forward_time"])


# -- grids -----------------------------------------------------------------------------


def run(grid, model, hardware, *, framework="megatron", threads=1, dtype=np.float64):
    out = np.full((len(STEP_VARIABLES), len(grid)), -1.0, dtype)
    work = Workload(model, grid)
    project_grid(work, hardware, load_framework(framework), out, threads=threads)
    return out


@pytest.fixture(scope="module")
def grid(small_moe):
    grid = strategy_grid(
        small_moe,
        64,
        sequence_length=[2048, 4096],
        global_batch_size=128,
        precision=["bf16", "fp8"],
    )
    return grid.take(np.random.default_rng(0).permutation(len(grid))[:3000])


@pytest.fixture(scope="module")
def together(grid, small_moe, h100):
    return run(grid, small_moe, h100)


def test_each_strategy_alone_equals_its_row(grid, together, small_moe, h100):
    for i in range(0, len(grid), 100):
        alone = run(grid.take(np.array([i])), small_moe, h100)
        np.testing.assert_array_equal(alone[:, 0], together[:, i])


def test_mixed_wide_formats_change_nothing(small_dense, h100):
    rows = [
        {"sequence_length": 2048, "global_batch_size": 8, "precision": precision}
        for precision in ("bf16", "fp16", "fp8")
    ]
    for hardware in (h100, load_hardware("mi300x-server")):
        grid = strategies_from_rows(small_dense, 8, rows)
        mixed = run(grid, small_dense, hardware)
        for i in range(len(grid)):
            alone = run(grid.take(np.array([i])), small_dense, hardware)
            np.testing.assert_array_equal(alone[:, 0], mixed[:, i])


def test_order_changes_nothing(grid, together, small_moe, h100):
    order = np.random.default_rng(1).permutation(len(grid))
    np.testing.assert_array_equal(run(grid.take(order), small_moe, h100), together[:, order])


@pytest.mark.parametrize("chunk", [1, 7, 256, 10_000])
@pytest.mark.parametrize("threads", [1, 3])
def test_chunks_and_threads_change_nothing(
    monkeypatch, grid, together, small_moe, h100, chunk, threads
):
    monkeypatch.setattr("perfmodel.training.project.CHUNK", chunk)
    grid, together = grid.take(slice(0, 500)), together[:, :500]
    np.testing.assert_array_equal(run(grid, small_moe, h100, threads=threads), together)


def test_progress_counts_every_strategy_once(monkeypatch, grid, small_moe, h100):
    monkeypatch.setattr("perfmodel.training.project.CHUNK", 700)
    closed: list[int] = []
    out = np.empty((len(STEP_VARIABLES), len(grid)))
    project_grid(
        Workload(small_moe, grid),
        h100,
        load_framework("megatron"),
        out,
        threads=2,
        progress=closed.append,
    )
    assert sum(closed) == len(grid)
    assert max(closed) <= 700


def test_single_precision_is_close(grid, together, small_moe, h100):
    single = run(grid, small_moe, h100, dtype=np.float32)
    np.testing.assert_allclose(single, together, rtol=1e-6, atol=1e-12)


def test_a_grid_without_strategies_is_no_error(grid, small_moe, h100):
    out = np.empty((len(STEP_VARIABLES), 0))
    empty = grid.take(slice(0, 0))
    project_grid(Workload(small_moe, empty), h100, load_framework("megatron"), out)


def test_repeated_strategies_give_repeated_rows(grid, together, small_moe, h100):
    twice = grid.take(np.array([3, 3, 5, 3]))
    np.testing.assert_array_equal(run(twice, small_moe, h100), together[:, [3, 3, 5, 3]])


@settings(max_examples=cases(15))
@given(drawn=st.lists(STRATEGIES, min_size=2, max_size=6), devices=st.just(64))
def test_random_rows_alone_and_together(small_moe, drawn, devices):
    h100 = load_hardware(H100)
    rows = []
    for item in drawn:
        fields = possible(item | {"data_parallel": 8}, experts=True)
        fields.pop("data_parallel")
        fields.pop("micro_batches")
        fields["shard_group"] = 0
        rows.append({**fields, "global_batch_size": 128})
    grid = strategies_from_rows(small_moe, devices, rows)
    grid = grid.take(grid.status == VALID)
    if not len(grid):
        return
    together = run(grid, small_moe, h100)
    for i in range(len(grid)):
        alone = run(grid.take(np.array([i])), small_moe, h100)
        np.testing.assert_array_equal(alone[:, 0], together[:, i])
