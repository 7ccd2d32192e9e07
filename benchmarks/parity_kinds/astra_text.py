"""Compare text workloads with runs of ASTRA-sim 1.0, counter by counter.

A row of ``native_runs.csv`` or ``native_extra.csv`` is exact if its total, the ends of its
passes, its sums, chunks, payload and mean latencies and, in the ``…_layers.csv`` beside it,
every counter of every layer are what the simulator printed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from parity_kinds import rows as parity_rows
from parity_kinds.astra_text_converted import compare_converted
from parity_kinds.rows import group_table, grouped, worst_and_median

from perfmodel.base.errors import FormatError, PerfModelError
from perfmodel.workloads.formats.astra_text import AstraTextWorkload, read_astra_text
from perfmodel.workloads.formats.astra_text_machine import NativeNetwork, NativeSystem
from perfmodel.workloads.twins.astra_text.native import NativeResult, run_native

FILES = {"native_runs.csv": "native_layers.csv", "native_extra.csv": "native_extra_layers.csv"}
GROUPS = ("workload", "network", "intra_sched", "inter_sched")
# What names a run in `native_layers.csv`; the other file has numbers.
RUN_COLUMNS = (
    "workload",
    "network",
    "npus",
    "passes",
    "splits",
    "active_chunks",
    "queues_per_dim",
    "policy",
    "intra_sched",
    "inter_sched",
    "endpoint_delay",
)
PHASES = ("fwd", "ig", "wg")
COUNTERS = (
    "collectives",
    *(f"{phase}_compute" for phase in PHASES),
    *(f"exposed_{phase}" for phase in PHASES),
    *(f"comm_{phase}" for phase in PHASES),
)
# What native_runs.csv does not state, because it changes nothing there.
DEFAULTS = {"collective_opt": "localBWAware", "hbm_latency": "500", "hbm_bandwidth": "370"}
MEBIBYTE = 2**20
ABORTED = "ASTRA-sim 1.0 stopped: 'Same key entry already exist'"


@dataclass(slots=True)
class Outcome:
    """One row: what differs from the reference, or why nothing was compared."""

    cells: dict[str, str]
    error: float | None = None
    differences: list[str] = field(default_factory=list)
    reason: str = ""


def compare(path: Path) -> dict[str, Any]:
    """Compare every row of the runs in a folder.

    Parameters
    ----------
    path : Path
        With the files of `FILES`, ``workloads/`` and perhaps ``et_runs.csv``.

    Returns
    -------
    dict
        ``kind``, ``rows``, ``count`` (compared), ``exact``, ``worst_relative_error`` and
        ``median_relative_error`` (of the total time), ``uncovered`` (reason to count),
        ``groups`` (column to value to the same keys), ``files`` (file to the same keys) and
        ``differences`` (words about rows that are not exact, 20 at most).

    Raises
    ------
    FormatError
        A file is missing or no such table.
    """
    files: dict[str, dict[str, Any]] = {}
    outcomes: list[Outcome] = []
    for runs, layers in FILES.items():
        own = file_outcomes(path, runs, layers)
        files[runs] = summary(own)
        outcomes += own
    total = summary(outcomes)
    if (path / "et_runs.csv").exists():
        converted = converted_outcome(path)
        files["et_runs.csv"] = converted
        total = merged(total, converted)
    differences = [
        f"{row.cells['workload']} on {row.cells['network']}: {row.differences[0]}"
        for row in outcomes
        if row.differences
    ]
    return {
        "kind": "astra-text",
        **total,
        "groups": grouped(outcomes, GROUPS, summary),
        "files": files,
        "differences": differences[:20],
    }


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return counts and errors of some rows."""
    errors = [row.error for row in outcomes if row.error is not None]
    return {
        "rows": len(outcomes),
        "count": len(errors),
        "exact": sum(row.error is not None and not row.differences for row in outcomes),
        **worst_and_median(errors),
        "uncovered": dict(Counter(row.reason for row in outcomes if row.reason)),
    }


def merged(ours: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of two summaries together; the median is that of the first."""
    worst = [part["worst_relative_error"] for part in (ours, other)]
    return {
        **{key: ours[key] + other[key] for key in ("rows", "count", "exact")},
        "worst_relative_error": max((e for e in worst if e is not None), default=None),
        "median_relative_error": ours["median_relative_error"],
        "uncovered": dict(Counter(ours["uncovered"]) + Counter(other["uncovered"])),
    }


def converted_outcome(path: Path) -> dict[str, Any]:
    """Return the summary of ``et_runs.csv``: the same workloads converted to traces."""
    result = compare_converted(path)
    return {
        "rows": result["count"] + sum(result["uncovered"].values()),
        "count": result["count"],
        "exact": result["exact"],
        **worst_and_median(result["errors"]),
        "uncovered": result["uncovered"],
    }


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    return [cells for _, cells in parity_rows.read_rows(path)]


def file_outcomes(folder: Path, runs: str, layers: str) -> list[Outcome]:
    """Compare every row of one file of runs."""
    counters: dict[tuple[str, ...], list[list[int]]] = {}
    columns = ("row",) if "extra" in runs else RUN_COLUMNS
    try:
        for cells in read_rows(folder / layers):
            key = tuple(cells[column] for column in columns)
            counters.setdefault(key, []).append([int(cells[name]) for name in COUNTERS])
        rows = read_rows(folder / runs)
        return [
            outcome(folder, DEFAULTS | cells, counters.get(tuple(cells[c] for c in columns), []))
            for cells in rows
        ]
    except (KeyError, TypeError) as error:
        raise FormatError(f"'{folder / runs}' or '{layers}': column {error} is missing") from None
    except ValueError as error:
        raise FormatError(f"'{folder / runs}' or '{layers}': {error}") from None


def outcome(folder: Path, cells: dict[str, str], counters: list[list[int]]) -> Outcome:
    """Run one row and compare it with the reference run."""
    if cells["status"] != "ok":
        reason = ABORTED if "Same ke" in cells["status"] else cells["status"]
        return Outcome(cells, reason=reason)
    reference = int(cells["total_ns"])
    if reference <= 0:
        raise ValueError(f"total_ns is {reference}; it should be > 0")
    try:
        ours = simulate(cells, workload_of(folder, cells["workload"]))
    except PerfModelError as error:
        return Outcome(cells, reason=str(error))
    return Outcome(
        cells, abs(ours.total_ns - reference) / reference, differences(ours, cells, counters)
    )


def workload_of(folder: Path, name: str) -> AstraTextWorkload:
    """Read the workload of a row."""
    return read_astra_text(folder / "workloads" / f"{name}.txt")


def simulate(cells: dict[str, str], workload: AstraTextWorkload) -> NativeResult:
    """Run what a row describes."""
    return run_native(
        workload,
        network_of(cells),
        system_of(cells),
        passes=int(cells["passes"]),
        communication_scale=float(cells["comm_scale"]),
        compute_scale=float(cells["compute_scale"]),
        queues_per_dimension=int(cells["queues_per_dim"]),
    )


def system_of(cells: dict[str, str]) -> NativeSystem:
    """Return the system of a row."""
    ring = tuple(cells["ar_ag_rs_algo"].split("|"))
    return NativeSystem(
        ring,
        ring,
        ring,
        tuple(cells["a2a_algo"].split("|")),
        preferred_dataset_splits=int(cells["splits"]),
        active_chunks_per_dimension=int(cells["active_chunks"]),
        endpoint_delay_nanoseconds=int(cells["endpoint_delay"]),
        scheduling_policy=cells["policy"],
        collective_optimization=cells["collective_opt"],
        intra_dimension_scheduling=cells["intra_sched"],
        inter_dimension_scheduling=cells["inter_sched"],
    )


def network_of(cells: dict[str, str]) -> NativeNetwork:
    """Return the network of a row."""
    topology = tuple(cells["topology"].split("|"))

    def numbers(column: str) -> tuple[float, ...]:
        return tuple(float(word) for word in cells[column].split("|"))

    def same(column: str) -> tuple[float, ...]:
        return (float(cells[column]),) * len(topology)

    return NativeNetwork(
        topology,
        tuple(int(word) for word in cells["npus_count"].split("|")),
        tuple(int(word) for word in cells["links_count"].split("|")),
        numbers("link_bandwidth_GiBps"),
        numbers("link_latency_ns"),
        numbers("nic_latency"),
        numbers("router_latency"),
        same("hbm_latency"),
        same("hbm_bandwidth"),
        same("hbm_scale"),
    )


def differences(ours: NativeResult, cells: dict[str, str], counters: list[list[int]]) -> list[str]:
    """Return in words what differs from the reference."""
    mebibytes = ours.payload_bytes / MEBIBYTE
    sums = {
        "total_ns": str(ours.total_ns),
        "pass_end_ns": "|".join(map(str, ours.pass_end_ns)),
        "sum_compute_us": f"{ours.compute_ns.sum() / 1000:.6f}",
        "sum_exposed_us": f"{(ours.total_ns - ours.compute_ns.sum()) / 1000:.6f}",
        "streams": str(ours.chunks or ""),
        "total_payload_MB_npu0": f"{mebibytes.sum():.6f}",
        "payload_MB_per_dim_npu0": "|".join(f"{value:.6f}" for value in mebibytes),
        "avg_chunk_latency_per_logical_dim": "|".join(
            f"{value:.6g}" for value in ours.chunk_latency_ns
        ).replace("nan", "-nan"),
    }
    found = [
        f"{name} {mine}, reference {cells[name]}"
        for name, mine in sums.items()
        if mine != cells[name]
    ]
    mine = np.concatenate(
        [ours.collectives[None], ours.compute_ns, ours.exposed_ns, ours.communication_ns]
    ).T
    reference = np.array(counters, np.int64).reshape(-1, len(COUNTERS))
    if mine.shape != reference.shape:
        return [*found, f"{len(reference)} layers in the reference, {len(mine)} here"]
    for layer, column in np.argwhere(mine != reference):
        found.append(
            f"layer {layer} {COUNTERS[column]} {mine[layer, column]}, reference "
            f"{reference[layer, column]}"
        )
    return found


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of a table by file, workload and network."""
    lines: list[str] = []
    for title, groups in (("file", document["files"]), *document["groups"].items()):
        lines += group_table(title, groups)
    lines += [f"differs: {words}" for words in document["differences"]]
    return lines
