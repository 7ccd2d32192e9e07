"""Grouped products on profiles: against dense ones, launch by launch."""

import numpy as np
import pytest

from perfmodel.base.precisions import OPERAND_BYTES
from perfmodel.compute.gemm import gemm_times
from perfmodel.compute.grouped_gemm import (
    even_loads,
    grouped_device,
    grouped_gemm_times,
    moe_constants,
    moe_kernel,
    tile_candidates,
)
from perfmodel.compute.moe import moe_times
from perfmodel.hwprofiles import load_hardware


@pytest.mark.parametrize(
    ("profile", "kernel"),
    [
        ("dgx-a100", "triton"),
        ("dgx-h100", "triton"),
        ("gb200-nvl72", "trtllm"),
        ("mi300x-server", "aiter"),
        ("tpu-v5p-pod", "cutlass"),
    ],
)
def test_the_default_kernel_is_what_libraries_run_on_the_device(profile, kernel):
    hardware = load_hardware(profile)
    layer = (512, 4096, 2048, 64, 8)
    default = moe_times(hardware, "bf16", *layer).time
    assert default == moe_times(hardware, "bf16", *layer, kernel=kernel).time


@pytest.mark.parametrize(
    ("kernel", "precision", "rows"),
    [("triton", "bf16", 0.0), ("trtllm", "bf16", 128.0), ("trtllm", "fp8_block", 64.0)],
)
def test_instructions_of_64_rows_run_at_half_rate_on_blackwell_alone(kernel, precision, rows):
    device = grouped_device(load_hardware("dgx-b200"), precision, kernel)
    assert (device.instruction_rows, device.full_rate_rows) == (rows, 128.0)
    assert grouped_device(load_hardware("dgx-h100"), precision, kernel).full_rate_rows == 0.0


def test_blocks_of_fp8_have_shorter_steps_in_generated_kernels():
    # FlashInfer's kernel names: t128x8x128 of E4m3 with block scales, t128x8x512 of E2m1.
    few = np.array([8.0])
    depths = {}
    for precision in ("bf16", "fp8_block", "nvfp4"):
        tiles, first, _ = tile_candidates(
            moe_kernel("trtllm"), OPERAND_BYTES[precision], few, np.array([1.0])
        )
        depths[precision] = tiles[first[0], 2]
    assert depths["bf16"] == depths["fp8_block"] == 128
    assert depths["nvfp4"] == pytest.approx(512, rel=0.15)  # scales count as bytes of an element


@pytest.mark.parametrize("profile", ["dgx-a100", "l40s-server", "dgx-h100", "dgx-b200"])
def test_one_block_sorts_the_choices_of_the_triton_kernel(profile):
    # moe_align_block_size; SGLang's rows of H100 and B200 say the same in bf16 and fp8.
    hardware = load_hardware(profile)
    times = [
        moe_constants(hardware, "bf16", kernel)("sort_time") for kernel in ("triton", "trtllm")
    ]
    assert times[0] > 3 * times[1]


@pytest.mark.parametrize(
    ("m", "n", "k"), [(64, 4096, 4096), (4096, 4096, 4096), (16384, 8192, 8192)]
)
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100"])
def test_one_group_is_about_a_dense_product(name, m, n, k):
    hardware = load_hardware(name)
    one = grouped_gemm_times(hardware, "bf16", [[m]], n, k).time[0]
    assert one == pytest.approx(gemm_times(hardware, "bf16", m, n, k).time[0], rel=0.25)


@pytest.mark.parametrize("stage", ["fwd", "bwd_grad_act", "bwd_grad_w"])
def test_a_launch_per_group_is_the_sum_of_dense_products(h100, stage):
    found = grouped_gemm_times(
        h100, "bf16", [[128, 512, 128]], 2048, 1024, stage=stage, launches="each"
    )
    shapes = {"fwd": (0, 1, 2), "bwd_grad_act": (0, 2, 1), "bwd_grad_w": (1, 2, 0)}[stage]
    main = (4.0, True) if stage == "bwd_grad_w" else (2.0, False)
    total = 0.0
    for rows in (128, 512, 128):
        sizes = [(rows, 2048, 1024)[i] for i in shapes]
        total += gemm_times(h100, "bf16", *sizes, 1, *main).time[0]
    assert found.time[0] == pytest.approx(total)
    assert found.flops[0] == 2 * 768 * 2048 * 1024


def test_even_groups_are_about_a_batch(h100):
    grouped = grouped_gemm_times(h100, "bf16", even_loads(64, 512), 4096, 4096).time[0]
    batch = gemm_times(h100, "bf16", 512, 4096, 4096, 64).time[0]
    assert grouped == pytest.approx(batch, rel=0.2)


def test_one_launch_beats_many_small_ones(h100):
    one, each = (
        grouped_gemm_times(h100, "bf16", even_loads(128, 16), 2048, 1024, launches=launches).time[0]
        for launches in ("one", "each")
    )
    assert one < 0.5 * each


@pytest.mark.parametrize("stage", ["fwd", "bwd_grad_act", "bwd_grad_w"])
def test_grouped_products_grow_with_their_rows(h100, stage):
    found = grouped_gemm_times(
        h100, "bf16", [[0, 0], [1, 0], [64, 3], [64, 300], [512, 300]], 1024, 2048, stage=stage
    )
    assert found.time[0] == 0
    assert (np.diff(found.time) > 0).all()
    assert (np.diff(found.memory_traffic) > 0).all()
