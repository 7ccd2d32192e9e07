"""Hide a cell that rows of training tables state, and see whether its rule gives the value again.

    python benchmarks/accuracy/open_cells.py DATA/e2e [--column NAME …] [--json]

Reads the tables of `families.TABLES` but nanotron's sweeps, the latest run of each configuration,
and ``dev_newer_runs.csv`` and ``dev_fresh_runs.csv`` where they are there. A rule that finds less
than 60 % of what is stated has no place in `perfmodel.strategy.defaults`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfmodel.base.errors import PerfModelError
from perfmodel.measured.compare import read_table
from perfmodel.measured.kinds.training import KIND
from perfmodel.measured.rows import MeasuredRow, Outcome

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.families import LATEST, TABLES

FIELDS = {
    "mbs": ("micro_batch_size", ""),
    "vpp": ("virtual_pipeline", "pp > 1"),
    "ep": ("expert_parallel", "n_experts > 0"),
    "etp": ("expert_tensor_parallel", "n_experts > 0"),
    "recompute": ("recompute", ""),
    "sequence_parallel": ("sequence_parallel", "tp > 1"),
}
"""Column -> field of the strategy that it states, and which rows have one."""
MORE = ("dev_newer_runs.csv", "dev_fresh_runs.csv")


def rows_of(folder: Path) -> list[MeasuredRow]:
    """Return the latest rows of all tables."""
    files = [file for name, file in TABLES.items() if name != "nanotron"]
    files += [file for file in MORE if (folder / file).is_file()]
    return [row for file in files for row in read_table("training", folder / file, LATEST).rows]


def stating(rows: Sequence[MeasuredRow], column: str, where: str) -> list[MeasuredRow]:
    """Return the rows that state a column, of those that have what it is about."""
    needed, _, least = where.partition(" > ")
    return [
        row
        for row in rows
        if row.text(column).strip(">")
        and not row.text(column).startswith(">")
        and (not where or (row.number(needed) or 0) > float(least))
    ]


def found_again(rows: Sequence[MeasuredRow], column: str) -> dict[str, list[bool]]:
    """Return by software whether each row's value is chosen again with its cell hidden."""
    field, where = FIELDS[column]
    shown = stating(rows, column, where)
    told = KIND.project(shown, lambda count: None)
    hidden = KIND.project([row.replaced(column, "") for row in shown], lambda count: None)
    found: dict[str, list[bool]] = {}
    for one, other in zip(told, hidden, strict=True):
        if field in one.details and field in other.details:
            same = one.details[field] == other.details[field]
            found.setdefault(_software(one), []).append(bool(same))
    return found


def _software(outcome: Outcome) -> str:
    return str(outcome.details["software"]).partition("@")[0]


def evaluate(folder: Path, columns: Sequence[str] = tuple(FIELDS)) -> dict[str, dict[str, Any]]:
    """Return rows and the share found again by column and software; ``all`` is every software."""
    rows, tables = rows_of(folder), dict[str, dict[str, Any]]()
    for column in columns:
        found = found_again(rows, column)
        if found:
            found["all"] = [same for values in found.values() for same in values]
        tables[column] = {
            name: {"rows": len(values), "share": sum(values) / len(values)}
            for name, values in sorted(found.items(), key=lambda item: -len(item[1]))
            if values
        }
    return tables


def markdown(tables: dict[str, dict[str, Any]]) -> str:
    """Write the shares as a Markdown table, software with most rows first."""
    lines = ["| cell | rows | found again | by software |", "|---|---:|---:|---|"]
    for column, found in tables.items():
        if "all" in found:
            parts = [f"{k} {v['share']:.0%} of {v['rows']}" for k, v in found.items() if k != "all"]
            share = f"{found['all']['rows']} | {found['all']['share']:.0%}"
            lines.append(f"| `{column}` | {share} | {', '.join(parts)} |")
    return "\n".join(lines)


def main() -> int:
    """Print the share of stated cells that are found again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the tables of measured runs")
    parser.add_argument("--column", nargs="+", default=tuple(FIELDS), choices=tuple(FIELDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        tables = evaluate(options.folder, options.column)
    except PerfModelError as error:
        print(f"open_cells.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(tables, indent=1) if options.json else markdown(tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
