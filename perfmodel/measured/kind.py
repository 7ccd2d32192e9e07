"""What a table of measurements holds: one `Kind` per table, all of them by name.

How to add a kind of measured kernels
-------------------------------------
1. Write ``perfmodel/measured/kinds/<name>.py``. ``case_of(row)`` turns a row into a
   `Case` (hardware, variant, sizes, seconds) or raises `Skip` with
   the reason; ``price(hardware, variant, columns)`` prices all cases of one device and
   variant in one call; ``derived(row)`` adds columns to filter and group by, ``regime`` among
   them. Its last lines make ``KIND = KernelKind(…)``, which says which columns hold numbers.
2. Name the module in `KINDS` below. `perfmodel compare <name>` works then, and, where the kind
   names a ``calibration``, so does `perfmodel calibrate`.
3. State the columns in docs/calibration.md, and the name in the help of ``compare``.

What is no kernel derives from `Kind` and says itself how its rows are projected, as
`perfmodel.measured.kinds.training` does.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.measured.rows import TRUTH, ComparedRow, MeasuredRow, Outcome, Skip

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


KINDS: Mapping[str, str] = {
    "training": "training",
    "memory": "memory",
    "serving": "serving",
    "gemm": "gemm",
    "attention": "attention",
    "mla": "attention:LATENT",
    "sparse-attention": "attention:SPARSE",
    "moe": "moe",
    "stream": "stream",
    "collective": "collective",
    "serving-all-reduce": "collective:SERVING_ALL_REDUCE",
    "moe-alltoall": "collective:EXCHANGE",
    "wafer": "wafer",
}
"""Kind -> its module in `perfmodel.measured.kinds`, whose ``KIND`` is it, or another name."""

Rows = tuple[list[str], list[MeasuredRow]]
"""Columns and rows of a file."""

Further = Mapping[str, Sequence[Mapping[str, Any]]]
"""Tables by title, each of lines of values by column, fit for JSON."""


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """A kind of table: its columns, and how its rows are projected.

    Attributes
    ----------
    name : str
        As in `KINDS`.
    quantity, unit : str
        What is compared, and in which unit.
    needed : tuple of str
        Columns that must exist.
    measurements : tuple of str
        Columns of which one must exist.
    group_by : tuple of str
        Columns that errors are grouped by unless a user says otherwise.
    whole, positive, numbers : tuple of str
        Columns of whole numbers, of numbers above 0, of numbers; a broken one is a `DataError`.
    timed : str
        Column of a kernel's time, which may be that of a failed run; empty for none.
    check : callable
        Raises `DataError` where another cell of a row is broken.
    derived : callable
        Row -> further columns to filter and group by.
    together : callable
        Rows -> further columns of each that follow from all of them.
    counts : callable
        Row -> whether it is a measurement at all; others are left out of everything.
    aliases : mapping of str to str
        Other spelling of a column -> its name.
    read : callable
        Path -> columns and rows of a file that is no table; None where it is one.
    metrics : mapping of str to (str, str)
        What may be compared where that is a choice: name -> quantity and unit.
    metric : str
        Which of them is.
    load_profile : callable
        Loads a profile by name or path; raises `HardwareError` where there is none.
    further : callable
        Compared rows -> tables beside the statistics, by title: lines of columns by name.
    below : float
        Statistics tell the share of rows projected more than this below the measurement, where
        that is the side that costs; 0: they don't.
    ranked_by : str
        Column of the work that a measurement is divided by where runs are ranked; empty for none.
    shares : tuple of str
        Columns that agree in rows that share work: one worker gets them together.
    """

    name: str
    quantity: str = "time"
    unit: str = "s"
    needed: tuple[str, ...]
    measurements: tuple[str, ...] = ("time_us",)
    group_by: tuple[str, ...]
    whole: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    timed: str = ""
    check: Callable[[MeasuredRow], None] = lambda row: None
    derived: Callable[[MeasuredRow], Mapping[str, str]]
    together: Callable[[Sequence[MeasuredRow]], Sequence[Mapping[str, str]]] = lambda rows: (
        [{}] * len(rows)
    )
    counts: Callable[[MeasuredRow], bool] = lambda row: True
    aliases: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[str | os.PathLike[str]], Rows | None] = lambda path: None
    metrics: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    metric: str = ""
    load_profile: Callable[[str], object] = load_hardware
    further: Callable[[Sequence[ComparedRow]], Further] = lambda rows: {}
    below: float = 0.0
    ranked_by: str = "gbs"
    shares: tuple[str, ...] = ("hardware",)

    def refuse_broken(self, row: MeasuredRow) -> None:
        """Raise DataError where a cell that should be a number, or a known word, is none."""
        for column in self.whole:
            row.whole(column)
        for column in self.positive:
            row.positive(column)
        for column in self.numbers:
            row.number(column)
        if self.timed:
            check_time(row, self.timed)
        self.check(row)

    def of_metric(self, metric: str | None) -> Kind:
        """Return the kind that compares one of its metrics; None: what it compares anyway.

        Raises
        ------
        DataError
            It has no such metric.
        """
        if metric is None:
            return self
        if metric not in self.metrics:
            hint = did_you_mean(metric, self.metrics) if self.metrics else ""
            raise DataError(f"'{self.name}' has no metric '{metric}'{hint}")
        quantity, unit = self.metrics[metric]
        return replace(self, metric=metric, quantity=quantity, unit=unit)

    @abstractmethod
    def project(
        self, rows: Sequence[MeasuredRow], progress: Callable[[int], None]
    ) -> list[Outcome]:
        """Return what becomes of every row, whatever the others are.

        `progress` is told how many more are done.
        """

    def related(self, rows: Sequence[MeasuredRow], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes of all rows with what follows from those of other rows."""
        return list(outcomes)


@dataclass(frozen=True, kw_only=True)
class KernelKind(Kind):
    """A kind of kernels, whose rows can be priced again with other constants.

    Attributes
    ----------
    case_of : callable
        Row -> `Case`; raises `Skip` with the reason where there is none.
    price : callable
        See `Price`.
    kernel_class : str
        Class of `perfmodel.base.regimes`.
    phases : mapping of str to str
        Value of the column ``phase`` -> its class, where that makes a difference.
    calibration : str
        Group of the profile's calibration that the kind is fitted to; empty for none.
    keys : str
        How the kind's constants begin, where kinds share a group; the one without a
        beginning has the others.
    alike : tuple of str
        Columns in which near-identical rows agree, which a cross-validation keeps together.
    """

    timed: str = "time_us"
    case_of: Callable[[MeasuredRow], Case]
    price: Price
    kernel_class: str
    phases: Mapping[str, str] = field(default_factory=dict)
    calibration: str = ""
    keys: str = ""
    alike: tuple[str, ...] = ()

    def project(
        self, rows: Sequence[MeasuredRow], progress: Callable[[int], None]
    ) -> list[Outcome]:
        """Price the rows, those of one device and variant in one call."""
        return project_cases(rows, self.case_of, self.price, progress)

    def class_of(self, row: MeasuredRow) -> str:
        """Return the class of `perfmodel.base.regimes` to which a row belongs."""
        return self.phases.get(row.lower("phase"), self.kernel_class)


def load_kind(name: str | Kind) -> Kind:
    """Return a kind by its name; its models are imported now. A kind is returned as it is.

    Raises
    ------
    DataError
        There is no such kind.
    """
    if isinstance(name, Kind):
        return name
    if name not in KINDS:
        raise DataError(f"unknown kind '{name}'{did_you_mean(name, KINDS)}")
    module, _, own = KINDS[name].partition(":")
    kind: Kind = getattr(import_module(f"perfmodel.measured.kinds.{module}"), own or "KIND")
    return kind


def calibrated_kinds() -> dict[str, KernelKind]:
    """Return the kinds that a profile has constants for, by name."""
    kinds = map(load_kind, KINDS)
    return {kind.name: kind for kind in kinds if isinstance(kind, KernelKind) and kind.calibration}
