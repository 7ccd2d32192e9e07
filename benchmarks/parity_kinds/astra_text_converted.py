"""Compare converted text workloads with runs of ASTRA-sim 2.x, row by row.

The rows of ``et_runs.csv`` are runs of traces that the official Chakra converter made of text
workloads; here they are converted by `perfmodel.workloads.convert.astra_text` and run by
`perfmodel.workloads.simulation`.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from parity_kinds.rows import read_rows

from perfmodel.base.errors import FormatError, HardwareError
from perfmodel.workloads.convert.astra_text import convert_text
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem
from perfmodel.workloads.formats.astra_text import read_astra_text
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts

SIMULATOR = "astra-sim@af2492b"  # which the reference runs are of
ENGINES = {"unaware": "congestion-unaware", "aware": "congestion-aware"}
# Column of a reference figure [ns] to our name of it.
FIGURES = {
    "wall_sys0": "wall_time",
    "exposed_sys0": "exposed_communication",
    "gpu_time_sys0": "gpu_time",
    "comm_time_sys0": "communication_time",
}
COLUMNS = (
    "workload",
    "npus",
    "passes",
    "backend",
    "topology",
    "npus_count",
    "bandwidth_GiBps",
    "latency_ns",
    "ar_ag_rs_algo",
    "a2a_algo",
    "splits",
    "active_chunks",
    "endpoint_delay",
    "policy",
    "collective_opt",
    "local_mem_bw",
    "status",
    *FIGURES,
)


def compare_converted(folder: Path) -> dict[str, Any]:
    """Compare every row of ``et_runs.csv`` in a folder that also has ``workloads``.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    dict
        ``count`` (rows compared), ``exact`` (wall, exposed, GPU and communication time are
        equal to the nanosecond), ``errors`` (relative, of the wall time, one per row compared),
        ``uncovered`` (reason to count) and ``unequal`` (what differs, per row that does).

    Raises
    ------
    FormatError
        A file is missing or is not such a table; names the line and column.
    """
    path = folder / "et_runs.csv"
    errors: list[float] = []
    unequal: list[str] = []
    uncovered: Counter[str] = Counter()

    @cache
    def traces(workload: str, devices: int, passes: int) -> TraceSet:
        return convert_text(
            read_astra_text(folder / "workloads" / f"{workload}.txt"), devices, passes
        )

    for where, cells in read_rows(path, COLUMNS):
        if cells["status"] != "ok":
            uncovered[f"the reference run ended '{cells['status']}'"] += 1
            continue
        try:
            ours = run(cells, where, traces)
        except HardwareError as error:
            uncovered[str(error)] += 1
            continue
        reference = {
            column: number(cells, column, where, int) if cells[column] else 0 for column in FIGURES
        }
        errors.append(relative(ours["wall_sys0"], reference["wall_sys0"]))
        if ours != reference:
            unequal.append(f"{where}: {ours} where the reference has {reference}")
    return {
        "count": len(errors),
        "exact": len(errors) - len(unequal),
        "errors": errors,
        "uncovered": dict(uncovered),
        "unequal": unequal,
    }


def run(cells: dict[str, str], where: str, traces: Any) -> dict[str, int]:
    """Convert and run what a row describes; return its figures [ns] of rank 0."""
    network = AstraNetwork(
        tuple(cells["topology"].split("|")),
        numbers(cells, "npus_count", where, int),
        numbers(cells, "bandwidth_GiBps", where, float),
        numbers(cells, "latency_ns", where, float),
    )
    algorithms = tuple(cells["ar_ag_rs_algo"].split("|"))
    system = AstraSystem(
        algorithms,
        algorithms,
        algorithms,
        tuple(cells["a2a_algo"].split("|")),
        preferred_dataset_splits=number(cells, "splits", where, int),
        active_chunks_per_dimension=number(cells, "active_chunks", where, int),
        endpoint_delay_nanoseconds=number(cells, "endpoint_delay", where, int),
        scheduling_policy=cells["policy"],
        collective_optimization=cells["collective_opt"],
        local_memory_bandwidth_gb_per_second=number(cells, "local_mem_bw", where, float),
    )
    if cells["backend"] not in ENGINES:
        raise FormatError(
            f"{where}: backend '{cells['backend']}' should be one of {', '.join(ENGINES)}"
        )
    if cells["backend"] == "aware" and network.dimensions > 1:
        raise HardwareError("the congestion-aware engine covers networks of one dimension")
    workload = traces(
        cells["workload"], number(cells, "npus", where, int), number(cells, "passes", where, int)
    )
    result = simulate(workload, AstraCosts(network, system, ENGINES[cells["backend"]], SIMULATOR))
    return {column: result.ticks(name)[0] for column, name in FIGURES.items()}


def numbers(cells: dict[str, str], column: str, where: str, kind: Any) -> tuple[Any, ...]:
    """Return the numbers of a cell, one per dimension."""
    return tuple(number({column: part}, column, where, kind) for part in cells[column].split("|"))


def number(cells: dict[str, str], column: str, where: str, kind: Any) -> Any:
    """Return a cell as a number."""
    try:
        return kind(cells[column])
    except ValueError:
        raise FormatError(f"{where}: {column} '{cells[column]}' is not a number") from None


def relative(ours: int, reference: int) -> float:
    """Return the relative error of a time."""
    return abs(ours - reference) / max(reference, 1)
