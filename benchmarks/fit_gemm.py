"""Fit the [calibration.gemm] constants of the families to measured matrix products.

Usage: python benchmarks/fit_gemm.py DATA [--family NAME] [--toml]

DATA is the folder with ``measured/gemm.csv``, ``measured/gemm_training.csv`` and
``primus/measured_gemm_mi355x_primusbench.csv`` (columns as in their README). Per
family a stratified sample of measured shapes is fitted (mean absolute log ratio
plus a weak pull to the priors), then all rows are scored. A quantised row holds the
quantisation of A too; the fit prices it as ``q0 + 3 m k / (q1 bandwidth)``, which is
no part of the product's own constants.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from scipy.optimize import brentq, minimize

from perfmodel.compute_gemm import gemm_times
from perfmodel.hwprofiles import Hardware, load_hardware

Columns = dict[str, np.ndarray]
Constants = dict[str, float]

# key: prior, low, high, unit
CONSTANTS: dict[str, tuple[float, float, float, str]] = {
    "issue_efficiency": (0.95, 0.3, 1.0, ""),
    "energy_per_flop": (0.8e-12, 0.2e-12, 3e-12, "J"),
    "power_exponent": (0.55, 0.33, 1.0, ""),
    "steady_energy_ratio": (1.4, 1.0, 2.5, ""),
    "heat_time": (1e-3, 0.0, 1e-2, "s"),
    "l2_efficiency": (1.0, 0.1, 3.0, ""),
    "unit_port_ratio": (2.0, 1.0, 6.0, ""),
    "memory_efficiency": (0.88, 0.6, 0.97, ""),
    "tile_half": (1.0, 0.0, 40.0, ""),
    "launch_latency": (2e-6, 0.3e-6, 9e-6, "s"),
    "tile_latency": (0.3e-6, 0.01e-6, 4e-6, "s"),
    "split_latency": (2.5e-6, 0.2e-6, 8e-6, "s"),
    "step_latency": (0.08e-6, 0.005e-6, 0.6e-6, "s"),
    "overlap_loss": (0.12, 0.0, 0.3, ""),
    "store_loss": (0.2, 0.0, 0.8, ""),
    "accumulator_elements": (32768.0, 4096.0, 8388608.0, ""),
    "cluster_units": (1.0, 1.0, 8.0, ""),
    "fine_tiles": (0.0, 0.0, 1.0, ""),
    "array_side": (0.0, 0.0, 512.0, ""),
}
FREE: tuple[str, ...] = (
    "energy_per_flop",
    "issue_efficiency",
    "l2_efficiency",
    "unit_port_ratio",
    "memory_efficiency",
    "launch_latency",
    "tile_latency",
    "split_latency",
    "step_latency",
    "overlap_loss",
    "store_loss",
)
LIBRARY = {  # how the libraries of a family cut a product; not fitted
    "nvidia-ampere": {"accumulator_elements": 32768.0, "cluster_units": 1.0, "fine_tiles": 0.0},
    "nvidia-hopper": {"accumulator_elements": 32768.0, "cluster_units": 2.0, "fine_tiles": 1.0},
    "nvidia-blackwell": {"accumulator_elements": 32768.0, "cluster_units": 2.0, "fine_tiles": 1.0},
    "amd-cdna3": {"accumulator_elements": 65536.0, "cluster_units": 1.0, "fine_tiles": 1.0},
    "amd-cdna4": {"accumulator_elements": 65536.0, "cluster_units": 1.0, "fine_tiles": 1.0},
}
# Published best rates of one shape [FLOP/s]: stas00/ml-engineering MAMF table, and
# AMD's achievable-FLOPs table (MI300X, MI325X). MAMF searches shapes for the best, so
# that a typical shape reaches about 0.95 of it.
TYPICAL_OF_BEST = 0.95
ANCHORS: dict[tuple[str, str], list[tuple[str, tuple[float, float, float], float]]] = {
    ("nvidia-hopper", "fp8"): [("dgx-h100", (1024, 9216, 14336), 1402.6e12)],
    ("nvidia-blackwell", "fp8"): [
        ("dgx-b200", (15360, 4096, 3072), 3432.5e12),
        # Best one per cent of TensorRT-LLM's rows: 0.66 of 4500 TFLOP/s.
        ("dgx-b200", (8192, 8192, 8192), 2970e12),
    ],
    ("amd-cdna3", "bf16"): [
        ("mi300x-server", (4096, 4864, 32896), 708e12 / TYPICAL_OF_BEST),
        ("mi300x-server", (10240, 15360, 8192), 668.4e12 / TYPICAL_OF_BEST),
    ],
}


def stratified(table: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return about `count` rows, spread evenly over decades of work and ranges of m."""
    work = np.floor(np.log10(2.0 * table.m * table.n * table.k))
    rows = np.digitize(table.m, [17, 65, 512, 2048, 8192])
    groups = table.groupby([work, rows])
    share = max(4, count // groups.ngroups)
    return pd.concat([part.sample(min(len(part), share), random_state=0) for _, part in groups])


def columns_of(table: pd.DataFrame) -> Columns:
    """Return the float columns that the model needs, and the measured time [s]."""
    columns = {key: table[key].to_numpy(float) for key in ("m", "n", "k")}
    kernel = table["kernel"] if "kernel" in table else pd.Series([""] * len(table))
    columns["batch"] = table["batch"].to_numpy(float) if "batch" in table else np.ones(len(table))
    columns["output_bytes"] = np.where(kernel.str.contains("out=fp32"), 4.0, 2.0)
    columns["accumulate"] = kernel.str.contains("accumulate=True").to_numpy(bool)
    columns["measured"] = table.time_us.to_numpy(float) * 1e-6
    return columns


def modelled(
    hardware: Hardware, precision: str, columns: Columns, constants: Constants, steady: bool = False
) -> np.ndarray:
    """Return the model's times [s], shape (shape,)."""
    sizes = {key: value for key, value in columns.items() if key != "measured"}
    return gemm_times(hardware, precision, **sizes, constants=constants, steady=steady).time


def prior_pull(key: str, value: float) -> float:
    """Return a small penalty that keeps a constant near its prior where data is silent."""
    prior, low, high, _ = CONSTANTS[key]
    return 2e-4 * ((value - prior) / (high - low)) ** 2


def search(loss: Callable[[np.ndarray], float], start: np.ndarray, evaluations: int) -> np.ndarray:
    """Return the minimum of `loss` over logits, by Nelder-Mead with one restart."""
    for _ in range(2):
        simplex = np.vstack([start, start + 0.6 * np.eye(len(start))])
        start = minimize(
            loss,
            start,
            method="Nelder-Mead",
            options={"maxfev": evaluations, "adaptive": True, "initial_simplex": simplex},
        ).x
    return start


def fit(
    hardware: Hardware,
    precision: str,
    columns: Columns,
    fixed: Constants,
    free: tuple[str, ...],
    evaluations: int = 600,
) -> Constants:
    """Return all constants, the `free` ones fitted and the others as in `fixed`."""

    def constants(point: np.ndarray) -> Constants:
        values = {key: prior for key, (prior, *_) in CONSTANTS.items()} | fixed
        for key, logit in zip(free, point, strict=True):
            _, low, high, _ = CONSTANTS[key]
            values[key] = low + (high - low) / (1.0 + float(np.exp(-logit)))
        return values

    def loss(point: np.ndarray) -> float:
        values = constants(point)
        times = modelled(hardware, precision, columns, values)
        error = float(np.mean(np.abs(np.log(times / columns["measured"]))))
        return error + sum(prior_pull(key, values[key]) for key in free)

    start = []
    for key in free:
        prior, low, high, _ = CONSTANTS[key]
        place = float(np.clip((fixed.get(key, prior) - low) / (high - low), 0.03, 0.97))
        start.append(np.log(place / (1.0 - place)))
    return constants(search(loss, np.array(start), evaluations))


def fit_quantised(
    hardware: Hardware, precision: str, columns: Columns, constants: Constants, rate_known: bool
) -> tuple[Constants, tuple[float, float]]:
    """Fit a quantised precision: its issue efficiency, and the quantising pass."""
    bandwidth = hardware.device.memory.bandwidth

    def parts(point: np.ndarray) -> tuple[Constants, tuple[float, float]]:
        shares = 1.0 / (1.0 + np.exp(-point))
        values = dict(constants)
        if not rate_known:
            values[f"issue_efficiency_{precision}"] = float(0.3 + 0.7 * shares[2])
        return values, (1e-6 + 8e-6 * shares[0], 0.1 + 1.4 * shares[1])

    def loss(point: np.ndarray) -> float:
        values, passes = parts(point)
        times = modelled(hardware, precision, columns, values)
        times = times + quantise(columns, bandwidth, passes)
        return float(np.mean(np.abs(np.log(times / columns["measured"]))))

    return parts(search(loss, np.zeros(2 if rate_known else 3), 250))


def quantise(columns: Columns, bandwidth: float, passes: tuple[float, float]) -> np.ndarray:
    """Return the time of a dynamic 8-bit quantisation of A [s]: 3 bytes per element."""
    return passes[0] + 3.0 * columns["m"] * columns["k"] / (passes[1] * bandwidth)


def anchored(family: str, precision: str, key: str, constants: Constants) -> float:
    """Return the value of `key` at which the model meets the published rates."""

    def excess(value: float) -> float:
        logs = []
        for profile, (m, n, k), rate in ANCHORS[family, precision]:
            values = constants | {key: value}
            times = gemm_times(load_hardware(profile), precision, m, n, k, constants=values)
            logs.append(float(np.log(times.flops[0] / times.time[0] / (TYPICAL_OF_BEST * rate))))
        return float(np.mean(logs))

    _, low, high, _ = CONSTANTS[base_key(key)]
    if excess(low) * excess(high) > 0.0:  # another limit binds
        return low if abs(excess(low)) < abs(excess(high)) else high
    return float(brentq(excess, low, high, xtol=1e-16))


def base_key(key: str) -> str:
    """Return `key` without the precision that it is specific to."""
    return next(name for name in CONSTANTS if key == name or key.startswith(name + "_"))


def report(title: str, columns: Columns, times: np.ndarray) -> str:
    """Print error by range of m; return the short form that goes into `source`."""
    log = np.log(times / columns["measured"])
    error = np.abs(np.expm1(log))
    m = columns["m"]
    ranges = {
        "all": m > 0,
        "m<=64": m <= 64,
        "64<m<2048": (m > 64) & (m < 2048),
        "m>=2048": m >= 2048,
        "m>=2048, >0.1 TFLOP": (m >= 2048) & (m * columns["n"] * columns["k"] > 5e10),
    }
    for name, chosen in ranges.items():
        if chosen.any():
            print(
                f"{title:24s} {name:20s} n={chosen.sum():5d}"
                f"  median {np.median(error[chosen]):6.1%}"
                f"  mean {error[chosen].mean():6.1%}  p90 {np.quantile(error[chosen], 0.9):6.1%}"
                f"  bias {np.median(log[chosen]):+6.1%}"
            )
    return f"median {np.median(error):.1%}, mean {error.mean():.1%} over {len(m)} rows"


def rounded(value: float) -> str:
    """Return four significant digits, whole numbers in full."""
    return f"{value:.0f}" if value == round(value) and value >= 1.0 else f"{value:.4g}"


def toml(constants: Constants, sources: dict[str, str], default: str) -> str:
    """Return the ``[calibration.gemm]`` table as text."""
    lines = ["[calibration.gemm]"]
    for key, value in constants.items():
        prior, low, high, unit = CONSTANTS[base_key(key)]
        source = sources.get(key, default)
        unit_text = f'unit = "{unit}", ' if unit else ""
        lines.append(
            f"{key} = {{ value = {rounded(value)}, prior = {prior:g}, low = {low:g}, "
            f'high = {high:g}, {unit_text}source = "{source}" }}'
        )
    return "\n".join(lines)


LIBRARY_SOURCE = "how the family's libraries cut a product (kernel names of cuBLAS, hipBLASLt)"
BASE_SOURCES = dict.fromkeys(
    ("accumulator_elements", "cluster_units", "fine_tiles", "array_side"), LIBRARY_SOURCE
) | {
    "power_exponent": "rates at the power limit of MI300X/MI325X and B200/GB300, 0.5-0.6",
    "heat_time": "prior; free fits of A100, H100 and B200 gave 0.75, 0.9 and 1.4 ms",
    "tile_half": "prior; free fits gave 0.4-0.7",
}


def nvidia(family: str, data: Path) -> str:
    """Fit one NVIDIA family: bf16 first, then the quantised precisions on top."""
    profile, rows = {
        "nvidia-ampere": ("dgx-a100", "A100_SXM"),
        "nvidia-hopper": ("dgx-h100", "H100_SXM"),
        "nvidia-blackwell": ("dgx-b200", "B200"),
    }[family]
    hardware = load_hardware(profile)
    table = pd.read_csv(data / "measured" / "gemm.csv")
    table = table[table.hardware == rows]
    half = table[table.dtype == "bf16"]
    fixed = dict(LIBRARY[family])
    free = FREE
    sources = dict(BASE_SOURCES)
    if family == "nvidia-ampere":
        free = tuple(key for key in FREE if key != "energy_per_flop")
        # A 400 W board doesn't feel its limit; 300 W boards reach 7 % less (MAMF).
        fixed |= {"energy_per_flop": 1.1e-12, "steady_energy_ratio": 1.1}
        sources["energy_per_flop"] = "MAMF of A100 PCIe over SXM (stas00/ml-engineering)"
    constants = fit(hardware, "bf16", columns_of(stratified(half, 1500)), fixed, free)
    whole = columns_of(half)
    fitted = report(f"{rows} bf16", whole, modelled(hardware, "bf16", whole, constants))
    sources["steady_energy_ratio"] = "prior; no long-running measurement of this family yet"
    if family == "nvidia-blackwell":
        rows_of_training = pd.read_csv(data / "measured" / "gemm_training.csv")
        training = columns_of(rows_of_training[rows_of_training.dtype == "bf16"])

        def steady_error(ratio: float) -> float:
            values = constants | {"steady_energy_ratio": ratio}
            times = modelled(hardware, "bf16", training, values, steady=True)
            return float(np.median(np.log(times / training["measured"])))

        constants["steady_energy_ratio"] = float(brentq(steady_error, 1.0, 2.5, xtol=1e-3))
        times = modelled(hardware, "bf16", training, constants, steady=True)
        note = report("B200 training, steady", training, times)
        sources["steady_energy_ratio"] = f"SimuMax B200 training products, {note}"
    for precision in ("fp8", "fp8_block", "nvfp4"):
        part = table[table.dtype == precision]
        if part.empty:
            continue
        known = (family, precision) in ANCHORS
        key = f"issue_efficiency_{precision}"
        if known:
            constants[key] = anchored(family, precision, key, constants)
            sources[key] = (
                "0.95 of MAMF fp8 (stas00/ml-engineering), and of aiconfigurator's best rows"
            )
        constants, passes = fit_quantised(
            hardware, precision, columns_of(stratified(part, 1000)), constants, known
        )
        whole = columns_of(part)
        times = modelled(hardware, precision, whole, constants)
        times = times + quantise(whole, hardware.device.memory.bandwidth, passes)
        note = report(f"{rows} {precision}", whole, times)
        print(f"  quantise A: {passes[0] * 1e6:.2f} us + 3 m k / {passes[1]:.2f} of bandwidth")
        sources.setdefault(key, f"fit to {rows} {precision} with quantisation, {note}")
    return toml(constants, sources, f"fit to {rows} bf16 (aiconfigurator), {fitted}")


def amd(family: str, data: Path) -> str:
    """Fit CDNA3 (block-scaled fp8 rows, published bf16 rates) or CDNA4 (bf16 rows)."""
    sources = dict(BASE_SOURCES)
    fixed = dict(LIBRARY[family])
    fixed |= {"heat_time": 0.0, "steady_energy_ratio": 1.0, "unit_port_ratio": 2.0}
    for key in ("heat_time", "steady_energy_ratio"):
        sources[key] = "published and tuned rates of AMD parts are steady ones"
    if family == "amd-cdna3":
        hardware = load_hardware("mi300x-server")
        table = pd.read_csv(data / "measured" / "gemm.csv")
        table = table[(table.hardware == "MI300X|MI325X") & (table.dtype == "fp8_block")]
        # L2 reads of 17 TB/s (rocm-origami) of the 34.4 TB/s design rate.
        fixed |= {"l2_efficiency": 0.5, "memory_efficiency": 0.8, "energy_per_flop": 1.6e-12}
        fixed |= {"overlap_loss": 0.12, "launch_latency": 2.5e-6}
        sources["l2_efficiency"] = "rocm-origami gfx942: 17 TB/s of 34.4"
        sources["memory_efficiency"] = "prior; few memory-bound rows"
        sources["launch_latency"] = "prior; the shortest rows take 3.8 us"
        sources["overlap_loss"] = "prior"
        free: tuple[str, ...] = (
            "issue_efficiency", "tile_latency", "split_latency", "step_latency", "store_loss",
        )  # fmt: skip
        columns = columns_of(stratified(table, 1500))
        constants = fit(hardware, "fp8_block", columns, fixed, free)
        constants["issue_efficiency_fp8_block"] = constants["issue_efficiency"]
        constants["issue_efficiency"] = 0.85
        constants["energy_per_flop"] = anchored(family, "bf16", "energy_per_flop", constants)
        sources["issue_efficiency"] = "prior, between fp8_block here and bf16 of amd-cdna4"
        sources["energy_per_flop"] = "MAMF of MI300X (stas00/ml-engineering) and AMD's own, 668-708"
        whole = columns_of(table)
        times = modelled(hardware, "fp8_block", whole, constants)
        note = report("MI300X|MI325X fp8_block", whole, times)
        return toml(constants, sources, f"fit to MI300X|MI325X fp8_block (aiter, tuned), {note}")
    hardware = load_hardware("mi355x-server")
    table = pd.read_csv(data / "primus" / "measured_gemm_mi355x_primusbench.csv")
    table = table.rename(columns={"M": "m", "N": "n", "K": "k", "measured_us": "time_us"})
    columns = columns_of(table[table.dtype == "bf16"])
    priors = {
        "memory_efficiency": 0.8,
        "l2_efficiency": 0.5,
        "split_latency": 6e-6,
        "step_latency": 0.1e-6,
        "overlap_loss": 0.12,
        "store_loss": 0.1,
        "issue_efficiency": 0.9,
        "unit_port_ratio": 2.0,
    }
    sources |= dict.fromkeys(priors, "prior, as amd-cdna3")
    free = ("energy_per_flop", "tile_latency", "launch_latency")
    constants = fit(hardware, "bf16", columns, fixed | priors, free)
    note = report("MI355X bf16", columns, modelled(hardware, "bf16", columns, constants))
    print(f"  launch latency of the bench {constants['launch_latency'] * 1e6:.2f} us")
    constants["launch_latency"] = 2.5e-6
    sources["launch_latency"] = "as amd-cdna3; the bench's own value holds its Python loop"
    return toml(constants, sources, f"fit to MI355X bf16 (Primus bench), {note}")


def main(arguments: list[str] | None = None) -> int:
    """Fit the named family or all, and print residuals and tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, help="folder with measured/ and primus/")
    parser.add_argument("--family", choices=sorted(LIBRARY), action="append")
    parser.add_argument("--toml", action="store_true", help="print the [calibration.gemm] tables")
    options = parser.parse_args(arguments)
    for family in options.family or sorted(LIBRARY):
        table = (nvidia if family.startswith("nvidia") else amd)(family, options.data)
        if options.toml:
            print(f"# {family}\n{table}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
