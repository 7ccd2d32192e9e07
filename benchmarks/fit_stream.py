"""Compare the streaming model with measured kernels, and refit its constants.

    python benchmarks/fit_stream.py DATA_FOLDER [--json]

DATA_FOLDER holds ``elementwise.csv``. Three kinds of rows, three ways to look:

* fp8 quantisation replayed in a graph (aiconfigurator): times as they are, with
  everything that fits the cache in the cache;
* eager rows of PyTorch: the slope of time over bytes of large tensors, because
  host time hides the rest;
* eager rows again, with one fixed time per operation fitted here and in no profile.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.compute_stream import stream_times
from perfmodel.hwprofiles import load_hardware

PROFILES = {
    "A100_SXM": "dgx-a100",
    "H100_SXM": "dgx-h100",
    "B200": "dgx-b200",
    "MI210": "mi210-server",
    "V100_PCIE": "v100-pcie",
}

READ_BYTES = {"fp16": 2.0, "fp32": 4.0, "bf16->fp8": 2.0}
WRITTEN_BYTES = {"fp16": 2.0, "fp32": 4.0, "bf16->fp8": 1.0}

# operations that read two tensors; all others read one
BINARY = {"add", "mul", "div", "pow"}

# slow kernels, no measure of the device: a framework that recomputes scales, and
# powers that the vector units bound
LEFT_OUT = {("sglang", "fp8_scale_matrix"), ("pytorch", "pow"), ("pytorch", "powu")}

LARGE = 64e6  # [B]


def read_rows(folder: Path) -> dict[tuple[str, str, str], np.ndarray]:
    """Return read bytes, written bytes and times by device, framework and operation."""
    groups: dict[tuple[str, str, str], list[tuple[float, float, float]]] = defaultdict(list)
    with (folder / "elementwise.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["framework"], row["op"]) in LEFT_OUT or row["hardware"] not in PROFILES:
                continue
            elements = float(row["rows"]) * float(row["cols"])
            read = elements * READ_BYTES[row["dtype"]] * (2 if row["op"] in BINARY else 1)
            written = elements * WRITTEN_BYTES[row["dtype"]]
            key = (row["hardware"], row["framework"], row["op"])
            groups[key].append((read, written, float(row["time_us"]) * 1e-6))
    return {key: np.array(rows) for key, rows in sorted(groups.items())}


def errors(ratio: np.ndarray) -> dict[str, float]:
    """Return the summary of modelled over measured times."""
    error = np.abs(ratio - 1.0)
    return {
        "count": int(ratio.size),
        "median": round(float(np.median(error)), 4),
        "mean": round(float(np.mean(error)), 4),
        "p90": round(float(np.quantile(error, 0.9)), 4),
        "geometric_mean_ratio": round(float(np.exp(np.mean(np.log(ratio)))), 4),
    }


def main() -> None:
    """Print residuals by device and operation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the measured tables")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()

    report: dict[str, dict[str, Any]] = {}
    for (device, framework, operation), rows in read_rows(arguments.folder).items():
        hardware = load_hardware(PROFILES[device])
        eager = framework == "pytorch"
        read, written, measured = rows.T
        size = read + written
        entry: dict[str, Any] = {}
        if np.sum(size >= LARGE) >= 3:
            slope, _ = np.polyfit(size[size >= LARGE], measured[size >= LARGE], 1)
            entry["sustained_share_of_bandwidth"] = round(
                1.0 / slope / hardware.device.memory.bandwidth, 3
            )
        model = stream_times(hardware, read, written, cached=0.0 if eager else 1.0).time
        if eager:
            candidates = np.arange(0.0, 61e-6, 1e-6)
            loss = [np.mean(np.abs(np.log((model + fixed) / measured))) for fixed in candidates]
            entry["fixed_time"] = float(candidates[int(np.argmin(loss))])
            model = model + entry["fixed_time"]
        entry["all"] = errors(model / measured)
        if np.any(size >= LARGE):
            entry["large"] = errors((model / measured)[size >= LARGE])
        report[f"{device} {framework} {operation}"] = entry
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    for name, entry in report.items():
        share = entry.get("sustained_share_of_bandwidth", float("nan"))
        print(f"{name}: slope of large tensors {share:.3f} of the bandwidth")
        for regime in ("all", "large"):
            if regime in entry:
                e = entry[regime]
                print(
                    f"  {regime:6} n {e['count']:4}  median {e['median']:6.1%}"
                    f"  mean {e['mean']:6.1%}  p90 {e['p90']:6.1%}"
                    f"  modelled/measured {e['geometric_mean_ratio']:.3f}"
                )


if __name__ == "__main__":
    main()
