"""Kernel libraries of mixture-of-experts layers."""

import pytest

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
