"""Explore the design space of a STAGE + ASTRA-sim exercise: 56 strategies, two models, two limits.

Usage::

    python benchmarks/parity_kinds/design_space.py [--json] [--layers N] [--reference FOLDER]

64 devices, dp × tp × sp = 64, with and without recomputation of activations; Llama-70B on
a slow network and GPT-175B on a fast one. Each point is a whole trace of STAGE's generator
run as ASTRA-sim runs it, memory included: 5 to 9 minutes of processor time with the
original programs on an idle machine. With a folder of reference outputs
(``dse_replica_full.csv``), every point is compared with its row.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfmodel.base.errors import PerfModelError
from perfmodel.measured.rows import MeasuredRow, read_rows
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem, uniform_system
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.stage.arguments import StageArguments
from perfmodel.workloads.twins.stage.traces import stage_traces

DEVICES = 64
MEMORY_LIMIT = 80e9  # [B]
SIMULATOR = "astra-sim@af2492b"  # of which the reference runs are
# Words of the two settings, and the most memory of a device [B].
SETTINGS = {"unlimited memory": float("inf"), "80 GB": MEMORY_LIMIT}
ORIGINAL_SECONDS = (300.0, 540.0)  # STAGE + ASTRA-sim per point, idle machine, 64 ranks
# The fastest of all 56 in the reference, by case and setting: dp, tp, sp, recomputation; s; GB.
REFERENCE_WINNERS = {
    ("llama70b@system1", "unlimited memory"): ((64, 1, 1, 0), 3.1795, 144.2),
    ("llama70b@system1", "80 GB"): ((32, 2, 1, 1), 3.881, 39.4),
    ("gpt175b@system2", "unlimited memory"): ((16, 4, 1, 0), 91.221, 205.8),
    ("gpt175b@system2", "80 GB"): ((16, 4, 1, 1), 110.015, 64.5),
}
REFERENCE = "dse_replica_full.csv"
# Column of the reference: our figure.
REFERENCE_COLUMNS = {
    "wall_ns": "wall",
    "gpu_ns": "gpu",
    "comm_ns": "communication",
    "exposed_ns": "exposed",
    "peak_mem_B": "peak_memory",
    "nodes": "nodes",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a system: arguments without degrees, network, system."""

    model: StageArguments
    network: AstraNetwork
    system: AstraSystem


@dataclass(frozen=True, slots=True)
class Point:
    """One strategy, and what its simulation says: times [ns], memory [B], nodes of a rank."""

    strategy: tuple[int, int, int, int]
    wall: int
    gpu: int
    communication: int
    exposed: int
    peak_memory: int
    nodes: int

    def document(self) -> dict[str, Any]:
        """Return the point for JSON."""
        degrees = dict(zip(("dp", "tp", "sp", "activation_recompute"), self.strategy, strict=True))
        return {
            **degrees,
            "wall_time_s": self.wall * 1e-9,
            "gpu_time_s": self.gpu * 1e-9,
            "communication_time_s": self.communication * 1e-9,
            "exposed_communication_s": self.exposed * 1e-9,
            "peak_memory_bytes": self.peak_memory,
            "nodes_per_rank": self.nodes,
        }


def torus(bandwidth: float, performance: float, memory_bandwidth: float) -> dict[str, Any]:
    """Return network and system of 4 × 4 × 4 devices on rings.

    Parameters
    ----------
    bandwidth : float
        Of every link [GiB/s].
    performance : float
        Of a device [TFLOP/s].
    memory_bandwidth : float
        [GB/s].
    """
    return {
        "network": AstraNetwork(("Ring",) * 3, (4, 4, 4), (bandwidth,) * 3, (50.0,) * 3),
        "system": uniform_system(
            ["ring"] * 3,
            preferred_dataset_splits=10,
            active_chunks_per_dimension=4,
            roofline_enabled=True,
            peak_performance_teraflops=performance,
            local_memory_bandwidth_gb_per_second=memory_bandwidth,
        ),
    }


LLAMA = StageArguments(
    input_size=32000,
    output_size=32000,
    hidden_size=8192,
    feed_forward_size=28672,
    heads=64,
    sequence_length=1024,
    batch=512,
    layers=80,
)
GPT = replace(
    LLAMA,
    input_size=50257,
    output_size=50257,
    hidden_size=12288,
    feed_forward_size=49152,
    heads=96,
    layers=96,
)
CASES = {
    "llama70b@system1": Case(LLAMA, **torus(100.0, 450.0, 3000.0)),
    "gpt175b@system2": Case(GPT, **torus(2000.0, 45.0, 300.0)),
}


def strategies(devices: int = DEVICES) -> Iterator[tuple[int, int, int, int]]:
    """Yield dp, tp, sp and recomputation: powers of two whose product is the devices."""
    for recompute in (0, 1):
        dp = 1
        while dp <= devices:
            tp = 1
            while dp * tp <= devices:
                yield dp, tp, devices // (dp * tp), recompute
                tp *= 2
            dp *= 2


def simulate_point(
    case: Case, strategy: tuple[int, int, int, int], issue_order: str = "identifier"
) -> Point:
    """Generate and run one strategy."""
    dp, tp, sp, recompute = strategy
    arguments = replace(
        case.model,
        data_parallel=dp,
        tensor_parallel=tp,
        sequence_parallel=sp,
        activation_recompute=bool(recompute),
    )
    traces = stage_traces(arguments)
    costs = AstraCosts(case.network, case.system, version=SIMULATOR)
    result = simulate(traces, costs, issue_order=issue_order)
    return Point(
        strategy,
        *(
            result.ticks(name)[0]
            for name in ("wall_time", "gpu_time", "communication_time", "exposed_communication")
        ),
        peak_memory=int(result.peak_memory[0]),
        nodes=traces.traces[0].nodes,
    )


def explore(case: Case) -> list[Point]:
    """Run all strategies of a case."""
    return [simulate_point(case, strategy) for strategy in strategies(case.network.devices)]


def best(points: list[Point], limit: float = float("inf")) -> Point:
    """Return the fastest point within a memory limit [B]."""
    return min(
        (point for point in points if point.peak_memory <= limit), key=lambda point: point.wall
    )


def reference_rows(folder: Path) -> list[MeasuredRow]:
    """Return the rows of a folder's ``dse_replica_full.csv``: times [ns], memory [B].

    Raises
    ------
    DataError
        The file is missing or malformed.
    """
    columns = ["case", "dp", "tp", "sp", "ar", "layers", *REFERENCE_COLUMNS]
    return list(read_rows(folder / REFERENCE, columns)[1])


def agreement(
    found: Mapping[str, list[Point]], cases: Mapping[str, Case], rows: Iterable[MeasuredRow]
) -> dict[tuple[str, tuple[int, ...]], bool]:
    """Return whether each point that the reference has a row of is equal in all figures."""
    points = {(name, point.strategy): point for name, each in found.items() for point in each}
    equal: dict[tuple[str, tuple[int, ...]], bool] = {}
    for row in rows:
        case = row.text("case")
        key = case, tuple(int(row.number(name) or 0) for name in ("dp", "tp", "sp", "ar"))
        if key in points and row.number("layers") == cases[case].model.layers:
            equal[key] = all(
                row.number(column) == getattr(points[key], figure)
                for column, figure in REFERENCE_COLUMNS.items()
            )
    return equal


def document_of(
    found: Mapping[str, list[Point]], seconds: float, equal: Mapping[Any, bool] | None
) -> dict[str, Any]:
    """Return everything for JSON."""
    count = sum(map(len, found.values()))
    document: dict[str, Any] = {
        "rate_per_core": count / seconds,
        "unit": "points/s",
        "count": count,
        "seconds": seconds,
        "best": {
            name: {setting: best(points, limit).document() for setting, limit in SETTINGS.items()}
            for name, points in found.items()
        },
        "points": {name: [point.document() for point in points] for name, points in found.items()},
    }
    if equal is not None:
        document["reference"] = {"compared": len(equal), "exact": sum(equal.values())}
    return document


def table(
    found: Mapping[str, list[Point]], seconds: float, equal: Mapping[Any, bool] | None
) -> list[str]:
    """Return the lines of a table: a strategy per line, the cases side by side."""
    chosen = {
        name: [best(points, limit).strategy for limit in SETTINGS.values()]
        for name, points in found.items()
    }
    lines = [
        f"{DEVICES} devices, dp × tp × sp; rec: activations computed again in the backward pass.",
        "Time of a step and of exposed communication [s], peak memory of a device [GB].",
        "",
        "                 " + "".join(f"| {name:^36} " for name in found),
    ]
    head = "    wall s  exposed s   peak GB     "
    lines.append(" dp  tp  sp  rec " + f"| {head} " * len(found))
    for rows in zip(*found.values(), strict=True):
        cells = [
            _cell(name, point, chosen[name], equal) for name, point in zip(found, rows, strict=True)
        ]
        dp, tp, sp, recompute = rows[0].strategy
        lines.append(f"{dp:3d} {tp:3d} {sp:3d}  {'yes' if recompute else ' no'} " + "".join(cells))
    lines.append("* fastest   † fastest within 80 GB" + ("" if equal is None else MARKS))
    lines.append("")
    if equal is not None:
        lines.append(
            f"reference: {sum(equal.values())} of {len(equal)} points equal to the nanosecond and "
            "the byte"
        )
    for name, points in found.items():
        for setting, limit in SETTINGS.items():
            lines.append(_winner_line(name, setting, best(points, limit)))
    count = sum(map(len, found.values()))
    low, high = ORIGINAL_SECONDS
    lines.append(
        f"{count} points in {seconds:.2f} s, {seconds / count * 1e3:.1f} ms per point "
        f"(STAGE + ASTRA-sim: {low / 60:.0f} to {high / 60:.0f} minutes per point)"
    )
    return lines


MARKS = "   = equal to the reference   ≠ not equal"


def _cell(
    name: str,
    point: Point,
    chosen: list[tuple[int, int, int, int]],
    equal: Mapping[Any, bool] | None,
) -> str:
    """Return one point of the table."""
    marks = "".join(
        mark if point.strategy == strategy else " "
        for mark, strategy in zip("*†", chosen, strict=True)
    )
    known = None if equal is None else equal.get((name, point.strategy))
    marks += " " if known is None else "=" if known else "≠"
    return (
        f"| {point.wall * 1e-9:10.3f} {point.exposed * 1e-9:10.3f} "
        f"{point.peak_memory * 1e-9:9.1f} {marks} "
    )


def _winner_line(name: str, setting: str, point: Point) -> str:
    """Return the fastest point of a setting, and what the reference says."""
    line = f"{name}, {setting}: {_words(point.strategy)}: {point.wall * 1e-9:.3f} s, "
    line += f"{point.peak_memory * 1e-9:.1f} GB"
    strategy, seconds, gigabytes = REFERENCE_WINNERS[name, setting]
    same = "the same" if strategy == point.strategy else _words(strategy)
    return f"{line} (reference: {same}, {seconds} s, {gigabytes} GB)"


def _words(strategy: tuple[int, int, int, int]) -> str:
    """Return a strategy in words."""
    dp, tp, sp, recompute = strategy
    return f"dp {dp} tp {tp} sp {sp}{', recomputing' if recompute else ''}"


def main() -> int:
    """Explore and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, help="instead of 80 and 96")
    parser.add_argument("--reference", type=Path, help=f"folder with {REFERENCE}")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    options = parser.parse_args()
    try:
        found, seconds, equal = explored(options.layers, options.reference)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document_of(found, seconds, equal), indent=2, ensure_ascii=False))
    else:
        print("\n".join(table(found, seconds, equal)))
    return 0


def explored(
    layers: int | None, reference: Path | None
) -> tuple[dict[str, list[Point]], float, Mapping[Any, bool] | None]:
    """Return all points, how long they took [s], and which are equal to a reference."""
    cases = dict(CASES)
    if layers is not None:
        cases = {
            name: replace(case, model=replace(case.model, layers=layers))
            for name, case in cases.items()
        }
    rows = None if reference is None else reference_rows(reference)
    first = next(iter(cases.values()))
    small = replace(first, model=replace(first.model, layers=2))
    for strategy in ((4, 4, 4, 1), (DEVICES, 1, 1, 0)):  # compiles: groups of some, and of all
        simulate_point(small, strategy)
    start = time.perf_counter()
    found = {name: explore(case) for name, case in cases.items()}
    seconds = time.perf_counter() - start
    return found, seconds, None if rows is None else agreement(found, cases, rows)


if __name__ == "__main__":
    sys.exit(main())
