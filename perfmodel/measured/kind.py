"""What a table of measurements holds: one `Kind` per table, all of them by name.

How to add a kind of measured kernels
-------------------------------------
1. Write ``perfmodel/measured/kinds/<name>.py``. ``case_of(row)`` turns a row into a
   `perfmodel.measured.cases.Case` (hardware, variant, sizes, seconds) or raises `Skip` with
   the reason; ``price(hardware, variant, columns)`` prices all cases of one device and
   variant in one call; ``check(row)`` refuses broken numbers; ``derived(row)`` adds columns to
   filter and group by, ``regime`` among them. Its last lines make ``KIND = KernelKind(…)``.
2. Name the module in `KINDS` below. `perfmodel compare <name>` works then, and, where the kind
   names a ``calibration``, so does `perfmodel calibrate`.
3. State the columns in docs/calibration.md, and the name in the help of ``compare``.

What is no kernel derives from `Kind` and says itself how its rows are projected, as
`perfmodel.measured.kinds.training` does.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.cases import Case, Price, project_cases
from perfmodel.measured.rows import MeasuredRow, Outcome

if TYPE_CHECKING:
    from perfmodel.measured.compare import ComparedRow

KINDS: Mapping[str, str] = {
    "training": "training",
    "memory": "memory",
    "serving": "serving",
    "gemm": "gemm",
    "attention": "attention",
    "mla": "mla",
    "sparse-attention": "sparse_attention",
    "moe": "moe",
    "stream": "stream",
    "collective": "collective",
    "serving-all-reduce": "serving_all_reduce",
    "moe-alltoall": "moe_exchange",
    "wafer": "wafer",
}
"""Kind -> its module in `perfmodel.measured.kinds`, whose ``KIND`` `load_kind` returns."""

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
    check : callable
        Raises `DataError` where a number of a row is broken.
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
    check: Callable[[MeasuredRow], None]
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
        See `perfmodel.measured.cases.Price`.
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
    kind: Kind = import_module(f"perfmodel.measured.kinds.{KINDS[name]}").KIND
    return kind


def calibrated_kinds() -> dict[str, KernelKind]:
    """Return the kinds that a profile has constants for, by name."""
    kinds = map(load_kind, KINDS)
    return {kind.name: kind for kind in kinds if isinstance(kind, KernelKind) and kind.calibration}
