"""Compare the attention model with measured kernels, and refit its few constants.

    python benchmarks/fit_attention.py DATA_FOLDER [--fit] [--json]

DATA_FOLDER holds ``attention.csv``, ``mla.csv`` and ``attention_fwd_bwd.csv``.
Prefill rows of serving frameworks are timed with the append to the key-value
cache and with several small kernels around the attention kernel: the append is
added as bytes, the small kernels as one fixed time per framework, fitted here
and in no profile. Eager training rows carry host time in the same way.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.compute_attention import attention_device, attention_times
from perfmodel.hwprofiles import Hardware, load_hardware

PROFILES = {"A100_SXM": "dgx-a100", "H100_SXM": "dgx-h100", "B200": "dgx-b200"}

# the kernels of each device that its fastest frameworks use
KERNELS = {
    "A100_SXM": {("sglang", "flash_attention")},
    "H100_SXM": {("sglang", "fa3"), ("vllm", "vllm_flash_attn_fa3")},
    "B200": {
        ("sglang", "trtllm_mha"),
        ("vllm", "vllm_flashinfer_trtllmprefill"),
        ("sglang", "trtllm_mla"),
    },
}
TRAINING_FRAMEWORKS = {"TransformerEngine/flash-attn", "torch/pyt_cudnn", "cudnn"}

REGIMES = (
    ("<10 GF", 3e9, 1e10),
    ("<100 GF", 1e10, 1e11),
    ("<1 TF", 1e11, 1e12),
    (">=1 TF", 1e12, np.inf),
)

# constants that `--fit` moves, with their bounds
FITTED = {
    "matrix_efficiency": (0.3, 1.0),
    "overlap": (0.0, 1.0),
    "block_latency": (2e-7, 8e-6),
    "tail": (0.0, 1.0),
}

CACHE_APPEND_EFFICIENCY = 0.8
WIDEST_HEAD = 256  # wider heads run other kernels


class Rows(NamedTuple):
    """Measured calls as columns."""

    shape: np.ndarray  # int64[rows, 8]: batch, queries, keys, heads, kv heads, d_qk, d_v, window
    causal: np.ndarray  # bool[rows]
    time: np.ndarray  # [s]


def number_columns(row: dict[str, str]) -> tuple[int, ...]:
    """Return batch, queries, keys, heads, key-value heads, widths and window of a csv row."""
    heads = row["heads"]
    values = (
        row["batch"],
        row["q_len"],
        row["kv_len"],
        heads,
        row.get("kv_heads", heads),
        row["d_qk"],
        row["d_v"],
        row.get("window", "0"),
    )
    return tuple(int(value) for value in values)


def read_prefill(folder: Path, device: str, precision: str) -> Rows:
    """Return prefill rows of one device, the faster framework of each shape."""
    fastest: dict[tuple[int, ...], float] = {}
    for name in ("attention.csv", "mla.csv"):
        with (folder / name).open(newline="") as file:
            for row in csv.DictReader(file):
                chosen = (row["framework"], row["kernel"]) in KERNELS[device]
                same = row["hardware"] == device and row["dtype"] == precision == row["kv_dtype"]
                if not (chosen and same and row["phase"] == "fwd"):
                    continue
                key = (*number_columns(row), int(row.get("causal", "True") == "True"))
                if key[5] <= WIDEST_HEAD:
                    fastest[key] = min(fastest.get(key, np.inf), float(row["time_us"]) * 1e-6)
    table = np.array(list(fastest), dtype=np.int64)
    return Rows(table[:, :8], table[:, 8] > 0, np.array(list(fastest.values())))


def read_training(folder: Path, precision: str, phase: str) -> Rows:
    """Return the B200 training rows of one phase."""
    shapes, times, causal = [], [], []
    with (folder / "attention_fwd_bwd.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["framework"] not in TRAINING_FRAMEWORKS or int(row["q_len"]) < 4096:
                continue
            if row["phase"] == phase and row["dtype"] == precision:
                shapes.append(number_columns(row))
                causal.append(row["causal"] == "True")
                times.append(float(row["time_us"]) * 1e-6)
    return Rows(np.array(shapes, dtype=np.int64), np.array(causal), np.array(times))


def modelled(
    hardware: Hardware, precision: str, rows: Rows, backward: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return modelled times [s] and executed FLOP."""
    batch, queries, keys, heads, key_value_heads, width_qk, width_v, window = rows.shape.T
    result = attention_times(
        hardware,
        precision,
        batch,
        queries,
        keys,
        heads,
        key_value_heads,
        width_qk,
        width_v,
        rows.causal,
        window,
        backward,
    )
    return result.time, result.flops


def append_time(hardware: Hardware, precision: str, rows: Rows) -> np.ndarray:
    """Return the time in which keys and values are read and written once more [s]."""
    batch, _, keys, _, key_value_heads, width_qk, width_v, _ = rows.shape.T
    element = attention_device(hardware, precision).input_bytes
    size = 2.0 * element * batch * keys * key_value_heads * (width_qk + width_v)
    return size / (hardware.device.memory.bandwidth * CACHE_APPEND_EFFICIENCY)


def best_floor(model: np.ndarray, measured: np.ndarray) -> float:
    """Return the fixed time that, added to every row, leaves the least error [s]."""
    candidates = np.arange(0.0, 61e-6, 1e-6)
    errors = [np.mean(np.abs(np.log((model + floor) / measured))) for floor in candidates]
    return float(candidates[int(np.argmin(errors))])


def summary(ratio: np.ndarray, flops: np.ndarray) -> dict[str, dict[str, float]]:
    """Return errors by regime; ratio is modelled over measured."""
    groups = {}
    for name, low, high in REGIMES:
        chosen = ratio[(flops >= low) & (flops < high)]
        if chosen.size:
            error = np.abs(chosen - 1.0)
            groups[name] = {
                "count": int(chosen.size),
                "median": round(float(np.median(error)), 4),
                "mean": round(float(np.mean(error)), 4),
                "p90": round(float(np.quantile(error, 0.9)), 4),
                "geometric_mean_ratio": round(float(np.exp(np.mean(np.log(chosen)))), 4),
            }
    return groups


def refit(hardware: Hardware, rows: Rows) -> dict[str, float]:
    """Return the constants of `FITTED` that describe the prefill rows best."""
    from scipy.optimize import minimize

    from perfmodel.kernels.attention import attention_columns

    device = attention_device(hardware, "bf16")
    append = append_time(hardware, "bf16", rows)
    columns = [np.ascontiguousarray(column) for column in rows.shape.T]
    count = rows.time.size
    backward = np.zeros(count, dtype=np.bool_)
    time, flops, traffic = np.empty(count), np.empty(count), np.empty(count)
    bound = np.empty(count, dtype=np.uint8)
    bounds = np.array(list(FITTED.values()))

    def loss(point: np.ndarray) -> float:
        inside = np.clip(point, 0.0, 1.0)
        values = bounds[:, 0] + inside * (bounds[:, 1] - bounds[:, 0])
        trial = device._replace(**dict(zip(FITTED, values.tolist(), strict=True)))
        attention_columns(
            trial, *columns[:7], rows.causal, columns[7], backward, time, flops, traffic, bound
        )
        large = flops > 3e9
        model = (time + append)[large]
        measured = rows.time[large]
        error = np.log((model + best_floor(model, measured)) / measured)
        return float(np.mean(np.abs(error))) + 0.1 * float(np.sum(np.abs(point - inside)))

    start = [(getattr(device, name) - low) / (high - low) for name, (low, high) in FITTED.items()]
    best = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 250})
    values = bounds[:, 0] + np.clip(best.x, 0.0, 1.0) * (bounds[:, 1] - bounds[:, 0])
    return {name: round(float(value), 9) for name, value in zip(FITTED, values, strict=True)}


def main() -> None:
    """Print residuals by device, phase and regime."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the measured tables")
    parser.add_argument("--fit", action="store_true", help="also refit the constants")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()

    report: dict[str, Any] = {}
    for device, profile in PROFILES.items():
        hardware = load_hardware(profile)
        for precision in ("bf16", "fp8"):
            if precision == "fp8" and "fp8" not in hardware.device.peak_flops:
                continue
            rows = read_prefill(arguments.folder, device, precision)
            time, flops = modelled(hardware, precision, rows, False)
            model = time + append_time(hardware, precision, rows)
            large = flops > 3e9
            floor = best_floor(model[large], rows.time[large])
            entry: dict[str, Any] = {
                "floor": floor,
                "regimes": summary((model + floor) / rows.time, flops),
            }
            if arguments.fit and precision == "bf16":
                entry["refitted"] = refit(hardware, rows)
            report[f"{device} {precision} prefill"] = entry
    hardware = load_hardware(PROFILES["B200"])
    for precision in ("bf16", "fp8"):
        for phase in ("fwd", "bwd"):
            rows = read_training(arguments.folder, precision, phase)
            time, flops = modelled(hardware, precision, rows, phase == "bwd")
            floor = best_floor(time, rows.time)
            report[f"B200 {precision} training {phase}"] = {
                "floor": floor,
                "regimes": summary((time + floor) / rows.time, flops),
            }
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    for name, entry in report.items():
        print(f"{name}: fixed time outside the model {entry['floor'] * 1e6:.0f} us")
        for regime, errors in entry["regimes"].items():
            print(
                f"  {regime:8} n {errors['count']:4}  median {errors['median']:6.1%}"
                f"  mean {errors['mean']:6.1%}  p90 {errors['p90']:6.1%}"
                f"  modelled/measured {errors['geometric_mean_ratio']:.3f}"
            )
        if "refitted" in entry:
            print(
                "  refitted:",
                ", ".join(f"{key} {value:.4g}" for key, value in entry["refitted"].items()),
            )


if __name__ == "__main__":
    main()
