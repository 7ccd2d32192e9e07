"""Measured attention kernels, row by row; see `perfmodel.compare` for the rest.

Rows of serving frameworks are replayed graphs (see `perfmodel.compute_attention_calls`);
others are loops around one kernel. The constants of the profiles follow the reference
framework: SGLang with the attention library of the device's generation
(``framework == "sglang"``), TensorRT-LLM where that is missing. Other frameworks run the
same model with what they launch beside the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from perfmodel.compute_attention import ATTENTION_BOUNDS, AttentionTimes, attention_times
from perfmodel.compute_attention_calls import SERVING, Call, replayed_times, small_kernels
from perfmodel.compute_attention_device import INPUT_BYTES
from perfmodel.hwprofiles import Hardware
from perfmodel.measured_kernels import (
    Case,
    Columns,
    kernel_hardware,
    measured_time,
    project_cases,
    stated,
)
from perfmodel.measured_rows import MeasuredRow, Outcome, Skip
from perfmodel.regimes import regime_name

QUANTITY = "time"
UNIT = "s"
NEEDED = ("hardware", "phase", "batch", "heads", "d_qk", "d_v", "q_len", "kv_len", "time_us")
MEASUREMENTS = ("time_us",)
DEFAULT_BY = ("hardware", "dtype", "framework", "phase", "regime")

PHASES = {"fwd": "attention", "bwd": "attention_backward", "decode": "decode"}
"""Phase of a table -> kernel class of `perfmodel.regimes`."""

COUNTS = ("batch", "heads", "kv_heads", "d_qk", "d_v", "q_len", "kv_len")
TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

# SGLang rows of width 192 are those of models with narrower values (MiMo-V2: 192 and 128);
# with values of 192 they would read more than the memory's peak.
NARROW_VALUES = {("sglang", 192): 128}


class Variant(NamedTuple):
    """What is the same for all rows priced in one call."""

    precision: str
    kv_precision: str
    backward: bool
    replayed: bool
    portable: bool


def check(row: MeasuredRow) -> None:
    """Raise DataError where a cell that should be a number is none."""
    for column in COUNTS:
        row.whole(column)
    row.number("window")
    if row.lower("time_us") != "inf":  # a call that did not fit the memory
        row.positive("time_us")
    if row.text("causal") and row.lower("causal") not in TRUTH:
        raise row.error("causal", "True or False")


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row."""
    kernel_class = PHASES.get(row.lower("phase"))
    sizes = [row.whole(name) for name in ("batch", "heads", "d_qk", "d_v", "q_len", "kv_len")]
    if kernel_class is None or None in sizes:
        return {"regime": ""}
    batch, heads, width_qk, width_v, queries, keys = (float(size or 0) for size in sizes)
    window = row.number("window") or 0.0
    if kernel_class == "decode":
        seen = min(keys, queries + window - 1.0) if window else keys
        stored = (row.whole("kv_heads") or heads) * (width_qk + width_v)
        quantity = batch * seen * stored * element_bytes(row)
    else:
        pairs = unmasked_pairs(queries, keys, is_causal(row), window)
        quantity = 2.0 * pairs * (width_qk + width_v) * heads * batch
    return {"regime": regime_name(kernel_class, quantity)}


def unmasked_pairs(queries: float, keys: float, causal: bool, window: float) -> float:
    """Return the pairs of query and key that a mask leaves in one head of one sequence.

    A window that is not causal counts both sides, without what the ends cut off.
    """
    if not causal:
        return queries * (min(keys, 2.0 * window - 1.0) if window else keys)
    first = keys - queries + 1.0  # keys that the first query sees
    if not window or keys <= window:
        return queries * (first + keys) / 2.0
    short = min(queries, max(0.0, window - first))
    return short * (2.0 * first + short - 1.0) / 2.0 + (queries - short) * window


def is_causal(row: MeasuredRow) -> bool:
    """Return the mask of a row; causal where nothing is stated."""
    return TRUTH.get(row.lower("causal"), True)


def element_bytes(row: MeasuredRow) -> float:
    """Return the bytes of one stored key or value element [B]."""
    return INPUT_BYTES.get(row.lower("kv_dtype") or row.lower("dtype"), 2.0)


def precisions(row: MeasuredRow, hardware: Hardware) -> tuple[str, str]:
    """Return the precision of the matrix products and that of the cache.

    With an fp8 cache the libraries cast the queries too, where the device multiplies fp8;
    portable kernels widen the keys instead.

    Raises
    ------
    Skip
        A precision that attention does not have.
    """
    stated_precision = row.lower("dtype") or "bf16"
    stored = row.lower("kv_dtype") or stated_precision
    for name in (stated_precision, stored):
        if name not in INPUT_BYTES:
            raise Skip("attention has no such precision", name)
    if stored == "fp8" and "fp8" in hardware.device.peak_flops and not is_portable(row):
        return "fp8", stored
    return stated_precision, stored


def is_portable(row: MeasuredRow) -> bool:
    """Return whether a row's kernel is written in a portable language."""
    return "triton" in row.lower("kernel")


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    return attention_case(row, stated(row, "heads") if not row.text("kv_heads") else None)


def attention_case(
    row: MeasuredRow, key_value_heads: int | None = None, latent: bool = False
) -> Case:
    """Turn a row into what the model needs.

    Parameters
    ----------
    row : MeasuredRow
    key_value_heads : int, optional
        In place of the row's ``kv_heads``.
    latent : bool
        Whether the row belongs to latent attention, absorbed in decode.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    phase = row.lower("phase")
    if phase not in PHASES:
        raise Skip("unknown phase", phase)
    if row.lower("time_us") == "inf":
        raise Skip("did not run", scorable=False)
    hardware, notes = kernel_hardware(row)
    precision, stored = precisions(row, hardware)
    framework = row.lower("framework")
    width_qk, width_v = stated(row, "d_qk"), stated(row, "d_v")
    if not latent and width_v == width_qk and (framework, width_qk) in NARROW_VALUES:
        width_v = NARROW_VALUES[framework, width_qk]
        notes = (*notes, f"values of {framework} taken as {width_v} wide")
    shared = stated(row, "kv_heads") if key_value_heads is None else key_value_heads
    sizes = {
        "batch": float(stated(row, "batch")),
        "query_length": float(stated(row, "q_len")),
        "key_length": float(stated(row, "kv_len")),
        "heads": float(stated(row, "heads")),
        "key_value_heads": float(shared),
        "head_dim_qk": float(width_qk),
        "head_dim_v": float(width_v),
        "causal": float(is_causal(row)),
        "window": row.number("window") or 0.0,
        "latent": float(latent and phase == "decode"),
        "prefill": float(phase == "fwd"),
    }
    call = Call(
        framework,
        row.lower("kernel"),
        phase,
        stored,
        latent,
        is_causal(row),
        sizes["batch"],
        sizes["query_length"],
        sizes["heads"],
        sizes["key_value_heads"],
        sizes["head_dim_qk"],
        sizes["head_dim_v"],
    )
    beside = small_kernels(call)
    sizes |= {"launches": beside.launches, "moved": beside.moved}
    variant = Variant(
        precision=precision,
        kv_precision=stored,
        backward=phase == "bwd",
        replayed=framework in SERVING,
        portable=is_portable(row),
    )
    return Case(hardware, variant, sizes, measured_time(row), notes)


def price(hardware: Hardware, variant: Variant, columns: Columns) -> Columns:
    """Price rows of one device and variant: ``time`` [s] and bound."""
    shapes: dict[str, Any] = {
        name: column for name, column in columns.items() if name not in ("launches", "moved")
    }
    if variant.replayed:
        found: AttentionTimes = replayed_times(
            hardware,
            variant.precision,
            shapes,
            columns["launches"],
            columns["moved"],
            kv_precision=variant.kv_precision,
            portable=variant.portable,
        )
    else:
        found = attention_times(
            hardware,
            variant.precision,
            **shapes,
            backward=variant.backward,
            kv_precision=variant.kv_precision,
            portable=variant.portable,
        )
    return {"time": found.time, "bound": np.array(ATTENTION_BOUNDS)[found.bound]}


def project(rows: Sequence[MeasuredRow], progress: Callable[[int], None]) -> list[Outcome]:
    """Price every row."""
    return project_cases(rows, case_of, price, progress)
