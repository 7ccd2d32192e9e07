"""Compare collectives with runs of ASTRA-sim's analytical backends, row by row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity_kinds.rows import group_table, grouped, read_rows, worst_and_median

from perfmodel.base.errors import FormatError, HardwareError, did_you_mean
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.twins.astra.collective import simulate_collectives

COLLECTIVES = {
    "AR": "all_reduce",
    "AG": "all_gather",
    "RS": "reduce_scatter",
    "A2A": "all_to_all",
}
ENGINES = {
    "congestion_unaware": "congestion-unaware",
    "congestion_aware": "congestion-aware",
}
COLUMNS = (
    "case",
    "backend",
    "topology",
    "npus",
    "bw_GiBps",
    "lat_ns",
    "coll",
    "algos",
    "size_B",
    "splits",
    "active",
    "endpoint_ns",
    "local_mem_bw",
    "opt",
    "sim_ns",
    "sim_min_rank_ns",
)
GROUPS = ("case", "topology", "algos", "coll")
FAILED = "the reference run failed (ASSERT_FAIL): endpoint delay 0 aborts the simulator"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row: relative errors, or why there are none."""

    cells: dict[str, str]
    error: float | None = None
    fastest_error: float | None = None
    reason: str = ""


def compare(path: Path) -> dict[str, Any]:
    """Compare every row of a ``collectives_*.csv`` file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict
        ``kind``, ``rows``, ``count`` (compared), ``exact``, ``worst_relative_error``,
        ``median_relative_error``, ``fastest_exact`` (rows whose fastest rank is exact too),
        ``uncovered`` (reason to count) and ``groups`` (column to value to the same keys).

    Raises
    ------
    FormatError
        The file is not such a table; names the line and column.
    """
    outcomes = [outcome(cells, where) for where, cells in read_rows(path, COLUMNS)]
    groups = grouped(outcomes, GROUPS, summary)
    return {"kind": "astra", **summary(outcomes), "groups": groups}


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return counts and errors of some rows."""
    errors = [row.error for row in outcomes if row.error is not None]
    return {
        "rows": len(outcomes),
        "count": len(errors),
        "exact": sum(error == 0.0 for error in errors),
        **worst_and_median(errors),
        "fastest_exact": sum(row.fastest_error == 0.0 for row in outcomes),
        "uncovered": dict(Counter(row.reason for row in outcomes if row.reason)),
    }


def outcome(cells: dict[str, str], where: str) -> Outcome:
    """Simulate one row and compare it with the reference run."""
    if cells["sim_ns"] == "ASSERT_FAIL":
        return Outcome(cells, reason=FAILED)
    slowest, fastest = (number(cells, name, where, int) for name in ("sim_ns", "sim_min_rank_ns"))
    try:
        ours = simulate(cells, where)
    except HardwareError as error:
        return Outcome(cells, reason=str(error))
    return Outcome(
        cells,
        relative(ours[0], slowest),
        relative(ours[1], fastest),
    )


def simulate(cells: dict[str, str], where: str) -> tuple[int, int]:
    """Return when the slowest and the fastest member of a row's collective are done [ns]."""
    network = AstraNetwork(
        topology=tuple(cells["topology"].split("|")),
        npus_count=numbers(cells, "npus", where, int),
        bandwidth_gib_per_second=numbers(cells, "bw_GiBps", where, float),
        latency_nanoseconds=numbers(cells, "lat_ns", where, float),
    )
    system = uniform_system(
        cells["algos"].split("|"),
        preferred_dataset_splits=number(cells, "splits", where, int),
        active_chunks_per_dimension=number(cells, "active", where, int),
        endpoint_delay_nanoseconds=number(cells, "endpoint_ns", where, int),
        collective_optimization=cells["opt"],
        local_memory_bandwidth_gb_per_second=number(cells, "local_mem_bw", where, float),
    )
    times = simulate_collectives(
        network,
        system,
        chosen(cells, "coll", COLLECTIVES, where),
        [number(cells, "size_B", where, int)],
        engine=chosen(cells, "backend", ENGINES, where),
    )
    return int(times[0, 0]), int(times[0, 1])


def relative(ours: int, reference: int) -> float:
    """Return the relative error of a time."""
    return abs(ours - reference) / reference


def chosen(cells: dict[str, str], column: str, known: dict[str, str], where: str) -> str:
    """Return what a cell's word stands for, or raise."""
    word = cells[column]
    if word not in known:
        raise FormatError(f"{where}: unknown {column} '{word}'{did_you_mean(word, known)}")
    return known[word]


def number(cells: dict[str, str], column: str, where: str, kind: type) -> Any:
    """Return a positive number of a cell (zero is fine for delays), or raise."""
    return parsed(cells[column], column, where, kind)


def numbers(cells: dict[str, str], column: str, where: str, kind: type) -> tuple[Any, ...]:
    """Return the numbers of a cell, one per dimension, or raise."""
    return tuple(parsed(word, column, where, kind) for word in (cells[column] or "").split("|"))


def parsed(word: str | None, column: str, where: str, kind: type) -> Any:
    """Return the number that a word is, or raise."""
    try:
        value = kind(word or "")
        if value < 0 or value != value or value in (float("inf"),):
            raise ValueError
    except ValueError:
        wanted = "whole number" if kind is int else "number"
        raise FormatError(
            f"{where}: {column} is '{word or ''}'; it should be a {wanted} >= 0"
        ) from None
    if value == 0 and column in ("sim_ns", "sim_min_rank_ns"):
        raise FormatError(f"{where}: {column} is 0; it should be > 0")
    return value


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of a table by case and by topology."""
    groups = document["groups"]
    return [line for column in ("case", "topology") for line in group_table(column, groups[column])]
