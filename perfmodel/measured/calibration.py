"""What a calibration found, and its files: a profile that extends another, lines of a family's.

Profiles that ship state ``{ value = …, fit = "<id>" }``; what the fit was, stands once in
``hwprofiles/fits.toml``. What is written of a family holds both, each under its header.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.base.files import atomic_path
from perfmodel.base.version import __version__
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.compare import error_statistics
from perfmodel.measured.problem import MeasuredTable, OneProfile, Subject

SCHEMA_VERSION = "1.0"
WIDEST_SPREAD = 2.0
USUAL_SPREAD = 0.2
DIGITS = 4


@dataclass(frozen=True, slots=True)
class Parameter:
    """One adjustable constant, before and after.

    Attributes
    ----------
    path : str
        Dotted path in the profile.
    unit : str
        SI unit; empty for pure numbers.
    before, after, prior, low, high : float
        Value of the profile given, fitted value, what held it, and its bounds.
    uncertainty : float
        Standard deviation of `after`; 0 where the value was kept.
    resolution : float
        1 where the data decide, 0 where the prior does.
    informed : bool
        Whether the data say more than the prior; where not, the value was kept.
    at_bound : bool
        Whether the data would like a value beyond what is physical.
    warning : str
        What about the value needs a physical reason; empty for nothing.
    """

    path: str
    unit: str
    before: float
    after: float
    prior: float
    low: float
    high: float
    uncertainty: float
    resolution: float
    informed: bool
    at_bound: bool
    warning: str

    @property
    def key(self) -> str:
        """Its name in the group."""
        return self.path.rsplit(".", 1)[1]

    def to_json_dict(self) -> dict[str, Any]:
        """Return everything but the warning, fit for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "warning"}


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a fit found.

    Attributes
    ----------
    subject : Subject
        The profile or family given.
    tables : tuple of MeasuredTable
        What was fitted to.
    rows : int
        Rows of the tables after the filters.
    fitted : int
        Rows that the fit saw; the others of `log_ratios` only judge it.
    skipped : mapping of str to int
    parameters : tuple of Parameter
    regimes : ndarray of str, shape (row,)
        ``<class>_<regime>`` of every row used.
    log_ratios : mapping of str to ndarray, shape (row,)
        ln(predicted / measured) ``before``, ``after`` (where anything was fitted) and,
        unless there are too few groups of rows, ``cross_validated``.
    fold_count : int
    uncertainty : mapping of str to tuple of (float, int)
        ``<class>_<regime>`` -> relative half-width of the band from the 10th to the
        90th percentile of ln(measured / predicted), and its rows.
    evaluations : int
    """

    subject: Subject
    tables: tuple[MeasuredTable, ...]
    rows: int
    fitted: int
    skipped: Mapping[str, int]
    parameters: tuple[Parameter, ...]
    regimes: NDArray[np.str_]
    log_ratios: Mapping[str, NDArray[np.float64]]
    fold_count: int
    uncertainty: Mapping[str, tuple[float, int]]
    evaluations: int

    def errors(self, which: str) -> dict[str, dict[str, Any]]:
        """Return error statistics of ``before``, ``after`` or ``cross_validated``.

        Returns
        -------
        dict
            ``all`` and every regime -> count and the errors of
            `perfmodel.measured.compare.statistics`, of predicted / measured - 1.
        """
        errors = np.expm1(self.log_ratios[which])
        masks = {"all": np.ones(errors.size, bool)}
        masks |= {str(name): self.regimes == name for name in sorted(set(self.regimes.tolist()))}
        return {
            name: {"count": int(mask.sum()), **error_statistics(errors[mask])}
            for name, mask in masks.items()
        }

    def to_json_dict(self) -> dict[str, Any]:
        """Return everything that was found, fit for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            **self.subject.head(self.tables),
            "rows": self.rows,
            "count": int(self.regimes.size),
            "fitted": self.fitted,
            "skipped": dict(self.skipped),
            "parameters": [parameter.to_json_dict() for parameter in self.parameters],
            "folds": self.fold_count,
            "errors": {which: self.errors(which) for which in self.log_ratios},
            "uncertainty": {
                name: {"value": value, "count": count}
                for name, (value, count) in self.uncertainty.items()
            },
            "evaluations": self.evaluations,
        }

    def write_profile(self, path: str | os.PathLike[str]) -> None:
        """Write a profile that extends the one given; see `write_profile`.

        Raises
        ------
        DataError
            The file is the profile that it would extend, or cannot be written.
        """
        from perfmodel.measured.calibration import write_profile

        write_profile(self, Path(path))


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


def fit_id(found: Calibration) -> str:
    """Return the name that a fit has unless a user says otherwise: ``gemm-nvidia-hopper``."""
    kinds = dict.fromkeys(table.kind for table in found.tables) if found.parameters else ["bands"]
    return "-".join([*kinds, found.subject.name])


def fitted_values(found: Calibration) -> dict[str, dict[str, float]]:
    """Return what the family's profile should state, by group and key.

    Constants of which the rows say too little are left out, as they keep their value; where
    nothing was fitted, it is the bands of ``[calibration.uncertainty]``.
    """
    if not found.parameters:
        return {"uncertainty": {key: value for key, (value, _) in found.uncertainty.items()}}
    values: dict[str, dict[str, float]] = {}
    for parameter in found.parameters:
        if parameter.informed:
            _, group, key = parameter.path.split(".")
            values.setdefault(group, {})[key] = parameter.after
    return {
        group: {key: float(f"{value:.{DIGITS}g}") for key, value in keys.items()}
        for group, keys in values.items()
    }


def fit_entry(found: Calibration, script: str) -> dict[str, Any]:
    """Return the entry of ``fits.toml``: data, rows, residual, and what ran the fit."""
    tables = [
        Path(table.file).name + (f" where {table.where}" if table.where else "")
        for table in found.tables
    ]
    errors = found.errors("after" if found.parameters else "before")["all"]
    return {
        "data": "; ".join(tables),
        "rows": int(found.regimes.size),
        "residual": round(errors["median_absolute_error"], 4),
        "script": script,
        "note": f"mean {errors['mean_absolute_error']:.1%}, p90 {errors['p90_absolute_error']:.1%}",
    }


def family_json(found: Calibration, name: str, script: str) -> dict[str, Any]:
    """Return what the files that ship would say, fit for JSON."""
    return {
        "constants": fitted_values(found),
        "reasons_wanted": {item.key: item.warning for item in found.parameters if item.warning},
        "fit": {"id": name, **fit_entry(found, script)},
    }


def family_lines(found: Calibration, name: str, script: str) -> Iterator[str]:
    """Yield the lines of the family's profile, and those of ``fits.toml``."""
    warnings = {item.key: item.warning for item in found.parameters if item.warning}
    yield f"# hwprofiles/{found.subject.name}.toml"
    for group, values in fitted_values(found).items():
        yield f"[calibration.{group}]"
        for key, value in values.items():
            if key in warnings:
                yield f'# {warnings[key]}: say why with reason = "…"'
            rows = 0 if found.parameters else found.uncertainty[key][1]
            yield constant_line(key, value, name, rows)
    yield "\n# hwprofiles/fits.toml"
    yield from entry_lines(name, fit_entry(found, script))


def constant_line(key: str, value: float, name: str, rows: int = 0, reason: str = "") -> str:
    """Return the line of one constant; `rows` where they are not the fit's."""
    own_rows = f", rows = {rows}" if rows else ""
    why = f", reason = {_text(reason)}" if reason else ""
    return f"{key} = {{ value = {value:.{DIGITS}g}, fit = {_text(name)}{own_rows}{why} }}"


def entry_lines(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of one fit."""
    yield f"[{_text(name) if not name.replace('-', '').isalnum() else name}]"
    for key, value in entry.items():
        yield f"{key} = {_text(value) if isinstance(value, str) else value}"


def write_family(found: Calibration, path: Path, name: str, script: str) -> None:
    """Write the lines, completely or not at all.

    Raises
    ------
    DataError
        The file's name does not end in ``.toml``, or it cannot be written.
    """
    check_lines_output(path)
    text = "\n".join(family_lines(found, name, script)) + "\n"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_lines_output(path: Path) -> None:
    """Refuse a file that lines must not be written to.

    Raises
    ------
    DataError
        No TOML file.
    """
    if path.suffix != ".toml":
        raise DataError(f"cannot write '{path}': the name of a file of constants ends in .toml")
