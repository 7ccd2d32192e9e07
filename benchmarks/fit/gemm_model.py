"""How the [calibration.gemm] constants are fitted: their bounds, the search, the report.

Shared by ``fit_gemm.py`` (one family from its own rows) and ``transfer_gemm.py`` (a
device from the rows of others).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from scipy.optimize import minimize

from perfmodel.compute.gemm import gemm_times, quantised_gemm_times
from perfmodel.hwprofiles import Hardware

Columns = dict[str, np.ndarray]
Constants = dict[str, float]

# key: prior, low, high, unit
CONSTANTS: dict[str, tuple[float, float, float, str]] = {
    "issue_efficiency": (0.95, 0.3, 1.0, ""),
    "energy_per_flop": (1.0e-12, 0.2e-12, 2e-12, "J"),
    "power_exponent": (0.55, 0.33, 1.0, ""),
    "steady_energy_ratio": (1.4, 1.0, 2.5, ""),
    "heat_time": (1e-3, 0.0, 1e-2, "s"),
    "l2_efficiency": (0.9, 0.1, 1.1, ""),
    "unit_port_ratio": (2.0, 0.5, 6.0, ""),
    "memory_efficiency": (0.88, 0.6, 0.97, ""),
    "tile_half": (1.0, 0.0, 40.0, ""),
    "launch_latency": (2e-6, 0.3e-6, 9e-6, "s"),
    "tile_latency": (0.5e-6, 0.0, 4e-6, "s"),
    "split_latency": (2.9e-6, 0.2e-6, 8e-6, "s"),
    "load_latency": (0.6e-6, 0.0, 2e-6, "s"),
    "overlap_loss": (0.15, 0.0, 0.4, ""),
    "store_loss": (0.05, 0.0, 1.0, ""),
    "accumulator_elements": (32768.0, 4096.0, 8388608.0, ""),
    "cluster_units": (1.0, 1.0, 8.0, ""),
    "fine_tiles": (0.0, 0.0, 1.0, ""),
    "step_bytes": (128.0, 32.0, 512.0, "B"),
    "pipeline_stages": (8.0, 1.0, 64.0, ""),
    "matrix_side": (0.0, 0.0, 256.0, ""),
    "narrow_side": (0.0, 0.0, 128.0, ""),
    "largest_split": (32.0, 1.0, 32.0, ""),
    "scale_launches": (0.0, 0.0, 8.0, ""),
    "array_side": (0.0, 0.0, 512.0, ""),
}
FREE: tuple[str, ...] = (
    "energy_per_flop",
    "heat_time",
    "issue_efficiency",
    "l2_efficiency",
    "unit_port_ratio",
    "memory_efficiency",
    "launch_latency",
    "tile_latency",
    "load_latency",
    "overlap_loss",
)
FREE_QUANTISED: tuple[str, ...] = (
    "energy_per_flop",
    "heat_time",
    "issue_efficiency",
    "l2_efficiency",
    "launch_latency",
    "tile_latency",
    "load_latency",
    "overlap_loss",
)
ADJUSTABLE = {*FREE, *FREE_QUANTISED}
GENERATORS = {"accumulator_elements": 32768.0, "fine_tiles": 1.0, "pipeline_stages": 8.0}
AMD = GENERATORS | {"accumulator_elements": 65536.0, "pipeline_stages": 2.0}
LIBRARY = {  # how the libraries of a family cut a product; not fitted
    "nvidia-ampere": {
        "accumulator_elements": 32768.0,
        "pipeline_stages": 4.0,
        "step_bytes": 64.0,
        "store_loss": 0.9,
    },
    "nvidia-hopper": GENERATORS | {"cluster_units": 2.0, "matrix_side": 64.0},
    "nvidia-blackwell": GENERATORS | {"cluster_units": 4.0, "matrix_side": 128.0},
    "amd-cdna3": AMD,
    "amd-cdna4": AMD,
}
SQUARE = {"narrow_side": 128.0, "accumulator_elements": 16384.0}
SERVING = {  # kernels of quantised products in serving libraries; not fitted
    ("nvidia-hopper", "fp8"): SQUARE,
    ("nvidia-blackwell", "fp8"): SQUARE,
    ("nvidia-blackwell", "fp8_block"): {"scale_launches": 3.0},
    ("nvidia-blackwell", "nvfp4"): {"scale_launches": 1.0},
}
NO_SPLIT = {"largest_split": 1.0}


@dataclass(frozen=True)
class Sample:
    """Measured products of one device at one precision.

    Attributes
    ----------
    hardware : Hardware
    precision : str
    columns : dict
        Sizes, and ``measured`` [s].
    quantised : bool
        Whether the rows hold the quantisation of A.
    steady : bool
        Whether they were measured under a load of seconds.
    """

    hardware: Hardware
    precision: str
    columns: Columns
    quantised: bool = False
    steady: bool = False

    def modelled(self, constants: Constants) -> np.ndarray:
        """Return the model's times [s], shape (shape,)."""
        sizes = {key: value for key, value in self.columns.items() if key != "measured"}
        options = {"constants": constants, "steady": self.steady}
        if not self.quantised:
            return gemm_times(self.hardware, self.precision, **sizes, **options).time
        found, quantise = quantised_gemm_times(self.hardware, self.precision, **sizes, **options)
        return found.time + quantise

    def log_ratio(self, constants: Constants) -> np.ndarray:
        """Return ln(modelled / measured), shape (shape,)."""
        return np.log(self.modelled(constants) / self.columns["measured"])


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


def prior_pull(key: str, value: float) -> float:
    """Return a small penalty that keeps a constant near its prior where data is silent."""
    prior, low, high, _ = CONSTANTS[base_key(key)]
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
    samples: Sequence[Sample],
    fixed: Constants | Sequence[Constants],
    free: Sequence[str],
    evaluations: int = 600,
) -> Constants:
    """Return all constants, the `free` ones fitted to all samples with equal weight.

    `fixed` holds the others, for each sample where they differ; the result has those of
    the first one.
    """
    bases = [fixed] * len(samples) if isinstance(fixed, dict) else list(fixed)
    priors = {key: prior for key, (prior, *_) in CONSTANTS.items() if key != "scale_launches"}

    def values(point: np.ndarray) -> Constants:
        found = {}
        for key, logit in zip(free, point, strict=True):
            _, low, high, _ = CONSTANTS[base_key(key)]
            found[key] = low + (high - low) / (1.0 + float(np.exp(-logit)))
        return found

    def loss(point: np.ndarray) -> float:
        found = values(point)
        errors = [
            float(np.mean(np.abs(sample.log_ratio(priors | base | found))))
            for sample, base in zip(samples, bases, strict=True)
        ]
        return float(np.mean(errors)) + sum(prior_pull(key, found[key]) for key in free)

    start = []
    for key in free:
        prior, low, high, _ = CONSTANTS[base_key(key)]
        value = bases[0].get(key, bases[0].get(base_key(key), prior))
        place = float(np.clip((value - low) / (high - low), 0.03, 0.97))
        start.append(np.log(place / (1.0 - place)))
    return priors | bases[0] | values(search(loss, np.array(start), evaluations))


def base_key(key: str) -> str:
    """Return `key` without the precision that it is specific to."""
    return next(name for name in CONSTANTS if key == name or key.startswith(name + "_"))


def report(title: str, sample: Sample, constants: Constants) -> str:
    """Print error by range of m; return the short form that goes into `source`."""
    columns = sample.columns
    log = sample.log_ratio(constants)
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
        source = sources.get(key) or sources.get(base_key(key), default)
        unit_text = f'unit = "{unit}", ' if unit else ""
        if base_key(key) in ADJUSTABLE and not key.endswith("_training"):
            unit_text += "adjustable = true, "
        lines.append(
            f"{key} = {{ value = {rounded(value)}, prior = {prior:g}, low = {low:g}, "
            f'high = {high:g}, {unit_text}source = "{source}" }}'
        )
    return "\n".join(lines)
