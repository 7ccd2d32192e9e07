"""Deployments as kernels take them, and points as they come out."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_grid, load_hardware, serving_grid
from perfmodel.base.errors import HardwareError
from perfmodel.kernels.serving.tables import ROWS
from perfmodel.serving.grid import STATUS_NAMES
from perfmodel.serving.memory import deployment_memory
from perfmodel.serving.project import deployment_columns, project_points

H200 = "dgx-h200"


def test_counts_are_per_attention_rank_and_devices_count_both_pools():
    grid = serving_grid(
        "deepseek-r1",
        tensor_parallel=1,
        attention_data_parallel=8,
        expert_parallel=8,
        workers=3,
        prefill_workers=2,
        prefill_tensor_parallel=2,
        prefill_attention_data_parallel=4,
    )
    layouts, layout, second = grid.layouts()
    hardware = load_hardware(H200)
    memory = deployment_memory(grid, layouts, layout, hardware)
    found = deployment_columns(grid, memory, hardware, layout, second, 10)
    assert found.ranks.tolist() == [24]
    assert found.lockstep_ranks.tolist() == [8]
    assert found.devices.tolist() == [24 + 16]
    assert found.prefill_ranks.tolist() == [8]
    assert found.prefill_layout.tolist() == [second[0] + 10]
    assert found.blocks.tolist() == memory.blocks.tolist()
    assert found.transfer_time[0] > 0
    # Else kernels are compiled once more, for columns that cannot be written.
    assert all(column.flags.c_contiguous and column.flags.writeable for column in found)


def test_dense_ranks_do_not_wait_for_each_other():
    grid = serving_grid("llama-3.1-8b", tensor_parallel=1, attention_data_parallel=2)
    layouts, layout, second = grid.layouts()
    hardware = load_hardware(H200)
    memory = deployment_memory(grid, layouts, layout, hardware)
    found = deployment_columns(grid, memory, hardware, layout, second)
    assert (found.ranks[0], found.lockstep_ranks[0], found.prefill_layout[0]) == (2, 1, -1)
    assert found.transfer_time[0] == 0


def test_points_are_alone_as_among_others():
    loads = load_grid(input_length=2048, output_length=[64, 512], concurrency=[1, 32])
    axes = {"tensor_parallel": [1, 2, 4], "engine": ["vllm", "trtllm"], "keep_impossible": True}
    grid = serving_grid("llama-3.1-70b", **axes)
    hardware = load_hardware(H200)
    together = project_points(grid, loads, hardware)
    assert (together.status[grid["tensor_parallel"] == 1] > 0).any()
    for place in range(len(grid)):
        alone = project_points(grid.take(np.array([place])), loads, hardware)
        assert np.array_equal(alone.values[:, 0], together.values[:, place], equal_nan=True)
        assert np.array_equal(alone.status[0], together.status[place])


def test_recursion_answers_as_the_closed_form_roughly_does():
    grid = serving_grid("llama-3.1-8b", tensor_parallel=1)
    loads = load_grid(input_length=64, output_length=8, concurrency=2, rounds=4)
    hardware = load_hardware(H200)
    closed = project_points(grid, loads, hardware).values
    exact = project_points(grid, loads, hardware, method="recursion").values
    row = ROWS.time_per_output_token_mean
    assert exact[row, 0, 0] == pytest.approx(closed[row, 0, 0], rel=0.2)


def test_progress_counts_every_point():
    grid = serving_grid("llama-3.1-8b", tensor_parallel=[1, 2])
    seen: list[int] = []
    project_points(
        grid, load_grid(concurrency=[1, 2, 3]), load_hardware(H200), progress=seen.append
    )
    assert sum(seen) == 6
    assert STATUS_NAMES[0] == "valid"


def test_a_cache_of_fewer_bits_holds_more_and_is_read_faster():
    found = {}
    for name in ("bf16", "fp8", "nvfp4"):
        grid = serving_grid("llama-3.1-70b", "dgx-b200", tensor_parallel=4, kv_precision=name)
        load = load_grid(input_length=8192, output_length=512, concurrency=64)
        found[name] = project_points(grid, load, load_hardware("dgx-b200"))
    blocks = [float(found[name].memory.blocks[0]) for name in found]
    assert np.allclose([blocks[1] / blocks[0], blocks[2] / blocks[1]], [2.0, 1 / 0.5625], rtol=1e-3)
    for row in (ROWS.time_per_output_token_mean, ROWS.request_time_mean):
        times = [float(found[name].values[row, 0, 0]) for name in found]
        assert times == sorted(times, reverse=True)
        assert len(set(times)) == 3


def test_a_cache_without_kernels_is_refused_for_the_prefill_pool_too():
    axes = {"tensor_parallel": 8, "prefill_workers": 1, "prefill_tensor_parallel": 8}
    grid = serving_grid("llama-3.1-70b", "dgx-b200", kv_precision="nvfp4", **axes)
    load = load_grid(input_length=1024, output_length=128, concurrency=8)
    b200, h100 = load_hardware("dgx-b200"), load_hardware("dgx-h100")
    with pytest.raises(HardwareError, match="dgx-h100"):
        project_points(grid, load, b200, prefill_hardware=h100)
