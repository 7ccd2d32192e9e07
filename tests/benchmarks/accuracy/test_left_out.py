"""What a family that was never calibrated takes from the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.family import load_family
from perfmodel.measured.problem import with_constants


def test_constants_are_priors_times_what_the_nearest_family_found(script: Any) -> None:
    left_out = script.load("accuracy.left_out")
    hopper, blackwell = load_family("nvidia-hopper"), load_family("nvidia-blackwell")
    found = left_out.borrowed("nvidia-hopper", "gemm").calibration["gemm"]
    own, other = hopper.calibration["gemm"], blackwell.calibration["gemm"]
    expected = own["launch_latency"].prior * other["launch_latency"].value
    expected /= other["launch_latency"].prior
    assert found["launch_latency"].value == pytest.approx(expected)
    assert found["cluster_units"].value == own["cluster_units"].value  # public, not borrowed


def test_power_carries_over_by_the_board_s_limit(script: Any) -> None:
    left_out = script.load("accuracy.left_out")
    boards = [load_hardware(name).device for name in ("dgx-h100", "dgx-b200")]
    limits = [board.tdp / board.peak_flops["bf16"] for board in boards]
    measured = load_family("nvidia-blackwell").calibration["gemm"]["energy_per_flop"].value
    found = left_out.borrowed("nvidia-hopper", "gemm").calibration["gemm"]["energy_per_flop"]
    assert found.value == pytest.approx(measured * limits[0] / limits[1])


def test_errors_are_those_of_the_family_s_own_rows(script: Any, tmp_path: Path) -> None:
    left_out = script.load("accuracy.left_out")
    times = {"A100_SXM": 520.0, "H100_SXM": 210.0, "B200": 90.0}
    rows = [f"{name},bf16,4096,4096,4096,{time}" for name, time in times.items()]
    (tmp_path / "gemm.csv").write_text("\n".join(["hardware,dtype,m,n,k,time_us", *rows]))
    hopper = left_out.left_out("nvidia-hopper", "products", tmp_path)
    assert hopper["count"] == 1
    assert hopper["bias"] == pytest.approx(0.0, abs=0.5)
    borrowed = left_out.borrowed("nvidia-hopper", "gemm").calibration["gemm"]
    values = {key: entry.value for key, entry in borrowed.items()}
    hardware = with_constants(load_hardware("dgx-h100"), "gemm", values)
    time = gemm_times(hardware, "bf16", 4096.0, 4096.0, 4096.0).time[0]
    assert hopper["bias"] == pytest.approx(time / 210e-6 - 1.0)


def test_a_missing_table_is_one_line_and_code_2(script: Any, tmp_path: Path) -> None:
    code, _, error = script("accuracy.left_out", str(tmp_path))
    assert code == 2
    assert error.startswith("left_out.py: cannot read")
