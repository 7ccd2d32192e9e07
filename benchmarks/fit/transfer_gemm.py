"""Predict the matrix products of a GPU that was never calibrated, from two others.

Usage: python benchmarks/fit/transfer_gemm.py DATA [--json]

DATA is the folder with ``measured/gemm.csv``. Each of A100, H100 and B200 is left out in
turn: one set of constants is fitted to the bf16 rows of the other two (of that one alone
which has clusters and a copy engine too, where the left-out one has them), and the left-out
one is predicted with it, its datasheet, and what is public about its libraries (steps,
stages, clusters and tiles in kernel names; whether kernels are persistent). Power carries
over as the ratio of the power at full clock to the board's limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from gemm import PROFILES
from gemm_model import FREE, LIBRARY, Constants, Sample, columns_of, fit, stratified

from perfmodel.hwprofiles import load_hardware

POWER_RATIO = 1.45  # prior: power at full clock over the limit of a 400 to 1000 W board
SHARED = tuple(key for key in FREE if key != "energy_per_flop")


def facts(family: str) -> Constants:
    """Return what is known of a device without measuring a product."""
    device = load_hardware(PROFILES[family][0]).device
    library = LIBRARY["nvidia-ampere"] if family == "nvidia-ampere" else LIBRARY[family]
    energy = POWER_RATIO * device.tdp / device.peak_flops["bf16"]
    return dict(library) | {"energy_per_flop": energy}


def has_copy_engine(family: str) -> bool:
    """Tell whether a family has thread block clusters and the bulk copy engine."""
    return LIBRARY[family].get("cluster_units", 1.0) > 1.0


def sample_of(family: str, table: pd.DataFrame, count: int | None) -> Sample:
    """Return the bf16 rows of a family's device, all or a stratified part."""
    profile, name = PROFILES[family]
    rows = table[(table.hardware == name) & (table.dtype == "bf16")]
    return Sample(
        load_hardware(profile),
        "bf16",
        columns_of(rows if count is None else stratified(rows, count)),
    )


def left_out(family: str, table: pd.DataFrame) -> dict[str, float]:
    """Return the errors of one device, predicted from the others."""
    others = [name for name in PROFILES if name != family]
    if has_copy_engine(family):
        others = [name for name in others if has_copy_engine(name)]
    samples = [sample_of(name, table, 1200) for name in others]
    shared = fit(samples, [facts(name) for name in others], SHARED)
    constants = shared | facts(family)
    constants |= {key: shared[key] for key in SHARED}
    log = sample_of(family, table, None).log_ratio(constants)
    error = np.abs(np.expm1(log))
    return {
        "count": int(error.size),
        "median_absolute_error": float(np.median(error)),
        "mean_absolute_error": float(error.mean()),
        "p90_absolute_error": float(np.quantile(error, 0.9)),
        "bias": float(np.expm1(log).mean()),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the errors of each left-out device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, help="folder with measured/gemm.csv")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    table = pd.read_csv(options.data / "measured" / "gemm.csv")
    found = {PROFILES[family][1]: left_out(family, table) for family in PROFILES}
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, errors in found.items():
        print(
            f"{name:10s} n={errors['count']:5d}  median {errors['median_absolute_error']:6.1%}"
            f"  mean {errors['mean_absolute_error']:6.1%}  p90 {errors['p90_absolute_error']:6.1%}"
            f"  bias {errors['bias']:+6.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
