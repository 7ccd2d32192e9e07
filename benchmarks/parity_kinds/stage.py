"""Compare STAGE workloads and their simulation with STAGE and ASTRA-sim.

``compare(folder)`` reads what it finds of ``dse_*.csv`` (runs, and an exact replica of
the design space), ``sanity/`` (network and system of the sanity check, whose nine figures
are below) and ``et_sanity/`` (its 16 traces as STAGE wrote them). Releases of ASTRA-sim
before April 2025 issued nodes in the order of a hash table; their figures are compared with
runs in that order. In the order of identifiers, the sanity check's times may differ from
them by 1.5 %.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from parity_kinds.design_space import (
    CASES,
    LLAMA,
    REFERENCE,
    REFERENCE_COLUMNS,
    REFERENCE_WINNERS,
    SETTINGS,
    SIMULATOR,
    Point,
    best,
    simulate_point,
    strategies,
)
from parity_kinds.rows import error_statistics

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.measured.rows import MeasuredRow, read_rows
from perfmodel.workloads.formats.astra_files import read_network, read_system
from perfmodel.workloads.formats.chakra.files import read_traces
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import Trace, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.stage.traces import stage_traces

DEGREES = ("dp", "tp", "sp", "ar")
FIGURES = {
    "wall": "wall",
    "gpu": "gpu",
    "comm": "communication",
    "exposed": "exposed",
    "peak": "peak_memory",
}
REPLICA = {f"rep_{column}": figure for column, figure in FIGURES.items()}
RUN = {f"sim_{column}": figure for column, figure in FIGURES.items()}
# File: group, pairs of its column and our figure, and order of issue.
FILES: dict[str, dict[str, tuple[dict[str, str], str]]] = {
    REFERENCE: {"exploration": (REFERENCE_COLUMNS, "identifier")},
    "dse_real_vs_replica.csv": {"runs": (RUN, "identifier")},
    "dse_real_unordered.csv": {
        "replica": (REPLICA, "identifier"),
        "runs in hash order": (RUN, "hash"),
    },
}
SANITY = replace(
    LLAMA,
    data_parallel=2,
    tensor_parallel=2,
    sequence_parallel=2,
    pipeline_parallel=2,
    activation_recompute=True,
    layers=8,
)
# What the exercise prints of rank 0: figure, value, decimals, factor of our unit.
SANITY_EXACT = (
    ("gpu_time", 919786681, 0, 1e9),
    ("compute_bound_fraction", 83.794, 3, 1e2),
    ("compute_utilization", 85.661, 3, 1e2),
    ("memory_utilization", 28.401, 3, 1e2),
    ("operation_intensity", 3523.082, 3, 1.0),
)
SANITY_TIMES = (
    ("wall_time", 3556872116, 0, 1e9),
    ("exposed_communication", 2637085435, 0, 1e9),
    ("communication_time", 3521411134, 0, 1e9),
)
SANITY_PEAK = (("peak_memory", 19676528640, 0, 1.0),)
WITHIN = 0.015  # what another order of issue may change of the times


def compare(path: Path) -> dict[str, Any]:
    """Compare all reference outputs of a folder.

    Parameters
    ----------
    path : path
        Folder with ``dse_*.csv``, ``sanity/`` or ``et_sanity/``.

    Returns
    -------
    dict
        ``kind``, ``count``, ``exact``, ``worst_relative_error`` and
        ``median_relative_error`` of rows, figures and trace files; ``uncovered`` {reason:
        count}; ``groups`` {name: the same}; ``other_order``, how far the sanity check's
        times in the order of identifiers are from those in hash order.

    Raises
    ------
    DataError
        Nothing known is in the folder, or a table is malformed.
    """
    path = Path(path)
    groups: dict[str, list[float]] = {}
    for file, columns in FILES.items():
        if (path / file).exists():
            for group, (figures, order) in columns.items():
                groups[group] = list(row_errors(path / file, figures, order))
    if (path / REFERENCE).exists():
        groups["winners"] = list(winner_errors())
    other_order: list[float] = []
    if (path / "sanity").is_dir():
        found, other_order = sanity_errors(path / "sanity")
        groups |= found
    if (path / "et_sanity").is_dir():
        groups["traces"] = list(trace_errors(path / "et_sanity"))
    if not groups:
        raise DataError(f"'{path}' has none of {', '.join(FILES)}, sanity/ and et_sanity/")
    return {
        "kind": "stage",
        **error_statistics([error for errors in groups.values() for error in errors]),
        "uncovered": {},
        "groups": {name: error_statistics(errors) for name, errors in groups.items()},
        "other_order": error_statistics(other_order),
    }


@functools.cache
def point(case: str, strategy: tuple[int, int, int, int], layers: int, order: str) -> Point:
    """Run one point of the design space once."""
    chosen = CASES[case]
    case_of_depth = replace(chosen, model=replace(chosen.model, layers=layers))
    return simulate_point(case_of_depth, strategy, issue_order=order)


def row_errors(path: Path, figures: dict[str, str], order: str) -> Iterable[float]:
    """Yield the worst relative error of every row."""
    _, rows = read_rows(path, ["case", *DEGREES, "layers", *figures])
    for row in rows:
        found = point_of(row, order)
        yield max(
            relative(getattr(found, ours), _whole(row, column))
            for column, ours in figures.items()
            if row.text(column) != "-1"  # not tracked
        )


def point_of(row: MeasuredRow, order: str) -> Point:
    """Return our figures for the strategy of a row."""
    case = row.text("case")
    if case not in CASES:
        raise row.error("case", f"a case{did_you_mean(case, CASES)}")
    dp, tp, sp, recompute = (_whole(row, name) for name in DEGREES)
    return point(case, (dp, tp, sp, recompute), _whole(row, "layers"), order)


def _whole(row: MeasuredRow, column: str) -> int:
    """Return a whole number >= 0, or raise."""
    value = row.number(column)
    if value is None or value != int(value):
        raise row.error(column, "a whole number")
    return int(value)


def relative(ours: float, reference: float) -> float:
    """Return the relative error; absolute where the reference is 0."""
    return abs(ours - reference) / (reference or 1)


def winner_errors() -> Iterable[float]:
    """Yield 0 for every setting whose fastest point is the known one, to the digits known."""
    for (case, setting), (strategy, seconds, gigabytes) in REFERENCE_WINNERS.items():
        layers = CASES[case].model.layers
        points = [point(case, each, layers, "identifier") for each in strategies()]
        found = best(points, SETTINGS[setting])
        digits = len(str(seconds).partition(".")[2])
        ours = (found.strategy, round(found.wall * 1e-9, digits), round(found.peak_memory / 1e9, 1))
        yield float(ours != (strategy, seconds, gigabytes))


def sanity_errors(path: Path) -> tuple[dict[str, list[float]], list[float]]:
    """Return the errors of the sanity check's figures, rounded as printed, by group.

    Beside them, those of its times in the order of identifiers; as a group, these are exact
    where they are within `WITHIN`.
    """
    network, system = read_network(path / "network.yml"), read_system(path / "system.json")
    costs = AstraCosts(network, system, version=SIMULATOR)
    traces = stage_traces(SANITY)

    def errors(figures: Iterable[tuple[str, float, int, float]], order: str) -> list[float]:
        result = simulate(traces, costs, issue_order=order)
        return [
            relative(round(float(getattr(result, name)[0]) * factor, decimals), value)
            for name, value, decimals, factor in figures
        ]

    times = errors(SANITY_TIMES, "identifier")
    return {
        "sanity": errors(SANITY_EXACT, "identifier"),
        "sanity in hash order": errors((*SANITY_EXACT, *SANITY_TIMES, *SANITY_PEAK), "hash"),
        f"sanity times within {WITHIN:.1%}": [error if error > WITHIN else 0.0 for error in times],
    }, times


def trace_errors(path: Path) -> Iterable[float]:
    """Yield for every rank the part of its nodes that differs from STAGE's file."""
    theirs = read_traces(path, path / "comm_group.json")
    # STAGE draws the first label at random; the others are counted from it.
    tags = np.concatenate([trace.tag for trace in theirs.traces])
    ours = stage_traces(SANITY, int(tags[tags >= 0].min(initial=2**30 - 1)))
    same_groups = dict(ours.groups) == dict(theirs.groups)
    for rank in range(max(ours.devices, theirs.devices)):
        yield different_nodes(ours, theirs, rank) if same_groups else 1.0


def different_nodes(ours: TraceSet, theirs: TraceSet, rank: int) -> float:
    """Return the part of a rank's nodes in which two sets differ."""
    if rank >= min(ours.devices, theirs.devices):
        return 1.0
    mine, other = described(ours.traces[rank]), described(theirs.traces[rank])
    differing = sum(a != b for a, b in zip(mine, other, strict=False))
    return (differing + abs(len(mine) - len(other))) / max(len(mine), len(other))


def described(trace: Trace) -> list[tuple[Any, ...]]:
    """Return all that a trace says of each node, in file order, names written out."""
    scalars = (
        "identifiers",
        "kinds",
        "duration",
        "num_ops",
        "tensor_size",
        "collective",
        "communication_size",
        "source",
        "destination",
        "tag",
        "priority",
        "involved",
        "on_cpu",
    )
    columns = [getattr(trace, name).tolist() for name in scalars]
    groups = [trace.group_names[index] if index >= 0 else None for index in trace.group.tolist()]
    parents = [
        [lists[node].tolist() for node in range(trace.nodes)]
        for lists in (trace.data_parents, trace.control_parents)
    ]
    tensors = [
        [[trace.tensors[place] for place in lists[node]] for node in range(trace.nodes)]
        for lists in (trace.inputs, trace.outputs)
    ]
    return list(zip(trace.names, *columns, groups, *parents, *tensors, strict=True))


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of a table by group."""
    groups = document["groups"]
    width = max(map(len, groups))
    lines = [f"{'group':{width}}  compared  exact      worst     median"]
    for name, group in groups.items():
        lines.append(
            f"{name:{width}}  {group['count']:8d}  {group['exact']:5d} "
            f"{group['worst_relative_error']:10.4%} {group['median_relative_error']:10.4%}"
        )
    other = document["other_order"]
    if other["count"]:
        lines += [
            "",
            "sanity times in the order of identifiers: "
            f"{other['worst_relative_error']:.2%} from those in hash order at most",
        ]
    return [*lines, ""]
