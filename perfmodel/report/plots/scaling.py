"""Tokens per second and efficiency over numbers of devices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.base.figures import GREY, MARKERS, PALETTE
from perfmodel.base.table import Table
from perfmodel.kernels.variables import RATE
from perfmodel.report.plots.axes import Wanted, inner_size, number_axis, placed
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Axis, Line, Panel, Paper, Points
from perfmodel.report.plots.names import full_name
from perfmodel.store.results import GROUPS, scaling
from perfmodel.store.subject import TRAINING

SHARES = (0.62, 0.38)
"""Of the figure's height: throughput and efficiency."""
SHOWN = (
    "tensor_parallel",
    "context_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "zero_stage",
)


def scaling_plot(
    table: Table, *, where: str | None = None, everything: bool = False, paper: Paper
) -> Plot:
    """Describe the figure; options as of `perfmodel.plot`."""
    weak = table.attrs.get("scaling") == "weak"
    rows = scaling(table, where=where, fitting=not everything)
    batch = "batch per device" if weak else "global_batch_size"
    curves: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        row["batch per device"] = row["global_batch_size"] / row["devices"]
        curves.setdefault(tuple(row.get(name) for name in (*GROUPS, batch)), []).append(row)
    if all(len(own) < 2 for own in curves.values()):
        raise DataError(
            "scaling needs several numbers of devices, as of "
            "'perfmodel sweep --devices 256,512,1024'"
        )
    if len(curves) > len(PALETTE):
        raise DataError(f"{len(curves)} curves could not be told apart; choose some with --where")
    counts = sorted({row["devices"] for row in rows})
    base = number_axis("devices", "1", counts, log=True, margin=0.08)
    bare = Axis("devices", "", "", 1.0, "log", base.low, base.high, _ticks(counts, blank=True))
    across = Axis("devices", "devices", "", 1.0, "log", base.low, base.high, _ticks(counts))
    total = number_axis(
        "tokens_per_second",
        "1/s",
        [row["tokens_per_second"] for row in rows],
        log=True,
        margin=0.08,
    )
    share = number_axis(
        "scaling_efficiency", "1", [0.0, 1.0, *(row["scaling_efficiency"] for row in rows)],
        zero=True, label="efficiency", wanted=3,
    )  # fmt: skip
    above: list[Any] = []
    below: list[Any] = [Line([base.low, base.high], [1.0, 1.0], GREY, dashed=True, width=0.7)]
    wanted, dots = [], []
    names = [
        name
        for name in (*GROUPS, batch)
        if len({str(own[0].get(name)) for own in curves.values()}) > 1
    ]
    for number, own in enumerate(curves.values()):
        colour, marker = PALETTE[number], MARKERS[number]
        label = full_name(own[0], names)
        x, y = [row["devices"] for row in own], [row["tokens_per_second"] for row in own]
        ideal = [own[0][RATE] * count for count in x]
        above.append(Line(x, ideal, GREY, "ideal", dashed=True, width=0.7))
        texts = [full_name(row, SHOWN) for row in own]
        above += [
            Line(x, y, colour),
            Points(x, y, colour, label, marker, 4.0, texts=texts, keyed=False),
        ]
        efficiency = [row["scaling_efficiency"] for row in own]
        below += [
            Line(x, efficiency, colour),
            Points(x, efficiency, colour, label, marker, 4.0, keyed=False),
        ]
        points = list(zip(x, y, strict=True))
        dots += points
        for a, b in pairwise(points):  # the lines between them
            dots += zip(
                np.geomspace(a[0], b[0], 9).tolist(),
                np.geomspace(a[1], b[1], 9).tolist(),
                strict=True,
            )
        if label:
            wanted.append(Wanted(label, colour, points[::-1]))
    height = paper.height(0.95)
    size = inner_size(paper.width, height * SHARES[0])
    words = placed(wanted, across, total, size, dots)
    panels = (
        Panel(bare, total, (*above, *words), SHARES[0]),
        Panel(across, share, tuple(below), SHARES[1]),
    )
    notes = [
        "best strategy on every number of devices",
        "weak scaling" if weak else "strong scaling",
    ]
    facts = {"subject": TRAINING.verb, "curves": len(curves)}
    return Plot("scaling", panels, paper.width, height, notes=tuple(notes), facts=facts)


def _ticks(counts: list[int], blank: bool = False) -> tuple[tuple[float, str], ...]:
    """Return a tick per number of devices, or for every second or third of many."""
    every = -(-len(counts) // 7)
    return tuple((float(it), "" if blank else f"{it:,}") for it in counts[::every])
