"""Score projected peaks of memory: measured runs, torch's own FSDP2, and papers' formulas.

    python benchmarks/accuracy/memory.py DATA/e2e [--no-nanotron] [--json] [--write]

Reads ``dev_memory_runs.csv``, ``dev_nanotron_runs.csv`` and ``dev_memory_torch.csv`` of a folder;
a file that is not there is left out. Errors are projected over measured, less one. ``--write`` puts
the measured error of every software into ``hwprofiles/memory_errors.toml``: what ``memory_high``,
``tight`` and ``--safe`` go by (`measured_errors`).

*torch*: peaks of one training step by category, as MemTracker counts them on fake tensors: eager
modules of Hugging Face, 16-bit parameters and moments where nothing is sharded, fp32 shards under
FSDP2. The `fsdp` preset with what the table states is their like.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import PerfModelError
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.rows import MEMORY_ERRORS
from perfmodel.kernels.variables import MEMORY_COMPONENTS
from perfmodel.measured.compare import compare_file, statistics
from perfmodel.measured.kinds.memory import BELOW, KIND
from perfmodel.measured.rows import ComparedRow, MeasuredRow
from perfmodel.model.config import model_from_config
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework, load_framework, product
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.training.stages import StageMemory, stage_memories

NAMES = {
    "median_absolute_error": "median",
    "mean_absolute_error": "mean",
    "p90_absolute_error": "p90",
    "worst_absolute_error": "worst",
    "bias": "bias",
    "share_below_peak": "10 % below",
}
PRIOR_ROWS = 20
"""So many rows of a software weigh as much as what is known of all others."""
FIGURES = {"state and activations": "Korthikanti figure 1", "relative activations": "figure 7"}
# Categories of MemTracker -> components of a projection.
CATEGORIES = {
    "state": ("memory_parameters", "memory_gradients", "memory_optimizer"),
    "activations": ("memory_activations",),
    "temporary": ("memory_buffers",),
}
TRACKED = {
    "PARAM": "state",
    "SHARDED_PARAM": "state",
    "GRAD": "state",
    "SHARDED_GRAD": "state",
    "OPT": "state",
    "ACT": "activations",
    "TEMP": "temporary",
    "UNSHARDED_PARAM": "temporary",
    "UNSHARDED_GRAD": "temporary",
    "ALL_GATHER": "temporary",
    "REDUCE_SCATTER": "temporary",
}
TINY = {"hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1024}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "intermediate_size": 14336,
    },
    "tiny-llama": {
        **TINY,
        "model_type": "llama",
        "num_key_value_heads": 2,
        "intermediate_size": 704,
    },
    "tiny-mixtral": {
        **TINY,
        "model_type": "mixtral",
        "num_key_value_heads": 2,
        "intermediate_size": 352,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "tiny-gpt_neox": {**TINY, "model_type": "gpt_neox", "intermediate_size": 1024},
}
"""Models of torch's table, with sizes that follow from its parameters."""


def torch_model(name: str, layers: int, parameters: int) -> ModelSpec | None:
    """Return the model of a row of torch's table; None where its sizes are not known here."""
    if name not in CONFIGS:
        return None
    model = model_from_config({**CONFIGS[name], "num_hidden_layers": layers}, name=name)
    if model.parameter_count() != parameters:
        raise SystemExit(
            f"{name}: {model.parameter_count():,} parameters, the table says {parameters:,}"
        )
    return model


def torch_framework(sharding: str) -> Framework:
    """Return eager Hugging Face modules as a row of torch's table runs them."""
    changes: dict[str, Any] = {"gradient_reduce_bytes": 4.0, "update_bytes": 0.0}
    if "freed" in sharding:
        changes["logit_bytes"] = 4.0
    if sharding.startswith("none"):
        changes |= {"master_parameters": False, "optimizer_bytes": 4.0, "gradient_bytes": 2.0}
    changes["gathers_ends_with_root"] = "embed+head" not in sharding
    return load_framework("fsdp", **changes)


def torch_rows(path: Path) -> list[dict[str, Any]]:
    """Compare every configuration of torch's table by category, in bytes."""
    keys = ("model", "layers", "seq", "mbs", "ranks", "sharding", "recompute", "parameters")
    tables: dict[tuple[str, ...], dict[str, float]] = {}
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            tables.setdefault(tuple(row[key] for key in keys), {})[row["category"]] = float(
                row["bytes"]
            )
    hardware = load_hardware("dgx-h100")
    found = []
    for key, cells in tables.items():
        row = dict(zip(keys, key, strict=True))
        model = torch_model(row["model"], int(row["layers"]), int(row["parameters"]))
        if model is None:
            continue
        ranks, batch = int(row["ranks"]), int(row["mbs"])
        strategy = {
            "data_parallel": ranks,
            "zero_stage": 0 if row["sharding"].startswith("none") else 3,
            "micro_batch_size": batch,
            "global_batch_size": batch * ranks,
            "sequence_length": int(row["seq"]),
            "recompute": row["recompute"],
            "precision": "bf16",
        }
        grid = strategies_from_rows(model, ranks, [strategy])
        (stage,) = stage_memories(model, grid, hardware, torch_framework(row["sharding"]))
        found.append({**row, "pairs": pairs_of(stage, cells)})
    return found


def pairs_of(stage: StageMemory, cells: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return projected and counted bytes of each category at torch's peak, and of both peaks.

    Torch's peak is at the loss, or where gradients are there already, in the backward of the last
    layer. What that repeats are activations to torch, buffers here: then they are compared
    together.
    """
    late = any(cells.get(f"peak.{name}", 0.0) > 0.0 for name in ("GRAD", "SHARDED_GRAD"))
    held = dict(zip(MEMORY_COMPONENTS, stage.held[2 if late else 0].tolist(), strict=True))
    sums = {
        name: (
            sum(held[part] for part in components),
            sum(cells.get(f"peak.{it}", 0.0) for it, to in TRACKED.items() if to == name),
        )
        for name, components in CATEGORIES.items()
    }
    if late:
        both = [sums.pop(name) for name in ("activations", "temporary")]
        sums["activations and temporary"] = (sum(it[0] for it in both), sum(it[1] for it in both))
    peak = stage.at_peak()
    live = sum(peak[part] for parts in CATEGORIES.values() for part in parts)
    return {**sums, "total": (live, cells["peak.Total"])}


def torch_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return median and worst error of every category."""
    found = {}
    for name in (*CATEGORIES, "activations and temporary", "total"):
        pairs = [row["pairs"][name] for row in rows if name in row["pairs"]]
        errors = np.array([abs(ours / counted - 1) for ours, counted in pairs])
        found[name] = {
            "rows": errors.size,
            "median": float(np.median(errors)),
            "worst": float(errors.max()),
        }
    return found


def score(rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Return the statistics of some rows."""
    found = statistics(rows, below=BELOW)
    return {"rows": found["count"], **{short: found[name] for name, short in NAMES.items()}}


def scores(folder: Path, nanotron: bool) -> dict[str, Any]:
    """Return everything that the files of a folder say."""
    found: dict[str, Any] = {}
    measured: list[ComparedRow] = []
    runs = folder / "dev_memory_runs.csv"
    if runs.exists():
        rows = compare_file("memory", runs).rows
        measured += rows
        families: dict[str, list[ComparedRow]] = {row.cells["family"]: [] for row in rows}
        for row in rows:
            families[row.cells["family"]].append(row)
        found["development rows"] = {name: score(those) for name, those in families.items()}
        found["development rows"]["all"] = score(rows)
        found["formulas"] = {
            title: score([row for row in rows if row.cells["read"] == reading])
            for reading, title in FIGURES.items()
        }
        found["Primus' schedules"] = primus_schedules(runs)
    runs = folder / "dev_nanotron_runs.csv"
    if nanotron and runs.exists():
        comparison = compare_file("memory", runs)
        measured += comparison.rows
        found["nanotron"] = {"all": score(comparison.rows)}
        found["runs that fit"] = list(comparison.further["runs that fit"])
    table = folder / "dev_memory_torch.csv"
    if table.exists():
        found["torch FSDP2"] = torch_scores(torch_rows(table))
    if measured:
        found["measured errors"] = measured_errors(measured)
    return found


PRIMUS = {"layers": "16", "seq": "4096", "mbs": "1", "gbs": "32"}
"""What Primus' six runs of Llama 2 7B do not state. Their FLOP per token are those of 16 layers;
4,096 tokens is what Primus' own configuration has (examples/megatron/configs, llama2_7B); one
sequence a micro-batch and 32 of them are assumed. ``zbb`` is ZB-H1, of one chunk a stage."""


def primus_schedules(path: Path) -> list[dict[str, Any]]:
    """Return projected and measured memory of each schedule, in the measured order [B]."""
    with path.open(newline="", encoding="utf-8") as stream:
        cells = [row for row in csv.DictReader(stream) if "primus_pipeline" in row["source"]]
    for row in cells:
        row.update(PRIMUS, vpp="1" if row["pp_schedule"] == "zbb" else row["vpp"])
    cells.sort(key=lambda row: float(row["meas_peak_mem_GB"]))
    rows = [MeasuredRow(row, str(path), number) for number, row in enumerate(cells, 2)]
    outcomes = KIND.project(rows, lambda done: None)
    found: list[dict[str, Any]] = [
        {
            "schedule": row["pp_schedule"],
            "GB": 1e-9 * one.projected,
            "measured": 1e-9 * one.measured,
        }
        for row, one in zip(cells, outcomes, strict=True)
        if one.projected is not None and one.measured is not None
    ]
    ours = [line["GB"] for line in found]
    return [*found, {"in the measured order": ours == sorted(ours) and len(ours) == len(cells) > 0}]


def measured_errors(rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Return by how much measured peaks lie above projected ones, nine of ten times at most.

    Of ln(measured / projected), never below 0. Software that nobody measured is like one of those
    that were, each as likely: the 90th percentile with equal weights (``unseen``). A measured one
    has its own, where `PRIOR_ROWS` rows more are like those of all. Formulas of papers are no
    measurements.
    """
    logs: dict[str, list[float]] = {}
    classes: set[str] = set()
    for row in rows:
        if row.error is not None and row.cells["read"] not in FIGURES:
            preset = load_framework(str(row.outcome.details["software"]))
            logs.setdefault(product(preset), []).append(-math.log1p(row.error))
            profile = load_hardware(str(row.outcome.details["profile"]))
            classes.add(profile.device.instruction_class)
    every = np.concatenate([np.array(it) for it in logs.values()])
    alike = np.concatenate([np.full(len(it), 1.0 / (len(it) * len(logs))) for it in logs.values()])
    software = {}
    for name, own in sorted(logs.items()):
        values = np.concatenate([own, every])
        weights = np.concatenate([np.ones(len(own)), PRIOR_ROWS * alike])
        software[name] = {"rows": len(own), "width": percentile_90(values, weights)}
    unseen = percentile_90(every, alike)
    return {"unseen": unseen, "instruction_classes": sorted(classes), "software": software}


def percentile_90(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Return the value that nine tenths of the weight do not exceed; 0 at least."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return max(0.0, round(float(values[order][np.searchsorted(reached, 0.9 - 1e-12)]), 3))


def written(found: Mapping[str, Any]) -> str:
    """Return the measured errors as ``hwprofiles/memory_errors.toml`` has them."""
    classes = ", ".join(f'"{name}"' for name in found["instruction_classes"])
    lines = [
        "# How far measured peaks of memory lie above projected ones: 90th percentile of",
        "# ln(measured / projected), by software and for software or devices of an instruction",
        "# class that nobody measured. Written by benchmarks/accuracy/memory.py DATA/e2e --write.",
        f"unseen = {found['unseen']}",
        f"instruction_classes = [{classes}]",
        "",
        "[software]",
    ]
    for name, of in found["software"].items():
        lines.append(f"{name} = {{ rows = {of['rows']}, width = {of['width']} }}")
    return "\n".join(lines) + "\n"


def report(found: Mapping[str, Any]) -> str:
    """Write the scores as text."""
    lines = []
    for title, table in found.items():
        lines.append(f"{title}")
        if isinstance(table, list):
            lines += [
                "  " + ", ".join(f"{k} {v:.2f}" if type(v) is float else f"{k} {v}" for k, v in it)
                for it in (line.items() for line in table)
            ]
            continue
        for name, line in (table.get("software", table)).items():
            cells = line if isinstance(line, dict) else {"": line}
            text = "".join(
                f"{k:>12} {v}" if k == "rows" else f"{k:>12} {100 * v:6.1f} %"
                for k, v in cells.items()
                if v is not None
            )
            lines.append(f"  {name:34}{text}")
    return "\n".join(lines)


def main() -> int:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder with the tables of measured runs")
    parser.add_argument("--no-nanotron", action="store_true", help="leave its 1,600 rows out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write hwprofiles/memory_errors.toml")
    options = parser.parse_args()
    try:
        found = scores(options.folder, not options.no_nanotron)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.write:
        MEMORY_ERRORS.write_text(written(found["measured errors"]), encoding="utf-8")
    print(json.dumps(found, indent=1) if options.json else report(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
