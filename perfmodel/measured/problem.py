"""What a calibration is about: measured rows, chosen by hardware, priced with any constants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.hwprofiles import Calibrated, Hardware
from perfmodel.hwprofiles.constants import known
from perfmodel.hwprofiles.family import Family
from perfmodel.hwprofiles.loader import normalise
from perfmodel.hwprofiles.trust import at_clock
from perfmodel.measured.compare import read_table
from perfmodel.measured.kind import (
    Columns,
    KernelKind,
    Price,
    calibrated_kinds,
    kernel_hardware,
    read_cases,
)
from perfmodel.measured.rows import MeasuredRow, Skip, read_rows

Constants = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """Rows of one file.

    Attributes
    ----------
    file : str
    kind : str
        One of `perfmodel.measured.kind.calibrated_kinds`.
    where : str, optional
        Filter over columns, as in `perfmodel.measured.compare.compare_file`.
    """

    file: str
    kind: str
    where: str | None = None


class Subject(ABC):
    """Chooses rows, and says how their devices get the constants that are fitted.

    Attributes
    ----------
    sort : str
        What it is, for messages.
    any_constant : bool
        Whether a fit may be asked for constants that are not adjustable.
    """

    sort: ClassVar[str]
    any_constant: ClassVar[bool]

    @property
    @abstractmethod
    def source(self) -> Hardware | Family:
        """Profile or family whose constants they are."""

    @property
    def constants(self) -> Mapping[str, Mapping[str, Calibrated]]:
        """Constants by group and key; those that a family hands down."""
        return self.source.calibration

    @property
    def name(self) -> str:
        """Of the profile or family."""
        return self.source.name

    @property
    def described(self) -> str:
        """What it is, and its name."""
        return f"{self.sort} '{self.name}'"

    @property
    @abstractmethod
    def wanted(self) -> str:
        """What a row's ``hardware`` should say."""

    @abstractmethod
    def head(self, tables: Sequence[MeasuredTable]) -> dict[str, Any]:
        """Return what is calibrated and to what, fit for JSON."""

    @abstractmethod
    def chosen(self, row: MeasuredRow) -> MeasuredRow | None:
        """Return the row as it is priced; None where its device has nothing to say."""

    @abstractmethod
    def applied(self, hardware: Hardware, group: str) -> Hardware:
        """Return a row's device with the constants in use."""

    def own(self, hardware: Hardware, group: str) -> frozenset[str]:
        """Return the keys that a row's device states itself, whatever is fitted."""
        return frozenset()

    def at_device(self, hardware: Hardware, group: str, values: Mapping[str, float]) -> Constants:
        """Return constants of the subject as a row's device has them."""
        return values


@dataclass(frozen=True)
class OneProfile(Subject):
    """A profile, and on demand other devices under its constants.

    Attributes
    ----------
    profile : Hardware
    spelling : str
        Name or path by which it was loaded.
    all_rows : bool
        Also rows of other devices, each with its own device's facts and the profile's
        constants.
    """

    profile: Hardware
    spelling: str
    all_rows: bool = False

    sort, any_constant = "hardware profile", False

    @property
    def source(self) -> Hardware:
        """The profile."""
        return self.profile

    def head(self, tables: Sequence[MeasuredTable]) -> dict[str, Any]:
        """One table."""
        (table,) = tables
        return {
            "kind": table.kind,
            "profile": self.name,
            "file": table.file,
            "where": table.where,
            "all_rows": self.all_rows,
        }

    @property
    def wanted(self) -> str:
        """Name or alias."""
        alias = f" or {self.profile.aliases[0]}" if self.profile.aliases else ""
        return f"{self.profile.name}{alias}, or use --all-rows"

    def chosen(self, row: MeasuredRow) -> MeasuredRow | None:
        """Rows of its device, and with `all_rows` every other."""
        if self._names(row):
            return row.replaced("hardware", self.spelling)
        return row if self.all_rows else None

    def applied(self, hardware: Hardware, group: str) -> Hardware:
        """Every device under the profile's constants."""
        base = self.profile if hardware.name == self.profile.name else hardware
        constants = self.profile.calibration[group]
        return replace(base, calibration={**base.calibration, group: constants})

    def _names(self, row: MeasuredRow) -> bool:
        """Tell whether a row was measured on the profile's device."""
        profile = self.profile
        text = row.text("hardware").split("|")[0].strip()
        if normalise(text) in map(normalise, (profile.name, profile.device.name, *profile.aliases)):
            return True
        try:
            hardware, _ = kernel_hardware(row)
        except Skip:
            return False
        return hardware.device.name == profile.device.name


@dataclass(frozen=True)
class WholeFamily(Subject):
    """All devices of a family, each with its own facts and what it has of its own.

    Attributes
    ----------
    family : Family
    """

    family: Family

    sort, any_constant = "family", True

    @property
    def source(self) -> Family:
        """The family."""
        return self.family

    def head(self, tables: Sequence[MeasuredTable]) -> dict[str, Any]:
        """All tables."""
        return {
            "family": self.name,
            "systems": list(self.family.systems),
            "tables": [asdict(table) for table in tables],
        }

    @property
    def wanted(self) -> str:
        """The systems of the family."""
        return "one of " + ", ".join(self.family.systems)

    def chosen(self, row: MeasuredRow) -> MeasuredRow | None:
        """Rows of its systems."""
        try:
            hardware, _ = kernel_hardware(row)
        except Skip:
            return None
        return row if hardware.name in self.family.systems else None

    def applied(self, hardware: Hardware, group: str) -> Hardware:
        """The device, with what the family has now in place of what it inherited."""
        own = self.own(hardware, group)
        handed = {key: entry for key, entry in self.constants[group].items() if key not in own}
        values = {key: entry.value for key, entry in handed.items()}
        scaled = self.at_device(hardware, group, values)
        handed = {key: replace(entry, value=scaled[key]) for key, entry in handed.items()}
        entries = {**hardware.calibration.get(group, {}), **handed}
        return replace(hardware, calibration={**hardware.calibration, group: entries})

    def own(self, hardware: Hardware, group: str) -> frozenset[str]:
        """What the device's files, or its chip's, state in place of the family."""
        stated = self.family.own.get(hardware.name, frozenset())
        return frozenset(key for its_group, key in stated if its_group == group)

    def at_device(self, hardware: Hardware, group: str, values: Mapping[str, float]) -> Constants:
        """Latencies in clocks."""
        clock = hardware.device.boost_clock
        return {
            key: at_clock(known(group)[key], value, self.family.clock, clock)
            for key, value in values.items()
        }


LOOKED_AT = 50
"""Rows that tell the kind of a table."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that one call prices.

    Attributes
    ----------
    price : callable
        See `perfmodel.measured.kind.Price`.
    variant, columns
        Of the rows; see `perfmodel.measured.kind.CaseGroup`.
    hardware : Hardware
        Whose facts count.
    own : frozenset of str
        Constants that the device has of its own, whatever is fitted.
    at_device : callable
        Device, group and constants of the subject -> the device's constants.
    measured : ndarray, shape (case,)
        [s].
    places : ndarray of int64, shape (case,)
        Where the rows stand in the problem.
    """

    price: Price
    variant: Hashable
    columns: Columns
    hardware: Hardware
    own: frozenset[str]
    at_device: Callable[[Hardware, str, Mapping[str, float]], Mapping[str, float]]
    measured: NDArray[np.float64]
    places: NDArray[np.int64]

    def chosen(self, mask: NDArray[np.bool_], places: NDArray[np.int64]) -> Part:
        """Return the cases of `mask`, which now stand at `places`."""
        columns = {name: column[mask] for name, column in self.columns.items()}
        return replace(self, columns=columns, measured=self.measured[mask], places=places)


@dataclass(frozen=True, slots=True)
class Problem:
    """Measured rows, and how they are priced with other constants.

    Attributes
    ----------
    calibration : str
        Group of the calibration that is fitted; empty where nothing is.
    parts : tuple of Part
    regimes : ndarray of str, shape (row,)
        ``<class>_<regime>``.
    alike : tuple of hashable
        Per row what near-identical rows have in common.
    skipped : mapping of str to int
        Rows that cannot be used, by reason.
    """

    calibration: str
    parts: tuple[Part, ...]
    regimes: NDArray[np.str_]
    alike: tuple[Hashable, ...]
    skipped: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.alike)

    def log_ratios(self, constants: Mapping[str, float]) -> NDArray[np.float64]:
        """Return ln(predicted / measured) of every row under some constants."""
        found = np.full(len(self), np.nan)
        for part in self.parts:
            moved = {key: value for key, value in constants.items() if key not in part.own}
            moved = dict(part.at_device(part.hardware, self.calibration, moved))
            hardware = with_constants(part.hardware, self.calibration, moved)
            time = part.price(hardware, part.variant, part.columns)["time"]
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
            regimes=self.regimes[mask],
            alike=tuple(self.alike[i] for i in chosen),
        )


def with_constants(hardware: Hardware, group: str, values: Mapping[str, float]) -> Hardware:
    """Return hardware with other values in one group of its calibration, unchecked."""
    if not values:
        return hardware
    entries = hardware.calibration[group]
    changed = {key: replace(entries[key], value=float(value)) for key, value in values.items()}
    return replace(hardware, calibration={**hardware.calibration, group: {**entries, **changed}})


def calibrated_kind(name: str) -> KernelKind:
    """Return a kind that profiles have constants for.

    Raises
    ------
    DataError
        There is no such kind.
    """
    kinds = calibrated_kinds()
    if name not in kinds:
        raise DataError(f"there is nothing to calibrate for '{name}'{did_you_mean(name, kinds)}")
    return kinds[name]


def fitted_keys(kind: KernelKind, keys: Iterable[str]) -> list[str]:
    """Return the keys of the kind's group that its rows are about.

    Kinds that share a group begin their keys differently; the one without a beginning has
    the others.
    """
    sharing = [
        other for other in calibrated_kinds().values() if other.calibration == kind.calibration
    ]
    foreign = tuple(other.keys for other in sharing if other.keys and other.keys != kind.keys)
    return [key for key in keys if key.startswith(kind.keys) and not key.startswith(foreign)]


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
    # A kind of few constants is for rows that the kind of the others does not read.
    readable = {name: count for name, count in readable.items() if count or not kinds[name].keys}
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


def read_problem(table: MeasuredTable, subject: Subject) -> Problem:
    """Read the rows that constants are to be fitted to.

    Parameters
    ----------
    table : MeasuredTable
    subject : Subject
        Whose constants they are.

    Raises
    ------
    DataError
        A table that cannot be read, a kind without constants, or no row to use.
    HardwareError
        The subject has no calibration of this kind.
    """
    kind = calibrated_kind(table.kind)
    if kind.calibration not in subject.constants:
        raise HardwareError(
            f"{subject.described} has no [calibration.{kind.calibration}], "
            f"which '{kind.name}' would be fitted to"
        )
    skipped: Counter[str] = Counter()
    kept = []
    for row in read_table(kind.name, table.file, table.where).rows:
        chosen = subject.chosen(row)
        if chosen is None:
            skipped["other hardware"] += 1
        else:
            kept.append(chosen)
    groups, unread = read_cases(kept, kind.case_of)
    skipped.update(skip.reason for skip in unread.values())
    parts, usable = [], np.zeros(len(kept), bool)
    for group in groups:
        hardware = subject.applied(group.hardware, kind.calibration)
        measured = np.array([case.measured for case in group.cases])
        try:
            time = np.asarray(kind.price(hardware, group.variant, group.columns)["time"])
        except HardwareError:
            skipped["the device has no such kernel"] += measured.size
            continue
        finite = np.isfinite(time) & (time > 0.0)
        if not finite.all():
            skipped["the model gives no time"] += int(np.count_nonzero(~finite))
        if finite.any():
            usable[group.rows[finite]] = True
            own = subject.own(group.hardware, kind.calibration)
            part = Part(
                kind.price,
                group.variant,
                group.columns,
                hardware,
                own,
                subject.at_device,
                measured,
                group.rows,
            )
            parts.append(part.chosen(finite, group.rows[finite]))
    if not parts:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        raise DataError(
            f"{table.file}: no row to calibrate '{subject.name}' with "
            f"({reasons or 'no rows at all'}); the column 'hardware' should name {subject.wanted}"
        )
    return Problem(
        kind.calibration,
        tuple(parts),
        np.array([f"{kind.class_of(row)}_{row.text('regime') or 'unknown'}" for row in kept]),
        tuple(_alike(kind, row) for row in kept),
        dict(skipped),
    ).subset(usable)


def join(problems: Sequence[Problem]) -> Problem:
    """Return the problem of the rows of all tables, one after the other.

    Tables that are fitted to different groups can be judged together, not fitted: the
    ``calibration`` of their problem is empty.
    """
    groups = {problem.calibration for problem in problems}
    skipped: Counter[str] = Counter()
    parts: list[Part] = []
    rows = 0
    for problem in problems:
        parts += [replace(part, places=part.places + rows) for part in problem.parts]
        rows += len(problem)
        skipped.update(problem.skipped)
    return Problem(
        groups.pop() if len(groups) == 1 else "",
        tuple(parts),
        np.concatenate([problem.regimes for problem in problems]),
        tuple(alike for problem in problems for alike in problem.alike),
        dict(skipped),
    )


def _alike(kind: KernelKind, row: MeasuredRow) -> Hashable:
    cells = tuple(row.text(column) for column in kind.alike if column in row.cells)
    return (kind.name, cells or row.line)


def sample(problem: Problem, limit: int) -> NDArray[np.bool_]:
    """Choose at most `limit` rows, of every regime an equal share where it has as many."""
    counts = {name: int((problem.regimes == name).sum()) for name in np.unique(problem.regimes)}
    if sum(counts.values()) <= limit:
        return np.ones(len(problem), bool)
    random = np.random.default_rng(0)
    chosen = np.zeros(len(problem), bool)
    left = limit
    for position, (name, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        share = min(count, left // (len(counts) - position))
        places = np.flatnonzero(problem.regimes == name)
        chosen[random.choice(places, share, replace=False)] = True
        left -= share
    return chosen
