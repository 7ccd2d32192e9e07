"""Print the accuracy tables of the README: projected against measured training runs.

    python benchmarks/accuracy/training.py RUNS.csv [--where EXPR] [--by COLUMN ...] [--json]

RUNS.csv has the columns of docs/accuracy.md. Errors are of the step time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from perfmodel.base.errors import PerfModelError
from perfmodel.measured.compare import compare_file

HEADER = "| rows | scored | median | mean | p90 | worst | bias |"
COLUMNS = (
    "median_absolute_error",
    "mean_absolute_error",
    "p90_absolute_error",
    "worst_absolute_error",
)


def table_line(label: str, found: Mapping[str, Any]) -> str:
    """Write one row of a Markdown table; errors in percent."""
    cells = [label.replace("|", "\\|"), f"{found['rows']:,}", f"{found['count']:,}"]
    if found["count"]:
        cells += [f"{100 * found[name]:.1f} %" for name in COLUMNS]
        cells.append(f"{100 * found['bias']:+.1f} %")
    else:
        cells += ["–"] * (len(COLUMNS) + 1)
    return "| " + " | ".join(cells) + " |"


def markdown(document: Mapping[str, Any]) -> str:
    """Write the whole comparison as Markdown."""
    coverage = document["coverage"]
    lines = [
        f"{document['count']:,} of {document['rows']:,} runs projected"
        + ("" if coverage is None else f" (coverage {coverage:.1%})")
        + f", {document['assumed']:,} of them with something that the table leaves open.",
        "",
        f"| all {HEADER}",
        "|---|" + "---:|" * 7,
        table_line("all", document),
    ]
    for column, values in document["groups"].items():
        lines += ["", f"| {column} {HEADER}", "|---|" + "---:|" * 7]
        lines += [table_line(value, found) for value, found in values.items()]
    if document["skipped"]:
        lines += ["", "| not projected because | rows |", "|---|---:|"]
        lines += [f"| {reason} | {count} |" for reason, count in document["skipped"].items()]
    if document["rank_correlation"]:
        lines += [
            "",
            "| same model and system, other strategies | strategies | Spearman |",
            "|---|---:|---:|",
        ]
        lines += [
            f"| {label} | {found['count']} | {found['spearman']:.2f} |"
            for label, found in document["rank_correlation"].items()
        ]
    return "\n".join(lines)


def main() -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", help="table of measured runs (docs/accuracy.md)")
    parser.add_argument("--where", help="filter, such as 'is_latest_in_group == \"yes\"'")
    parser.add_argument("--by", nargs="*", help="columns to group by")
    parser.add_argument("--throughput", action="store_true", help="errors of the throughput")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--output", help="write every row with its projection to this CSV file")
    options = parser.parse_args()
    try:
        comparison = compare_file("training", options.file, options.where, options.by)
        if options.output:
            comparison.write_rows(options.output)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    document = comparison.to_json_dict(throughput=options.throughput)
    print(json.dumps(document, indent=2) if options.json else markdown(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
