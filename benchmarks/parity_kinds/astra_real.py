"""Compare runs of exported traces with runs of the real ASTRA-sim, rank by rank.

``compare(folder)`` reads ``real_runs.csv`` (one line per run and rank) and, beside it, the traces
as a folder or packed (``traces.tar.xz``): ``TRACES/CASE/`` with one workload each, and
``config/`` with networks and systems. A run is exact where every figure that the simulator
printed of every rank is ours too, to the nanosecond; where it printed none, if we foresee that.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from parity_kinds.rows import Row, group_table, grouped, read_rows, worst_and_median

from perfmodel.base.errors import DataError, FormatError, PerfModelError
from perfmodel.workloads.convert.opening import open_traces, workload_kind
from perfmodel.workloads.formats.astra_files import read_network, read_system
from perfmodel.workloads.simulation.result import Simulation
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.astra.stops import find_stops
from perfmodel.workloads.twins.astra.versions import (
    ALL_FIGURES,
    NO_FIGURES,
    SIMULATOR,
    WALL_TIME,
    Ending,
    Stop,
    astra_version,
    expected_end,
)

RUNS = "real_runs.csv"
PACKED = "traces.tar.xz"
CONFIGURATIONS = "config"
KEYS = ("traces", "case", "network", "system", "engine", "version")
FIGURES = {
    "wall_ns": "wall_time",
    "communication_ns": "communication_time",
    "gpu_ns": "gpu_time",
    "cpu_ns": "cpu_time",
}
COLUMNS = (*KEYS, "exit_code", "rank", *FIGURES)
GROUPS = ("what", "traces", "version", "engine", "network kind", "system", "case")


@dataclass(slots=True)
class Outcome:
    """One run: its relative errors, or why there are none.

    Attributes
    ----------
    cells : dict of str to str
    error : float or None
        The worst of all ranks and figures.
    wall_error : float or None
    reason : str
        Why nothing was compared.
    ended_alike : bool
        Whether the exit code is one of those that are foreseen, and whether of every rank those
        figures are printed that are.
    likeliest : bool
        The exit code is the likeliest of them.
    stopped : str
        What the simulator did instead of a good end, as foreseen.
    """

    cells: dict[str, str]
    error: float | None = None
    wall_error: float | None = None
    reason: str = ""
    ended_alike: bool = False
    likeliest: bool = False
    stopped: str = ""
    by_figure: dict[str, float] = field(default_factory=dict)


def compare(path: Path) -> dict[str, Any]:
    """Compare every run of a folder.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict
        ``kind``, ``rows`` (lines), ``count`` (runs compared), ``exact`` (runs with every figure
        of every rank equal), ``worst_relative_error`` and ``median_relative_error`` of runs,
        the worst ``by_figure``, ``ended_alike``, ``likeliest_exit_code``, ``stops`` (kind to runs),
        ``uncovered`` (reason to runs) and ``groups``.

    Raises
    ------
    DataError
        The folder lacks the table or the traces.
    FormatError
        The table is malformed; names the line and column.
    """
    path = Path(path)
    if not (path / RUNS).is_file():
        raise DataError(f"'{path}' has no {RUNS}")
    runs: dict[tuple[str, ...], list[tuple[str, Row]]] = {}
    rows = read_rows(path / RUNS, COLUMNS)
    for where, cells in rows:
        runs.setdefault(tuple(cells[key] for key in KEYS), []).append((where, cells))
    with unpacked(path) as folder:
        outcomes = [outcome(folder, lines) for lines in runs.values()]
        _traces.cache_clear()
    figures = {
        name: max((item.by_figure.get(name, 0.0) for item in outcomes), default=None)
        for name in FIGURES
    }
    return {
        "kind": "astra-real",
        "rows": len(rows),
        **summary(outcomes),
        "by_figure": figures,
        "uncovered": dict(Counter(item.reason for item in outcomes if item.error is None)),
        "likeliest_exit_code": sum(item.likeliest for item in outcomes),
        "stops": dict(Counter(item.stopped for item in outcomes if item.stopped)),
        "worst_wall_error": max(
            (item.wall_error for item in outcomes if item.wall_error is not None), default=None
        ),
        "groups": grouped(outcomes, GROUPS, summary),
    }


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of several runs."""
    errors = [item.error for item in outcomes if item.error is not None]
    return {
        "runs": len(outcomes),
        "count": len(errors),
        "exact": errors.count(0.0),
        "ended_alike": sum(item.ended_alike for item in outcomes),
        **worst_and_median(errors),
    }


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the folder of the traces, unpacked if need be."""
    if (path / CONFIGURATIONS).is_dir():
        yield path
        return
    if not (path / PACKED).is_file():
        raise DataError(f"'{path}' has neither {CONFIGURATIONS}/ nor {PACKED}")
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(path / PACKED) as archive:
            archive.extractall(name, filter="data")
        yield Path(name)


def outcome(folder: Path, lines: Sequence[tuple[str, Row]]) -> Outcome:
    """Run what a run of the simulator ran, and compare."""
    cells = dict(lines[0][1])
    form = cells["traces"].replace("_", " ")
    cells["what"] = f"{cells['engine'].replace('_', '-')}, {cells['version']}, traces {form}"
    cells["network kind"] = cells["network"].partition("_")[0].removesuffix(".yml")
    found = Outcome(cells)
    printed = [printed_figures(row) for _, row in lines]
    try:
        traces = _traces(folder / cells["traces"] / cells["case"])
        costs = AstraCosts(
            read_network(folder / CONFIGURATIONS / cells["network"]),
            read_system(folder / CONFIGURATIONS / cells["system"]),
            cells["engine"].replace("_", "-"),
            astra_version(f"{SIMULATOR}@{cells['version']}"),
        )
        stops = find_stops(traces, costs.network, costs.system, costs.version, costs.engine)
        compare_ends(found, stops, expected_end(stops, traces.devices), lines, printed)
        if set(printed) == {NO_FIGURES}:
            if found.ended_alike:
                found.error = 0.0
            else:
                found.reason = "no figures, which is not foreseen"
            return found
        result = simulate(traces, costs)
    except PerfModelError as error:
        found.reason = str(error)
        return found
    for name, error in errors(result, lines):
        found.by_figure[name] = max(error, found.by_figure.get(name, 0.0))
    found.error = max(found.by_figure.values(), default=0.0)
    found.wall_error = found.by_figure.get("wall_ns")
    return found


def compare_ends(
    found: Outcome,
    stops: Sequence[Stop],
    end: Ending,
    lines: Sequence[tuple[str, Row]],
    printed: Sequence[str],
) -> None:
    """Say whether the run ended as foreseen."""
    found.stopped = ", ".join(dict.fromkeys(stop.kind for stop in stops))
    code = exit_code(*lines[0])
    alike = all(
        not row["rank"] or shown == end.printed[_whole(where, row, "rank")]
        for (where, row), shown in zip(lines, printed, strict=True)
    )
    found.ended_alike = alike and (code in end.exit_codes if end.exit_codes else code is None)
    found.likeliest = (code,) == end.exit_codes[:1]


def printed_figures(row: Row) -> str:
    """Return which figures of a rank the simulator printed, as `Stop.printed` says it."""
    if not row["wall_ns"]:
        return NO_FIGURES
    return ALL_FIGURES if row["gpu_ns"] or row["communication_ns"] else WALL_TIME


def exit_code(where: str, row: Row) -> int | None:
    """Return an exit code, negative for a signal; None: it was stopped, for it did not end."""
    text = row["exit_code"]
    if text in ("", "124", "137", "-9", "timeout"):
        return None
    try:
        code = int(text)
    except ValueError:
        raise FormatError(f"{where}: exit_code '{text}' should be a whole number") from None
    return 128 - code if 128 < code < 192 else code


@lru_cache(maxsize=4)
def _traces(case: Path) -> TraceSet:
    """Return the workload of a folder, with its groups."""
    groups = next(iter(sorted(case.glob("*.json"))), None)
    first = sorted(case.glob("*.et"))
    if not first:
        raise DataError(f"'{case}' has no traces")
    prefix = case / first[0].name.partition(".")[0]
    return open_traces(prefix, workload_kind(prefix), groups=groups)


def errors(result: Simulation, lines: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, float]]:
    """Yield the relative error of every figure that the simulator printed of every rank."""
    ticks = {column: result.ticks(name) for column, name in FIGURES.items()}
    for where, cells in lines:
        if printed_figures(cells) == NO_FIGURES:
            continue
        rank = _whole(where, cells, "rank")
        for column, ours in ticks.items():
            if cells[column] == "":
                continue
            theirs = _whole(where, cells, column)
            yield column, abs(int(ours[rank]) - theirs) / max(theirs, 1)


def _whole(where: str, cells: Row, column: str) -> int:
    """Return a cell as a whole number, or raise."""
    if not cells[column].isdigit():
        raise FormatError(f"{where}: {column} '{cells[column]}' should be a whole number")
    return int(cells[column])


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of tables by group."""
    lines: list[str] = []
    for column, groups in document["groups"].items():
        lines += group_table(column, {name: {"rows": g["runs"]} | g for name, g in groups.items()})
    return lines


def markdown(document: dict[str, Any]) -> str:
    """Return the table of docs/parity.md: runs by engine, version and form of the traces."""
    lines = [
        "| engine, version, traces | runs | every figure of every rank equal | ended as foreseen "
        "| worst |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, group in (document["groups"]["what"] | {"all": document}).items():
        worst = group["worst_relative_error"]
        shown = "–" if worst is None else f"{100 * worst:.2f} %"
        lines.append(
            f"| {name} | {group['runs']} | {group['exact']} | {group['ended_alike']} | {shown} |"
        )
    return "\n".join(lines)
