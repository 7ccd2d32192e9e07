"""Accuracy of served models: projected against measured runs, and the layouts that they choose.

    python benchmarks/accuracy/serving.py --data ../shared/data [--json]

Tables of `dev_serving_runs.csv` (the latest run of each group) and `dev_inference_runs.csv`: time
per output token, time to first token and output tokens per second and device, one pool and two
apart, by engine, model and device; how many measurements lie within the 10-90 % bounds; and how
often the layout that is projected as best is one of the best that were measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.base.errors import PerfModelError
from perfmodel.measured.compare import compare_file, statistics
from perfmodel.measured.kinds.serving import METRICS
from perfmodel.measured.rows import ComparedRow

LATEST = 'is_latest_in_group == "yes"'
NEAR = 0.05
"""A choice is good whose measured throughput is that near to the best measured one."""
ALIKE = ("model", "hardware", "engine", "precision", "isl", "osl", "concurrency", "pools")
"""Columns in which the rows of a choice agree; they differ in layout and number of devices."""
BY = ("engine", "model", "hardware")
BOUNDS = {"tpot": "time_per_output_token", "ttft": "time_to_first_token"}
ERRORS = ("median_absolute_error", "mean_absolute_error", "p90_absolute_error")


def by_column(rows: Sequence[ComparedRow], column: str) -> dict[str, dict[str, Any]]:
    """Return statistics of the rows of each value of a column."""
    values = sorted({row.cells.get(column) or "not stated" for row in rows})
    return {
        value: statistics([row for row in rows if (row.cells.get(column) or "not stated") == value])
        for value in values
    }


def within_bounds(rows: Iterable[ComparedRow], quantity: str) -> dict[str, float]:
    """Return which share of measurements lies within, below and above the bounds."""
    places = []
    for row in rows:
        measured, found = row.outcome.measured, row.outcome.details
        if row.scored and measured is not None:
            low, high = found[f"{quantity}_low"], found[f"{quantity}_high"]
            places.append(-1 if measured < low else int(measured > high))
    count = max(len(places), 1)
    names = {"inside": 0, "below": -1, "above": 1}
    return {name: places.count(place) / count for name, place in names.items()}


def selection(rows: Iterable[ComparedRow]) -> dict[str, float]:
    """Return how well projected throughput chooses among the layouts that were measured.

    Of each set of rows that agree in `ALIKE` and differ in layout, the one with the highest
    projected output tokens per second and device is chosen.
    """
    sets: dict[tuple[str, ...], dict[tuple[str, ...], ComparedRow]] = {}
    layout = ("n_gpus", "tp", "pp", "ep", "attention_dp", "decode_workers", "prefill_workers")
    for row in rows:
        if row.scored:
            key = tuple(row.cells.get(name, "") for name in ALIKE)
            sets.setdefault(key, {})[tuple(row.cells.get(name, "") for name in layout)] = row
    losses = []
    for choices in sets.values():
        if len(choices) > 1:
            best = max(row.outcome.measured or 0.0 for row in choices.values())
            chosen = max(choices.values(), key=lambda row: row.outcome.projected or 0.0)
            losses.append(1.0 - (chosen.outcome.measured or 0.0) / best)
    good = sum(loss <= NEAR for loss in losses)
    return {
        "count": len(losses),
        "share_within": good / max(len(losses), 1),
        "mean_loss": sum(losses) / max(len(losses), 1),
        "worst_loss": max(losses, default=0.0),
    }


def served(path: Path) -> dict[str, Any]:
    """Return the statistics of the table of operating points."""
    found: dict[str, Any] = {}
    for metric, (quantity, _) in METRICS.items():
        rows = compare_file("serving", path, LATEST, (), metric=metric).rows
        pools = {
            name: [row for row in rows if row.cells["pools"] == name]
            for name in ("aggregated", "disaggregated")
        }
        found[metric] = {
            "all": statistics(rows),
            **{name: statistics(some) for name, some in pools.items()},
            "groups": {column: by_column(pools["aggregated"], column) for column in BY},
        }
        if metric in BOUNDS:
            found[metric]["bounds"] = within_bounds(rows, quantity)
        else:
            found["selection"] = selection(rows)
    return found


def inferred(path: Path) -> dict[str, Any]:
    """Return the statistics of the table of older runs, by how requests come."""
    found = {}
    for metric in METRICS:
        rows = compare_file("serving", path, None, (), metric=metric).rows
        found[metric] = by_column([row for row in rows if row.outcome.scorable], "load")
    return found


def table(title: str, groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write statistics as a Markdown table; errors in percent."""
    lines = [
        "",
        f"| {title} | scored | coverage | median | mean | p90 | bias |",
        "|---|" + "---:|" * 6,
    ]
    for name, found in groups.items():
        if found["count"]:
            errors = " | ".join(f"{100 * found[key]:.1f} %" for key in ERRORS)
            lines.append(
                f"| {name} | {found['count']:,} | {found['coverage']:.1%} | {errors} "
                f"| {100 * found['bias']:+.1f} % |"
            )
    return lines


def markdown(document: Mapping[str, Any]) -> str:
    """Write everything as Markdown."""
    lines: list[str] = []
    points = document["serving"]
    for metric in METRICS:
        found = points[metric]
        names = ("all", "aggregated", "disaggregated")
        lines += table(metric, {name: found[name] for name in names})
        for column in BY:
            lines += table(f"{metric} by {column}, one pool", found["groups"][column])
        if "bounds" in found:
            texts = (f"{share:.0%} {name}" for name, share in found["bounds"].items())
            lines += ["", f"10-90 % bounds of {metric}: " + ", ".join(texts)]
    chosen = points["selection"]
    lines += [
        "",
        f"Layouts: in {chosen['share_within']:.0%} of {chosen['count']} sets the chosen one is "
        f"within {NEAR:.0%} of the best measured; {chosen['mean_loss']:.1%} lost on average, "
        f"{chosen['worst_loss']:.0%} at worst.",
    ]
    for metric, groups in document["inference"].items():
        lines += table(f"older runs: {metric}", groups)
    return "\n".join(lines).strip()


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that has e2e/")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    options = parser.parse_args()
    try:
        document = {
            "serving": served(options.data / "e2e/dev_serving_runs.csv"),
            "inference": inferred(options.data / "e2e/dev_inference_runs.csv"),
        }
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(document, indent=2) if options.json else markdown(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
