"""Tables of measured kernels: from rows to priced columns and back to outcomes.

A `perfmodel.measured.kind.KernelKind` says how a row reads and how cases of one variant are
priced together; everything else is the same for all kinds, here and in
`perfmodel.measured.calibrate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.measured.rows import TRUTH, MeasuredRow, Outcome, Skip

Columns = Mapping[str, np.ndarray]
Price = Callable[[Hardware, Any, Columns], Columns]
"""(hardware, variant, columns of sizes) -> columns of results, ``time`` [s] among them."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row as a kernel model sees it.

    Attributes
    ----------
    hardware : Hardware
    variant : hashable
        What is the same for all rows priced in one call: precision, framework, …
    sizes : mapping of str to float
        Numbers of this row.
    measured : float
        Time of one call [s].
    notes : tuple of str
        How unclear cells were understood.
    """

    hardware: Hardware
    variant: Hashable
    sizes: Mapping[str, float]
    measured: float
    notes: tuple[str, ...] = field(default=())


@lru_cache(maxsize=256)
def _profile(name: str) -> Hardware:
    return load_hardware(name)


def kernel_hardware(row: MeasuredRow) -> tuple[Hardware, tuple[str, ...]]:
    """Return the profile that a row's ``hardware`` names, and how it was understood.

    ``MI300X|MI325X`` means "one of these"; the first one counts, with a note.

    Raises
    ------
    Skip
        No profile has that name.
    """
    name = row.text("hardware")
    first, *others = name.split("|")
    try:
        hardware = _profile(first.strip())
    except HardwareError:
        raise Skip("no hardware profile", name) from None
    return hardware, (f"'{name}' taken as {first.strip()}",) if others else ()


FAILED = ("inf", "+inf", "infinity")
"""What tuners write in place of a time where a kernel did not run."""


SHORTEST, LONGEST = 1e-12, 1e9  # s: a picosecond, thirty years


def check_time(row: MeasuredRow, column: str = "time_us") -> None:
    """Raise DataError where a time is neither a number > 0 nor missing nor of a failed run."""
    if row.lower(column) not in FAILED:
        row.positive(column)


def measured_time(row: MeasuredRow, column: str = "time_us", unit: float = 1e-6) -> float:
    """Return the measured time of a row [s] from a column in microseconds, or another unit [s].

    Raises
    ------
    Skip
        Nothing is stated, or the kernel failed.
    """
    if row.lower(column) in FAILED:
        raise Skip("the kernel failed (time is infinite)", scorable=False)
    value = row.positive(column)
    if value is None:
        raise Skip("no usable measurement", scorable=False)
    time = value * unit
    if not SHORTEST <= time <= LONGEST:
        raise row.error(column, f"a time from {SHORTEST / unit:g} to {LONGEST / unit:g}")
    return time


ALONE = "alone"
"""Cell ``steady`` of kernels that were timed one at a time under a load of seconds."""


def check_steady(row: MeasuredRow) -> None:
    """Raise DataError where ``steady`` is not understood."""
    if row.text("steady") and row.lower("steady") not in (*TRUTH, ALONE):
        raise row.error("steady", f"yes, no or {ALONE}")


def steady_load(row: MeasuredRow, default: bool = False) -> tuple[bool, bool]:
    """Return whether a row was timed under a steady load, and whether alone."""
    alone = row.lower("steady") == ALONE
    return alone or row.truth("steady", default), alone


def stated(row: MeasuredRow, column: str) -> int:
    """Return a whole number >= 1 that the row must state."""
    value = row.whole(column)
    if value is None:
        raise Skip("shape not stated", column, scorable=False)
    return value


@dataclass(frozen=True, slots=True)
class CaseGroup:
    """Cases of one device and variant as columns, which one call prices.

    Attributes
    ----------
    hardware : Hardware
    variant : hashable
        See `Case`.
    columns : mapping of str to ndarray of float64, shape (case,)
        The sizes.
    rows : ndarray of int64, shape (case,)
        Where the cases stand in the table.
    cases : tuple of Case
    """

    hardware: Hardware
    variant: Hashable
    columns: Columns
    rows: np.ndarray
    cases: tuple[Case, ...]


def read_cases(
    rows: Sequence[MeasuredRow], case_of: Callable[[MeasuredRow], Case]
) -> tuple[list[CaseGroup], dict[int, Skip]]:
    """Read all rows, and gather those of one device and variant.

    Returns
    -------
    groups : list of CaseGroup
    skipped : dict of int to Skip
        Position of each row that cannot be read, and why.
    """
    skipped: dict[int, Skip] = {}
    members: dict[tuple[str, Hashable], list[tuple[int, Case]]] = {}
    for i, row in enumerate(rows):
        try:
            case = case_of(row)
        except Skip as skip:
            skipped[i] = skip
        else:
            members.setdefault((case.hardware.name, case.variant), []).append((i, case))
    groups = []
    for found in members.values():
        cases = tuple(case for _, case in found)
        columns = {
            name: np.array([case.sizes[name] for case in cases], np.float64)
            for name in cases[0].sizes
        }
        positions = np.array([i for i, _ in found], np.int64)
        groups.append(CaseGroup(cases[0].hardware, cases[0].variant, columns, positions, cases))
    return groups, skipped


def project_cases(
    rows: Sequence[MeasuredRow],
    case_of: Callable[[MeasuredRow], Case],
    price: Price,
    progress: Callable[[int], None],
) -> list[Outcome]:
    """Price all rows, those of one device and variant in one call.

    Rows that cannot be read, or whose device lacks what they need, become skipped
    outcomes with their reason.
    """
    groups, skipped = read_cases(rows, case_of)
    outcomes = {i: Outcome.skipped(skip) for i, skip in skipped.items()}
    progress(len(outcomes))
    for group in groups:
        try:
            results: Columns = price(group.hardware, group.variant, group.columns)
        except HardwareError as error:
            reason = Skip("the device has no such kernel", str(error))
            outcomes |= dict.fromkeys(group.rows.tolist(), Outcome.skipped(reason))
        else:
            for j, (i, case) in enumerate(zip(group.rows.tolist(), group.cases, strict=True)):
                outcomes[i] = _outcome(case, {key: column[j] for key, column in results.items()})
        progress(len(group.cases))
    return [outcomes[i] for i in range(len(rows))]


def _outcome(case: Case, result: Mapping[str, Any]) -> Outcome:
    projected = float(result["time"])
    if not math.isfinite(projected):
        return Outcome.skipped(Skip("the model gives no time", case.hardware.name))
    details = {key: value for key, value in result.items() if key != "time"}
    return Outcome(
        measured=case.measured,
        projected=projected,
        notes=case.notes,
        details={"hardware": case.hardware.name, **details},
    )
