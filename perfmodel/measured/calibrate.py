"""Fit the adjustable constants of a hardware profile to measured kernels.

`calibrate_file` fits, judges the fit by rows that it has not seen, and returns a
`Calibration`, which can be written as a profile that extends the given one. What is
minimised stands in `perfmodel.measured.fit`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.hwprofiles import Calibrated, Hardware, load_hardware
from perfmodel.hwprofiles.constants import known
from perfmodel.measured.compare import error_statistics
from perfmodel.measured.fit import Fit, LogRatios, Scale, fit, folds
from perfmodel.measured.problem import Problem, infer_kind, read_problem, sample

SCHEMA_VERSION = "1.0"
FOLDS = 5
SAMPLE = 4000
FEWEST_ROWS = 10
"""Rows that make an uncertainty of a regime."""
AT_BOUND = 1e-3


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


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a fit found.

    Attributes
    ----------
    profile : Hardware
        The profile given.
    spelling : str
        Its name or path, as it was given.
    kind, file : str
        What was fitted to.
    where : str or None
    all_rows : bool
    rows : int
        Rows of the table after the filter.
    fitted : int
        Rows that the fit saw; the others of `log_ratios` only judge it.
    skipped : mapping of str to int
    parameters : tuple of Parameter
    regimes : ndarray of str, shape (row,)
        ``<class>_<regime>`` of every row used.
    log_ratios : mapping of str to ndarray, shape (row,)
        ln(predicted / measured) ``before``, ``after`` and, unless there are too few
        groups of rows, ``cross_validated``.
    fold_count : int
    uncertainty : mapping of str to tuple of (float, int)
        ``<class>_<regime>`` -> relative half-width of the band from the 10th to the
        90th percentile of ln(measured / predicted), and its rows.
    evaluations : int
    """

    profile: Hardware
    spelling: str
    kind: str
    file: str
    where: str | None
    all_rows: bool
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
            "kind": self.kind,
            "profile": self.profile.name,
            "file": self.file,
            "where": self.where,
            "all_rows": self.all_rows,
            "rows": self.rows,
            "count": int(self.regimes.size),
            "fitted": self.fitted,
            "skipped": dict(self.skipped),
            "parameters": [asdict(parameter) for parameter in self.parameters],
            "folds": self.fold_count,
            "errors": {which: self.errors(which) for which in self.log_ratios},
            "uncertainty": {
                name: {"value": value, "count": count}
                for name, (value, count) in self.uncertainty.items()
            },
            "evaluations": self.evaluations,
        }

    def write_profile(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Write a profile that extends the one given; see `perfmodel.measured.profile`.

        Raises
        ------
        DataError
            The file exists (unless `force`), or cannot be written.
        """
        from perfmodel.measured.profile import write_profile

        write_profile(self, Path(path), force)


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
    progress: Callable[[int, int], None] | None = None,
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
    hardware = load_hardware(profile)
    kind = kind or infer_kind(file)
    problem = read_problem(kind, file, hardware, profile, where, all_rows)
    entries = adjustable(hardware, problem.calibration, only)
    names = tuple(entries)
    scale = Scale(_column(entries, "low"), _column(entries, "high"))
    in_use = _column(entries, "value")
    prior = _column(entries, "prior") if from_prior else in_use
    seen = sample(problem, limit)
    fold = folds(problem.alike, FOLDS)
    fits = 1 + (int(fold.max()) + 1 if fold.any() else 0)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, fits)

    found = fit(_priced(problem.subset(seen), names), in_use, prior, scale)
    advance()
    priced = _priced(problem, names)
    ratios = {"before": priced(in_use), "after": priced(found.values)}
    if fits > 1:
        unseen = np.empty(len(problem.rows))
        for number in range(fits - 1):
            inside = fold == number
            part = fit(_priced(problem.subset(seen & ~inside), names), in_use, prior, scale)
            unseen[inside] = _priced(problem.subset(inside), names)(part.values)
            advance()
        ratios["cross_validated"] = unseen
    return Calibration(
        profile=hardware,
        spelling=profile,
        kind=kind,
        file=file,
        where=where,
        all_rows=all_rows,
        rows=len(problem.rows) + sum(problem.skipped.values()),
        fitted=int(seen.sum()),
        skipped=problem.skipped,
        parameters=tuple(_parameters(problem.calibration, entries, prior, found, scale)),
        regimes=problem.regimes,
        log_ratios=ratios,
        fold_count=fits - 1,
        uncertainty=spread_by_regime(
            problem.regimes, ratios.get("cross_validated", ratios["after"])
        ),
        evaluations=found.evaluations,
    )


def adjustable(
    hardware: Hardware, group: str, only: Sequence[str] | None = None
) -> dict[str, Calibrated]:
    """Return the constants of a group that a profile declares adjustable.

    Raises
    ------
    HardwareError
        There are none, or one of `only` is not adjustable.
    """
    table = hardware.calibration[group]
    found = {key: entry for key, entry in table.items() if entry.adjustable}
    for key in only or ():
        if key not in found:
            what = "is not adjustable" if key in table else "does not exist"
            raise HardwareError(
                f"hardware profile '{hardware.name}': '{key}' in [calibration.{group}] "
                f"{what}{did_you_mean(key, found)}"
            )
    if only:
        found = {key: found[key] for key in dict.fromkeys(only)}
    found = {key: entry for key, entry in found.items() if entry.low < entry.high}
    if not found:
        raise HardwareError(
            f"hardware profile '{hardware.name}' declares nothing in [calibration.{group}] "
            "adjustable; write 'adjustable = true' into an entry"
        )
    return found


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


def check_output(path: Path, spelling: str, force: bool) -> None:
    """Refuse a file that a profile must not be written to.

    Raises
    ------
    DataError
        No TOML file, the profile that it would extend, or one that exists.
    """
    if path.suffix != ".toml":
        raise DataError(f"cannot write '{path}': a profile's name ends in .toml")
    if path.exists() and Path(spelling).exists() and path.samefile(spelling):
        raise DataError(f"cannot write '{path}': the new profile would extend itself")
    if path.exists() and not force:
        raise DataError(f"'{path}' exists; name another file, or use --force to replace it")


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
        )
        for i, (key, entry) in enumerate(entries.items())
    ]
