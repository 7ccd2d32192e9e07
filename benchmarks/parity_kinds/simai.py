"""Compare the SimAI-Analytical parity mode with runs of the real binary.

``compare(folder)`` reads ``summary.csv`` (one run per row: the command and every component
in µs) and the ``*-EndToEnd.csv`` files beside it; the workloads lie in ``../workloads``.
Our values are rounded to whole µs first, as SimAI prints them.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from parity_kinds.rows import error_statistics

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.measured.rows import MeasuredRow, read_rows
from perfmodel.workloads.formats.aicb_text import AicbWorkload, read_aicb_text
from perfmodel.workloads.twins.simai.bandwidth import SimaiSystem
from perfmodel.workloads.twins.simai.step import SimaiOverlap, SimaiResult, simulate

COMPONENTS = {
    "DP_exposed_us": "data_parallel",
    "DP_EP_exposed_us": "expert_data_parallel",
    "TP_exposed_us": "tensor_parallel",
    "EP_exposed_us": "expert_parallel",
    "PP_exposed_us": "pipeline_parallel",
    "bubble_us": "bubble",
    "compute_us": "compute",
    "exposed_comm_us": "exposed_communication",
    "total_us": "total",
}
ROUNDING = 0.5 + 1e-6  # [µs] half a unit of SimAI's output, ties either way
GIBI = 2**30
NO_NUMBER = 1e9  # relative error where only one of both has a number

Arguments = tuple[int, SimaiSystem, SimaiOverlap]


def compare(path: Path) -> dict[str, Any]:
    """Compare every run of a folder.

    Parameters
    ----------
    path : path
        Folder with ``summary.csv``, beside a folder ``workloads``.

    Returns
    -------
    dict
        ``kind``, ``count`` (runs compared, failed ones included that we refuse too),
        ``exact`` (runs with all components equal to the µs), ``worst_relative_error`` and
        ``median_relative_error`` (of the runs' worst components; None without runs),
        ``uncovered`` {reason: count}, ``components`` (the same per component) and
        ``end_to_end`` (the files with a line per row).

    Raises
    ------
    DataError
        ``summary.csv`` is missing or malformed.
    """
    path = Path(path)
    _, runs = read_rows(path / "summary.csv", ["workload", "command", "rc", *COMPONENTS])
    workload_of = functools.cache(read_aicb_text)
    errors: list[dict[str, float]] = []
    lines: list[float] = []
    files = 0
    uncovered: Counter[str] = Counter()
    for run in runs:
        file = path.parent / "workloads" / f"{run.text('workload')}.txt"
        if not file.exists():
            uncovered["no workload file"] += 1
            continue
        failure = _failure(run)
        try:
            arguments = read_command(run.text("command"))
            result = _simulated(workload_of(file), arguments, refusing=bool(failure))
        except PerfModelError as error:
            uncovered[str(error)] += 1
            continue
        if failure and result is not None:
            uncovered[f"SimAI failed: {failure}"] += 1
            continue
        errors.append({} if result is None else component_errors(run, result))
        detail = path / f"{_result_name(run)}EndToEnd.csv"
        if result is not None and detail.exists():
            files += 1
            lines += line_errors(detail, result)
    return {
        "kind": "simai",
        **error_statistics(max(of_run.values(), default=0.0) for of_run in errors),
        "uncovered": dict(uncovered),
        "components": {
            key: error_statistics(of_run[key] for of_run in errors if key in of_run)
            for key in COMPONENTS
        },
        "end_to_end": {"files": files, **error_statistics(lines)},
    }


def _simulated(workload: AicbWorkload, arguments: Arguments, refusing: bool) -> SimaiResult | None:
    """Return the result, or None where we refuse what the real binary refused too."""
    try:
        return simulate(workload, *arguments)
    except PerfModelError:
        if refusing:
            return None
        raise


def component_errors(run: MeasuredRow, result: SimaiResult) -> dict[str, float]:
    """Return the relative error of every component that a run states."""
    return {
        key: _error(run, key, getattr(result, name) * 1e6)
        for key, name in COMPONENTS.items()
        if run.text(key)
    }


def read_command(command: str) -> Arguments:
    """Return devices, machine and overlap of a command line of ``SimAI_analytical``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, kind in (("w", str), ("g", int), ("r", str), ("g_p_s", int), ("n_p_s", int),
                       ("g_type", str), ("nic_t", str), ("nv", float), ("nic", float)):  # fmt: skip
        parser.add_argument(f"-{name}", type=kind)
    for name, default in (("dp_o", 0.0), ("tp_o", 0.0), ("ep_o", 0.0), ("pp_o", 1.0)):
        parser.add_argument(f"-{name}", type=float, default=default)
    try:
        given, rest = parser.parse_known_args(shlex.split(command)[1:])
    except (argparse.ArgumentError, ValueError) as error:
        raise DataError(f"cannot read the command: {error}") from None
    if rest or None in (given.g, given.g_p_s, given.n_p_s):
        raise DataError(f"cannot read the command: {rest or 'no -g, -g_p_s or -n_p_s'}")
    system = SimaiSystem(
        given.g_p_s,
        given.n_p_s,
        gpu_type=given.g_type,
        nic_type=given.nic_t or "CX7",
        nvlink_bandwidth=None if given.nv is None else given.nv * 1e9,
        nic_bandwidth=None if given.nic is None else given.nic * 1e9,
    )
    return given.g, system, SimaiOverlap(given.dp_o, given.tp_o, given.ep_o, given.pp_o)


def line_errors(file: Path, result: SimaiResult) -> list[float]:
    """Return the relative error of every figure of an ``EndToEnd.csv``, line by line."""
    with file.open(newline="", encoding="utf-8") as stream:
        lines = list(csv.reader(stream))[3:]
    if [line[0] for line in lines] != result.name.tolist():
        raise DataError(f"{file}: its rows are not those of the workload")
    try:
        reference = np.array([[float(cell) for cell in line[2:17]] for line in lines])
    except ValueError as error:
        raise DataError(f"{file}: {error}") from None
    phases = (result.forward, result.weight_gradient, result.input_gradient)
    times = [p.compute for p in phases] + [p.exposed for p in phases]
    ours = [(time * 1e6, ROUNDING) for time in times]
    for phase in phases:
        ours.append((phase.communication * 1e6, ROUNDING))
        # Two decimals, from C++ float.
        ours += [
            (rate / GIBI, 0.00501) for rate in (phase.algorithm_bandwidth, phase.bus_bandwidth)
        ]
    errors = np.zeros(len(lines))
    for i, (values, tolerance) in enumerate(ours):
        wanted = reference[:, i]
        with np.errstate(divide="ignore", invalid="ignore"):
            difference = np.abs(values - wanted)
            same = (difference <= tolerance) | (values == wanted)
            same |= np.isnan(values) & np.isnan(wanted)
            relative = np.where(same, 0.0, difference / np.maximum(np.abs(wanted), 1.0))
        errors = np.maximum(errors, np.where(np.isfinite(relative), relative, NO_NUMBER))
    return errors.tolist()


def _failure(run: MeasuredRow) -> str:
    """Return why the real binary has no result; empty where it has."""
    if run.text("error"):
        return run.text("error")
    return "" if run.text("rc") in ("0", "0.0") else f"exit code {run.text('rc')}"


def _result_name(run: MeasuredRow) -> str:
    """Return the start of the names of a run's files: what its command calls it."""
    words = shlex.split(run.text("command"))
    return words[words.index("-r") + 1] if "-r" in words[:-1] else ""


def _error(run: MeasuredRow, column: str, microseconds: float) -> float:
    """Return the relative error of a component; 0 where both have no number."""
    try:
        reference = float(run.text(column))
    except ValueError:
        reference = math.nan  # SimAI prints "NaN or Inf"
    if not math.isfinite(reference) or not math.isfinite(microseconds):
        return 0.0 if math.isfinite(reference) == math.isfinite(microseconds) else NO_NUMBER
    difference = abs(microseconds - reference)
    if difference <= ROUNDING:
        return 0.0
    return abs(round(microseconds) - reference) / max(abs(reference), 1.0)
