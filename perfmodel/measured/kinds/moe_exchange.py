"""Measured token exchanges of experts, row by row; see `perfmodel.measured.kind` for the rest.

Dispatch sends every token to the ranks of its experts, combine brings the results back
(DeepEP). Compared is the time of the transfer; ``notify_us``, in which ranks tell each other
how many tokens come and wait for the slowest host, is another kernel and left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.errors import did_you_mean
from perfmodel.base.regimes import regime_name
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
from perfmodel.network.expert_exchange import COMPUTE_UNITS, PHASES, moe_exchange_times
from perfmodel.sweeps.collective_grids import strides

MODES = {
    "deepep_normal": "normal",
    "deepep_low_latency": "low_latency",
    "normal": "normal",
    "low_latency": "low_latency",
}
COUNTS = ("nodes", "ep", "tokens_per_rank", "hidden", "topk", "experts")


class Variant(NamedTuple):
    """What is the same for all rows priced in one call."""

    phase: str
    mode: str
    share: float


def check(row: MeasuredRow) -> None:
    """Raise DataError where a cell that should be a number is none."""
    for column in (*COUNTS, "sms", "topk_groups"):
        row.whole(column)
    check_time(row)


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row, from the bytes of its choices at 2 bytes an element."""
    counts = [row.whole(name) for name in ("tokens_per_rank", "hidden", "topk")]
    known = [count for count in counts if count is not None]
    size = 2.0 * float(np.prod(known)) if len(known) == len(counts) else 0.0
    return {"regime": regime_name("collective", size) if size else ""}


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    mode, phase = row.lower("mode"), row.lower("phase")
    if mode not in MODES:
        raise Skip("unknown mode of exchange", f"'{mode}'{did_you_mean(mode, MODES)}")
    if phase not in PHASES:
        raise Skip("unknown phase of exchange", f"'{phase}'{did_you_mean(phase, PHASES)}")
    hardware, notes = kernel_hardware(row)
    members, nodes = stated(row, "ep"), row.whole("nodes") or 1
    if members < 2:
        raise Skip("a group of one moves nothing", scorable=False)
    if members % nodes:
        raise Skip("members spread unevenly over nodes", f"{members} on {nodes}")
    top_k, experts = stated(row, "topk"), stated(row, "experts")
    if experts < max(members, top_k):
        raise Skip("too few experts for the ranks or choices", f"{experts}", scorable=False)
    stride = int(strides(hardware, members, members // nodes)[0])
    if not stride:
        raise Skip("more members per node than the node has devices", f"{members // nodes}")
    sizes = {
        "tokens_per_rank": float(stated(row, "tokens_per_rank")),
        "hidden": float(stated(row, "hidden")),
        "top_k": float(top_k),
        "experts": float(experts),
        "members": float(members),
        "stride": float(stride),
        "compute_units": float(row.whole("sms") or COMPUTE_UNITS),
    }
    groups = row.whole("topk_groups") or nodes  # nodes among which a token chooses
    share = min(groups, nodes) / nodes
    return Case(hardware, Variant(phase, MODES[mode], share), sizes, measured_time(row), notes)


def price(hardware: Hardware, variant: Variant, columns: Columns) -> Columns:
    """Price rows of one system, phase and mode: ``time`` [s]."""
    sizes: dict[str, Any] = dict(columns)
    sizes["share"] = variant.share
    time = moe_exchange_times(hardware, variant.phase, variant.mode, **sizes)
    return {"time": time}


KIND = KernelKind(
    name="moe-alltoall",
    needed=(
        *("hardware", "mode", "phase", "ep", "tokens_per_rank", "hidden", "topk", "experts"),
        "time_us",
    ),
    group_by=("hardware", "mode", "phase", "nodes", "regime"),
    check=check,
    derived=derived,
    case_of=case_of,
    price=price,
    kernel_class="collective",
    calibration="network",
    keys="exchange_",
    alike=("mode", "phase", "ep", "nodes", "hidden", "topk", "experts"),
)
