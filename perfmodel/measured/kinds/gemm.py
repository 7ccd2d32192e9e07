"""Measured matrix products, row by row; see `perfmodel.measured.kind` for the rest.

A row of a quantised precision holds the quantisation of A too, as serving libraries run
it, unless its ``quantised_input`` says ``yes`` (A came in quantised; weights always do) or
the precision is one that is only measured so (``fp8_rowwise``, AMD's tuned tables).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.precisions import OPERAND_BYTES, QUANTISED, format_name, rate_format
from perfmodel.base.regimes import regime_name
from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_times, quantised_gemm_times
from perfmodel.hwprofiles import Hardware
from perfmodel.measured.kind import (
    Case,
    Columns,
    KernelKind,
    check_steady,
    kernel_hardware,
    measured_time,
    stated,
    steady_load,
)
from perfmodel.measured.rows import MeasuredRow, Skip

# Other spellings of columns in published tables (hipBLASLt, Primus).
ALIASES = {"M": "m", "N": "n", "K": "k", "measured_us": "time_us", "a_type": "dtype"}

IMPOSSIBLE = 2.0  # a rate this many times the datasheet's is a broken measurement


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row."""
    rows = row.whole("m")
    return {"regime": regime_name("gemm", rows) if rows else ""}


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    name = row.text("dtype")
    if not name:
        raise Skip("dtype not stated", scorable=False)
    hardware, notes = kernel_hardware(row)
    precision = format_name(name)
    layout = dict(part.split("=", 1) for part in row.text("kernel").split(";") if "=" in part)
    output = format_name(layout.get("out") or row.text("d_type") or precision)
    sizes = {
        "m": float(stated(row, "m")),
        "n": float(stated(row, "n")),
        "k": float(stated(row, "k")),
        "batch": float(row.whole("batch") or 1),
        "output_bytes": OPERAND_BYTES["fp32" if output == "fp32" else "bf16"],
        "accumulate": float(layout.get("accumulate") == "True" or row.text("beta") == "1"),
    }
    quantises = (
        precision in QUANTISED
        and name in (precision, "")
        and hardware.device.vendor == "NVIDIA"
        and not row.truth("quantised_input", False)
    )
    measured = measured_time(row)
    flops = 2.0 * sizes["m"] * sizes["n"] * sizes["k"] * sizes["batch"]
    peak = hardware.device.peak_flops.get(rate_format(precision))
    if peak is not None and flops > IMPOSSIBLE * measured * peak:
        raise Skip("faster than the device can be", row.text("time_us"), scorable=False)
    # Tables of training products state their layout; they are timed in a loop of seconds.
    steady, alone = steady_load(row, "accumulate" in layout)
    variant = (precision, quantises, steady, alone, *_copies(row, hardware, steady))
    return Case(hardware, variant, sizes, measured, notes)


SERVING_COPIES = (6.0, 1.0)
"""Of weights and activations, in tables that summarise several frameworks: six products with
weights of their own in a graph that is replayed, over one input (aiconfigurator's collector)."""


def _copies(row: MeasuredRow, hardware: Hardware, steady: bool) -> tuple[float, float]:
    """Return how many copies of weights and of activations the measurement cycles through."""
    every = row.whole("copies")
    if every or row.whole("weight_copies") or row.whole("activation_copies"):
        weights = row.whole("weight_copies") or every or 0
        return float(weights), float(row.whole("activation_copies") or every or 0)
    summary = bool(row.text("n_fw") and row.text("t_min_us"))
    if summary and hardware.device.vendor == "NVIDIA" and not steady:
        return SERVING_COPIES
    return 0.0, 0.0


def price(
    hardware: Hardware, variant: tuple[str, bool, bool, bool, float, float], columns: Columns
) -> Columns:
    """Price rows of one device and variant: ``time`` [s], tile, split and bound."""
    precision, quantises, steady, alone, weights, activations = variant
    sizes: dict[str, Any] = dict(columns)
    sizes["accumulate"] = sizes["accumulate"] > 0.0
    options: dict[str, Any] = {
        "steady": steady,
        "alone": alone,
        "weight_copies": weights,
        "activation_copies": activations,
    }
    if quantises:
        found, quantise = quantised_gemm_times(hardware, precision, **sizes, **options)
    else:
        found = gemm_times(hardware, precision, **sizes, **options)
        quantise = np.zeros(found.time.size)
    return {
        "time": found.time + quantise,
        "quantise_time": quantise,
        "tile_m": found.tile_m,
        "tile_n": found.tile_n,
        "split_k": found.split_k,
        "bound": np.array(GEMM_BOUNDS)[found.bound],
    }


KIND = KernelKind(
    name="gemm",
    needed=("hardware", "m", "n", "k", "time_us"),
    group_by=("hardware", "dtype", "regime"),
    aliases=ALIASES,
    whole=("m", "n", "k", "batch"),
    check=check_steady,
    derived=derived,
    case_of=case_of,
    price=price,
    kernel_class="gemm",
    calibration="gemm",
    alike=("n", "k"),
)
