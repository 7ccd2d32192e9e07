"""Fit the constants of the exchange between experts and print the residuals.

Usage::

    python benchmarks/fit/expert_exchange.py DATA_FOLDER [--json]

DATA_FOLDER holds ``measured/moe_alltoall.csv``. Nothing is written: copy what should be
kept into ``[calibration.network]`` of the family's profile.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

import numpy as np
from collective import summary
from scipy.optimize import least_squares

from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.kernels.collective.expert_exchange import exchange_times
from perfmodel.network.expert_exchange import COMPUTE_UNITS, ELEMENT_BYTES, exchange_constants

# key: (prior, low, high)
BOUNDS = {
    "exchange_dispatch_latency": (26e-6, 5e-6, 80e-6),
    "exchange_combine_latency": (45e-6, 5e-6, 100e-6),
    "exchange_dispatch_token_time": (0.4e-6, 0.0, 3e-6),
    "exchange_combine_token_time": (0.8e-6, 0.0, 3e-6),
    "exchange_dispatch_forward_copies": (4.0, 0.0, 20.0),
    "exchange_combine_forward_copies": (8.0, 0.0, 20.0),
    "exchange_unit_rate": (28e9, 5e9, 80e9),
    "exchange_efficiency": (0.8, 0.4, 1.0),
    "exchange_scale_out_efficiency": (0.9, 0.4, 1.0),
    "exchange_scale_out_latency": (6e-6, 0.0, 40e-6),
    "exchange_low_latency_latency": (15e-6, 3e-6, 40e-6),
    "exchange_low_latency_efficiency": (0.6, 0.2, 1.0),
}
Group = tuple[str, str, list[np.ndarray], np.ndarray]


def read_groups(path: Path, name: str) -> list[Group]:
    """Read the rows of a device: phase, mode, columns of the kernel and times [s]."""
    rows: dict[tuple[str, str], list[list[float]]] = {}
    with path.open() as file:
        for line in csv.DictReader(file):
            if line["hardware"] != name:
                continue
            mode = "low_latency" if "low_latency" in line["mode"] else "normal"
            members, nodes = float(line["ep"]), float(line["nodes"])
            rows.setdefault((line["phase"], mode), []).append(
                [
                    float(line["tokens_per_rank"]),
                    float(line["hidden"]) * ELEMENT_BYTES[line["phase"]],
                    float(line["topk"]),
                    float(line["experts"]),
                    members,
                    members / nodes,
                    float(line["sms"] or COMPUTE_UNITS),
                    float(line["time_us"]) * 1e-6,
                ]
            )
    groups: list[Group] = []
    for (phase, mode), found in rows.items():
        *columns, time = (np.array(column) for column in zip(*found, strict=True))
        groups.append((phase, mode, columns, time))
    return groups


def errors(hardware: Hardware, constants: dict[str, float], groups: list[Group]) -> np.ndarray:
    """Return ln(modelled / measured) of every row, group after group."""
    parts = []
    for phase, mode, columns, time in groups:
        table = exchange_constants(constants, hardware, phase, mode)
        parts.append(np.log(exchange_times(mode == "low_latency", *columns, table) / time))
    return np.concatenate(parts)


def fit(hardware: Hardware, groups: list[Group], keys: list[str]) -> dict[str, float]:
    """Fit some constants by robust least squares in the log, drawn to their priors."""
    prior = {key: value[0] for key, value in BOUNDS.items()}
    low = np.array([BOUNDS[key][1] for key in keys])
    high = np.array([BOUNDS[key][2] for key in keys])
    start = (np.array([prior[key] for key in keys]) - low) / (high - low)

    def residual(unit: np.ndarray) -> np.ndarray:
        trial = prior | dict(zip(keys, low + unit * (high - low), strict=True))
        return np.concatenate([errors(hardware, trial, groups) / 0.1, 0.5 * (unit - start)])

    best = least_squares(residual, start, bounds=(0, 1), loss="soft_l1", diff_step=1e-4)
    return prior | dict(zip(keys, (low + best.x * (high - low)).tolist(), strict=True))


def main() -> None:
    """Fit every device and print constants and residuals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with measured/")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args()
    document: dict[str, dict] = {}
    for name in ("H100_SXM", "B200"):
        hardware = load_hardware(name)
        groups = read_groups(arguments.folder / "measured" / "moe_alltoall.csv", name)
        several = any(np.any(columns[4] > columns[5]) for _, _, columns, _ in groups)
        keys = [key for key in BOUNDS if several or not ("scale_out" in key or "forward" in key)]
        constants = fit(hardware, groups, keys)
        found = {"all": summary(errors(hardware, constants, groups))}
        for group in groups:
            across = group[2][4] > group[2][5]
            for place, chosen in (("inside a node", ~across), ("over nodes", across)):
                error = errors(hardware, constants, [group])[chosen]
                if error.size:
                    found[f"{group[1]} {group[0]} {place}"] = summary(error)
        document[name] = {"constants": constants, "residuals": found}
    if arguments.json:
        json.dump(document, sys.stdout, indent=1)
        return
    for name, result in document.items():
        print(name)
        for key, value in result["constants"].items():
            print(f"  {key:34s} {value:.4g}")
        for label, part in result["residuals"].items():
            print(
                f"  {label:38s} n={part['count']:4d}  median {part['median_absolute_error']:6.1%}"
                f"  p90 {part['p90_absolute_error']:6.1%}  bias {part['bias']:+6.1%}"
            )


if __name__ == "__main__":
    main()
