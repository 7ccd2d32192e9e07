"""Measured latent attention (MLA), row by row; see `perfmodel.measured.compare` for the rest.

``fwd`` rows run all heads with their own keys and values (192 and 128 wide); ``decode``
rows run the absorbed form: all heads share one key of 576, whose first 512 elements are
the value. Rows of serving frameworks are replayed graphs, as in
`perfmodel.measured.kinds.attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfmodel.base.regimes import regime_name
from perfmodel.measured.cases import Case, project_cases, stated
from perfmodel.measured.kinds import attention as compare_attention
from perfmodel.measured.kinds.attention import (
    attention_case,
    check,
    element_bytes,
    price,
    unmasked_pairs,
)
from perfmodel.measured.rows import MeasuredRow, Outcome

__all__ = [
    "DEFAULT_BY",
    "MEASUREMENTS",
    "NEEDED",
    "QUANTITY",
    "UNIT",
    "case_of",
    "check",
    "derived",
    "price",
    "project",
]

QUANTITY = compare_attention.QUANTITY
UNIT = compare_attention.UNIT
NEEDED = compare_attention.NEEDED
MEASUREMENTS = compare_attention.MEASUREMENTS
DEFAULT_BY = ("hardware", "kv_dtype", "framework", "phase", "regime")


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row; bytes of a shared cache in decode."""
    names = ("batch", "heads", "d_qk", "d_v", "q_len", "kv_len")
    sizes = [row.whole(name) for name in names]
    if row.lower("phase") not in ("fwd", "decode") or None in sizes:
        return {"regime": ""}
    batch, heads, width_qk, width_v, queries, keys = (float(size or 0) for size in sizes)
    if row.lower("phase") == "decode":
        return {"regime": regime_name("decode", batch * keys * width_qk * element_bytes(row))}
    pairs = unmasked_pairs(queries, keys, True, 0.0)
    return {"regime": regime_name("attention", 2.0 * pairs * (width_qk + width_v) * heads * batch)}


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    decode = row.lower("phase") == "decode"
    return attention_case(row, 1 if decode else stated(row, "heads"), latent=True)


def project(rows: Sequence[MeasuredRow], progress: Callable[[int], None]) -> list[Outcome]:
    """Price every row."""
    return project_cases(rows, case_of, price, progress)
