"""Write the measured figures of README.md and docs: accuracy tables and speed.

    python benchmarks/update_readme.py [--development RUNS.csv] [--kernels DATA] [--speed]

The published runs of this repository are always scored; the development tables and the
speed only where asked for. Each figure stands between two comments. With ``--kernels``,
docs/kernels.png is drawn too.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from accuracy import kernels as accuracy_kernels
from accuracy.training import HEADER, markdown, table_line
from speed import collectives as collective_speed
from speed import kernels as kernel_speed
from speed import simulate as simulate_speed

from perfmodel.measured.compare import compare_file

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
KERNELS = HERE.parent / "docs" / "kernels.md"
COLLECTIVES = HERE.parent / "docs" / "collectives.md"
# Tables of accuracy_kernels that stand in docs/collectives.md.
NETWORK_KINDS = ("collective", "moe-alltoall")


def accuracy_block(path: Path, by: list[str]) -> str:
    """Tables of one file of runs, without skip reasons and rank correlations."""
    document = compare_file("training", path, None, by).to_json_dict()
    return markdown({**document, "skipped": {}, "rank_correlation": {}})


def speed_block() -> str:
    """One line per width of the results, single-threaded."""
    lines = []
    for dtype in ("float64", "float32"):
        command = [sys.executable, str(HERE / "speed/sweep.py"), "--json", "--dtype", dtype]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            for _ in range(3)
        ]
        rates = sorted(run["rate_per_core"] for run in runs)
        lines.append(
            f"- {runs[0]['count']:,} strategies, {dtype} results: median "
            f"{rates[1]:,.0f} strategies/s/core of 3 runs ({rates[0]:,.0f} to {rates[2]:,.0f})"
        )
    rates = kernel_speed.rates()
    lines += [f"- {kind}: {rate:,.0f} predictions/s/core" for kind, rate in rates.items()]
    return "\n".join(lines)


def collective_speed_block() -> str:
    """One line per form of the collectives."""
    rates = collective_speed.rates()
    return "\n".join(f"- {name}: {rate:,.0f} collectives/s/core" for name, rate in rates.items())


def simulation_speed_line() -> str:
    """One line for execution traces."""
    rates = simulate_speed.rates()
    return (
        f"- execution traces as ASTRA-sim: {rates['every rank']:,.0f} nodes/s/core with every rank "
        f"run, {rates['distinct ranks']:,.0f} where ranks that behave alike are run once"
    )


def kernel_blocks(data: Path) -> tuple[str, str, str]:
    """Return the summary for the README and the whole tables by document; draw the picture."""
    entries = accuracy_kernels.evaluate(data)
    accuracy_kernels.draw(entries, KERNELS.with_suffix(".png"))
    lines = [f"| kernels {HEADER}", "|---|" + "---:|" * 7]
    for entry in entries:
        table = entry["table"]
        lines.append(table_line(f"**{table.title}**", entry["all"]))
        depth = 2 if table.kind == "gemm" and "dtype" in table.by else 1
        if len(entry[table.by[0]]) == 1 and depth == 1:
            continue
        groups = entry[" · ".join(table.by[:depth])]
        lines += [table_line(label, found) for label, found in groups.items()]
    network = [entry for entry in entries if entry["table"].kind in NETWORK_KINDS]
    others = [entry for entry in entries if entry not in network]
    whole = (accuracy_kernels.markdown(part) for part in (others, network))
    return "\n".join(lines), *whole


def replace_block(path: Path, name: str, block: str) -> None:
    """Put new figures between the two comments of a block."""
    pattern = rf"(<!-- {name}: [^>]* -->\n).*?(\n?<!-- end -->)"
    text, count = re.subn(
        pattern, lambda found: found[1] + block + "\n<!-- end -->", path.read_text(), flags=re.S
    )
    if count != 1:
        raise SystemExit(f"{path.name} has {count} blocks '{name}', expected one")
    path.write_text(text)


def main() -> None:
    """Replace the blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--development", type=Path, help="table of development runs")
    parser.add_argument("--kernels", type=Path, help="folder of measured kernels")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    published = HERE / "published_training_runs.csv"
    blocks = {"published": accuracy_block(published, ["source"])}
    if options.development:
        columns = ["hardware", "architecture", "scale"]
        blocks["development"] = accuracy_block(options.development, columns)
    if options.speed:
        collectives = collective_speed_block()
        blocks["speed"] = f"{speed_block()}\n{collectives}\n{simulation_speed_line()}"
        replace_block(COLLECTIVES, "collective-speed", collectives)
    if options.kernels:
        blocks["kernels"], kernels, collectives = kernel_blocks(options.kernels)
        replace_block(KERNELS, "kernels", kernels)
        replace_block(COLLECTIVES, "collectives", collectives)
    for name, block in blocks.items():
        replace_block(README, name, block)


if __name__ == "__main__":
    main()
