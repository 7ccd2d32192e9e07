"""Print the accuracy tables of the kernel models, and draw them.

    python benchmarks/accuracy/kernels.py [DATA] [--json] [--plot FILE.png]

DATA is the folder with ``measured/`` and ``primus/`` (columns of docs/calibration.md).
Without it: our own measurements, ``benchmarks/measured/``, to which nothing is fitted.
Errors are predicted / measured - 1 of the time; a frame of reference is named where
measuring frameworks differ on the same shape.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.base.figures import unit_ticks
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.compare import compare_file, statistics
from perfmodel.measured.rows import ComparedRow

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from accuracy.training import HEADER, table_line


@dataclass(frozen=True)
class Table:
    """One accuracy table: which rows of which file, grouped how."""

    title: str
    kind: str
    file: str
    by: tuple[str, ...]
    where: str | None = None


CALIBRATED = "hardware in ('A100_SXM', 'H100_SXM', 'B200')"
# The framework that the constants are calibrated to, per kind; others are apart.
TABLES = (
    Table(
        "Matrix products",
        "gemm",
        "measured/gemm.csv",
        ("hardware", "dtype", "regime"),
        CALIBRATED,
    ),
    Table(
        "Matrix products of AMD (tuned, AITER)",
        "gemm",
        "measured/gemm.csv",
        ("hardware", "dtype"),
        "hardware in ('MI300X|MI325X', 'MI308X')",
    ),
    Table(
        "Matrix products of L40S, MI350X and MI355X",
        "gemm",
        "measured/more/gemm.csv",
        ("hardware", "dtype"),
    ),
    Table(
        "Matrix products of training (steady)",
        "gemm",
        "measured/gemm_training.csv",
        ("hardware", "regime"),
    ),
    Table(
        "Attention of the reference framework",
        "attention",
        "measured/attention.csv",
        ("hardware", "phase", "regime"),
        "framework == 'sglang'",
    ),
    Table(
        "Attention of L40S",
        "attention",
        "measured/more/attention.csv",
        ("framework", "phase"),
    ),
    Table(
        "Attention, forward and backward (training)",
        "attention",
        "measured/attention_fwd_bwd.csv",
        ("hardware", "framework", "phase"),
    ),
    Table(
        "Latent attention of the reference framework",
        "mla",
        "measured/mla.csv",
        ("hardware", "phase", "regime"),
        "framework == 'sglang' or hardware == 'A100_SXM' and framework == 'trtllm'",
    ),
    Table(
        "Sparse attention of DeepSeek-V4 (MI355X), fastest of nine backends",
        "sparse-attention",
        "primus/measured_v4_attention_mi355x.csv",
        ("pass", "compress_ratio"),
        "fastest == 'yes'",
    ),
    Table(
        "Mixture-of-experts layer of the reference framework",
        "moe",
        "measured/moe.csv",
        ("hardware", "dtype", "regime"),
        f"framework == 'sglang' and {CALIBRATED}",
    ),
    Table(
        "Mixture-of-experts layer of L40S, MI350X and MI355X",
        "moe",
        "measured/more/moe.csv",
        ("hardware", "framework", "dtype"),
    ),
    Table(
        "Streaming operations",
        "stream",
        "measured/elementwise.csv",
        ("hardware", "framework", "regime"),
        "framework != 'trtllm'",
    ),
    Table(
        "Collectives of NCCL",
        "collective",
        "measured/collective.csv",
        ("hardware", "op", "regime"),
        "impl == 'nccl'",
    ),
    Table(
        "Collectives of RCCL (MI355X)",
        "collective",
        "primus/measured_rccl_mi355x.csv",
        ("op", "n_gpus"),
    ),
    Table(
        "Token exchange of experts (DeepEP)",
        "moe-alltoall",
        "measured/moe_alltoall.csv",
        ("hardware", "mode", "phase", "nodes"),
    ),
)

# What we measured ourselves; files beside this folder.
OWN_FOLDER = Path(__file__).resolve().parents[1]
OWN = (
    Table(
        "Matrix products, measured here",
        "gemm",
        "measured/gemm.csv",
        ("hardware", "dtype", "regime"),
    ),
    Table(
        "Matrix products inside a training step and alone, measured here",
        "gemm",
        "measured/step.csv",
        ("steady", "hardware"),
    ),
    Table(
        "Attention, measured here",
        "attention",
        "measured/attention.csv",
        ("hardware", "kernel", "phase"),
    ),
    Table(
        "Streaming operations, measured here",
        "stream",
        "measured/stream.csv",
        ("hardware", "op"),
    ),
)


def split(rows: tuple[ComparedRow, ...], by: tuple[str, ...]) -> dict[str, list[ComparedRow]]:
    """Return the rows of each combination of the values of some columns."""
    groups: dict[str, list[ComparedRow]] = {}
    for row in rows:
        label = " · ".join(row.cells.get(column) or "not stated" for column in by)
        groups.setdefault(label, []).append(row)
    return dict(sorted(groups.items()))


def evaluate(data: Path, tables: Sequence[Table] = TABLES) -> list[dict[str, Any]]:
    """Compare every table whose file is there."""
    found = []
    for table in tables:
        path = data / table.file
        if not path.exists():
            print(f"{path}: missing, left out", file=sys.stderr)
            continue
        comparison = compare_file(table.kind, path, table.where, table.by)
        entry: dict[str, Any] = {"table": table, "rows": comparison.rows}
        entry["all"] = statistics(comparison.rows)
        # From the coarsest grouping to the finest: hardware, then hardware and dtype, …
        for depth in range(1, len(table.by) + 1):
            groups = split(comparison.rows, table.by[:depth])
            entry[" · ".join(table.by[:depth])] = {
                label: statistics(rows) for label, rows in groups.items()
            }
        found.append(entry)
    return found


def markdown(entries: list[dict[str, Any]]) -> str:
    """Write the tables as Markdown."""
    lines = []
    for entry in entries:
        table = entry["table"]
        where = f", where `{table.where}`" if table.where else ""
        lines += ["", f"### {table.title}", "", f"`compare {table.kind} {table.file}`{where}", ""]
        lines += [f"| {' · '.join(table.by)} {HEADER}", "|---|" + "---:|" * 7]
        lines.append(table_line("all", entry["all"]))
        for depth in range(1, len(table.by) + 1):
            groups = entry[" · ".join(table.by[:depth])]
            lines += [table_line(label, found) for label, found in groups.items()]
    return "\n".join(lines).strip()


RATIOS = (0.5, 2.0)  # what a panel shows of predicted / measured; others stand at its edge


def device_of(label: str) -> str:
    """Return the profile that a table calls by some name, so that it has one colour."""
    return load_hardware(label).name


def points_of(rows: list[ComparedRow]) -> np.ndarray:
    """Return measured time [s] and predicted / measured; float64[rows, 2]."""
    found = [
        (row.outcome.measured, row.outcome.projected / row.outcome.measured)
        for row in rows
        if row.scored and row.outcome.measured
    ]
    return np.array(found, float).reshape(-1, 2)


def draw(entries: list[dict[str, Any]], path: Path) -> None:
    """Draw predicted / measured over measured, one panel per table, one colour per device."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    groups = [split(entry["rows"], ("hardware",)) for entry in entries]
    devices = sorted({device_of(label) for found in groups for label in found})
    colours = {device: f"C{i}" for i, device in enumerate(devices)}
    across = 3
    down = -(-(len(entries) + 1) // across)
    figure = Figure(figsize=(5.0 * across, 3.5 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes, entry, found in zip(panels, entries, groups, strict=False):
        series = {device_of(label): points_of(rows) for label, rows in found.items()}
        every = np.vstack(list(series.values()))
        outside = np.count_nonzero((every[:, 1] < RATIOS[0]) | (every[:, 1] > RATIOS[1]))
        size = 16.0 if len(every) < 1000 else 7.0
        alpha = float(np.clip(25.0 / np.sqrt(len(every)), 0.15, 0.7))
        axes.axhspan(0.9, 1.1, color="0.5", alpha=0.2, lw=0)
        axes.axhline(1.0, color="0.2", lw=0.7)
        # Devices take turns, so that none hides the others.
        order = np.random.default_rng(0).permutation(len(every))
        shade = np.repeat([colours[device] for device in series], list(map(len, series.values())))
        axes.scatter(
            every[order, 0],
            np.clip(every[order, 1], *RATIOS),
            s=size,
            c=shade[order],
            alpha=alpha,
            lw=0,
            rasterized=True,
        )
        axes.set(xscale="log", yscale="log", ylim=(RATIOS[0] / 1.05, RATIOS[1] * 1.05))
        unit_ticks(axes.xaxis, every[:, 0].min(), every[:, 0].max(), "s")
        axes.yaxis.set_major_locator(FixedLocator([0.5, 0.7, 0.9, 1.0, 1.1, 1.4, 2.0]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("measured time")
        axes.set_ylabel("predicted / measured")
        median = entry["all"]["median_absolute_error"]
        beyond = f", {outside:,} beyond the edge" if outside else ""
        axes.set_title(
            f"{entry['table'].title}\n"
            f"{entry['all']['count']:,} rows, median error {median:.1%}{beyond}",
            fontsize=10,
        )
    for axes in panels[len(entries) :]:
        axes.set_axis_off()
    marks = [
        Line2D([], [], ls="", marker="o", color=colour, label=device)
        for device, colour in colours.items()
    ]
    panels[len(entries)].legend(handles=marks, loc="center", title="device", fontsize=11)
    figure.savefig(path, dpi=75)


def main() -> int:
    """Compare, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "data", type=Path, nargs="?", help="folder with measured/ and primus/; else our own tables"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--plot", type=Path, help="draw predicted against measured into this file")
    options = parser.parse_args()
    try:
        entries = evaluate(options.data) if options.data else evaluate(OWN_FOLDER, OWN)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.plot:
        draw(entries, options.plot)
    if options.json:
        plain = [
            {"title": entry["table"].title, "where": entry["table"].where}
            | {key: value for key, value in entry.items() if key not in ("table", "rows")}
            for entry in entries
        ]
        print(json.dumps(plain, indent=2))
    else:
        print(markdown(entries))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
