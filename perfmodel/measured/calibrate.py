"""Fit the adjustable constants of hardware profiles to measured kernels.

`calibrate_file` fits one profile, `calibrate_family` what a family hands down. Both judge
the fit by rows that it has not seen, and return a `perfmodel.measured.calibration.Calibration`.
What is minimised stands in `perfmodel.measured.fit`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.hwprofiles import Calibrated, load_hardware
from perfmodel.hwprofiles.constants import AT_BOUND, implausible, known
from perfmodel.hwprofiles.family import Family, load_family
from perfmodel.measured.calibration import Calibration, Parameter
from perfmodel.measured.fit import EVALUATIONS, Fit, LogRatios, Scale, fit, folds
from perfmodel.measured.problem import (
    MeasuredTable,
    OneProfile,
    Problem,
    Subject,
    WholeFamily,
    calibrated_kind,
    fitted_keys,
    infer_kind,
    join,
    read_problem,
    sample,
)
from perfmodel.sweeps.workers import Workers, in_blocks, whole_work

FOLDS = 5
SAMPLE = 4000
FEWEST_ROWS = 10
"""Rows that make an uncertainty of a regime."""
Progress = Callable[[int, int], None]
"""Called with (fits done, fits in all)."""


def calibrate_file(
    profile: str,
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    where: str | None = None,
    all_rows: bool = False,
    only: Sequence[str] | None = None,
    from_prior: bool = False,
    limit: int = SAMPLE,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> Calibration:
    """Fit the adjustable constants of a profile to a table of measured kernels.

    Parameters
    ----------
    profile : str
        Name, alias or TOML file of a hardware profile.
    path : str or path
        CSV with the columns of docs/calibration.md.
    kind : str, optional
        Which kernels the table holds; default: what its columns say.
    where : str, optional
        Filter over columns, as in `perfmodel.measured.compare.compare_file`.
    all_rows : bool
        Also rows of other devices, each with its own device's facts.
    only : sequence of str, optional
        Keys to fit; default: all that are adjustable.
    from_prior : bool
        Start from and be held by the physical priors in place of the values in use.
    limit : int
        Rows that the fit sees, an equal share of each regime; all rows judge it.
    progress : callable, optional
        Called with (fits done, fits in all).
    workers : Workers, optional
        Who does the fits, to all rows and without each fold; default: this process, one by one.

    Returns
    -------
    Calibration

    Raises
    ------
    DataError
        A table that cannot be read, or without a row to use; an unknown key.
    HardwareError
        Unknown profile, or one without adjustable constants of this kind.
    """
    file = os.fspath(path)
    subject = OneProfile(load_hardware(profile), profile, all_rows)
    table = MeasuredTable(file, kind or infer_kind(file), where)
    problem = read_problem(table, subject)
    entries = adjustable(subject, [table], only)
    seen = sample(problem, limit)
    return _calibration(
        subject, [table], problem, entries, seen, from_prior, FOLDS, progress, workers
    )


def calibrate_family(
    family: Family | str,
    tables: Sequence[MeasuredTable],
    *,
    only: Sequence[str] | None = None,
    from_prior: bool = False,
    limit: int = SAMPLE,
    fold_count: int = FOLDS,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> Calibration:
    """Fit what a family hands down to the rows of all its devices.

    Every device is priced with its own facts, and keeps the constants that its own files
    state. Tables that share constants are fitted together.

    Parameters
    ----------
    family : Family or str
        A shipped profile that others extend; `fitted_family` gives one with fitted values,
        to fit the next constants on top of them.
    tables : sequence of MeasuredTable
    only : sequence of str, optional
        Keys to fit, adjustable or not; default: all that are adjustable.
    from_prior, progress, workers
        As `calibrate_file`.
    limit : int
        Rows of each table that the fit sees, an equal share of each regime.
    fold_count : int
        Folds of the cross-validation; below 2 there is none.

    Returns
    -------
    Calibration

    Raises
    ------
    DataError, HardwareError
        As `calibrate_file`; tables without a constant in common.
    """
    subject = WholeFamily(load_family(family) if isinstance(family, str) else family)
    problems = [read_problem(table, subject) for table in tables]
    problem = join(problems)
    if not problem.calibration:
        groups = {
            part.calibration: table.file for part, table in zip(problems, tables, strict=True)
        }
        raise DataError(
            "these tables have no constant in common, fit one after the other: "
            + ", ".join(f"{file} ({group})" for group, file in groups.items())
        )
    entries = adjustable(subject, tables, only)
    seen = np.concatenate([sample(part, limit) for part in problems])
    return _calibration(
        subject, tables, problem, entries, seen, from_prior, fold_count, progress, workers
    )


def judge_family(family: Family | str, tables: Sequence[MeasuredTable]) -> Calibration:
    """Fit nothing: tell how far measured rows spread around what a family predicts.

    Parameters
    ----------
    family, tables
        As `calibrate_family`; tables of any kinds together.

    Raises
    ------
    DataError, HardwareError
        As `calibrate_family`.
    """
    subject = WholeFamily(load_family(family) if isinstance(family, str) else family)
    problem = join([read_problem(table, subject) for table in tables])
    every = np.ones(len(problem), bool)
    return _calibration(subject, tables, problem, {}, every, False, 0, None)


def fitted_family(found: Calibration) -> Family:
    """Return the family of a calibration with its fitted values.

    Raises
    ------
    TypeError
        It is no family's.
    """
    if not isinstance(found.subject, WholeFamily):
        raise TypeError(f"{found.subject.described} is no family")
    family = found.subject.family
    for parameter in found.parameters:
        _, group, key = parameter.path.split(".")
        family = family.with_constants(group, {key: parameter.after})
    return family


def adjustable(
    subject: Subject, tables: Sequence[MeasuredTable], only: Sequence[str] | None = None
) -> dict[str, Calibrated]:
    """Return the constants that a fit to tables may move.

    Raises
    ------
    HardwareError
        There are none, or one of `only` is not adjustable.
    """
    kinds = [calibrated_kind(table.kind) for table in tables]
    group = kinds[0].calibration
    table = subject.constants[group]
    about = {key for kind in kinds for key in fitted_keys(kind, table)}
    found = {
        key: entry
        for key, entry in table.items()
        if key in about and (entry.adjustable or (only and subject.any_constant))
    }
    for key in only or ():
        if key not in found:
            what = "does not exist"
            if key in table:
                what = "is not adjustable" if key in about else f"has no row of {kinds[0].name}"
            raise HardwareError(
                f"{subject.described}: '{key}' in [calibration.{group}] "
                f"{what}{did_you_mean(key, found)}"
            )
    if only:
        found = {key: found[key] for key in dict.fromkeys(only)}
    found = {key: entry for key, entry in found.items() if entry.low < entry.high}
    if not found:
        raise HardwareError(
            f"{subject.described} declares nothing in [calibration.{group}] "
            "adjustable; write 'adjustable = true' into an entry"
        )
    return found


def _calibration(
    subject: Subject,
    tables: Sequence[MeasuredTable],
    problem: Problem,
    entries: Mapping[str, Calibrated],
    seen: NDArray[np.bool_],
    from_prior: bool,
    fold_count: int,
    progress: Progress | None,
    workers: Workers | None = None,
) -> Calibration:
    """Fit the entries to the rows that are seen, and judge them by all."""
    scale = Scale(_column(entries, "low"), _column(entries, "high"))
    in_use = _column(entries, "value")
    prior = _column(entries, "prior") if from_prior else in_use
    fold = folds(problem.alike, max(fold_count, 1))
    fits = 1 + (int(fold.max()) + 1 if fold.any() else 0)
    asked = _Fits(problem, tuple(entries), in_use, prior, scale, seen, fold)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done, fits)

    results = dict(in_blocks(asked, range(fits), workers, advance))
    found = results[0].fit
    ratios = {"before": results[0].before}
    if entries:
        ratios["after"] = results[0].judged
    if fits > 1:
        unseen = np.empty(len(problem))
        for number in range(fits - 1):
            unseen[fold == number] = results[number + 1].judged
        ratios["cross_validated"] = unseen
    return Calibration(
        subject=subject,
        tables=tuple(tables),
        rows=len(problem) + sum(problem.skipped.values()),
        fitted=int(seen.sum()),
        skipped=problem.skipped,
        parameters=tuple(_parameters(problem.calibration, entries, prior, found, scale)),
        regimes=problem.regimes,
        log_ratios=ratios,
        fold_count=fits - 1,
        uncertainty=spread_by_regime(problem.regimes, list(ratios.values())[-1]),
        evaluations=found.evaluations,
    )


@dataclass(frozen=True, slots=True)
class _Fits:
    """A fit to all rows that are seen, and one without each fold; attributes as `_calibration`'s.

    Its blocks (`perfmodel.sweeps.workers.Work`) are 0 for the former, then 1 more than a fold's
    number.

    Attributes
    ----------
    names : tuple of str
        Constants, of which `in_use`, `prior` and `scale` have an entry each.
    fold : ndarray of int64, shape (row,)
    """

    problem: Problem
    names: tuple[str, ...]
    in_use: NDArray[np.float64]
    prior: NDArray[np.float64]
    scale: Scale
    seen: NDArray[np.bool_]
    fold: NDArray[np.int64]

    def size(self, block: int) -> int:
        """Return that a fit is one result."""
        return 1

    def done(self, block: int, progress: Callable[[int], None] | None) -> _Fitted:
        """Fit to all rows that are seen, or without a fold, which judges then."""
        judging, seen = self.problem, self.seen
        if block:
            inside = self.fold == block - 1
            judging, seen = judging.subset(inside), seen & ~inside
        ratios = _priced(self.problem.subset(seen), self.names)
        found = fit(ratios, self.in_use, self.prior, self.scale)
        judge = _priced(judging, self.names)
        before = judge(self.in_use) if not block else np.empty(0)
        return _Fitted(found, judge(found.values) if self.names else before, before)

    def warm(self) -> dict[str, float]:
        """Price every row that is seen once: kernels of all kinds of rows."""
        ratios = _priced(self.problem.subset(self.seen), self.names)
        return whole_work(lambda: ratios(self.in_use), FOLDS * EVALUATIONS)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A fit, and ln(predicted / measured) of the rows that judge it, with its constants and
    with those in use."""

    fit: Fit
    judged: NDArray[np.float64]
    before: NDArray[np.float64]


def spread_by_regime(
    regimes: NDArray[np.str_], log_ratios: NDArray[np.float64]
) -> dict[str, tuple[float, int]]:
    """Return half the width of the 10-90 % band of every regime with enough rows."""
    found = {}
    for name in sorted(set(regimes.tolist())):
        values = log_ratios[regimes == name]
        if values.size >= FEWEST_ROWS and name in known("uncertainty"):
            low, high = np.percentile(values, (10.0, 90.0))
            found[name] = (float(high - low) / 2.0, int(values.size))
    return found


def _priced(problem: Problem, names: Sequence[str]) -> LogRatios:
    def ratios(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return problem.log_ratios(dict(zip(names, values.tolist(), strict=True)))

    return ratios


def _column(entries: Mapping[str, Calibrated], name: str) -> NDArray[np.float64]:
    return np.array([getattr(entry, name) for entry in entries.values()], np.float64)


def _parameters(
    group: str,
    entries: Mapping[str, Calibrated],
    prior: NDArray[np.float64],
    found: Fit,
    scale: Scale,
) -> list[Parameter]:
    places = scale.places(found.values)
    edge = (places < AT_BOUND) | (places > 1.0 - AT_BOUND)
    return [
        Parameter(
            path=f"calibration.{group}.{key}",
            unit=entry.unit,
            before=entry.value,
            after=float(found.values[i]),
            prior=float(prior[i]),
            low=entry.low,
            high=entry.high,
            uncertainty=float(found.uncertainty[i] * found.informed[i]),
            resolution=float(found.resolution[i]),
            informed=bool(found.informed[i]),
            at_bound=bool(edge[i] and found.informed[i]),
            warning=implausible(float(found.values[i]), entry.prior, entry.low, entry.high)
            if found.informed[i]
            else "",
        )
        for i, (key, entry) in enumerate(entries.items())
    ]
