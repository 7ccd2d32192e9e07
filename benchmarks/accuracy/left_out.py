"""Predict a GPU family that was never calibrated from the others' constants.

    python benchmarks/accuracy/left_out.py DATA [--json]

DATA is the folder with ``measured/``. Each of A100, H100 and B200 is left out in turn: its
adjustable constants are its own priors times the mean ratio of value to prior of the others
(of those alone whose copies are as asynchronous as its own, where there are any); power carries
over as the ratio of the power at full clock to the board's limit. What its libraries do stays,
as that is public. Nothing is fitted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.family import Family, load_family
from perfmodel.measured.calibrate import judge_family
from perfmodel.measured.subject import MeasuredTable

DEVICES = {
    "nvidia-ampere": "dgx-a100",
    "nvidia-hopper": "dgx-h100",
    "nvidia-blackwell": "dgx-b200",
}
NEAREST = {
    "nvidia-ampere": ("nvidia-hopper", "nvidia-blackwell"),
    "nvidia-hopper": ("nvidia-blackwell",),
    "nvidia-blackwell": ("nvidia-hopper",),
}
LIBRARY = "framework == 'sglang' and kernel in ('fa3', 'trtllm_mha', 'flash_attention')"
ROWS = {
    "products": ("gemm", "gemm.csv", "dtype == 'bf16'"),
    "prefill": (
        "attention",
        "attention.csv",
        f"{LIBRARY} and phase == 'fwd' and kv_dtype == 'bf16'",
    ),
    "decode": (
        "attention",
        "attention.csv",
        f"{LIBRARY} and phase == 'decode' and kv_dtype == 'bf16'",
    ),
}


def watts(family: str) -> float:
    """Return the energy per FLOP at which a board's limit would just do [J]."""
    device = load_hardware(DEVICES[family]).device
    return device.tdp / device.peak_flops["bf16"]


def borrowed(name: str, group: str) -> Family:
    """Return a family with what the others say of it in place of its own constants."""
    family = load_family(name)
    others = {other: load_family(other).calibration[group] for other in NEAREST[name]}
    values = {}
    for key, entry in family.calibration[group].items():
        known = {other: entries[key] for other, entries in others.items() if key in entries}
        if not entry.adjustable or not known:
            continue
        if group == "gemm" and key == "energy_per_flop":
            ratios = [found.value / watts(other) for other, found in known.items()]
            value = watts(name) * float(np.mean(ratios))
        elif entry.prior > 0.0 and all(found.value * found.prior > 0.0 for found in known.values()):
            logs = [np.log(found.value / found.prior) for found in known.values()]
            value = entry.prior * float(np.exp(np.mean(logs)))
        else:
            value = float(np.mean([found.value for found in known.values()]))
        values[key] = min(max(value, entry.low), entry.high)
    return family.with_constants(group, values)


def left_out(name: str, label: str, folder: Path) -> dict[str, Any]:
    """Return the errors of one family's rows under borrowed constants."""
    kind, file, where = ROWS[label]
    judged = judge_family(borrowed(name, kind), [MeasuredTable(str(folder / file), kind, where)])
    return judged.errors("before")["all"]


def main(arguments: list[str] | None = None) -> int:
    """Print the errors of each family left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with measured/")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        found = {
            f"{name} {label}": left_out(name, label, options.data / "measured")
            for name in DEVICES
            for label in ROWS
        }
    except PerfModelError as error:
        print(f"left_out.py: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for name, errors in found.items():
        print(
            f"{name:27} n={errors['count']:5d}  median {errors['median_absolute_error']:6.1%}"
            f"  mean {errors['mean_absolute_error']:6.1%}  bias {errors['bias']:+6.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
