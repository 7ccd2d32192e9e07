"""Measured latent attention (MLA), row by row; see `perfmodel.measured.kind` for the rest.

``fwd`` rows run all heads with their own keys and values (192 and 128 wide); ``decode``
rows run the absorbed form: all heads share one key of 576, whose first 512 elements are
the value. Rows of serving frameworks are replayed graphs, as in
`perfmodel.measured.kinds.attention`.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.base.regimes import regime_name
from perfmodel.measured.cases import Case, stated
from perfmodel.measured.kinds import attention
from perfmodel.measured.kinds.attention import attention_case, element_bytes, unmasked_pairs
from perfmodel.measured.rows import MeasuredRow


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


KIND = replace(
    attention.KIND,
    name="mla",
    group_by=("hardware", "kv_dtype", "framework", "phase", "regime"),
    derived=derived,
    case_of=case_of,
    alike=("phase", "heads", "batch"),
)
