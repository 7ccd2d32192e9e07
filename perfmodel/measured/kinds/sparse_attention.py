"""Measured attention of DeepSeek-V4, row by row; see `perfmodel.measured.kind` for the rest.

A table names a layer by its compression ratio: 0 for the window alone, 4 for chosen compressed
keys (CSA), 128 for all compressed keys (HCA). Several implementations may stand in it with times
of one problem. The model answers for a kernel as good as can be bought: rows that are the
`fastest` of their shape judge it, and `of_fastest` of the others says how far they are behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.precisions import ATTENTION_PRECISIONS
from perfmodel.base.regimes import regime_name
from perfmodel.compute.attention import ATTENTION_BOUNDS
from perfmodel.compute.sparse_attention import sparse_attention_times
from perfmodel.compute.sparse_keys import sparse_keys
from perfmodel.hwprofiles import Hardware
from perfmodel.measured.kind import (
    Case,
    Columns,
    KernelKind,
    check_time,
    kernel_hardware,
    measured_time,
    stated,
)
from perfmodel.measured.rows import MeasuredRow, Skip

PASSES = {"fwd": "forward", "bwd": "backward", "decode": "decode"}
"""Pass of a table -> phase of `sparse_attention_times`."""

CLASSES = {"fwd": "attention", "bwd": "attention_backward", "decode": "decode"}
"""Pass of a table -> kernel class of `perfmodel.base.regimes`."""

COUNTS = ("heads", "seq", "mbs", "index_topk", "head_dim", "window")

HEAD_DIM, WINDOW = 512, 128
"""Width of a head and tokens of a window where a table states none: DeepSeek-V4's."""

INDEX_TOP_K = {"deepseek-v4-flash": 512, "deepseek-v4-pro": 1024}
"""Model -> ``index_topk`` of its config.json, keys that ratio 4 chooses."""

SHAPE = ("hardware", "pass", "heads", "seq", "mbs", "compress_ratio", "index_topk", "model")
"""Columns in which rows of one problem agree."""


class Variant(NamedTuple):
    """What is the same for all rows priced in one call."""

    phase: str
    precision: str


def check(row: MeasuredRow) -> None:
    """Raise DataError where a cell that should be a number is none."""
    for column in COUNTS:
        row.whole(column)
    ratio = row.number("compress_ratio")
    if ratio is not None and ratio != int(ratio):
        raise row.error("compress_ratio", "a whole number, 0 for the window alone")
    check_time(row, "ms")


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row."""
    try:
        sizes = shape(row)
    except Skip:
        return {"regime": ""}
    keys = sparse_keys(
        sizes["query_length"],
        sizes["key_length"],
        selected=sizes["selected"],
        window=sizes["window"],
        compression=sizes["compression"],
    )
    quantity = 4.0 * float(keys.pairs) * sizes["heads"] * sizes["head_dim_qk"] * sizes["batch"]
    return {"regime": regime_name(CLASSES.get(row.lower("pass"), "attention"), quantity)}


def together(rows: Sequence[MeasuredRow]) -> list[dict[str, str]]:
    """Return of each row whether it is the ``fastest`` of its shape, and its time over that's."""
    names = [tuple(row.lower(column) for column in SHAPE) for row in rows]
    times = [row.number("ms") or np.inf for row in rows]
    least: dict[tuple[str, ...], float] = {}
    for name, time in zip(names, times, strict=True):
        least[name] = min(time, least.get(name, np.inf))
    return [
        {
            "fastest": "yes" if time == least[name] else "no",
            "of_fastest": f"{time / least[name]:.3g}" if np.isfinite(time) else "",
        }
        for name, time in zip(names, times, strict=True)
    ]


def shape(row: MeasuredRow) -> dict[str, float]:
    """Return the sizes of a row.

    Raises
    ------
    Skip
        Something is not stated.
    """
    ratio = row.number("compress_ratio")
    if ratio is None:
        raise Skip("shape not stated", "compress_ratio", scorable=False)
    selected = 0
    if ratio == 4:
        selected = row.whole("index_topk") or INDEX_TOP_K.get(row.lower("model"), 0)
        if not selected:
            raise Skip("shape not stated", "index_topk", scorable=False)
    length, width = float(stated(row, "seq")), float(row.whole("head_dim") or HEAD_DIM)
    decode = row.lower("pass") == "decode"
    return {
        "batch": float(stated(row, "mbs")),
        "query_length": 1.0 if decode else length,
        "key_length": length,
        "heads": float(stated(row, "heads")),
        "head_dim_qk": width,
        "head_dim_v": width,
        "selected": float(selected),
        "window": float(row.whole("window") or WINDOW),
        "compression": ratio,
    }


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    if row.lower("pass") not in PASSES:
        raise Skip("unknown pass", row.lower("pass"))
    precision = row.lower("dtype") or "bf16"
    if precision not in ATTENTION_PRECISIONS:
        raise Skip("attention has no such precision", precision)
    hardware, notes = kernel_hardware(row)
    variant = Variant(PASSES[row.lower("pass")], precision)
    return Case(hardware, variant, shape(row), measured_time(row, "ms", 1e-3), notes)


def price(hardware: Hardware, variant: Variant, columns: Columns) -> Columns:
    """Price rows of one device and pass: ``time`` [s] and bound."""
    sizes: dict[str, Any] = dict(columns)
    found = sparse_attention_times(hardware, variant.precision, phase=variant.phase, **sizes)
    return {"time": found.time, "bound": np.array(ATTENTION_BOUNDS)[found.bound]}


KIND = KernelKind(
    name="sparse-attention",
    needed=("hardware", "pass", "heads", "seq", "mbs", "compress_ratio", "ms"),
    measurements=("ms",),
    group_by=("fastest", "pass", "compress_ratio", "backend"),
    check=check,
    derived=derived,
    together=together,
    case_of=case_of,
    price=price,
    kernel_class="attention",
)
