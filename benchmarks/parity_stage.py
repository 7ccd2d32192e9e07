"""Compare STAGE workloads and their simulation with STAGE and ASTRA-sim.

``compare(folder)`` reads what it finds of ``dse_*.csv`` (runs, and an exact replica of
the design space), ``sanity/`` (network and system of the sanity check, whose nine figures
are below) and ``et_sanity/`` (its 16 traces as STAGE wrote them). Releases of ASTRA-sim
before April 2025 issued nodes in the order of a hash table: such figures are compared
apart, and counted as not covered.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from design_space import CASES, SETTINGS, Point, best, simulate_point, strategies

from perfmodel.errors import DataError, did_you_mean
from perfmodel.formats.astra_network import read_network, read_system
from perfmodel.formats.chakra import read_traces
from perfmodel.measured_rows import MeasuredRow, read_rows
from perfmodel.simulation.astra_costs import AstraCosts
from perfmodel.simulation.run import simulate
from perfmodel.stage.arguments import StageArguments
from perfmodel.stage.traces import stage_traces
from perfmodel.trace import Trace, TraceSet

HASH_ORDER = "issued in hash order (ASTRA-sim before April 2025): compared apart"
DEGREES = ("dp", "tp", "sp", "ar")
# File: group, and pairs of its column and our figure.
FILES: dict[str, dict[str, dict[str, str] | str]] = {
    "dse_replica_full.csv": {
        "exploration": {
            "wall_ns": "wall",
            "gpu_ns": "gpu",
            "comm_ns": "communication",
            "exposed_ns": "exposed",
            "peak_mem_B": "peak_memory",
            "nodes": "nodes",
        }
    },
    "dse_real_vs_replica.csv": {"runs": "sim"},
    "dse_real_unordered.csv": {
        "id order": "rep",
        "wall time, hash order": {"sim_wall": "wall"},
        "peak memory, hash order": {"sim_peak": "peak_memory"},
    },
}
FIGURES = {
    "wall": "wall",
    "gpu": "gpu",
    "comm": "communication",
    "exposed": "exposed",
    "peak": "peak_memory",
}
# The fastest points of all 56, by arg-min of the replica: strategy, s, GB.
WINNERS = {
    ("llama70b@system1", "unlimited memory"): ((64, 1, 1, 0), 3.1795, 144.2),
    ("llama70b@system1", "80 GB"): ((32, 2, 1, 1), 3.881, 39.4),
    ("gpt175b@system2", "unlimited memory"): ((16, 4, 1, 0), 91.221, 205.8),
    ("gpt175b@system2", "80 GB"): ((16, 4, 1, 1), 110.015, 64.5),
}
SANITY = StageArguments(
    data_parallel=2,
    tensor_parallel=2,
    sequence_parallel=2,
    pipeline_parallel=2,
    activation_recompute=True,
    input_size=32000,
    output_size=32000,
    hidden_size=8192,
    feed_forward_size=28672,
    heads=64,
    sequence_length=1024,
    batch=512,
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
SANITY_HASH_ORDER = (
    ("wall_time", 3556872116, 0, 1e9),
    ("exposed_communication", 2637085435, 0, 1e9),
    ("communication_time", 3521411134, 0, 1e9),
)
SANITY_PEAK = (("peak_memory", 19676528640, 0, 1.0),)


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
        ``median_relative_error`` of rows, figures and trace files whose order of issue is
        by identifier; ``uncovered`` {reason: count}; ``groups`` {name: the same}.

    Raises
    ------
    DataError
        Nothing known is in the folder, or a table is malformed.
    """
    path = Path(path)
    groups: dict[str, list[float]] = {}
    for file, columns in FILES.items():
        if (path / file).exists():
            for group, figures in columns.items():
                groups[group] = list(row_errors(path / file, figures))
    if (path / "dse_replica_full.csv").exists():
        groups["winners"] = list(winner_errors())
    if (path / "sanity").is_dir():
        groups |= sanity_errors(path / "sanity")
    if (path / "et_sanity").is_dir():
        groups["traces"] = list(trace_errors(path / "et_sanity"))
    if not groups:
        raise DataError(f"'{path}' has none of {', '.join(FILES)}, sanity/ and et_sanity/")
    apart = [name for name in groups if name.endswith("hash order")]
    counted = [error for name in groups if name not in apart for error in groups[name]]
    uncovered = sum(len(groups[name]) for name in apart)
    return {
        "kind": "stage",
        **summary(counted),
        "uncovered": {HASH_ORDER: uncovered} if uncovered else {},
        "groups": {name: summary(errors) for name, errors in groups.items()},
    }


def summary(errors: Sequence[float]) -> dict[str, Any]:
    """Return count, exact count, worst and median."""
    return {
        "count": len(errors),
        "exact": list(errors).count(0.0),
        "worst_relative_error": max(errors, default=None),
        "median_relative_error": statistics.median(errors) if errors else None,
    }


@functools.cache
def point(case: str, strategy: tuple[int, int, int, int], layers: int) -> Point:
    """Run one point of the design space once."""
    chosen = CASES[case]
    return simulate_point(replace(chosen, model=replace(chosen.model, layers=layers)), strategy)


def row_errors(path: Path, figures: dict[str, str] | str) -> Iterable[float]:
    """Yield the worst relative error of every row."""
    if isinstance(figures, str):
        figures = {f"{figures}_{name}": ours for name, ours in FIGURES.items()}
    _, rows = read_rows(path, ["case", *DEGREES, "layers", *figures])
    for row in rows:
        found = point_of(row)
        yield max(
            relative(getattr(found, ours), _whole(row, column))
            for column, ours in figures.items()
            if row.text(column) != "-1"  # not tracked
        )


def point_of(row: MeasuredRow) -> Point:
    """Return our figures for the strategy of a row."""
    case = row.text("case")
    if case not in CASES:
        raise row.error("case", f"a case{did_you_mean(case, CASES)}")
    dp, tp, sp, recompute = (_whole(row, name) for name in DEGREES)
    return point(case, (dp, tp, sp, recompute), _whole(row, "layers"))


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
    for (case, setting), (strategy, seconds, gigabytes) in WINNERS.items():
        layers = CASES[case].model.layers
        points = [point(case, each, layers) for each in strategies()]
        found = best(points, SETTINGS[setting])
        digits = len(str(seconds).partition(".")[2])
        ours = (found.strategy, round(found.wall * 1e-9, digits), round(found.peak_memory / 1e9, 1))
        yield float(ours != (strategy, seconds, gigabytes))


def sanity_errors(path: Path) -> dict[str, list[float]]:
    """Return the errors of the sanity check's figures, rounded as printed, by group."""
    costs = AstraCosts(read_network(path / "network.yml"), read_system(path / "system.json"))
    result = simulate(stage_traces(SANITY), costs)

    def errors(figures: Iterable[tuple[str, float, int, float]]) -> list[float]:
        return [
            relative(round(float(getattr(result, name)[0]) * factor, decimals), value)
            for name, value, decimals, factor in figures
        ]

    return {
        "sanity": errors(SANITY_EXACT),
        "sanity times, hash order": errors(SANITY_HASH_ORDER),
        "sanity peak memory, hash order": errors(SANITY_PEAK),
    }


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
    return [*lines, ""]
