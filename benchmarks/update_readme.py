"""Write the measured figures of README.md: accuracy tables and speed.

    python benchmarks/update_readme.py [--development RUNS.csv] [--speed]

The published runs of this repository are always scored; the development table and the
speed only where asked for. Each figure stands between two comments in README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from accuracy_training import markdown

from perfmodel.compare import compare_file

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"


def accuracy_block(path: Path, by: list[str]) -> str:
    """Tables of one file of runs, without skip reasons and rank correlations."""
    document = compare_file("training", path, None, by).to_json_dict()
    return markdown({**document, "skipped": {}, "rank_correlation": {}})


def speed_block() -> str:
    """One line per width of the results, single-threaded."""
    lines = []
    for dtype in ("float64", "float32"):
        command = [sys.executable, str(HERE / "sweep_speed.py"), "--json", "--dtype", dtype]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            for _ in range(3)
        ]
        rates = sorted(run["rate_per_core"] for run in runs)
        lines.append(
            f"- {runs[0]['count']:,} strategies, {dtype} results: median "
            f"{rates[1]:,.0f} strategies/s/core of 3 runs ({rates[0]:,.0f} to {rates[2]:,.0f})"
        )
    return "\n".join(lines)


def main() -> None:
    """Replace the blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--development", type=Path, help="table of development runs")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    published = HERE / "published_training_runs.csv"
    blocks = {"published": accuracy_block(published, ["source"])}
    if options.development:
        columns = ["hardware", "architecture", "scale"]
        blocks["development"] = accuracy_block(options.development, columns)
    if options.speed:
        blocks["speed"] = speed_block()
    text = README.read_text()
    for name, block in blocks.items():
        pattern = rf"(<!-- {name}: [^>]* -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(
            pattern, lambda found, new=block: found[1] + new + found[2], text, flags=re.S
        )
        if count != 1:
            raise SystemExit(f"README.md has {count} blocks '{name}', expected one")
    README.write_text(text)


if __name__ == "__main__":
    main()
