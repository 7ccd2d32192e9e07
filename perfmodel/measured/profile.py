"""Write what a calibration found as a profile that extends the one it began with."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel._version import __version__
from perfmodel.base.errors import DataError, HardwareError
from perfmodel.base.files import atomic_path
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.subject import OneProfile

if TYPE_CHECKING:
    from perfmodel.measured.calibrate import Calibration

WIDEST_SPREAD = 2.0
USUAL_SPREAD = 0.2


def write_profile(found: Calibration, path: Path) -> None:
    """Write a profile, completely or not at all, and read it back.

    Parameters
    ----------
    found : Calibration
    path : Path
        Ends in ``.toml``.

    Raises
    ------
    DataError
        The file is the profile that it would extend, or cannot be written.
    TypeError
        The calibration is not one of a profile.
    """
    if not isinstance(found.subject, OneProfile):
        raise TypeError(f"{found.subject.described} is no profile that another could extend")
    check_output(path, found.subject.spelling)
    lines = profile_lines(found, found.subject, path)
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            load_hardware(temporary)
        except HardwareError as error:  # ours, not the user's: say so instead of writing it
            raise RuntimeError(f"the new profile cannot be read back: {error}") from error


def check_output(path: Path, spelling: str) -> None:
    """Refuse a file that a profile must not be written to.

    Raises
    ------
    DataError
        No TOML file, or the profile that it would extend.
    """
    if path.suffix != ".toml":
        raise DataError(f"cannot write '{path}': a profile's name ends in .toml")
    if path.exists() and Path(spelling).exists() and path.samefile(spelling):
        raise DataError(f"cannot write '{path}': the new profile would extend itself")


def profile_lines(found: Calibration, subject: OneProfile, path: Path) -> Iterator[str]:
    """Yield the lines of the profile."""
    base, (table,) = subject.profile, found.tables
    data = Path(table.file).name
    yield f"# Written by perfmodel {__version__}, 'perfmodel calibrate'."
    yield f"name = {_text(path.stem)}"
    yield f"title = {_text(f'{base.title}; {table.kind} calibrated with {data}')}"
    yield f"extends = {_text(_parent(subject.spelling, base.name, path))}"
    changed = [parameter for parameter in found.parameters if parameter.informed]
    group = ""
    for parameter in changed:
        _, section, key = parameter.path.split(".")
        if section != group:
            group = section
            yield f"\n[calibration.{group}]"
        numbers = [
            f"value = {_number(parameter.after, parameter.low, parameter.high)!r}",
            f"prior = {parameter.prior!r}",
            f"low = {parameter.low!r}",
            f"high = {parameter.high!r}",
            f"uncertainty = {_number(parameter.uncertainty)!r}",
            *([f"unit = {_text(parameter.unit)}"] if parameter.unit else []),
            "adjustable = true",
            f"source = {_text(fit_source(found))}",
        ]
        yield f"{key} = {{ {', '.join(numbers)} }}"
    if found.uncertainty:
        yield "\n[calibration.uncertainty]"
    judged = "cross-validated" if "cross_validated" in found.log_ratios else "in-sample"
    for name, (value, count) in found.uncertainty.items():
        source = (
            f"half of the 10-90 % band of ln(measured/predicted), {judged}, {count} rows of {data}"
        )
        numbers = [
            f"value = {_number(value)!r}",
            f"prior = {USUAL_SPREAD}",
            "low = 0.0",
            f"high = {max(WIDEST_SPREAD, math.ceil(value)):.1f}",
            'unit = "1"',
            f"source = {_text(source)}",
        ]
        yield f"{name} = {{ {', '.join(numbers)} }}"


def fit_source(found: Calibration) -> str:
    """Return what a fitted value says about where it is from."""
    (table,) = found.tables
    data = Path(table.file).name
    chosen = f", where {table.where}" if table.where else ""
    text = f"fit to {data} ({table.kind}, {found.fitted} rows{chosen})"
    median = found.errors("after")["all"]["median_absolute_error"]
    text += f", median residual {median:.1%}"
    if "cross_validated" in found.log_ratios:
        unseen = found.errors("cross_validated")["all"]["median_absolute_error"]
        text += f", {unseen:.1%} cross-validated in {found.fold_count} folds"
    return text + f"; perfmodel {__version__}"


def _parent(spelling: str, name: str, path: Path) -> str:
    """Return how the new file names the profile that it extends."""
    if not (spelling.endswith(".toml") or "/" in spelling or os.sep in spelling):
        return name
    relative = os.path.relpath(Path(spelling).resolve(), path.resolve().parent)
    return relative if os.sep in relative else f".{os.sep}{relative}"


def _number(value: float, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number with six digits, still within its bounds."""
    return min(max(float(f"{value:.6g}"), low), high)


def _text(text: str) -> str:
    """Return a TOML string; JSON's escapes are TOML's."""
    return json.dumps(text.replace("\x7f", ""), ensure_ascii=False)
