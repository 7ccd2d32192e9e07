"""Which measurements would help a device most.

Constants that were not fitted to the device are uncertain: their places between their bounds
(`perfmodel.measured.fit.Scale`) have the spread by which a fit holds them to their priors, a
half of it where measured relatives state them. That spread moves the times of everyday kernels;
a measured kernel, known to `NOISE`, takes some of it away from all kernels that share its
constants. The kernel that takes most is measured first, and so on (a linear model with normal
errors; derived here).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.constants import constants
from perfmodel.measured.fit import STEP, Scale
from perfmodel.measured.problem import with_constants
from perfmodel.sweeps.grids import kernel_grid

Floats = NDArray[np.float64]

SPREAD = {"prior": 0.25, "transferred": 0.125}
"""Standard deviation of a constant's place between its bounds, by trust."""
NOISE = 0.05
"""Of ln(time) between repeated measurements of a kernel."""
GROUPS = {"gemm": "gemm", "attention": "attention", "moe": "moe", "stream": "stream"}
"""Kernel of `perfmodel.sweeps.grids` -> group of its constants."""


@dataclass(frozen=True)
class Candidate:
    """A kernel that might be measured.

    Attributes
    ----------
    kernel : str
        As in `perfmodel kernel`.
    what : str
        One line.
    axes : mapping of str to object
        Its sizes, as the options of the command are named.
    """

    kernel: str
    what: str
    axes: Mapping[str, Any]


@dataclass(frozen=True)
class Suggestion:
    """A measurement, and what is left uncertain after it and those before it.

    Attributes
    ----------
    candidate : Candidate
    spread_before, spread_after : float
        Root mean square over all candidates of the standard deviation of ln(time).
    """

    candidate: Candidate
    spread_before: float
    spread_after: float


def candidates() -> Iterator[Candidate]:
    """Yield everyday kernels of training and serving, small, middle and large ones."""
    for m, n, k in (
        (1, 8192, 8192),
        (64, 8192, 8192),
        (512, 4096, 4096),
        (2048, 14336, 4096),
        (8192, 8192, 8192),
        (64, 1024, 1024),
    ):
        yield Candidate("gemm", f"product {m} x {n} x {k}", {"m": m, "n": n, "k": k})
    heads = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    for length in (512, 4096, 16384):
        what = f"causal attention, {length:,} tokens"
        yield Candidate("attention", what, heads | {"q_len": length, "phase": "forward"})
    backward = heads | {"q_len": 4096, "phase": "backward"}
    yield Candidate("attention", "backward of attention, 4,096 tokens", backward)
    for batch, keys in ((1, 32768), (64, 4096), (8, 512)):
        what = f"decode, {batch} sequences of {keys:,} keys"
        yield Candidate(
            "attention", what, heads | {"batch": batch, "kv_len": keys, "phase": "decode"}
        )
    layer = {"hidden": 4096, "intermediate": 2048, "experts": 64, "top_k": 8}
    for tokens in (16, 512, 8192):
        yield Candidate(
            "moe", f"layer with 64 experts, {tokens:,} tokens", layer | {"tokens": tokens}
        )
    for rows in (128, 8192, 65536):
        what = f"rms_norm of {rows:,} x 4,096"
        yield Candidate("stream", what, {"operation": "rms_norm", "rows": rows, "columns": 4096})


def suggest(hardware: Hardware, count: int = 5) -> list[Suggestion]:
    """Return the measurements that would take most uncertainty away, in their order.

    Parameters
    ----------
    hardware : Hardware
    count : int
        How many at most.

    Returns
    -------
    list of Suggestion
        Fewer where no constant is uncertain.
    """
    found = [item for item in candidates() if _time(hardware, item) > 0.0]
    slopes, spreads = _slopes(hardware, found)
    covariance = np.diag(spreads**2)
    chosen: list[Suggestion] = []
    for _ in range(min(count, len(found))):
        shared = slopes @ covariance
        variance = np.einsum("ij,ij->i", shared, slopes)
        before = float(np.sqrt(variance.mean()))
        # What measuring candidate i takes from the variance of all of them together.
        gains = ((slopes @ shared.T) ** 2).sum(axis=0) / (variance + NOISE**2)
        gains[[found.index(item.candidate) for item in chosen]] = 0.0
        best = int(np.argmax(gains))
        if not gains[best] > 1e-9:
            break
        covariance -= np.outer(shared[best], shared[best]) / (variance[best] + NOISE**2)
        left = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
        after = float(np.sqrt(max(0.0, left.mean())))
        chosen.append(Suggestion(found[best], before, after))
    return chosen


def _slopes(hardware: Hardware, found: list[Candidate]) -> tuple[Floats, Floats]:
    """Return d ln(time) / d place of every candidate and uncertain constant, and their spreads."""
    columns, spreads = [], []
    for group in dict.fromkeys(GROUPS.values()):
        for key, constant in constants()[group].items():
            entry = hardware.calibration.get(group, {}).get(key)
            if entry is None or not constant.adjustable or entry.trust not in SPREAD:
                continue
            scale = Scale(np.array([entry.low]), np.array([entry.high]))
            place = scale.places(np.array([entry.value]))
            sides = [np.clip(place + step, 0.0, 1.0) for step in (STEP, -STEP)]
            logs = [
                np.log([_time(_with(hardware, group, key, scale.values(side)), it) for it in found])
                for side in sides
            ]
            columns.append((logs[0] - logs[1]) / (sides[0] - sides[1]))
            spreads.append(SPREAD[entry.trust])
    if not columns:
        return np.zeros((len(found), 0)), np.zeros(0)
    return np.stack(columns, axis=1), np.array(spreads)


def _with(hardware: Hardware, group: str, key: str, value: Floats) -> Hardware:
    return with_constants(hardware, group, {key: float(value[0])})


def _time(hardware: Hardware, candidate: Candidate) -> float:
    """Return the time of a kernel [s]; 0 where the device has none such."""
    wide = "bf16" if "bf16" in hardware.device.peak_flops else "fp16"
    axes = {name: [value] for name, value in candidate.axes.items()}
    if candidate.kernel != "stream":
        axes["precision"] = [wide]
    try:
        time = float(kernel_grid(candidate.kernel, [hardware], axes)["time"].values.ravel()[0])
    except HardwareError:
        return 0.0
    return time if np.isfinite(time) else 0.0
