"""The rows that a calibration is fitted to: chosen by hardware, priced with any constants."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.loader import normalise
from perfmodel.measured.cases import CaseGroup, Price, kernel_hardware, read_cases
from perfmodel.measured.compare import read_table
from perfmodel.measured.kind import KernelKind, calibrated_kinds
from perfmodel.measured.rows import MeasuredRow, Skip, read_rows

LOOKED_AT = 50
"""Rows that tell the kind of a table."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that one call prices.

    Attributes
    ----------
    group : CaseGroup
    hardware : Hardware
        Whose facts count.
    measured : ndarray, shape (case,)
        [s].
    places : ndarray of int64, shape (case,)
        Where the rows stand in `Problem.rows`.
    """

    group: CaseGroup
    hardware: Hardware
    measured: NDArray[np.float64]
    places: NDArray[np.int64]

    def chosen(self, mask: NDArray[np.bool_], places: NDArray[np.int64]) -> Part:
        """Return the cases of `mask`, which now stand at `places`."""
        columns = {name: column[mask] for name, column in self.group.columns.items()}
        group = replace(self.group, columns=columns)
        return Part(group, self.hardware, self.measured[mask], places)


@dataclass(frozen=True, slots=True)
class Problem:
    """Measured rows, and how they are priced with other constants.

    Attributes
    ----------
    kind, calibration : str
        Kind of table; group of the profile's calibration.
    price : callable
        See `perfmodel.measured.cases.Price`.
    parts : tuple of Part
    rows : tuple of MeasuredRow
    regimes : ndarray of str, shape (row,)
        ``<class>_<regime>``.
    alike : tuple of hashable
        Per row what near-identical rows have in common.
    skipped : mapping of str to int
        Rows that cannot be used, by reason.
    """

    kind: str
    calibration: str
    price: Price
    parts: tuple[Part, ...]
    rows: tuple[MeasuredRow, ...]
    regimes: NDArray[np.str_]
    alike: tuple[Hashable, ...]
    skipped: Mapping[str, int]

    def log_ratios(self, constants: Mapping[str, float]) -> NDArray[np.float64]:
        """Return ln(predicted / measured) of every row under some constants."""
        found = np.full(len(self.rows), np.nan)
        for part in self.parts:
            hardware = with_constants(part.hardware, self.calibration, constants)
            time = self.price(hardware, part.group.variant, part.group.columns)["time"]
            found[part.places] = np.log(time / part.measured)
        return found

    def subset(self, mask: NDArray[np.bool_]) -> Problem:
        """Return the problem of some of the rows."""
        new = np.cumsum(mask) - 1
        parts = []
        for part in self.parts:
            kept = mask[part.places]
            if kept.any():
                parts.append(part.chosen(kept, new[part.places[kept]]))
        chosen = np.flatnonzero(mask).tolist()
        return replace(
            self,
            parts=tuple(parts),
            rows=tuple(self.rows[i] for i in chosen),
            regimes=self.regimes[mask],
            alike=tuple(self.alike[i] for i in chosen),
        )


def with_constants(hardware: Hardware, group: str, values: Mapping[str, float]) -> Hardware:
    """Return hardware with other values in one group of its calibration, unchecked."""
    entries = hardware.calibration[group]
    changed = {key: replace(entries[key], value=float(value)) for key, value in values.items()}
    return replace(hardware, calibration={**hardware.calibration, group: {**entries, **changed}})


def infer_kind(path: str) -> str:
    """Return the kind of kernels that a table holds: the one that can read its rows.

    Raises
    ------
    DataError
        None can, or more than one reads equally many of the first rows.
    """
    kinds = calibrated_kinds()
    for name, kind in kinds.items():  # what is no table, such as the log of a benchmark
        if kind.read(path) is not None:
            return name
    columns, rows = read_rows(path, ())
    readable = {
        name: sum(_reads(kind, row) for row in rows[:LOOKED_AT])
        for name, kind in kinds.items()
        if set(kind.needed) <= set(columns) and set(kind.measurements) & set(columns)
    }
    most = max(readable.values(), default=0)
    best = [kind for kind, count in readable.items() if count == most]
    if {"attention", "mla"} <= set(best):  # latent attention has no key heads to state
        best.remove("mla" if "kv_heads" in columns else "attention")
    if most and len(best) == 1:
        return best[0]
    if len(readable) == 1:  # its own error messages say more
        return next(iter(readable))
    if readable:
        raise DataError(f"{path} could be {' or '.join(best)}; say which with --kind")
    needs = "; ".join(f"{name} needs {', '.join(kind.needed)}" for name, kind in kinds.items())
    raise DataError(f"{path}, line 1: not the columns of any kind of kernels ({needs})")


def _reads(kind: KernelKind, row: MeasuredRow) -> bool:
    try:
        kind.case_of(row)
    except (Skip, DataError):
        return False
    return True


def read_problem(
    kind: str,
    path: str,
    profile: Hardware,
    spelling: str,
    where: str | None = None,
    all_rows: bool = False,
) -> Problem:
    """Read the rows that a profile is to be calibrated with.

    Parameters
    ----------
    kind, path, where
        As `perfmodel.measured.compare.compare_file`.
    profile : Hardware
        Whose constants are fitted.
    spelling : str
        Name or path by which `profile` was loaded.
    all_rows : bool
        Also rows of other devices, each with its own device's facts and the profile's
        constants: what a family has in common.

    Raises
    ------
    DataError
        A table that cannot be read, a kind without constants, or no row to use.
    HardwareError
        The profile has no calibration of this kind.
    """
    kinds = calibrated_kinds()
    if kind not in kinds:
        raise DataError(f"there is nothing to calibrate for '{kind}'{did_you_mean(kind, kinds)}")
    kernels = kinds[kind]
    calibration = kernels.calibration
    if calibration not in profile.calibration:
        raise HardwareError(
            f"hardware profile '{profile.name}' has no [calibration.{calibration}], "
            f"which '{kind}' would be fitted to"
        )
    table = read_table(kind, path, where)
    skipped: dict[str, int] = {}
    kept: list[MeasuredRow] = []
    own: list[bool] = []
    for row in table.rows:
        mine = _names(row, profile)
        if mine or all_rows:
            kept.append(row.replaced("hardware", spelling) if mine else row)
            own.append(mine)
        else:
            skipped["other hardware"] = skipped.get("other hardware", 0) + 1
    groups, unread = read_cases(kept, kernels.case_of)
    for skip in unread.values():
        skipped[skip.reason] = skipped.get(skip.reason, 0) + 1
    constants = profile.calibration[calibration]
    parts, usable = [], np.zeros(len(kept), bool)
    for group in groups:
        base = profile if own[int(group.rows[0])] else group.hardware
        hardware = replace(base, calibration={**base.calibration, calibration: constants})
        measured = np.array([case.measured for case in group.cases])
        try:
            time = np.asarray(kernels.price(hardware, group.variant, group.columns)["time"])
        except HardwareError:
            reason = "the device has no such kernel"
            skipped[reason] = skipped.get(reason, 0) + measured.size
            continue
        finite = np.isfinite(time) & (time > 0.0)
        if not finite.all():
            reason = "the model gives no time"
            skipped[reason] = skipped.get(reason, 0) + int(np.count_nonzero(~finite))
        if finite.any():
            usable[group.rows[finite]] = True
            parts.append(
                Part(group, hardware, measured, group.rows).chosen(finite, group.rows[finite])
            )
    if not parts:
        raise DataError(_nothing(path, profile, skipped))
    return Problem(
        kind,
        calibration,
        kernels.price,
        tuple(parts),
        tuple(kept),
        np.array([f"{kernels.class_of(row)}_{row.text('regime') or 'unknown'}" for row in kept]),
        tuple(_alike(kernels.alike, row) for row in kept),
        skipped,
    ).subset(usable)


def _nothing(path: str, profile: Hardware, skipped: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
    return (
        f"{path}: no row to calibrate '{profile.name}' with ({reasons or 'no rows at all'}); the "
        f"column 'hardware' should name {profile.name}"
        + (f" or {profile.aliases[0]}" if profile.aliases else "")
        + ", or use --all-rows"
    )


def _names(row: MeasuredRow, profile: Hardware) -> bool:
    """Tell whether a row was measured on the device of a profile."""
    text = row.text("hardware").split("|")[0].strip()
    if normalise(text) in map(normalise, (profile.name, profile.device.name, *profile.aliases)):
        return True
    try:
        hardware, _ = kernel_hardware(row)
    except Skip:
        return False
    return hardware.device.name == profile.device.name


def _alike(columns: Sequence[str], row: MeasuredRow) -> Hashable:
    cells = tuple(row.text(column) for column in columns if column in row.cells)
    return cells or row.line


def sample(problem: Problem, limit: int, seed: int = 0) -> NDArray[np.bool_]:
    """Choose at most `limit` rows, of every regime an equal share where it has as many."""
    counts = {name: int((problem.regimes == name).sum()) for name in np.unique(problem.regimes)}
    if sum(counts.values()) <= limit:
        return np.ones(len(problem.rows), bool)
    random = np.random.default_rng(seed)
    chosen = np.zeros(len(problem.rows), bool)
    left = limit
    for position, (name, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        share = min(count, left // (len(counts) - position))
        places = np.flatnonzero(problem.regimes == name)
        chosen[random.choice(places, share, replace=False)] = True
        left -= share
    return chosen
