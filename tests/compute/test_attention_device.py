"""What attention kernels need of a profile: facts, constants of libraries and families."""

from __future__ import annotations

import pytest

from perfmodel.compute.attention import attention_times
from perfmodel.compute.attention_device import attention_device
from perfmodel.hwprofiles import load_hardware


def test_devices_keep_facts_and_calibration():
    hardware = load_hardware("dgx-h100")
    device = attention_device(hardware, "bf16")
    assert device.matrix_rate == hardware.device.peak("bf16")
    assert device.units == 132  # NVIDIA H100 SXM5 datasheet
    assert attention_device(hardware, "fp8").query_bytes == 1.0
    narrow = attention_device(hardware, "bf16", kv_precision="fp8")
    assert (narrow.query_bytes, narrow.key_bytes) == (2.0, 1.0)


def test_another_constant_is_another_time():
    hardware = load_hardware("dgx-h100")
    call = (1, 1, 64, 8, 8, 128, 128)
    late = hardware.with_values({"calibration.attention.launch_latency": 1e-3})
    slow = attention_times(late, "bf16", *call).time
    assert slow[0] > 1e-3 > attention_times(hardware, "bf16", *call).time[0]


def test_devices_of_a_family_follow_their_datasheets():
    # H200 is H100 with 4.8 TB/s instead of 3.35; GB300 doubles the exponentials of GB200
    decode = (64, 1, 32768, 32, 8, 128, 128)
    h100, h200 = (
        attention_times(load_hardware(name), "bf16", *decode).time[0]
        for name in ("dgx-h100", "dgx-h200")
    )
    assert h100 / h200 == pytest.approx(4.8 / 3.352, rel=0.05)
    prefill = (4, 16384, 16384, 64, 8, 64, 64)
    gb200, gb300 = (
        attention_times(load_hardware(name), "bf16", *prefill).time[0]
        for name in ("gb200-nvl72", "gb300-nvl72")
    )
    assert gb300 < 0.85 * gb200
