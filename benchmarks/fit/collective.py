"""Fit the constants of the collective model and print the residuals.

Usage::

    python benchmarks/fit/collective.py DATA_FOLDER [--json]

DATA_FOLDER holds ``measured/collective.csv``, ``primus/measured_rccl_mi355x.csv``
and ``aicb/measured/busbw_ratio_tables.csv``. Nothing is written: copy what
should be kept into ``[calibration.network]`` of the family's profile.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from perfmodel.base.collectives import COLLECTIVES
from perfmodel.hwprofiles.hardware import Network
from perfmodel.kernels.collective.times import collective_times, serving_all_reduce_times
from perfmodel.network.table import table_of

LARGE = 16 * 2**20  # [B] from here on training messages: triple weight
OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}

# key: (prior, low, high); docs/collectives.md says where each prior is from.
BOUNDS = {
    "scale_up_efficiency": (0.82, 0.6, 0.95),
    "scale_out_efficiency": (0.96, 0.7, 0.98),
    "all_to_all_efficiency": (0.9, 0.6, 1.0),
    "in_network_efficiency": (0.7, 0.4, 0.9),
    "low_latency_fraction": (0.5, 0.15, 1.0),
    "low_latency_128_fraction": (0.92, 0.4, 1.0),
    "local_copy_fraction": (0.4, 0.0, 1.0),
    "base_latency": (6.6e-6, 1e-6, 40e-6),
    "spread_latency": (1.5e-6, 0.0, 10e-6),
    "low_latency_128_latency": (12e-6, 0.0, 80e-6),
    "simple_latency": (10e-6, 0.0, 60e-6),
    "in_network_latency": (20e-6, 0.0, 80e-6),
    "pairwise_latency": (1e-6, 0.0, 20e-6),
    "pairwise_spread_latency": (2.5e-6, 0.0, 10e-6),
    "pairwise_simple_latency": (5e-6, 0.0, 40e-6),
    "shot_latency": (3e-6, 0.5e-6, 20e-6),
    "shot_efficiency": (0.75, 0.3, 1.0),
    "scale_up_hop_overhead": (0.3e-6, 0.0, 3e-6),
    "scale_out_hop_overhead": (0.0, 0.0, 10e-6),
    "scale_out_hop_128_overhead": (1.3e-6, 0.0, 10e-6),
    "scale_up_step_overhead": (1.5e-6, 0.0, 6e-6),
    "scale_out_step_overhead": (1e-6, 0.0, 15e-6),
    "scale_up_pipeline_latency": (0.3e-6, 0.0, 10e-6),
    "scale_out_pipeline_latency": (0.0, 0.0, 20e-6),
    "in_network_pipeline_latency": (5e-6, 0.0, 30e-6),
    "pairwise_pipeline_latency": (0.5e-6, 0.0, 10e-6),
    "message_latency": (0.45e-6, 0.0, 3e-6),
    "irregular_mesh_links": (0.0, 0.0, 2.0),
    "scale_out_low_latency_limit": (8 * 2**20, 0.0, 2**30),
    "tuned_low_latency_fraction": (0.0, 0.0, 1.0),
    "tuned_in_network_fraction": (0.0, 0.0, 1.0),
}
SCALE_UP = (
    "scale_up_efficiency",
    "all_to_all_efficiency",
    "low_latency_fraction",
    "local_copy_fraction",
    "base_latency",
    "spread_latency",
    "low_latency_128_fraction",
    "low_latency_128_latency",
    "simple_latency",
    "pairwise_latency",
    "pairwise_spread_latency",
    "pairwise_simple_latency",
    "scale_up_hop_overhead",
    "scale_up_step_overhead",
    "scale_up_pipeline_latency",
    "pairwise_pipeline_latency",
)
SWITCH_REDUCES = (
    "in_network_efficiency",
    "in_network_latency",
    "in_network_pipeline_latency",
)
SHOTS = ("shot_latency", "shot_efficiency")
SCALE_OUT = (
    "scale_out_efficiency",
    "scale_out_step_overhead",
)
# What NCCL believes: its largest bandwidth of the low-latency protocol over the ring's, and of
# reducing switches (src/graph/tuning.cc, llMaxBws, nvlsEfficiency). Facts, not fitted.
TUNED = {
    "A100_SXM": {"tuned_low_latency_fraction": 0.365},
    "H100_SXM": {"tuned_low_latency_fraction": 0.392, "tuned_in_network_fraction": 0.85},
    "B200": {"tuned_low_latency_fraction": 0.392, "tuned_in_network_fraction": 0.74},
}


@dataclass
class Rows:
    """Measured collectives of one system, as columns."""

    kind: list[int] = field(default_factory=list)
    size: list[float] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    stride: list[int] = field(default_factory=list)
    time: list[float] = field(default_factory=list)

    def add(self, kind: str, size: float, members: int, stride: int, time: float) -> None:
        """Append one row; size in bytes, time in seconds."""
        self.kind.append(COLLECTIVES.index(kind))
        self.size.append(size)
        self.members.append(members)
        self.stride.append(stride)
        self.time.append(time)

    def columns(self) -> tuple[np.ndarray, ...]:
        """Return kind, size, members and stride as the kernel wants them."""
        return (
            np.array(self.kind, dtype=np.int64),
            np.array(self.size, dtype=np.float64),
            np.array(self.members, dtype=np.int64),
            np.array(self.stride, dtype=np.int64),
        )


def node_of_switch(bandwidth: float, adapter: float, reduces: bool) -> tuple[Network, ...]:
    """Eight devices on a switch, one adapter each."""
    return (
        Network("scale-up", "switch", 8, bandwidth, 0.6e-6, reduces),
        Network("scale-out", "fat-tree", 0, adapter, 2.7e-6),
    )


SYSTEMS = {
    "A100_SXM": node_of_switch(300e9, 25e9, False),
    "H100_SXM": node_of_switch(450e9, 50e9, True),
    "B200": node_of_switch(900e9, 50e9, True),
    "MI355X": (
        Network("scale-up", "fully-connected", 8, 537.6e9, 0.74e-6),
        Network("scale-out", "fat-tree", 0, 50e9, 2.7e-6),
    ),
    "H800 fabric": node_of_switch(450e9, 50e9, True),
}


# All-reduces of serving engines, launched as part of a graph.
ENGINES = ("sglang_graph", "vllm_graph", "trtllm")


def read_measured(path: Path, implementations: tuple[str, ...]) -> dict[str, Rows]:
    """Read the rows of some implementations, by system."""
    rows = {name: Rows() for name in SYSTEMS}
    with path.open() as file:
        for line in csv.DictReader(file):
            name, stated = line["hardware"], line["impl"]
            if name in rows and stated in implementations and line["source"].startswith("aiconf"):
                rows[name].add(
                    OPERATIONS[line["op"]],
                    float(line["bytes"]),
                    int(line["n_gpus"]),
                    1,
                    float(line["time_us"]) * 1e-6,
                )
    return rows


def read_rows(folder: Path) -> dict[str, Rows]:
    """Read the measured tables of libraries, by system."""
    rows = read_measured(folder / "measured" / "collective.csv", ("nccl",))
    with (folder / "primus" / "measured_rccl_mi355x.csv").open() as file:
        for line in csv.DictReader(file):
            rows["MI355X"].add(
                OPERATIONS[line["collective"]],
                float(line["msg_bytes"]),
                int(line["n_gpus"]),
                1,
                float(line["measured_us"]) * 1e-6,
            )
    # SimAI multiplies its ratios with 48.5 GB/s per adapter.
    path = folder / "aicb" / "measured" / "busbw_ratio_tables.csv"
    with path.open() as file:
        for line in csv.DictReader(file):
            words = line["column"].replace("Node", " ").split()
            if line["table"] != "nic" or not any(word.isdigit() for word in words):
                continue
            one_per_node = words[0] in ("Multi", "Muiti")  # spelt so in the table
            nodes = int(words[1] if one_per_node else words[0])
            if not 2 <= nodes <= 64:
                continue
            members, stride, peak = (nodes, 8, 48.5e9) if one_per_node else (8 * nodes, 1, 388e9)
            size = float(line["msg_bytes"])
            time = size / (float(line["ratio_of_peak_busbw"]) * peak) * (members - 1) / members
            rows["H800 fabric"].add("all_gather", size, members, stride, time)
    return rows


Evaluate = Callable[[tuple[Network, ...], dict[str, float], Rows], np.ndarray]


def evaluate(levels: tuple[Network, ...], constants: dict[str, float], rows: Rows) -> np.ndarray:
    """Return ln(modelled / measured) of every row."""
    table = table_of(levels, constants, "fit")
    return np.log(collective_times(*rows.columns(), table) / np.array(rows.time))


def evaluate_engines(
    levels: tuple[Network, ...], constants: dict[str, float], rows: Rows
) -> np.ndarray:
    """Return ln(modelled / measured) where engines take the fastest of their kernels."""
    table = table_of(levels, constants, "fit")
    time = serving_all_reduce_times(*rows.columns()[1:], table)
    return np.log(time / np.array(rows.time))


def fit(
    levels: tuple[Network, ...],
    constants: dict[str, float],
    keys: tuple[str, ...],
    rows: Rows,
    prior_weight: float,
    evaluate: Evaluate = evaluate,
) -> dict[str, float]:
    """Fit some constants by robust least squares in the log, drawn to their priors."""
    low = np.array([BOUNDS[key][1] for key in keys])
    high = np.array([BOUNDS[key][2] for key in keys])
    prior = np.array([constants[key] for key in keys])
    weight = np.where(np.array(rows.size) >= LARGE, 3.0, 1.0)

    def residual(unit: np.ndarray) -> np.ndarray:
        trial = constants | dict(zip(keys, low + unit * (high - low), strict=True))
        misfit = np.sqrt(weight) * evaluate(levels, trial, rows) / 0.1
        return np.concatenate([misfit, prior_weight * (unit - (prior - low) / (high - low))])

    start = np.clip((prior - low) / (high - low), 0.02, 0.98)
    best = least_squares(residual, start, bounds=(0, 1), loss="soft_l1", diff_step=1e-4)
    return constants | dict(zip(keys, (low + best.x * (high - low)).tolist(), strict=True))


def summary(error: np.ndarray) -> dict[str, float]:
    """Return count, median and p90 of the absolute error, and the bias (median)."""
    if error.size == 0:
        return {"count": 0}
    relative = np.expm1(error)
    return {
        "count": int(error.size),
        "median_absolute_error": float(np.median(np.abs(relative))),
        "p90_absolute_error": float(np.quantile(np.abs(relative), 0.9)),
        "bias": float(np.median(relative)),
    }


def report(
    levels: tuple[Network, ...],
    constants: dict[str, float],
    rows: Rows,
    evaluate: Evaluate = evaluate,
) -> dict:
    """Return residuals: all rows, large rows, and the large rows by collective and group."""
    error = evaluate(levels, constants, rows)
    size, kind, members = np.array(rows.size), np.array(rows.kind), np.array(rows.members)
    large = size >= LARGE
    groups = {
        f"{COLLECTIVES[code]} {n}": summary(error[large & (kind == code) & (members == n)])
        for code in np.unique(kind)
        for n in np.unique(members[kind == code])
    }
    return {"all": summary(error), "large": summary(error[large]), "groups": groups}


def main() -> None:
    """Fit every system and print constants and residuals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with measured/, primus/ and aicb/")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args()
    rows = read_rows(arguments.folder)
    engines = read_measured(arguments.folder / "measured" / "collective.csv", ENGINES)
    prior = {key: value[0] for key, value in BOUNDS.items()}
    document: dict[str, dict] = {}
    for name, levels in SYSTEMS.items():
        keys: tuple[str, ...] = SCALE_UP
        constants = prior | TUNED.get(name, {})
        if name == "MI355X":
            constants = prior | {"irregular_mesh_links": 0.65, "base_latency": 22e-6}
            keys = SCALE_UP + SCALE_OUT + ("irregular_mesh_links",)
        elif name == "H800 fabric":
            constants = document["H100_SXM"]["constants"]
            keys = SCALE_OUT
        elif levels[0].in_network_reduction:
            keys = SCALE_UP + SWITCH_REDUCES
        fitted = fit(levels, constants, keys, rows[name], prior_weight=2.0)
        document[name] = {"constants": fitted, **report(levels, fitted, rows[name])}
        if engines[name].time:
            fitted = fit(levels, fitted, SHOTS, engines[name], 2.0, evaluate_engines)
            document[name]["constants"] = fitted
            document[name]["engines"] = report(levels, fitted, engines[name], evaluate_engines)
    if arguments.json:
        json.dump(document, sys.stdout, indent=1)
        return
    for name, result in document.items():
        print(name)
        for key, value in result["constants"].items():
            print(f"  {key:28s} {value:.4g}")
        sections = {"all": result["all"], "large": result["large"], **result["groups"]}
        if "engines" in result:
            sections["engines"] = result["engines"]["all"]
        for label, part in sections.items():
            if part["count"]:
                print(
                    f"  {label:20s} n={part['count']:4d}"
                    f"  median {part['median_absolute_error']:6.1%}"
                    f"  p90 {part['p90_absolute_error']:6.1%}  bias {part['bias']:+6.1%}"
                )


if __name__ == "__main__":
    main()
