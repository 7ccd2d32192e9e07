"""What operations achieve below the roofs of a device."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.base.figures import GREY, INK, MARKERS, PALETTE
from perfmodel.base.precisions import rate_format
from perfmodel.base.table import Table
from perfmodel.base.units import format_si
from perfmodel.kernels.variables import RATE
from perfmodel.report.plots.axes import Wanted, inner_size, log_ticks, placed
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Axis, Line, Panel, Paper, Points, Text
from perfmodel.report.plots.names import picked

NAMED = 5
"""Operations whose names stand beside them."""
SMALLEST, LARGEST = 2.5, 9.0
"""Diameters of what takes least and most of the time [pt]."""
WORDS = {
    "gemm": "matrix products",
    "groupedgemm": "grouped products",
    "sparseattention": "sparse attention",
}


class Roofs(NamedTuple):
    """What a device can do at best: bandwidth of its memory [B/s], matrix rates [FLOP/s]."""

    bandwidth: float
    peaks: Mapping[str, float]


class Operation(NamedTuple):
    """One operation: its group, name, work and time."""

    group: str
    name: str
    flops: float
    traffic: float
    time: float
    weight: float  # what it takes of all that is shown [s]


def roofline_plot(
    table: Table,
    *,
    pick: int = 1,
    by: str = RATE,
    where: str | None = None,
    everything: bool = False,
    hardware: str | None = None,
    paper: Paper,
) -> Plot:
    """Describe the figure; options as of `perfmodel.plot`."""
    if "kernel" in table.attrs:
        device, operations, precisions, notes = _of_kernels(table, hardware)
        named = 0
    else:
        device, operations, precisions, notes = _of_strategy(table, pick, by, where, everything)
        named = NAMED
    if not operations:
        raise DataError("nothing to draw: no operation of these does matrix work")
    x, y = _axes(device, operations, precisions)
    size = inner_size(paper.width, paper.height(0.8))
    roofs, words = _roofs(device, precisions, x, y, size)
    marks: list[Any] = list(roofs)
    groups = list(dict.fromkeys(it.group for it in operations))
    heaviest = max(it.weight for it in operations)
    dots = []
    for number, group in enumerate(groups):
        own = [it for it in operations if it.group == group]
        across, up = [it.flops / it.traffic for it in own], [it.flops / it.time for it in own]
        sizes = [max(SMALLEST, LARGEST * math.sqrt(it.weight / heaviest)) for it in own]
        marks.append(
            Points(
                across, up, PALETTE[number % len(PALETTE)], group, MARKERS[number % len(MARKERS)],
                sizes if named else 4.0, 0.75, texts=[it.name for it in own],
            )
        )  # fmt: skip
        dots += list(zip(across, up, strict=True))
    for roof in roofs:
        dots += zip(
            *(np.geomspace(it[0], it[1], 60).tolist() for it in (roof.x, roof.y)), strict=True
        )
    longest = sorted(operations, key=lambda it: -it.weight)
    wanted: dict[str, Wanted] = {}
    for it in longest:
        if len(wanted) < named:
            wanted.setdefault(
                it.name, Wanted(it.name, INK, [(it.flops / it.traffic, it.flops / it.time)])
            )
    words += placed(list(wanted.values()), x, y, size, dots, must=False)
    panel = Panel(x, y, (*marks, *words))
    return Plot("roofline", (panel,), paper.width, paper.height(0.92), notes=tuple(notes))


def _of_strategy(
    table: Table, pick: int, by: str, where: str | None, everything: bool
) -> tuple[Roofs, list[Operation], list[str], list[str]]:
    """Return the operations of one strategy of a sweep."""
    from perfmodel.analysis.explain import operation_costs
    from perfmodel.analysis.recalled import peaks_of

    row, problem, said = picked(table, pick, by, where, everything)
    costs = operation_costs(
        problem.model, problem.grid, problem.hardware, framework=problem.framework
    )
    found = [
        Operation(
            WORDS.get(cost.kind, cost.kind),
            f"{cost.name.replace('_', ' ')}, {cost.phase.replace('_', ' ')}",
            cost.flops,
            cost.traffic,
            cost.time,
            cost.exposed,
        )
        for cost in costs
        if cost.flops > 0.0 and cost.traffic > 0.0 and cost.time > 0.0
    ]
    share = sum(it.weight for it in found) / row["step_time"]
    notes = [said, f"operations with matrix work, {share:.0%} of the step; areas are their time"]
    device = Roofs(*peaks_of(problem.hardware))
    return device, found, _precisions(device, [str(row["precision"])]), notes


def _of_kernels(
    table: Table, hardware: str | None
) -> tuple[Roofs, list[Operation], list[str], list[str]]:
    """Return the kernels of a grid on one device."""
    from perfmodel.analysis.recalled import recorded_peaks

    names = [str(it) for it in table["hardware"].values.tolist()]
    name = hardware or names[0]
    if name not in names:
        raise DataError(f"no hardware '{name}' here; there are {', '.join(names)}")
    missing = {"flops", "memory_traffic", "time"} - set(table.data_vars)
    if missing:
        raise DataError(
            f"a roofline needs {', '.join(sorted(missing))}, which these kernels have not"
        )
    try:
        device = Roofs(*recorded_peaks(json.loads(table.attrs["provenance"])["hardware"][name]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the results do not say what '{name}' is ({error})") from None
    at = names.index(name)
    time, flops, traffic = (
        np.broadcast_to(table[it].values, (len(names), table.sizes["shape"]))[at]
        for it in ("time", "flops", "memory_traffic")
    )
    coords = [
        it for it, column in table.coords.items() if column.dims == ("shape",) and it != "shape"
    ]
    labels = {it: table[it].labelled().tolist() for it in coords}
    telling = [it for it in coords if len(set(labels[it])) > 1]
    by = next((it for it in ("precision", "phase", "kind") if it in telling), None)
    found = [
        Operation(
            str(labels[by][number]) if by else str(table.attrs["kernel"]),
            ", ".join(f"{it.replace('_', ' ')} {labels[it][number]}" for it in telling),
            float(flops[number]),
            float(traffic[number]),
            float(time[number]),
            float(time[number]),
        )
        for number in np.flatnonzero(np.isfinite(time) & (flops > 0) & (traffic > 0)).tolist()
    ]
    named = labels.get("precision", ["bf16"])
    notes = [f"{table.attrs['title']} on {name}", f"{len(found):,} kernels"]
    return device, found, _precisions(device, named), notes


def _precisions(device: Roofs, names: Sequence[str]) -> list[str]:
    """Return the matrix rates that some formats run at, the slowest first."""
    wanted = {rate_format(name) for name in names} & set(device.peaks)
    return sorted(wanted, key=lambda it: device.peaks[it])


def _axes(
    device: Roofs, found: Sequence[Operation], precisions: Sequence[str]
) -> tuple[Axis, Axis]:
    across = np.array([it.flops / it.traffic for it in found])
    up = np.array([it.flops / it.time for it in found])
    peaks = [device.peaks[it] for it in precisions]
    bandwidth = device.bandwidth
    ridge = max([*peaks, up.max()]) / bandwidth
    top = max([*peaks, up.max()])
    low, high = min(across.min() / 1.5, ridge / 12.0), max(across.max() * 1.6, ridge * 3.0)
    bottom, top = min(up.min() / 1.6, top / 20.0), top * 1.8
    ends = (float(low), float(high)), (float(bottom), float(top))
    x = Axis(
        "intensity", "arithmetic intensity", "FLOP/B", 1.0, "log", *ends[0], log_ticks(*ends[0])
    )
    y = Axis("rate", "rate", "TFLOP/s", 1e12, "log", *ends[1], log_ticks(*ends[1], 1e12))
    return x, y


def _roofs(
    device: Roofs, precisions: Sequence[str], x: Axis, y: Axis, size: tuple[float, float]
) -> tuple[list[Line], list[Text]]:
    """Return the roofs, and what stands on them."""
    bandwidth = device.bandwidth
    rates = device.peaks
    top = max(rates[it] for it in precisions) if precisions else y.high
    foot = max(x.low, y.low / bandwidth)
    lines = [
        Line(
            [foot, top / bandwidth],
            [foot * bandwidth, top],
            GREY,
            "memory roof",
            width=0.8,
            keyed=False,
        )
    ]
    words = []
    for name in precisions:
        lines.append(
            Line(
                [rates[name] / bandwidth, x.high],
                [rates[name]] * 2,
                GREY,
                f"{name} roof",
                width=0.8,
                keyed=False,
            )
        )
        said = f"{name} {format_si(rates[name], 'FLOP/s')}"
        words.append(
            Text(
                rates[name] / bandwidth,
                rates[name],
                said,
                GREY,
                "right",
                "bottom",
                0.0,
                1.5,
                halo=False,
            )
        )
    slope = size[1] / math.log(y.high / y.low) / (size[0] / math.log(x.high / x.low))
    middle = math.exp(0.4 * math.log(top / bandwidth) + 0.6 * math.log(foot))
    said = f"memory {format_si(bandwidth, 'B/s')}"
    angle = math.degrees(math.atan(slope))
    words.append(
        Text(
            middle, middle * bandwidth, said, GREY, "center", "bottom", 0.0, 2.0, angle, halo=False
        )
    )
    return lines, words
