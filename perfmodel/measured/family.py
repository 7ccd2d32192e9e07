"""Write what a calibration found of a family: lines of its profile, and the fit's entry.

Profiles that ship state ``{ value = …, fit = "<id>" }``; what the fit was, stands once in
``hwprofiles/fits.toml``. What is written here holds both, each under its header.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.base.files import atomic_path

if TYPE_CHECKING:
    from perfmodel.measured.calibrate import Calibration

DIGITS = 4


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
        group: {key: _rounded(value) for key, value in keys.items()}
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


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _text(text: str) -> str:
    """Return a TOML string; JSON's escapes are TOML's."""
    return json.dumps(text.replace("\x7f", ""), ensure_ascii=False)
