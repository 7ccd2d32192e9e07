"""Compare predicted AIOB computation files with measured ones.

    python benchmarks/accuracy/aiob.py aiob_training_kernels.csv [--hardware dgx-a100] [--json]

The table has one row per region of a measured file: commit, model, tp, seq, train_iter,
kernel, avg_us. Scored are the files of models whose sizes AICB's scripts state (gpt_7B,
gpt_13B; the first file's model is inferred). Devices are not named there; throughputs are an
A100's. Left out, with their reasons: files of other models, one file whose products run at
less than half the others' rate (another or a shared device), and in files of one iteration
the regions that include a cold start (Emb, logit_time).
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.computation import CALL_LATENCY, predicted_regions

# scripts/megatron_gpt.sh of AICB; the shipped Example.txt fits gpt_7B, tp 2, 4,096 tokens.
MODELS = {
    "gpt_7B": {"hidden_size": 4096, "num_layers": 36, "num_attention_heads": 32},
    "gpt_13B": {"hidden_size": 5120, "num_layers": 40, "num_attention_heads": 40},
}
INFERRED = ("gpt_7B", "2", "4096")
SLOW = {"13d2495": "products at less than half the rate of the same file of other commits"}
COLD = ("Emb", "logit_time")
LATENCIES = (0.0, 20e-6, 30e-6, 40e-6, 50e-6, 60e-6)


def measured_files(path: Path) -> tuple[dict[tuple[str, ...], dict[str, float]], dict[str, int]]:
    """Return region times [s] per file, and how many rows were left out for which reason."""
    files: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    skipped: dict[str, int] = defaultdict(int)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            stated = (row["model"], row["tp"], row["seq"])
            known = INFERRED if row["model"].startswith("unstated") else stated
            if known[0] not in MODELS:
                skipped["sizes of the model not stated"] += 1
            elif row["commit"] in SLOW:
                skipped[SLOW[row["commit"]]] += 1
            elif row["kernel"] in COLD and row["train_iter"] == "1":
                skipped["includes a cold start"] += 1
            elif row["kernel"] in ("logit_time", "param_time"):
                skipped["Example.txt's logits are fp32; parameters are counted elsewhere"] += 1
            else:
                time = float(row["avg_us"]) * 1e-6
                files[(row["commit"], *known)][row["kernel"]] = time
    return files, dict(skipped)


def errors(
    files: dict[tuple[str, ...], dict[str, float]], hardware: Hardware, latency: float
) -> dict[str, list[float]]:
    """Return relative errors by region."""
    found: dict[str, list[float]] = defaultdict(list)
    for (_, model, tp, seq), times in files.items():
        arguments = AicbArguments(
            world_size=int(tp),
            tensor_model_parallel_size=int(tp),
            seq_length=int(seq),
            max_position_embeddings=int(seq),
            vocab_size=50257,
            swiglu=True,
            use_flash_attn=True,
            aiob_enable=True,
            **MODELS[model],
        )
        predicted = predicted_regions(arguments, hardware, call_latency=latency)
        for region, time in times.items():
            found[region].append(predicted[region] / time - 1.0)
    return found


def statistics_of(values: list[float]) -> dict[str, Any]:
    """Return count, median, mean, p90 and worst of the errors' sizes, and the bias."""
    sizes = [abs(value) for value in values]
    return {
        "count": len(sizes),
        "median_absolute_error": statistics.median(sizes),
        "mean_absolute_error": statistics.fmean(sizes),
        "p90_absolute_error": float(np.quantile(sizes, 0.9)),
        "worst_absolute_error": max(sizes),
        "bias": statistics.fmean(values),
    }


def line(label: str, found: dict[str, Any]) -> str:
    """Return one line of the table."""
    figures = [found[f"{name}_absolute_error"] for name in ("median", "mean", "p90", "worst")]
    cells = "".join(f"{figure:8.1%}" for figure in figures)
    return f"{label:<24}{found['count']:>5}{cells}{found['bias']:>+8.1%}"


def main() -> int:
    """Print the comparison; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--hardware", default="dgx-a100")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        files, skipped = measured_files(options.table)
        hardware = load_hardware(options.hardware)
        by_region = errors(files, hardware, CALL_LATENCY)
        everything = [value for values in by_region.values() for value in values]
        document: dict[str, Any] = {
            "hardware": hardware.name,
            **statistics_of(everything),
            "groups": {region: statistics_of(values) for region, values in by_region.items()},
            "call_latencies": {},
            "skipped": skipped,
        }
        for latency in LATENCIES:
            other = errors(files, hardware, latency)
            row = statistics_of([value for values in other.values() for value in values])
            document["call_latencies"][latency] = row
    except (OSError, KeyError, ValueError, PerfModelError) as error:
        print(f"error: {options.table}: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document, indent=2))
        return 0
    print(f"{'region':<24}{'rows':>5}{'median':>8}{'mean':>8}{'p90':>8}{'worst':>8}{'bias':>8}")
    print(line("all", document))
    for region, row in document["groups"].items():
        print(line(region, row))
    print("\nwith another host time per call")
    for latency, row in document["call_latencies"].items():
        print(line(f"{latency * 1e6:.0f} µs", row))
    for reason, count in skipped.items():
        print(f"left out: {count} × {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
