"""How many measured training runs lie within the band of their projection.

    python benchmarks/accuracy/uncertainty_coverage.py RUNS [--where EXPR] [--by COLUMN ...]
        [--json]

RUNS is a table with the columns of docs/accuracy.md, or the folder that
`benchmarks/accuracy/families.py` reads. `step_time_low` and `step_time_high` are the 10th and the
90th percentile: 80 % of the runs should lie between them. Also printed: what the kernels'
uncertainty alone would cover, and the ``calibration.uncertainty.step`` (``step_moe`` for models
with experts) with which the bands would cover 80 % of the runs, families of equal weight, which is
how the profiles' values were found. Last, each family is left out in turn: the widths are found on
the others, and the family is judged by them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.families import compared, near_best

from perfmodel.base.errors import PerfModelError
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.rows import step_width
from perfmodel.measured.compare import compare_file
from perfmodel.measured.rows import ComparedRow
from perfmodel.software.framework import FRAMEWORKS

GOAL = 0.8
BY = ("architecture", "hardware", "family", "scale")
HEADER = "| runs | inside | faster | slower | kernels alone | half-width | step for 80 % |"
LEFT_OUT_HEADER = "| family left out | runs | inside | step, dense | step, experts |"


class Bands(NamedTuple):
    """Measured runs and the bands of their projections, shape (runs,)."""

    log_ratio: NDArray[np.float64]  # ln(measured / projected)
    low: NDArray[np.float64]  # ln(low / projected), negative
    width: NDArray[np.float64]  # ln(high / projected)
    kernels: NDArray[np.float64]  # the width that kernels alone give
    weight: NDArray[np.float64]  # families count alike
    experts: NDArray[np.bool_]
    family: NDArray[np.str_]

    def those(self, mask: NDArray[np.bool_]) -> Bands:
        """Return some of them."""
        return Bands(*(column[mask] for column in self))


def bands_of(rows: Sequence[ComparedRow]) -> Bands:
    """Return the bands of the scored rows."""
    scored = [row for row in rows if row.scored]
    lines = []
    for row in scored:
        details, projected = row.outcome.details, float(row.outcome.projected or 0.0)
        width = math.log(details["step_time_high"] / projected)
        experts = row.cells["architecture"] == "moe"
        software = FRAMEWORKS[details["software"]].software
        step = step_width(load_hardware(details["profile"]), experts, software)
        ratio = math.log(float(row.outcome.measured or 0.0) / projected)
        low = math.log(details["step_time_low"] / projected)
        lines.append((ratio, low, width, math.sqrt(max(width**2 - step**2, 0.0)), experts))
    columns = np.array(lines, float).reshape(-1, 5).T
    family = np.array([row.cells.get("family", "") for row in scored], str)
    _, which, counts = np.unique(family, return_inverse=True, return_counts=True)
    weight = 1.0 / counts[which] if len(scored) else np.zeros(0)
    return Bands(*columns[:4], weight, columns[4] > 0, family)


def step_for(
    log_ratios: NDArray[np.float64],
    kernels: NDArray[np.float64],
    weights: NDArray[np.float64] | None = None,
    goal: float = GOAL,
) -> float:
    """Return the step width that, with the kernels' in quadrature, covers a share of the runs.

    A run is covered where ``|ln ratio| <= sqrt(kernels**2 + step**2)``.
    """
    missing = log_ratios**2 - kernels**2
    order = np.argsort(missing)
    share = np.cumsum(np.ones(missing.size) if weights is None else weights[order])
    place = int(np.searchsorted(share, goal * share[-1]))
    return math.sqrt(max(float(missing[order][min(place, missing.size - 1)]), 0.0))


def coverage(rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Return how the bands of some rows cover what was measured; None where no row is scored."""
    found = bands_of(rows)
    if not found.log_ratio.size:
        return {"count": 0}
    return {
        "count": int(found.log_ratio.size),
        "inside": float(np.mean((found.log_ratio >= found.low) & (found.log_ratio <= found.width))),
        "faster_than_low": float(np.mean(found.log_ratio < found.low)),
        "slower_than_high": float(np.mean(found.log_ratio > found.width)),
        "inside_kernels_alone": float(np.mean(np.abs(found.log_ratio) <= found.kernels)),
        "median_half_width": float(np.median(found.width)),
        "step_for_goal": step_for(found.log_ratio, found.kernels, found.weight),
    }


def left_out(rows: Sequence[ComparedRow]) -> dict[str, dict[str, Any]]:
    """Return per family how many of its runs lie inside bands found on all other families."""
    bands = bands_of(rows)
    found = {}
    for family in np.unique(bands.family):
        mine = bands.family == family
        inside, steps = np.zeros(mine.sum(), bool), {}
        for name, experts in (("dense", False), ("experts", True)):
            others = bands.those(~mine & (bands.experts == experts))
            if not others.log_ratio.size:
                continue
            step = step_for(others.log_ratio, others.kernels, others.weight)
            steps[f"step_{name}"] = step
            own = bands.experts[mine] == experts
            width = np.hypot(bands.kernels[mine], step)
            inside[own] = (np.abs(bands.log_ratio[mine]) <= width)[own]
        found[str(family)] = {"count": int(mine.sum()), "inside": float(inside.mean()), **steps}
    return found


def line(label: str, found: dict[str, Any]) -> str:
    """Write one row of a Markdown table, in percent."""
    numbers = [100 * found[name] for name in list(found)[1:]]
    cells = [f"{number:.1f} %" for number in numbers] or ["–"] * 6
    return f"| {label} | {found['count']:,} | " + " | ".join(cells) + " |"


def left_out_markdown(found: dict[str, dict[str, Any]]) -> str:
    """Write how families left out lie in bands found on the others, as a Markdown table."""
    lines = [LEFT_OUT_HEADER, "|---|" + "---:|" * 4]
    for family, it in found.items():
        numbers = [it.get(name) for name in ("inside", "step_dense", "step_experts")]
        cells = ["–" if number is None else f"{100 * number:.1f} %" for number in numbers]
        lines.append(f"| {family} | {it['count']:,} | " + " | ".join(cells) + " |")
    mean = np.mean([it["inside"] for it in found.values()] or [np.nan])
    return "\n".join([*lines, f"| **families alike** | | {100 * mean:.1f} % | | |"])


def read(path: Path, where: str | None) -> list[ComparedRow]:
    """Return the compared rows of a table, or of a folder's tables."""
    if not path.is_dir():
        return list(compare_file("training", path, where).rows)
    rows = [row for table in compared(path).values() for row in table]
    scattered = [row for row in rows if row.cells["family"] == "nanotron"]
    return [row for row in rows if row.cells["family"] != "nanotron"] + near_best(scattered)


def main() -> int:
    """Compare the runs and print coverage overall, by column, and of families left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("path", type=Path, help="table of measured runs, or folder of tables")
    parser.add_argument("--where", help="filter, such as 'is_latest_in_group == \"yes\"'")
    parser.add_argument("--by", nargs="*", default=list(BY), help="columns to group by")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    options = parser.parse_args()
    try:
        rows = read(options.path, options.where)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    document: dict[str, Any] = {"goal": GOAL, "all": coverage(rows), "groups": {}}
    for column in options.by:
        values = sorted({row.cells.get(column, "") for row in rows})
        document["groups"][column] = {
            value: coverage([row for row in rows if row.cells.get(column, "") == value])
            for value in values
        }
    document["left_out"] = left_out(rows)
    if options.json:
        print(json.dumps(document, indent=2))
        return 0
    print(f"| all {HEADER}\n|---|" + "---:|" * 7)
    print(line("all", document["all"]))
    for column, groups in document["groups"].items():
        print(f"\n| {column} {HEADER}\n|---|" + "---:|" * 7)
        print("\n".join(line(value, found) for value, found in groups.items()))
    print("\n" + left_out_markdown(document["left_out"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
