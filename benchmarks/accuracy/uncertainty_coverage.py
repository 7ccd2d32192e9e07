"""How many measured training runs lie within the band of their projection.

    python benchmarks/accuracy/uncertainty_coverage.py RUNS.csv [--where EXPR]
        [--by COLUMN ...] [--json]

`step_time_low` and `step_time_high` are the 10th and the 90th percentile: 80 % of the runs
should lie between them. Also printed: what the kernels' uncertainty alone would cover, and
the ``calibration.uncertainty.step`` (``step_moe`` for models with experts) with which the
bands would cover 80 %, which is how the profiles' values were found. RUNS.csv has the columns
of docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import PerfModelError
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.compare import ComparedRow, compare_file
from perfmodel.operations.uncertainty import step_width

GOAL = 0.8
BY = ("architecture", "hardware", "family", "scale")
HEADER = "| runs | inside | faster | slower | kernels alone | half-width | step for 80 % |"


def log_bands(
    rows: Sequence[ComparedRow],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return ln(measured / projected), half-width, and half-width of the kernels alone."""
    log_ratios, widths, kernels = [], [], []
    for row in rows:
        outcome = row.outcome
        if outcome.measured is None or outcome.projected is None:
            continue
        width = math.log(outcome.details["step_time_high"] / outcome.projected)
        profile = load_hardware(outcome.details["profile"])
        step = step_width(profile, row.cells["architecture"] == "moe")
        log_ratios.append(math.log(outcome.measured / outcome.projected))
        widths.append(width)
        kernels.append(math.sqrt(max(width**2 - step**2, 0.0)))
    return np.array(log_ratios), np.array(widths), np.array(kernels)


def step_for(
    log_ratios: NDArray[np.float64], kernels: NDArray[np.float64], goal: float = GOAL
) -> float:
    """Return the step width that, with the kernels' in quadrature, covers a share of the runs.

    A run is covered where ``|ln ratio| <= sqrt(kernels**2 + step**2)``.
    """
    missing = np.quantile(log_ratios**2 - kernels**2, goal)
    return math.sqrt(max(float(missing), 0.0))


def coverage(rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Return how the bands of some rows cover what was measured; None where no row is scored."""
    log_ratios, widths, kernels = log_bands(rows)
    if not log_ratios.size:
        return {"count": 0}
    return {
        "count": int(log_ratios.size),
        "inside": float(np.mean(np.abs(log_ratios) <= widths)),
        "faster_than_low": float(np.mean(log_ratios < -widths)),
        "slower_than_high": float(np.mean(log_ratios > widths)),
        "inside_kernels_alone": float(np.mean(np.abs(log_ratios) <= kernels)),
        "median_half_width": float(np.median(widths)),
        "step_for_goal": step_for(log_ratios, kernels),
    }


def line(label: str, found: dict[str, Any]) -> str:
    """Write one row of a Markdown table, in percent."""
    numbers = [100 * found[name] for name in list(found)[1:]]
    cells = [f"{number:.1f} %" for number in numbers] or ["–"] * 6
    return f"| {label} | {found['count']:,} | " + " | ".join(cells) + " |"


def main() -> int:
    """Compare the runs and print coverage overall and by column."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", help="table of measured runs (docs/accuracy.md)")
    parser.add_argument("--where", help="filter, such as 'is_latest_in_group == \"yes\"'")
    parser.add_argument("--by", nargs="*", default=list(BY), help="columns to group by")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    options = parser.parse_args()
    try:
        comparison = compare_file("training", options.file, options.where, options.by)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    document: dict[str, Any] = {"goal": GOAL, "all": coverage(comparison.rows), "groups": {}}
    for column in options.by:
        values = sorted({row.cells.get(column, "") for row in comparison.rows})
        document["groups"][column] = {
            value: coverage([row for row in comparison.rows if row.cells.get(column, "") == value])
            for value in values
        }
    if options.json:
        print(json.dumps(document, indent=2))
        return 0
    print(f"| all {HEADER}\n|---|" + "---:|" * 7)
    print(line("all", document["all"]))
    for column, values in document["groups"].items():
        print(f"\n| {column} {HEADER}\n|---|" + "---:|" * 7)
        print("\n".join(line(value, found) for value, found in values.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
