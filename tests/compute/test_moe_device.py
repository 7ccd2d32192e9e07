"""Kernel libraries of mixture-of-experts layers."""

import numpy as np
import pytest

from perfmodel.base.precisions import OPERAND_BYTES
from perfmodel.compute.moe import moe_times
from perfmodel.compute.moe_device import (
    grouped_device,
    moe_constants,
    moe_kernel,
    tile_candidates,
)
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
