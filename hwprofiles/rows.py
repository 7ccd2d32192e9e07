"""Rows of hardware: profiles, multiplied by values that are swept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles.hardware import Hardware, canonical_path
from perfmodel.hwprofiles.loader import load_hardware

MAX_ROWS = 20_000


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
