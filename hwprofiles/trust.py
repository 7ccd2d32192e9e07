"""How far a device's constants are to be trusted, by kernel class.

A class is ``calibrated`` where most of its constants were fitted to the device, ``transferred``
where they come from measured relatives of its family or instruction class, else ``prior``.
``trust.toml`` says how far kernels spread then: half the 10-90 % band of measured over
predicted times, found by leaving measured devices out (benchmarks/accuracy/left_out.py).
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.hwprofiles.constants import constants

if TYPE_CHECKING:
    from perfmodel.hwprofiles.parts import Calibrated

FILE = Path(__file__).with_name("trust.toml")
LEVELS = ("calibrated", "transferred", "prior")
"""Ways to come by a constant, the most trusted first. Results store the position."""

KERNELS: Mapping[str, tuple[str, str]] = {
    "gemm": ("gemm", ""),
    "attention": ("attention", ""),
    "attention_backward": ("attention", "backward_"),
    "decode": ("attention", ""),
    "moe": ("moe", ""),
    "stream": ("stream", ""),
    "collective": ("network", ""),
}
"""Kernel class of `perfmodel.base.regimes` -> group of its constants, how their keys begin."""
APART = ("backward_", "portable_", "latent_", "exchange_", "shot_", "in_network_", "scale_out_")
"""Beginnings of keys that say nothing of a class: of other kernels, libraries and levels."""
OTHERS = ("fp8_matrix",)


def trust(calibration: Mapping[str, Mapping[str, Calibrated]], kernel_class: str) -> str:
    """Return how most constants of a kernel class came about; one of `LEVELS`.

    Of a constant and its variants for number formats and libraries the most trusted one counts.
    """
    if kernel_class not in KERNELS:
        return "prior"
    group, begin = KERNELS[kernel_class]
    counts: Counter[str] = Counter()
    for key in _keys(group, begin):
        entries = calibration.get(group, {})
        found = {entries[name].trust for name in entries if name == key or _varies(name, key)}
        counts[next((level for level in LEVELS if level in found), "prior")] += 1
    half = sum(counts.values()) / 2.0
    if counts["calibrated"] >= half:
        return "calibrated"
    return "transferred" if counts["calibrated"] + counts["transferred"] >= half else "prior"


@cache
def _keys(group: str, begin: str) -> tuple[str, ...]:
    """Return the constants that decide about a class: those that may be fitted."""
    return tuple(
        key
        for key, constant in constants()[group].items()
        if constant.adjustable
        and (key.startswith(begin) if begin else not key.startswith(APART))
        and key not in OTHERS
    )


def _varies(name: str, key: str) -> bool:
    """Return whether a constant is a variant of another for a format: ``<key>_<format>``."""
    return name.startswith(f"{key}_") and name.removeprefix(f"{key}_") in _formats()


@cache
def _formats() -> frozenset[str]:
    from perfmodel.base.precisions import FORMATS

    return frozenset(FORMATS)


@cache
def _bands() -> Mapping[str, Mapping[str, float]]:
    document: dict[str, dict[str, float]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return document


def band(level: str, kernel_class: str) -> float:
    """Return half the 10-90 % band of a kernel class whose constants came so.

    Returns
    -------
    float
        Relative; 0 for calibrated ones, whose own residuals say it, and where no device
        could be left out.
    """
    if level == "calibrated":
        return 0.0
    found = _bands().get(level, {}).get(kernel_class, 0.0)
    return max(found, _bands().get("transferred", {}).get(kernel_class, 0.0))


def quoted(bands: Mapping[str, Mapping[str, float]]) -> str:
    """Return bands as ``trust.toml`` holds them."""
    lines = [
        "# Half the 10-90 % band of ln(measured / predicted) of kernels whose constants were not fitted to",
        "# their device: every measured device left out in turn, the mean over devices. Written by",
        "# benchmarks/accuracy/left_out.py --write. transferred: a device of the same instruction class was",
        "# there; prior: only those of the classes beside it.",
    ]
    for level, classes in bands.items():
        lines += ["", f"[{level}]", *(f"{name} = {value:g}" for name, value in classes.items())]
    return "\n".join(lines) + "\n"
