"""Turn AMD's measured attention table (Primus) into the schema of ``compare attention``.

    python benchmarks/accuracy/primus.py measured_attention_mi355x.csv -o attention.csv
    perfmodel compare attention attention.csv --by phase

Each row of that table holds a forward and a backward time; each becomes a row of its own.
Its second table (``measured_v4_attention_mi355x.csv``), of attention over compressed keys, is
read as it stands: ``perfmodel compare sparse-attention``.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

COLUMNS = (
    "source",
    "hardware",
    "framework",
    "kernel",
    "phase",
    "batch",
    "heads",
    "kv_heads",
    "d_qk",
    "d_v",
    "q_len",
    "kv_len",
    "causal",
    "window",
    "dtype",
    "time_us",
)
PHASES = {"fwd": "meas_fwd_ms", "bwd": "meas_bwd_ms"}


def converted(row: dict[str, str]) -> list[dict[str, str]]:
    """Return the rows of our schema for one row of theirs."""
    shape = {
        "source": row["source"],
        "hardware": row["hardware"],
        "framework": "torch",
        "kernel": row["backend"],
        "batch": row["batch"],
        "heads": row["heads_q"],
        "kv_heads": row["heads_kv"],
        "d_qk": row["head_dim"],
        "d_v": row["head_dim"],
        "q_len": row["seq"],
        "kv_len": row["seq"],
        "causal": str(row["mask"] == "causal"),
        "window": "0",
        "dtype": row["dtype"],
    }
    return [
        {**shape, "phase": phase, "time_us": f"{1000.0 * float(row[column]):g}"}
        for phase, column in PHASES.items()
        if row[column]
    ]


def main() -> None:
    """Convert one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    with arguments.table.open(newline="", encoding="utf-8") as file:
        rows = [found for row in csv.DictReader(file) for found in converted(row)]
    with arguments.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
