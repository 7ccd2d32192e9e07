"""Fit the constants of meshes to published runs, and judge each model by the others.

    python benchmarks/fit/wafer.py RUNS.csv [--json]

RUNS.csv has the columns of docs/accuracy.md ("Wafer-scale engines"). Two constants a phase:
``mac_fraction`` and ``loop_issue`` from prompts, ``element_cycles`` and ``stage_latency`` from
tokens, by Gauss and Newton on logarithms of projected over measured
(`perfmodel.measured.wafer_prices`). Chips with memory beside their cores share ``dram_fraction``
and ``layer_latency``, each fitted to all rows of its phase and, for the errors, to all but those of
one system at a time. Values go into ``hwprofiles/meshes/*.toml`` by hand, with three digits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.measured.compare import error_statistics, read_table
from perfmodel.measured.rows import Skip
from perfmodel.measured.wafer_prices import FitRow, fitted, judgements, log_ratios
from perfmodel.measured.wafer_rows import DECODE, PREFILL, case_of, measured_value

SHARED = {DECODE: "dram_fraction", PREFILL: "layer_latency"}


def read(path: str) -> list[FitRow]:
    """Return the rows of a table that are projected as they were run."""
    found = []
    for row in read_table("wafer", path).rows:
        try:
            case = case_of(row)
            if not case.blind:
                found.append(FitRow(case, measured_value(row)))
        except Skip:
            continue
    return found


def shared(rows: list[FitRow]) -> Iterator[dict[str, Any]]:
    """Yield the constants that systems of chips share, and how well each system is met without."""
    others: dict[str, float] = {}
    for phase, name in SHARED.items():
        own = [row for row in rows if row.case.phase == phase and row.case.hardware.dram_bandwidth]
        systems = list(dict.fromkeys(row.case.hardware.name for row in own))
        if len(systems) < 2:
            continue
        start = {name: own[0].case.hardware.constant(name)}
        value = fitted(own, start, others)
        errors: list[float] = []
        for system in systems:
            rest = [row for row in own if row.case.hardware.name != system]
            left = [row for row in own if row.case.hardware.name == system]
            constants = {**others, **fitted(rest, start, others)}
            errors += np.expm1(log_ratios(left, constants)).tolist()
        all_rows = np.expm1(log_ratios(own, {**others, **value}))
        others |= value
        yield {
            "phase": phase,
            "rows": len(own),
            "constants": value,
            "in_sample": error_statistics(all_rows),
            "system_left_out": error_statistics(np.array(errors)),
        }


def main(arguments: list[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", metavar="RUNS.csv")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        rows = read(options.file)
        judged = [
            {
                "device": one.device,
                "phase": one.phase,
                "fitted": list(one.fitted),
                "judged": list(one.judged),
                "constants": dict(one.constants),
                "mean": one.mean,
                "worst": one.worst,
            }
            for one in judgements(rows)
        ]
        chips = list(shared(rows))
    except PerfModelError as error:
        print(f"wafer: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"judgements": judged, "chips": chips}, indent=2))
        return 0
    for item in judged:
        print(line(item))
    for item in chips:
        sample, left = item["in_sample"], item["system_left_out"]
        print(
            f"chips, {item['phase']}, {item['rows']} rows: {text(item['constants'])}; median "
            f"{sample['median_absolute_error']:.1%}, a system left out "
            f"{left['median_absolute_error']:.1%}"
        )
    return 0


def line(item: Mapping[str, Any]) -> str:
    """Return one line about a judgement."""
    origin = " + ".join(item["fitted"]) or "as shipped"
    return (
        f"{item['device']}, {item['phase']}: {origin} -> {' + '.join(item['judged'])}: mean "
        f"{item['mean']:.1%}, worst {item['worst']:.1%}; {text(item['constants'])}"
    )


def text(constants: Mapping[str, float]) -> str:
    """Return constants as words."""
    return ", ".join(f"{name} {value:.4g}" for name, value in constants.items())


if __name__ == "__main__":
    sys.exit(main())
