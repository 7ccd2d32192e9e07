"""A matrix product without structure, for tests of what calibrates: launch, share of the peak."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.regimes import regime_name
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.measured.kind import (
    Case,
    KernelKind,
    kernel_hardware,
    measured_time,
    stated,
)
from perfmodel.measured.rows import MeasuredRow

# The real models change; what is tested with it is the machinery.
PROFILE = """\
name = "my-h100"
extends = "dgx-h100"
aliases = ["my card"]
[calibration.gemm.launch_latency]
value = 2e-6
prior = 3e-6
low = 3e-7
high = 9e-6
unit = "s"
adjustable = true
source = "test"
[calibration.gemm.issue_efficiency]
value = 0.8
prior = 0.9
low = 0.3
high = 1.0
adjustable = true
source = "test"
[calibration.gemm.split_latency]
value = 2e-6
prior = 1e-6
low = 2e-7
high = 8e-6
unit = "s"
adjustable = true
source = "test"
[calibration.gemm.tile_half]
value = 1
prior = 1
low = 0
high = 40
source = "test"
"""


def price(hardware: Hardware, variant: Any, columns: Mapping[str, np.ndarray]) -> Any:
    rate = hardware.device.peak(variant) * hardware.calibrated("gemm", "issue_efficiency")
    flops = 2.0 * columns["m"] * columns["n"] * columns["k"]
    return {"time": hardware.calibrated("gemm", "launch_latency") + flops / rate}


def case_of(row: MeasuredRow) -> Case:
    hardware, notes = kernel_hardware(row)
    sizes = {name: float(stated(row, name)) for name in ("m", "n", "k")}
    return Case(hardware, row.text("dtype"), sizes, measured_time(row), notes)


KIND = KernelKind(
    name="gemm",
    needed=("hardware", "dtype", "m", "n", "k", "time_us"),
    group_by=("hardware", "regime"),
    derived=lambda row: {"regime": regime_name("gemm", row.whole("m") or 1)},
    case_of=case_of,
    price=price,
    kernel_class="gemm",
    calibration="gemm",
    alike=("n", "k"),
)


def shapes() -> list[tuple[int, int, int]]:
    sizes = (256, 1024, 4096, 16384)
    return [(m, n, k) for m in (1, 16, 128, 1024, 4096) for n in sizes for k in sizes]


def write_table(
    path: Path,
    launch: float,
    efficiency: float,
    noise: float = 0.0,
    hardware: str = "H100_SXM",
    rows: list[tuple[int, int, int]] | None = None,
) -> Path:
    """Times that the toy model gives for known constants, with log-normal noise."""
    random = np.random.default_rng(7)
    peak = load_hardware("dgx-h100").device.peak("bf16")
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["hardware", "dtype", "m", "n", "k", "time_us", "clock_mhz"])
        for m, n, k in rows or shapes():
            time = launch + 2.0 * m * n * k / (peak * efficiency)
            time *= float(np.exp(noise * random.standard_normal()))
            writer.writerow([hardware, "bf16", m, n, k, time * 1e6, 1755])
    return path
