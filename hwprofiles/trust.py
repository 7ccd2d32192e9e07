"""How far a device's constants are to be trusted, by kernel class.

A class is ``calibrated`` where most of the constants that decide about it were fitted to the
device, ``transferred`` where they come from measured relatives of its family or instruction
class, else ``prior``. ``trust.toml`` says how far kernels spread under constants of other
families and priors: half the 10-90 % band of measured over predicted times, found by leaving
measured devices out (benchmarks/accuracy/left_out.py).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.base.precisions import FORMATS

if TYPE_CHECKING:
    from perfmodel.hwprofiles.parts import Calibrated

FILE = Path(__file__).with_name("trust.toml")
LEVELS = ("calibrated", "transferred", "prior")
"""Ways to come by a constant, the most trusted first. Results store the position."""

KERNELS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gemm": ("gemm", ("issue_efficiency", "memory_efficiency", "launch_latency")),
    "attention": ("attention", ("matrix_efficiency", "memory_efficiency", "block_latency")),
    "attention_backward": ("attention", ("backward_matrix_efficiency", "backward_overlap")),
    "decode": ("attention", ("memory_efficiency", "decode_latency")),
    "moe": ("moe", ("main_loop_efficiency", "memory_efficiency", "kernel_latency")),
    "stream": ("stream", ("memory_efficiency", "launch_latency")),
    "collective": ("network", ("scale_up_efficiency", "simple_latency")),
}
"""Kernel class of `perfmodel.base.regimes` -> group of its constants, and those that decide its
time: what it reaches of the matrix units and of memory or links, and its start."""
FROM_CLASS = "transferred from"
"""How the source of a constant begins that comes from other families."""


def trust(calibration: Mapping[str, Mapping[str, Calibrated]], kernel_class: str) -> str:
    """Return how most of the constants that decide about a kernel class came about.

    Of a constant and its variants for number formats the most trusted one counts; what is
    stated as exact needs no measurement.

    Returns
    -------
    str
        One of `LEVELS`.
    """
    found = [
        min((LEVELS.index(LEVELS[0] if it.trust == "fact" else it.trust) for it in its), default=2)
        for its in _deciding(calibration, kernel_class)
    ]
    return LEVELS[sorted(found)[len(found) // 2]] if found else LEVELS[-1]


def from_class(calibration: Mapping[str, Mapping[str, Calibrated]], kernel_class: str) -> bool:
    """Return whether constants of a kernel class come from other families than the device's."""
    return any(
        entry.source.startswith(FROM_CLASS)
        for entries in _deciding(calibration, kernel_class)
        for entry in entries
    )


def _deciding(
    calibration: Mapping[str, Mapping[str, Calibrated]], kernel_class: str
) -> list[list[Calibrated]]:
    group, keys = KERNELS.get(kernel_class, ("", ()))
    entries = calibration.get(group, {})
    return [
        [entry for name, entry in entries.items() if name == key or _varies(name, key)]
        for key in keys
    ]


@cache
def _varies(name: str, key: str) -> bool:
    """Return whether a constant is a variant of another for a format: ``<key>_<format>``."""
    return name.startswith(f"{key}_") and name.removeprefix(f"{key}_") in FORMATS


@cache
def _bands() -> Mapping[str, Mapping[str, float]]:
    document: dict[str, dict[str, float]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return document


def band(calibration: Mapping[str, Mapping[str, Calibrated]], kernel_class: str) -> float:
    """Return half the 10-90 % band of a kernel class whose constants came so.

    Returns
    -------
    float
        Relative; 0 for those of the device and of its own family, whose residuals say it, and
        where no device could be left out.
    """
    level = trust(calibration, kernel_class)
    if level == "calibrated" or (
        level == "transferred" and not from_class(calibration, kernel_class)
    ):
        return 0.0
    found = _bands().get(level, {}).get(kernel_class, 0.0)
    return max(found, _bands().get("transferred", {}).get(kernel_class, 0.0))


def quoted(bands: Mapping[str, Mapping[str, float]]) -> str:
    """Return bands as ``trust.toml`` holds them."""
    lines = [
        "# Half the 10-90 % band of ln(measured / predicted) of kernels under constants that were",
        "# fitted to other devices: every measured device left out in turn, the mean over them.",
        "# Written by benchmarks/accuracy/left_out.py --write. transferred: a device of the same",
        "# instruction class was there; prior: only those of the classes beside it.",
    ]
    for level, classes in bands.items():
        lines += ["", f"[{level}]", *(f"{name} = {value:g}" for name, value in classes.items())]
    return "\n".join(lines) + "\n"
