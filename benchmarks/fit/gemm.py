"""Fit the [calibration.gemm] constants of the families to measured matrix products.

Usage: python benchmarks/fit/gemm.py DATA [--family NAME] [--toml]

DATA is the folder with ``measured/gemm.csv``, ``measured/gemm_training.csv`` and
``primus/measured_gemm_mi355x_primusbench.csv`` (columns as in their README). Per
family a stratified sample of measured shapes is fitted (mean absolute log ratio
plus a weak pull to the priors), then all rows are scored. A quantised row holds the
quantisation of A too, which the model prices with its streaming operations.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from gemm_model import (
    CONSTANTS,
    FREE,
    FREE_QUANTISED,
    LIBRARY,
    NO_SPLIT,
    SERVING,
    Constants,
    Sample,
    base_key,
    columns_of,
    fit,
    report,
    stratified,
    toml,
)
from scipy.optimize import brentq

from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import load_hardware

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


def anchored(family: str, precision: str, key: str, constants: Constants) -> float:
    """Return the value of `key` at which the model meets the published rates."""

    def excess(value: float) -> float:
        logs = []
        for profile, (m, n, k), rate in ANCHORS[family, precision]:
            values = constants | {key: value}
            hardware = load_hardware(profile)
            times = gemm_times(hardware, precision, m, n, k, library="training", constants=values)
            logs.append(float(np.log(times.flops[0] / times.time[0] / (TYPICAL_OF_BEST * rate))))
        return float(np.mean(logs))

    _, low, high, _ = CONSTANTS[base_key(key)]
    if excess(low) * excess(high) > 0.0:  # another limit binds
        return low if abs(excess(low)) < abs(excess(high)) else high
    return float(brentq(excess, low, high, xtol=1e-16))


KERNEL_NAMES = "how the family's libraries cut a product (kernel names of cuBLAS, hipBLASLt)"
BASE_SOURCES = dict.fromkeys(
    ("accumulator_elements", "cluster_units", "fine_tiles", "array_side"), KERNEL_NAMES
) | {
    "step_bytes": "depth of a step in kernel names: 64 B on Ampere (32x5), a cache line since",
    "pipeline_stages": "stages in kernel names: 3 to 5 with cp.async, up to 8 in the pipelines "
    "of CUTLASS for Hopper and Blackwell; 2 with the registers of CDNA",
    "matrix_side": "rows of one matrix instruction: 64 (wgmma), 128 (tcgen05); 0 where any fits",
    "power_exponent": "rates at the power limit of MI300X/MI325X and B200/GB300, 0.5-0.6",
    "tile_half": "prior; free fits gave 0.0-0.7",
    "split_latency": "prior; free fits of A100, H100 and B200 gave 2.9, 2.7 and 3.2 us",
    "store_loss": "persistent kernels store a tile under the next one (free fits of H100 and B200 "
    "gave 0.02); those of Ampere do not (0.9)",
    "largest_split": "cuBLAS splits k; the quantised kernels of serving libraries (CUTLASS in "
    "SGLang, DeepGEMM) do not",
    "narrow_side": "SGLang's fp8 dispatch: 128 x 128 tiles, 64 a side up to 128 rows; else 0",
    "scale_launches": "kernels that repack scales before a product on Blackwell (DeepGEMM's packed "
    "UE8M0, the swizzled ones of nvfp4)",
}


PROFILES = {  # profile and name in the tables
    "nvidia-ampere": ("dgx-a100", "A100_SXM"),
    "nvidia-hopper": ("dgx-h100", "H100_SXM"),
    "nvidia-blackwell": ("dgx-b200", "B200"),
}
# Share of the rate in training, where kernels are those of Transformer Engine.
TRAINING_ISSUE = {
    "nvidia-hopper": {"fp8_block": 0.7064},
    "nvidia-blackwell": {"fp8_block": 0.8597, "nvfp4": 0.5809},
}


def nvidia(family: str, data: Path) -> str:
    """Fit one NVIDIA family: bf16 first, then the quantised precisions on top."""
    profile, rows = PROFILES[family]
    hardware = load_hardware(profile)
    table = pd.read_csv(data / "measured" / "gemm.csv")
    table = table[table.hardware == rows]
    half = table[table.dtype == "bf16"]
    sources = dict(BASE_SOURCES)
    sources["steady_energy_ratio"] = "prior; no long-running measurement of this family yet"
    fixed = dict(LIBRARY[family])
    if family == "nvidia-ampere":
        fixed |= {"steady_energy_ratio": 1.0, "energy_per_flop": 1.5e-12, "heat_time": 5e-3}
    sample = Sample(hardware, "bf16", columns_of(stratified(half, 3000)))
    constants = fit([sample], fixed, FREE, 1000)
    fitted = report(f"{rows} bf16", Sample(hardware, "bf16", columns_of(half)), constants)
    if family == "nvidia-blackwell":
        training = pd.read_csv(data / "measured" / "gemm_training.csv")
        training = training[training.dtype == "bf16"]
        sample = Sample(hardware, "bf16", columns_of(training), steady=True)

        def steady_error(ratio: float) -> float:
            return float(np.median(sample.log_ratio(constants | {"steady_energy_ratio": ratio})))

        constants["steady_energy_ratio"] = float(brentq(steady_error, 1.0, 2.5, xtol=1e-3))
        note = report("B200 training, steady", sample, constants)
        sources["steady_energy_ratio"] = f"SimuMax B200 training products, {note}"
    base = dict(constants)
    for precision in ("fp8", "fp8_block", "nvfp4"):
        part = table[table.dtype == precision]
        if part.empty:
            continue
        facts = NO_SPLIT | SERVING.get((family, precision), {})
        known = {f"{key}_{precision}": value for key, value in facts.items()}
        free = [f"{key}_{precision}" for key in FREE_QUANTISED]
        sample = Sample(hardware, precision, columns_of(stratified(part, 1200)), quantised=True)
        found = fit([sample], base | known, free)
        whole = Sample(hardware, precision, columns_of(part), quantised=True)
        note = report(f"{rows} {precision}", whole, found)
        constants |= {key: found[key] for key in (*known, *free)}
        sources |= {
            key: f"fit to {rows} {precision} with quantisation (aiconfigurator), {note}"
            for key in free
        }
    for precision, issue in TRAINING_ISSUE.get(family, {}).items():
        constants[f"issue_efficiency_{precision}_training"] = issue
        sources[f"issue_efficiency_{precision}_training"] = (
            f"earlier fit of the rate alone to {rows} {precision} rows; no training kernel measured"
        )
    if (family, "fp8") in ANCHORS:
        key = "issue_efficiency_fp8_training"
        constants[key] = anchored(family, "fp8", key, constants)
        sources[key] = "0.95 of MAMF fp8 (stas00/ml-engineering), and of aiconfigurator's best rows"
    return toml(constants, sources, f"fit to {rows} bf16 (aiconfigurator), {fitted}")


def tuned(table: pd.DataFrame, name: str, profile: str, dtype: str, count: int | None) -> Sample:
    """Return AITER's tuned products of a device, kernels only, without broken rows."""
    hardware, precision = load_hardware(profile), dtype.removesuffix("_rowwise")
    rows = table[(table.hardware == name) & (table.dtype == dtype)]
    rate = 2.0 * rows.m * rows.n * rows.k / (rows.time_us * 1e-6)
    rows = rows[(rate > 0.0) & (rate < hardware.device.peak(precision))]
    return Sample(
        hardware, precision, columns_of(rows if count is None else stratified(rows, count))
    )


def cdna3(data: Path, fixed: Constants, sources: dict[str, str]) -> str:
    """Fit CDNA3 to AITER's tuned block-scaled products of MI300X or MI325X.

    The bf16 rate is that of published products; the MI308X, a quarter of the units under
    the same power limit, has an issue efficiency of its own, printed here.
    """
    table = pd.read_csv(data / "measured" / "gemm.csv")
    row = ("MI300X|MI325X", "mi300x-server", "fp8_block")
    # L2 reads of 17 TB/s (rocm-origami) of the 34.4 TB/s design rate.
    fixed |= {"l2_efficiency": 0.5, "memory_efficiency": 0.8, "energy_per_flop": 1.6e-12}
    fixed |= {"overlap_loss": 0.12, "launch_latency": 2.5e-6}
    sources["l2_efficiency"] = "rocm-origami gfx942: 17 TB/s of 34.4"
    sources["memory_efficiency"] = "prior; few memory-bound rows"
    sources["launch_latency"] = "prior; the shortest rows take 3.8 us"
    sources["overlap_loss"] = "prior"
    free = ("issue_efficiency", "tile_latency", "load_latency", "store_loss")
    for key in free:
        sources.pop(key, None)
    constants = fit([tuned(table, *row, 1500)], fixed, free)
    note = report("MI300X|MI325X fp8_block", tuned(table, *row, None), constants)
    for suffix in ("fp8_block", "fp8_block_training"):
        constants[f"issue_efficiency_{suffix}"] = constants["issue_efficiency"]
        sources[f"issue_efficiency_{suffix}"] = f"fit to MI300X|MI325X fp8_block, {note}"
    constants["issue_efficiency"] = 0.85
    constants["energy_per_flop"] = anchored("amd-cdna3", "bf16", "energy_per_flop", constants)
    sources["issue_efficiency"] = "prior, between fp8_block here and bf16 of amd-cdna4"
    sources["energy_per_flop"] = "MAMF of MI300X (stas00/ml-engineering) and AMD's own, 668-708"
    for keys, dtypes in (
        (("issue_efficiency",), ("fp8_rowwise", "bf16", "int8")),
        (("issue_efficiency_fp8_block",), ("fp8_block",)),
    ):
        samples = [tuned(table, "MI308X", "mi308x-server", dtype, 800) for dtype in dtypes]
        found = fit(samples, constants, keys)
        print(f"  MI308X {keys[0]} = {found[keys[0]]:.3f}")
        for dtype in dtypes:
            whole = tuned(table, "MI308X", "mi308x-server", dtype, None)
            report(f"MI308X {dtype}", whole, found)
    return toml(constants, sources, f"fit to MI300X|MI325X fp8_block (AITER, tuned), {note}")


def amd(family: str, data: Path) -> str:
    """Fit CDNA3 (block-scaled fp8 rows, published bf16 rates) or CDNA4 (bf16 rows)."""
    sources = dict(BASE_SOURCES)
    fixed = dict(LIBRARY[family])
    fixed |= {"heat_time": 0.0, "steady_energy_ratio": 1.0, "unit_port_ratio": 2.0}
    for key in ("heat_time", "steady_energy_ratio"):
        sources[key] = "published and tuned rates of AMD parts are steady ones"
    sources["unit_port_ratio"] = "prior"
    if family == "amd-cdna3":
        return cdna3(data, fixed, sources)
    hardware = load_hardware("mi355x-server")
    table = pd.read_csv(data / "primus" / "measured_gemm_mi355x_primusbench.csv")
    table = table.rename(columns={"M": "m", "N": "n", "K": "k", "measured_us": "time_us"})
    sample = Sample(hardware, "bf16", columns_of(table[table.dtype == "bf16"]))
    priors = {
        "memory_efficiency": 0.8,
        "l2_efficiency": 0.5,
        "split_latency": 6e-6,
        "load_latency": 0.2e-6,
        "overlap_loss": 0.12,
        "store_loss": 0.1,
        "issue_efficiency": 0.9,
        "unit_port_ratio": 2.0,
    }
    sources |= dict.fromkeys(priors, "prior, as amd-cdna3")
    free = ("energy_per_flop", "tile_latency", "launch_latency")
    constants = fit([sample], fixed | priors, free)
    note = report("MI355X bf16", sample, constants)
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
