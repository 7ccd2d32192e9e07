"""Fit the attention constants of a family to the reference rows of its development GPU.

    python benchmarks/fit/attention.py DATA_FOLDER               errors as they are
    python benchmarks/fit/attention.py DATA_FOLDER --fit         fitted constants and errors
    python benchmarks/fit/attention.py DATA_FOLDER --transfer    each GPU from the other two

DATA_FOLDER holds ``attention.csv``, ``mla.csv`` and ``attention_fwd_bwd.csv``. What
``perfmodel calibrate`` does for one table, this does for prefill, decode, latent attention
and training tables of one GPU together, each with the same weight: they share constants.
Only constants that the profile declares adjustable move, within their bounds, held by
their priors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.measured.cases import CaseGroup, read_cases
from perfmodel.measured.kinds import attention, mla
from perfmodel.measured.problem import with_constants
from perfmodel.measured.rows import MeasuredRow, read_rows

PROFILES = {"A100_SXM": "dgx-a100", "H100_SXM": "dgx-h100", "B200": "dgx-b200"}

# From which of the others a GPU that was never measured takes its constants: those whose
# copies are as asynchronous as its own, where there are any.
NEAREST = {"A100_SXM": ("H100_SXM", "B200"), "H100_SXM": ("B200",), "B200": ("H100_SXM",)}

# Name of a set of rows -> table, framework, kernels ("" for all), phase, dtype, kv_dtype.
# They are the reference rows: SGLang with the attention library of the device's generation.
COMMON = {
    "prefill": ("attention", "sglang", ("fa3", "trtllm_mha", "flash_attention"), "fwd", "bf16"),
    "decode": ("attention", "sglang", ("fa3", "trtllm_mha", "flash_attention"), "decode", "bf16"),
    "prefill fp8": ("attention", "sglang", ("fa3", "trtllm_mha"), "fwd", "fp8"),
    "decode fp8": ("attention", "sglang", ("fa3", "trtllm_mha"), "decode", "fp8"),
    "portable prefill": ("attention", "sglang", ("triton",), "fwd", "bf16"),
    "portable prefill fp8": ("attention", "sglang", ("triton",), "fwd", "fp8"),
    "portable decode": ("attention", "sglang", ("triton",), "decode", "bf16"),
    "portable decode fp8": ("attention", "sglang", ("triton",), "decode", "fp8"),
    "encoder": (
        "attention",
        "sglang",
        ("flash_attention_v3", "flash_attention_v4"),
        "fwd",
        "bf16",
    ),
    "latent decode": ("mla", "sglang", ("flash_attention", "trtllm_mla"), "decode", "bf16"),
    "latent decode fp8": ("mla", "sglang", ("trtllm_mla",), "decode", "fp8"),
    "latent prefill": ("mla", "sglang", ("trtllm_mla",), "fwd", "bf16"),
    "latent prefill fp8": ("mla", "sglang", ("trtllm_mla",), "fwd", "fp8"),
    "training forward": (
        "attention_fwd_bwd",
        "",
        ("TransformerEngine/flash-attn", "torch/pyt_cudnn", "cudnn"),
        "fwd",
        "",
    ),
    "training backward": (
        "attention_fwd_bwd",
        "",
        ("TransformerEngine/flash-attn", "torch/pyt_cudnn", "cudnn"),
        "bwd",
        "",
    ),
}
# Word in the name of a set -> start of the keys that only such sets determine.
NEEDS = {"portable": "portable_", "backward": "backward_", "fp8": "fp8_", "latent": "latent_"}
WEIGHTS = {"prefill": 1.5, "decode": 1.5, "latent decode": 1.0, "training forward": 0.0}
ROWS_PER_SET = 250
SEED = 1
LOSS_SCALE = 0.1  # error from which a row counts linearly
PRIOR_WEIGHT = 0.05  # per width of the bounds, against the mean of a set's rows


@dataclass(frozen=True)
class Rows:
    """Reference rows of one set on one GPU."""

    name: str
    groups: list[CaseGroup]
    regimes: np.ndarray
    measured: np.ndarray

    def ratios(self, hardware: Hardware, constants: Mapping[str, float]) -> np.ndarray:
        """Return ln(predicted / measured) of every row."""
        found = np.empty(self.measured.size)
        changed = with_constants(hardware, "attention", constants)
        for group in self.groups:
            time = attention.price(changed, group.variant, group.columns)["time"]
            found[group.rows] = np.log(time)
        return found - np.log(self.measured)


def reference_rows(folder: Path, device: str, name: str) -> list[MeasuredRow]:
    """Return the rows of one set."""
    table, framework, kernels, phase, cache = COMMON[name]
    kind = mla.KIND if table == "mla" else attention.KIND
    _, rows = read_rows(folder / f"{table}.csv", kind.needed, kind.measurements)
    found = []
    for row in rows:
        library = row.text("framework") if table == "attention_fwd_bwd" else row.text("kernel")
        same = row.text("hardware") == device and row.text("phase") == phase
        same = same and library in kernels and framework in ("", row.text("framework"))
        if same and cache in ("", row.text("kv_dtype") or row.text("dtype")):
            found.append(MeasuredRow({**row.cells, **kind.derived(row)}, row.file, row.line))
    return found


def read_sets(folder: Path, device: str, limit: int = 0) -> list[Rows]:
    """Return all sets of a GPU that have rows, each with at most `limit` rows (0: all)."""
    sets = []
    for name, (table, *_) in COMMON.items():
        rows = reference_rows(folder, device, name)
        if limit and len(rows) > limit:
            chosen = np.random.default_rng(SEED).permutation(len(rows))[:limit]
            rows = [rows[i] for i in sorted(chosen)]
        kind = mla.KIND if table == "mla" else attention.KIND
        groups, skipped = read_cases(rows, kind.case_of)
        if not groups or skipped:
            rows = [row for i, row in enumerate(rows) if i not in skipped]
            groups, _ = read_cases(rows, kind.case_of)
        if rows:
            measured = np.array([float(row.text("time_us")) * 1e-6 for row in rows])
            regimes = np.array([row.text("regime") for row in rows])
            sets.append(Rows(name, groups, regimes, measured))
    return sets


def adjustable(hardware: Hardware, sets: Sequence[Rows]) -> list[str]:
    """Return the keys that a fit may move, and about which the sets say something."""
    names = " ".join(rows.name for rows in sets)
    silent = [key for word, key in NEEDS.items() if word not in names]
    return [
        key
        for key, entry in hardware.calibration["attention"].items()
        if entry.adjustable and not key.startswith(tuple(silent))
    ]


def fit(hardware: Hardware, sets: Sequence[Rows], keys: Sequence[str]) -> dict[str, float]:
    """Return the constants that fit best."""
    from scipy.optimize import least_squares

    entries = [hardware.calibration["attention"][key] for key in keys]
    low = np.array([entry.low for entry in entries])
    width = np.array([entry.high for entry in entries]) - low
    prior = (np.array([entry.prior for entry in entries]) - low) / width
    start = np.clip((np.array([entry.value for entry in entries]) - low) / width, 0.01, 0.99)

    def constants(point: np.ndarray) -> dict[str, float]:
        return dict(zip(keys, (low + point * width).tolist(), strict=True))

    def residuals(point: np.ndarray) -> np.ndarray:
        parts = [PRIOR_WEIGHT * (point - prior)]
        for rows in sets:
            weight = WEIGHTS.get(rows.name, 1.0) / np.sqrt(rows.measured.size)
            parts.append(weight * rows.ratios(hardware, constants(point)))
        return np.concatenate(parts)

    scale = LOSS_SCALE / np.sqrt(ROWS_PER_SET)
    found = least_squares(
        residuals,
        start,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=scale,
        diff_step=1e-3,
        max_nfev=40,
    )
    return constants(found.x)


def fit_in_turn(hardware: Hardware, sets: Sequence[Rows], keys: Sequence[str]) -> dict[str, float]:
    """Fit the libraries' own kernels first, then what portable kernels do differently."""
    constants: dict[str, float] = {}
    for portable in (False, True):
        chosen = [rows for rows in sets if rows.name.startswith("portable") == portable]
        moved = [key for key in keys if key.startswith("portable_") == portable]
        if chosen and moved:
            constants |= fit(with_constants(hardware, "attention", constants), chosen, moved)
    return constants


def errors(ratios: np.ndarray) -> dict[str, float]:
    """Return error statistics."""
    error = np.expm1(ratios)
    absolute = np.abs(error)
    return {
        "count": int(error.size),
        "median": float(np.median(absolute)),
        "mean": float(absolute.mean()),
        "p90": float(np.percentile(absolute, 90)),
        "bias": float(error.mean()),
    }


def judge(
    hardware: Hardware, sets: Sequence[Rows], constants: Mapping[str, float]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the errors of every set and regime."""
    found = {}
    for rows in sets:
        ratios = rows.ratios(hardware, constants)
        found[rows.name] = {"all": errors(ratios)} | {
            regime: errors(ratios[rows.regimes == regime])
            for regime in ("small", "middle", "large")
            if (rows.regimes == regime).any()
        }
    return found


def mean_constants(
    hardware: Hardware, others: Sequence[Hardware], keys: Sequence[str]
) -> dict[str, float]:
    """Return the constants of a device that was never measured.

    Its own priors, which follow from how its generation works (Ampere has no bulk copies), times
    the mean ratio of value to prior of the others; geometric where all are above 0.
    """
    found = {}
    for key in keys:
        entries = [other.calibration["attention"].get(key) for other in others]
        known = [entry for entry in entries if entry is not None]
        own = hardware.calibration["attention"][key].prior
        if known and own > 0.0 and min(entry.value * entry.prior for entry in known) > 0.0:
            ratio = np.mean([np.log(entry.value / entry.prior) for entry in known])
            found[key] = own * float(np.exp(ratio))
        elif known:
            found[key] = float(np.mean([entry.value for entry in known]))
        else:
            found[key] = own
    return found


def show(device: str, found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Print a table."""
    for name, regimes in found.items():
        for regime, numbers in regimes.items():
            print(
                f"{device:9} {name if regime == 'all' else '':19} {regime:7} "
                f"{numbers['count']:5d}  median {numbers['median']:6.1%}  "
                f"mean {numbers['mean']:6.1%}  p90 {numbers['p90']:6.1%}  "
                f"bias {numbers['bias']:+6.1%}"
            )


def main() -> None:
    """Fit or judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=PROFILES, action="append")
    parser.add_argument("--fit", action="store_true", help="fit before judging")
    parser.add_argument("--transfer", action="store_true", help="constants of the other GPUs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    hardware = {device: load_hardware(name) for device, name in PROFILES.items()}
    result = {}
    for device in arguments.device or PROFILES:
        every = read_sets(arguments.folder, device)
        keys = adjustable(hardware[device], every)
        constants: dict[str, float] = {}
        if arguments.transfer:
            others = [hardware[name] for name in NEAREST[device]]
            constants = mean_constants(hardware[device], others, keys)
        elif arguments.fit:
            sets = read_sets(arguments.folder, device, ROWS_PER_SET)
            constants = fit_in_turn(hardware[device], sets, keys)
        found = judge(hardware[device], every, constants)
        result[device] = {"constants": constants, "errors": found}
        if not arguments.json:
            for key, value in constants.items():
                print(f"{device:9} {key} = {value:.4g}")
            show(device, found)
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
