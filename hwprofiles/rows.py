"""Hardware as rows and columns: profiles multiplied by swept values, and what one says, by name.

A profile holds, per kernel class and regime, half the width of the band from the 10th to
the 90th percentile of ln(measured / predicted): ``[calibration.uncertainty]``
(`perfmodel.operations.uncertainty` says which operation has which).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import HardwareError
from perfmodel.base.files import read_toml
from perfmodel.base.precisions import PRECISIONS
from perfmodel.base.regimes import LIMITS, REGIMES
from perfmodel.hwprofiles.constants import PRIOR, known
from perfmodel.hwprofiles.hardware import Hardware, canonical_path, once
from perfmodel.hwprofiles.loader import load_hardware

MAX_ROWS = 20_000
MEMORY_ERRORS = Path(__file__).with_name("memory_errors.toml")


def profiles_of(hardware: Hardware | str | Sequence[Hardware | str]) -> list[Hardware]:
    """Return profiles, one or several, by name or as they are.

    Raises
    ------
    HardwareError
        No such profile.
    """
    one = isinstance(hardware, str) or not isinstance(hardware, Sequence)
    named: Any = [hardware] if one else hardware
    return [load_hardware(item) if isinstance(item, str) else item for item in named]


def hardware_rows(
    names: Sequence[str], settings: Mapping[str, Any], swept: Mapping[str, Sequence[float]]
) -> tuple[list[Hardware], dict[str, list[float]]]:
    """Load profiles and multiply them by the swept values.

    Parameters
    ----------
    names : sequence of str
        Names, aliases or TOML files.
    settings : mapping of str to value
        Values that replace those of every profile, by dotted path.
    swept : mapping of str to sequence of float
        Values of which every combination makes a row, by dotted path.

    Returns
    -------
    rows : list of Hardware
        One per profile and combination of swept values; no profile twice.
    values : dict of str to list of float
        For each swept path its value in every row.

    Raises
    ------
    HardwareError
        Unknown profile or path, a bad value, or a path both set and swept.
    """
    profiles = {hardware.name: hardware for hardware in map(load_hardware, names)}
    combinations = math.prod(len(values) for values in swept.values())
    if combinations * len(profiles) > MAX_ROWS:
        raise HardwareError(
            f"the swept values make {combinations * len(profiles):,} rows of hardware; "
            f"at most {MAX_ROWS:,}"
        )
    rows: list[Hardware] = []
    columns: dict[str, list[float]] = {path: [] for path in swept}
    for profile in profiles.values():
        fixed = {canonical_path(profile, path) for path in settings}
        for path in swept:
            if canonical_path(profile, path) in fixed:
                raise HardwareError(f"'{path}' is both set and swept; drop one of the two")
        base = profile.with_values(settings)
        for chosen in itertools.product(*map(dict.fromkeys, swept.values())):
            values = dict(zip(swept, chosen, strict=True))
            rows.append(base.with_values(values))
            for path, value in values.items():
                columns[path].append(value)
    any_row = rows[0]
    return rows, {canonical_path(any_row, path): column for path, column in columns.items()}


def supported_precisions(hardware: Hardware) -> NDArray[np.bool_]:
    """Tell for each entry of `PRECISIONS` whether the device has a matrix rate for it."""
    return ~np.isnan(matrix_rates(hardware))


@once
def matrix_rates(hardware: Hardware) -> NDArray[np.float64]:
    """Rate of each entry of `PRECISIONS` [FLOP/s]; NaN where the device has none."""

    def rate(precision: str) -> float:
        try:
            return hardware.device.peak(precision)
        except HardwareError:
            return np.nan

    return np.array([rate(precision) for precision in PRECISIONS])


def width_table(hardware: Hardware, name: str) -> NDArray[np.float64]:
    """Relative half-width of a kernel class in each of `perfmodel.base.regimes.REGIMES`."""
    return np.array([hardware.uncertainty(name, item) for item in REGIMES])


def kernel_widths(hardware: Hardware, name: str) -> tuple[float, float, float, float, float]:
    """Limits and half-widths of a kernel class, as `perfmodel.kernels.step.overlap.width_of`.

    Returns
    -------
    tuple of five floats
        First value of the middle and of the large regime [of `perfmodel.base.regimes.LIMITS`],
        then the relative half-widths of small, middle and large.
    """
    _, middle, large = LIMITS[name]
    small_width, middle_width, large_width = width_table(hardware, name).tolist()
    return middle, large, small_width, middle_width, large_width


def novelties(hardware: Hardware, software: str) -> dict[str, float]:
    """Return what nobody measured of a run -> the relative half-width that it adds to a step.

    Parameters
    ----------
    hardware : Hardware
    software : str
        `perfmodel.software.framework.product`; a plain stack stands for what nobody described.

    Notes
    -----
    Found on runs that were left out (docs/accuracy.md): ``step_software`` and ``step_machine`` of
    ``calibration.uncertainty``, else their priors.
    """
    if "uncertainty" not in hardware.calibration:
        return {}
    widths = hardware.lookup("uncertainty")
    if not widths("step", 0.0):
        return {}
    said = {
        "software unknown": ("step_software", software.partition("-")[0] == "plain"),
        "machine never measured": ("step_machine", hardware.borrowed_band("gemm") > 0.0),
    }
    return {
        text: widths(name, known("uncertainty")[name].prior)
        for text, (name, new) in said.items()
        if new
    }


def step_width(hardware: Hardware, experts: bool, software: str = "") -> float:
    """Relative half-width of what no kernel explains in a whole step.

    Parameters
    ----------
    hardware : Hardware
    experts : bool
        The model has layers with experts, whose loads and exchanges no table states.
    software : str
        Of which `novelties` are; none of a served model.

    Returns
    -------
    float
        ``calibration.uncertainty.step_moe`` with experts, else ``calibration.uncertainty.step``
        (also where the profile has no other), with novelties in quadrature; 0 where the profile
        has none.
    """
    if "uncertainty" not in hardware.calibration:
        return 0.0
    width = hardware.lookup("uncertainty")
    step = width("step", 0.0)
    step = width("step_moe", step) if experts else step
    return math.hypot(step, *(novelties(hardware, software).values() if software else ()))


def memory_width(hardware: Hardware, software: str) -> float:
    """Return how far the peak memory may lie above the projected one, by measured peaks.

    Parameters
    ----------
    hardware : Hardware
    software : str
        What holds the memory (`perfmodel.software.framework.product`), or a served model's engine.

    Returns
    -------
    float
        90th percentile of ln(measured / projected): that of the software where its peaks were
        measured, on devices of this instruction class; else that of one that nobody measured
        (``memory_errors.toml``). A profile that states ``calibration.uncertainty.memory``
        itself has that; one without any such table has 0.
    """
    if "uncertainty" not in hardware.calibration:
        return 0.0
    stated = hardware.calibration["uncertainty"].get("memory")
    if stated is None or not stated.source.startswith(PRIOR):
        return hardware.lookup("uncertainty")("memory", 0.0)
    errors = memory_errors()
    seen = hardware.device.instruction_class in errors["instruction_classes"]
    return float(
        errors["software"].get(software if seen else "", {}).get("width", errors["unseen"])
    )


@cache
def memory_errors() -> Mapping[str, Any]:
    """Return the measured errors of memory, as ``benchmarks/accuracy/memory.py`` wrote them."""
    return read_toml(MEMORY_ERRORS, HardwareError)
