"""Write the measured figures of README.md and docs: accuracy tables and speed.

    python benchmarks/update_readme.py [--families DATA/e2e] [--serving RUNS.csv]
        [--kernels DATA] [--pairs] [--speed] [--astra DATA/astra/real]

The published runs and the kernels measured here are always scored; the development tables and the
speed only where asked for. Each figure stands between two comments; the README has one line
for each table of docs/accuracy.md. With ``--kernels``, docs/kernels.png is drawn too;
``--pairs`` projects the published pairs of machines and sustained rates.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accuracy import families, left_out, pairs, sustained, switches, uncertainty_coverage
from accuracy import kernels as accuracy_kernels
from accuracy import serving as accuracy_serving
from accuracy.training import COLUMNS, HEADER, markdown, table_line
from parity_kinds import astra_real
from speed import collectives as collective_speed
from speed import first_run
from speed import kernels as kernel_speed
from speed import simulate as simulate_speed

from perfmodel.measured.compare import compare_file

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
ACCURACY = HERE.parent / "docs" / "accuracy.md"
ARCHITECTURE = HERE.parent / "docs" / "architecture.md"
KERNELS = HERE.parent / "docs" / "kernels.md"
COLLECTIVES = HERE.parent / "docs" / "collectives.md"
PARITY = HERE.parent / "docs" / "parity.md"
PERFORMANCE = HERE.parent / "docs" / "performance.md"
PUBLISHED = "Training steps, published runs"
FAMILIES = "Training steps, development runs (families alike)"
SERVED = {"tpot": "Served models, time per output token", "ttft": "Served models, first token"}
TRUTH = (
    "| predicted against measured | rows | median | mean | p90 | worst |",
    "|---|---:|---:|---:|---:|---:|",
)
# Tables of accuracy_kernels that stand in docs/collectives.md.
NETWORK_KINDS = ("collective", "moe-alltoall")


def accuracy_block(path: Path, by: list[str]) -> tuple[str, Mapping[str, Any]]:
    """Tables of one file of runs, without skip reasons and rank correlations; its statistics."""
    document = compare_file("training", path, None, by).to_json_dict()
    return markdown({**document, "skipped": {}, "rank_correlation": {}}), document


def truth_line(title: str, found: Mapping[str, Any]) -> str:
    """One line of the README's table of errors."""
    cells = [f"{found['count']:,}", *(f"{100 * found[name]:.1f} %" for name in COLUMNS)]
    return f"| {title} | {' | '.join(cells)} |"


def serving_blocks(path: Path) -> tuple[str, dict[str, str]]:
    """Return the table of the latest served runs of each group, and the README's lines."""
    lines, truth = [f"| served models {HEADER}", "|---|" + "---:|" * 7], {}
    for metric, title in SERVED.items():
        for pools in ("aggregated", "disaggregated"):
            where = f'{accuracy_serving.LATEST} and pools == "{pools}"'
            found = compare_file("serving", path, where, ["engine"], metric=metric).to_json_dict()
            name = title + (", two pools" if pools == "disaggregated" else "")
            truth[name] = truth_line(name, found)
            lines.append(table_line(f"**{name}**", found))
            groups = found["groups"]["engine"]
            lines += [table_line(engine, groups[engine]) for engine in sorted(groups)]
    return "\n".join(lines), truth


def truth_block(text: str, lines: Mapping[str, str]) -> str:
    """Return the README's table of errors with new lines in place of the old ones."""
    found = re.search(r"<!-- truth: [^>]* -->\n(.*?)\n?<!-- end -->", text, re.S)
    old = found[1].splitlines() if found else []
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in old[2:]}
    return "\n".join([*TRUTH, *(kept | dict(lines)).values()])


def family_blocks(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the tables of training runs by family, and the README's line; draw the picture."""
    tables = families.compared(folder)
    found = families.scores(tables)
    less = left_out.steps_left_out(folder)
    families.draw(tables, ACCURACY.with_name("accuracy-families.png"))
    blocks = {
        "families": families.markdown(found),
        "steps-left-out": f"{left_out.steps_markdown(less)}\n\n{left_out.families_markdown(less)}",
        "order": families.order_markdown(found),
        "switches": switches.markdown(switches.all_moved(folder, list(switches.SWITCHES))),
        "bands": uncertainty_coverage.left_out_markdown(
            uncertainty_coverage.left_out(uncertainty_coverage.read(folder, None))
        ),
    }
    return blocks, family_lines(less)


def family_lines(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the README's lines of families alike: in sample, and with less known of them."""
    lines = {}
    for title, scores in found.items():
        name = FAMILIES if title == "in sample" else FAMILIES.replace("families alike", title)
        count = sum(it["count"] for it in scores["families"].values())
        numbers = [f"{100 * scores['average'][key]:.1f} %" for key in families.NAMES[:-1]]
        lines[name] = f"| {name} | {count:,} | {' | '.join(numbers)} |"
    return lines


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


def kernel_blocks(data: Path) -> tuple[str, str, str, dict[str, str]]:
    """Return the summary, the whole tables by document, the README's lines; draw the picture."""
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
    truth = {entry["table"].title: entry["all"] for entry in entries}
    named = {title: truth_line(title, found) for title, found in truth.items()}
    return "\n".join(lines), *whole, named


def own_block() -> str:
    """Return the errors of the kernels that we measured ourselves."""
    lines = [f"| kernels {HEADER}", "|---|" + "---:|" * 7]
    for entry in accuracy_kernels.evaluate(accuracy_kernels.OWN_FOLDER, accuracy_kernels.OWN):
        table = entry["table"]
        lines.append(table_line(f"**{table.title}**", entry["all"]))
        for depth in range(1, len(table.by) + 1):
            groups = entry[" · ".join(table.by[:depth])]
            lines += [table_line(label, found) for label, found in groups.items()]
    return "\n".join(lines)


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
    parser.add_argument("--families", type=Path, help="folder of tables of development runs")
    parser.add_argument("--serving", type=Path, help="table of served runs")
    parser.add_argument("--kernels", type=Path, help="folder of measured kernels")
    parser.add_argument("--pairs", action="store_true", help="published pairs of machines")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--astra", type=Path, help="folder of runs of the real ASTRA-sim")
    options = parser.parse_args()
    published = HERE / "published_training_runs.csv"
    blocks, truth = {}, {}
    blocks["published"], found = accuracy_block(published, ["source"])
    truth[PUBLISHED] = truth_line(PUBLISHED, found)
    blocks["own-kernels"] = own_block()
    if options.families:
        more, lines = family_blocks(options.families)
        blocks |= more
        truth |= lines
    if options.serving:
        blocks["served"], lines = serving_blocks(options.serving)
        truth |= lines
    if options.pairs:
        blocks["pairs"] = pairs.block(pairs.evaluate(pairs.PAIRS))
        rates = "\n".join(sustained.markdown(sustained.evaluate(sustained.RATES)))
        replace_block(KERNELS, "sustained", rates)
    if options.speed:
        collectives = collective_speed_block()
        speed = f"{speed_block()}\n{collectives}\n{simulation_speed_line()}"
        replace_block(ARCHITECTURE, "speed", speed)
        replace_block(COLLECTIVES, "collective-speed", collectives)
        replace_block(PERFORMANCE, "first-run", first_run.report())
    if options.astra:
        replace_block(PARITY, "astra-real", astra_real.markdown(astra_real.compare(options.astra)))
    if options.kernels:
        blocks["kernels"], kernels, collectives, lines = kernel_blocks(options.kernels)
        truth |= lines
        replace_block(KERNELS, "kernels", kernels)
        without = "\n".join(map(left_out.table_line, left_out.left_out(options.kernels)))
        replace_block(KERNELS, "left-out", "\n".join([*left_out.HEADER, without]))
        replace_block(COLLECTIVES, "collectives", collectives)
    for name, block in blocks.items():
        replace_block(ACCURACY, name, block)
    replace_block(README, "truth", truth_block(README.read_text(), truth))


if __name__ == "__main__":
    main()
