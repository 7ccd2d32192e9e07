"""Score training projections family by family, and the order of strategies within groups.

    python benchmarks/accuracy/families.py DATA/e2e [--unfilled] [--tables NAME ...]
        [--save FILE.json] [--against FILE.json] [--json] [--figure FILE.png]

Reads the tables of measured training runs of a folder (``dev_training_runs_filled.csv`` and
those of `TABLES`), the latest run of each configuration. Statistics are per ``family``, then
averaged over families, each of equal weight. Errors are of the step time.

*Order*: within a group of one model on one machine, pairs of runs whose measured times per token
differ by more than 3 %, and how many of them are projected in the measured order; and what
choosing by projection costs: the measured time of the run that is projected fastest over that of
the fastest, less one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.measured.compare import compare_file
from perfmodel.measured.kind import Kind
from perfmodel.measured.rows import ComparedRow

TABLES = {
    "training": "dev_training_runs_filled.csv",
    "amd": "dev_amd_training_runs.csv",
    "dgxc": "dev_dgxc_runs.csv",
    "mlperf6": "dev_mlperf6_runs.csv",
    "nanotron": "dev_nanotron_runs.csv",
}
LATEST = 'is_latest_in_group == "yes"'
DIFFERENT = 1.03
NAMES = ("median", "mean", "p90", "worst", "bias")
# What makes a group of runs that differ in their strategy only.
GROUP = ("family", "model", "layers", "hidden", "hardware", "n_gpus", "seq", "precision", "task")


def errors_of(rows: Iterable[ComparedRow]) -> list[float]:
    """Return the errors of the scored rows."""
    return [row.error for row in rows if row.error is not None]


def statistics(rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Return count, rows and error statistics of some rows; NaN where none is scored."""
    errors = np.array(errors_of(rows))
    size = np.abs(errors)
    found: dict[str, Any] = {"count": int(errors.size), "rows": len(rows)}
    values = [np.nan] * 5
    if errors.size:
        values = [
            *(np.median(size), size.mean(), np.percentile(size, 90), size.max(), errors.mean())
        ]
    return found | {name: float(value) for name, value in zip(NAMES, values, strict=True)}


def per_token(row: ComparedRow) -> tuple[float, float]:
    """Return measured and projected seconds per token of the whole machine."""
    tokens = float(row.cells["gbs"]) * float(row.cells["seq"])
    return float(row.outcome.measured or 0) / tokens, float(row.outcome.projected or 0) / tokens


def groups_of(
    rows: Iterable[ComparedRow], columns: Sequence[str] = GROUP
) -> dict[str, list[tuple[float, float]]]:
    """Return (measured, projected) per token of the scored rows of every group of two or more."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.scored and row.cells.get("gbs"):
            label = ", ".join(row.cells.get(name) or "" for name in columns)
            groups.setdefault(label, []).append(per_token(row))
    return {label: runs for label, runs in groups.items() if len(runs) > 1}


def order_of(groups: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Return the share of pairs in order, and what choosing by projection costs."""
    right, pairs, costs = 0.0, 0, []
    for runs in groups.values():
        for (one, projected_one), (other, projected_other) in itertools.combinations(runs, 2):
            if max(one, other) / min(one, other) > DIFFERENT:
                pairs += 1
                same = projected_one == projected_other
                right += 0.5 if same else (one < other) == (projected_one < projected_other)
        chosen = min(runs, key=lambda run: run[1])
        costs.append(chosen[0] / min(measured for measured, _ in runs) - 1.0)
    return {
        "groups": len(groups),
        "pairs": pairs,
        "in_order": right / pairs if pairs else float("nan"),
        "cost_mean": float(np.mean(costs)) if costs else float("nan"),
        "cost_worst": max(costs, default=float("nan")),
    }


def near_best(rows: Sequence[ComparedRow], devices: int = 64) -> list[ComparedRow]:
    """Return rows of at most so many devices within twice the best of their group."""
    best: dict[str, float] = {}
    labels = []
    for row in rows:
        label = ", ".join(row.cells.get(name) or "" for name in GROUP)
        labels.append(label)
        if row.scored:
            best[label] = min(best.get(label, np.inf), per_token(row)[0])
    return [
        row
        for row, label in zip(rows, labels, strict=True)
        if row.scored
        and int(float(row.cells["n_gpus"])) <= devices
        and per_token(row)[0] <= 2.0 * best[label]
    ]


def compared(
    folder: Path,
    unfilled: bool = False,
    names: Sequence[str] = (),
    kind: str | Kind = "training",
) -> dict[str, list[ComparedRow]]:
    """Compare the latest rows of the tables of a folder, all or those named."""
    tables: dict[str, list[ComparedRow]] = {}
    for name in names or TABLES:
        file = TABLES[name]
        if unfilled and name == "training":
            file = "dev_training_runs.csv"
        tables[name] = list(compare_file(kind, folder / file, LATEST).rows)
    return tables


def scores(tables: dict[str, list[ComparedRow]]) -> dict[str, Any]:
    """Return all statistics of compared tables."""
    rows = [row for table in tables.values() for row in table]
    families: dict[str, list[ComparedRow]] = {}
    for row in rows:
        families.setdefault(row.cells["family"], []).append(row)
    found: dict[str, Any] = {"families": {}, "order": {}, "sets": {}}
    for family, members in sorted(families.items()):
        near = near_best(members) if family == "nanotron" else members
        found["families"][family] = statistics(near)
    scored = [it for it in found["families"].values() if it["count"]]
    found["average"] = {name: float(np.mean([it[name] for it in scored])) for name in NAMES}
    sets = {
        "all": rows,
        "dense": [row for row in rows if row.cells["architecture"] == "dense"],
        "experts": [row for row in rows if row.cells["architecture"] == "moe"],
        "assumed": [row for row in rows if row.outcome.assumed],
        "stated": [row for row in rows if row.scored and not row.outcome.assumed],
        "mlperf6": tables.get("mlperf6", []),
        "dgxc": tables.get("dgxc", []),
        "amd, A and B": [
            row for row in tables.get("amd", []) if row.cells["quality"] in ("A", "B")
        ],
        "Selene": families.get("Korthikanti", []),
        "> 512 devices": [
            row
            for row in rows
            if row.cells["scale"] == ">512" and row.cells["family"] != "nanotron"
        ],
    }
    for name, members in sets.items():
        if name not in ("mlperf6", "dgxc", "amd, A and B"):
            members = [row for row in members if row.cells["family"] != "nanotron"]
        found["sets"][name] = statistics(members)
    by_family = {name: order_of(groups_of(members)) for name, members in families.items()}
    found["order"] = {name: it for name, it in sorted(by_family.items()) if it["pairs"]}
    others = [row for row in rows if row.cells["family"] != "nanotron"]
    found["order"]["all but nanotron"] = order_of(groups_of(others))
    return found


def report(found: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Write the statistics as text, with what changed since `before`."""
    head = f"{'':24}{'rows':>12}" + "".join(f"{name:>9}" for name in NAMES)
    lines = [head + ("   median, bias before" if before else "")]
    for part in ("families", "sets"):
        for name, it in found[part].items():
            text = f"{name:24}{it['count']:>6}/{it['rows']:<5}"
            text += "".join(f"{100 * it[column]:9.1f}" for column in NAMES)
            old = (before or {}).get(part, {}).get(name)
            if old and any(abs(old[x] - it[x]) > 5e-4 for x in NAMES):
                text += f"   {100 * old['median']:.1f} {100 * old['bias']:+.1f}"
            lines.append(text)
        if part == "families":
            average = found["average"]
            text = f"{'families alike':24}{'':12}"
            text += "".join(f"{100 * average[column]:9.1f}" for column in NAMES)
            if before:
                old = before["average"]
                text += f"   {100 * old['median']:.1f} {100 * old['bias']:+.1f}"
            lines += [text, ""]
    lines += ["", f"{'order':24}{'groups':>8}{'pairs':>8}{'right':>8}{'cost':>8}{'worst':>8}"]
    for name, it in found["order"].items():
        text = f"{name:24}{it['groups']:8}{it['pairs']:8}"
        shares = (it["in_order"], it["cost_mean"], it["cost_worst"])
        text += "".join(f"{100 * share:8.1f}" for share in shares)
        old = (before or {}).get("order", {}).get(name)
        if old and abs(old["in_order"] - it["in_order"]) > 5e-4:
            text += f"   {100 * old['in_order']:.1f}"
        lines.append(text)
    return "\n".join(lines)


def markdown(found: dict[str, Any]) -> str:
    """Write families, their average and sets of rows as a Markdown table."""
    lines = [
        "| family | rows | scored | median | mean | p90 | worst | bias |",
        "|---|" + "---:|" * 7,
    ]

    def line(name: str, it: dict[str, Any], counts: str) -> str:
        numbers = [f"{100 * it[column]:.1f} %" for column in NAMES[:-1]]
        return (
            f"| {name} | {counts} | " + " | ".join([*numbers, f"{100 * it['bias']:+.1f} %"]) + " |"
        )

    for name, it in found["families"].items():
        if it["count"]:
            lines.append(line(name, it, f"{it['rows']:,} | {it['count']:,}"))
    lines.append(line("**families alike**", found["average"], "|"))
    for name, it in found["sets"].items():
        if it["count"]:
            lines.append(line(f"*{name}*", it, f"{it['rows']:,} | {it['count']:,}"))
    return "\n".join(lines)


def order_markdown(found: dict[str, Any]) -> str:
    """Write how well strategies of one model and machine are ordered, as a Markdown table."""
    head = "| family | groups | pairs | in order | choosing costs | at worst |"
    lines = [head, "|---|" + "---:|" * 5]
    for name, it in found["order"].items():
        shares = (it["in_order"], it["cost_mean"], it["cost_worst"])
        cells = [f"{100 * share:.1f} %" for share in shares]
        lines.append(f"| {name} | {it['groups']:,} | {it['pairs']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(tables: dict[str, list[ComparedRow]], path: Path) -> None:
    """Draw the errors of every family, one dot a run, and the median."""
    from matplotlib.figure import Figure

    families: dict[str, list[ComparedRow]] = {}
    for row in itertools.chain(*tables.values()):
        families.setdefault(row.cells["family"], []).append(row)
    errors = {}
    for name in sorted(families, reverse=True):
        rows = near_best(families[name]) if name == "nanotron" else families[name]
        if found := errors_of(rows):
            errors[name] = 100 * np.array(found)
    figure = Figure(figsize=(7.5, 0.32 * len(errors) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    draws = np.random.default_rng(0)
    for i, found in enumerate(errors.values()):
        axes.scatter(found, i + draws.uniform(-0.22, 0.22, found.size), s=7, alpha=0.45, lw=0)
        axes.plot([np.median(found)] * 2, [i - 0.36, i + 0.36], color="black", lw=1.6)
    axes.axvspan(-10, 10, color="0.9", zorder=0)
    axes.axvline(0, color="0.5", lw=0.8)
    axes.set_yticks(range(len(errors)), [f"{n} ({e.size})" for n, e in errors.items()], fontsize=8)
    axes.set_xlim(-75, 75)
    axes.set_xlabel("projected over measured step time, less one [%]")
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main() -> int:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder with the tables of measured runs")
    parser.add_argument("--unfilled", action="store_true", help="settings as published alone")
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--save", type=Path, help="write the scores, to compare with later")
    parser.add_argument("--against", type=Path, help="scores of --save to compare with")
    parser.add_argument("--figure", type=Path, help="draw the errors of every family")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        tables = compared(options.folder, options.unfilled, options.tables)
        found = scores(tables)
        if options.figure:
            draw(tables, options.figure)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.save:
        options.save.write_text(json.dumps(found, indent=1))
    before = json.loads(options.against.read_text()) if options.against else None
    print(json.dumps(found, indent=1) if options.json else report(found, before))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
