"""Projected against measured: error statistics of a table of measured runs.

What a table holds and how its rows are projected is the `perfmodel.measured.kind.Kind`'s.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base import cells
from perfmodel.base.columns import natural_order
from perfmodel.base.errors import DataError, PerfModelError, did_you_mean
from perfmodel.base.expression import evaluate_mask
from perfmodel.base.files import atomic_path
from perfmodel.base.memory import check_amount
from perfmodel.measured.kind import Further, Kind, load_kind
from perfmodel.measured.rows import NOTHING, ComparedRow, MeasuredRow, Outcome, read_rows
from perfmodel.sweeps.workers import PIECES, cut, whole_work

if TYPE_CHECKING:
    from perfmodel.sweeps.workers import Workers


SCHEMA_VERSION = "1.0"
# Columns that a projection adds, known only after it.
OUTCOME_COLUMNS = ("assumed",)
LEAST_SET = 5
"""Smallest number of strategies of which the order is scored."""
TRIED = 16
"""Rows that tell what work there is, and which kernels it needs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A compared file.

    Attributes
    ----------
    kind, quantity, file : str
        What was compared: ``training``, its ``step_time``, and the table's path.
    where : str or None
        The filter that chose the rows.
    by : tuple of str
        Columns that `to_json_dict` groups by.
    columns : tuple of str
        Columns of the file, in its order.
    rows : tuple of ComparedRow
    unit : str
        Of what was compared.
    further : mapping of str to sequence of mapping
        Tables beside the statistics, by title.
    below, ranked_by
        See `Kind`.
    """

    kind: str
    quantity: str
    file: str
    where: str | None
    by: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[ComparedRow, ...]
    unit: str = "s"
    further: Further = field(default_factory=dict)
    below: float = 0.0
    ranked_by: str = "gbs"

    def to_json_dict(self, throughput: bool = False) -> dict[str, Any]:
        """Return statistics, groups and skip reasons, fit for JSON.

        Parameters
        ----------
        throughput : bool
            Errors of the throughput, measured / projected - 1, instead of the time's.
        """
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "error_of": "throughput" if throughput else self.quantity,
            "file": self.file,
            "where": self.where,
            **statistics(self.rows, throughput, self.below),
            "assumed": sum(row.scored and bool(row.outcome.assumed) for row in self.rows),
            "rank_correlation": self.rank_correlation(),
            "groups": {column: self.group(column, throughput) for column in self.by},
            "skipped": self.skipped(),
            **({"further": self.further} if self.further else {}),
        }

    def scored_rows(self) -> list[tuple[Mapping[str, str], float, float]]:
        """Return cells, measured and projected value of every row that has both."""
        return [
            (row.cells, row.outcome.measured, row.outcome.projected)
            for row in self.rows
            if row.outcome.measured is not None and row.outcome.projected is not None
        ]

    def group(self, column: str, throughput: bool = False) -> dict[str, dict[str, Any]]:
        """Return the statistics of the rows of each value of a column."""
        groups: dict[str, list[ComparedRow]] = {}
        for row in self.rows:
            groups.setdefault(row.cells.get(column) or "not stated", []).append(row)
        ordered = sorted(groups.items(), key=natural_order)
        return {value: statistics(rows, throughput, self.below) for value, rows in ordered}

    def skipped(self) -> dict[str, int]:
        """Count the rows that are not scored by reason, most frequent first."""
        counts: dict[str, int] = {}
        for row in self.rows:
            if not row.scored:
                reason = row.outcome.skip_reason
                counts[reason] = counts.get(reason, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def rank_correlation(self) -> dict[str, dict[str, Any]]:
        """Return how well projections order runs that differ in their strategy only.

        A set holds the runs of one model, sequence length and precision on one system.
        Runs with the same projection are the same strategy, measured more than once (by
        several releases, say); their mean counts.

        Returns
        -------
        dict
            Label -> ``count`` and ``spearman``, of the time per sequence (so that runs
            may differ in batch), or of what else the kind measures.
        """
        sets: dict[str, dict[float, list[float]]] = {}
        for row in self.rows if "model" in self.columns else ():
            projected, measured = row.outcome.projected, row.outcome.measured
            if projected is None or measured is None:
                continue
            names = ("family", "model", "hardware", "precision")
            label = ", ".join(row.cells.get(name) or "?" for name in names)
            label += f" × {row.cells.get('n_gpus', '?')}, seq {row.cells.get('seq', '?')}"
            work = float(row.cells.get(self.ranked_by) or 1)
            sets.setdefault(label, {}).setdefault(projected / work, []).append(measured / work)
        found = {}
        for label, runs in sorted(sets.items()):
            means = np.array([np.mean(times) for times in runs.values()])
            if len(runs) >= LEAST_SET and np.ptp(means):
                value = _spearman(means, np.array(list(runs)))
                found[label] = {"count": len(runs), "spearman": value}
        return found

    def write_rows(self, path: str | os.PathLike[str]) -> None:
        """Write every row with its projection and error as CSV, atomically.

        Raises
        ------
        DataError
            The file cannot be written; nothing is left half-written.
        """
        own = list(dict.fromkeys([*self.columns, *(self.rows[0].cells if self.rows else ())]))
        details = list(dict.fromkeys(name for row in self.rows for name in row.outcome.details))
        named = [f"projected_{name}" for name in details]
        added = ["line", "measured", "projected", "error", "throughput_error", "skip_reason"]
        added += ["skip_detail", "assumptions", "interpretation", "quantity", "quantity_unit"]
        header = [*own, *added, *named]
        lines = [header]
        for row in self.rows:
            out = row.outcome
            results = [row.line, out.measured, out.projected, row.error, row.throughput_error]
            words = [out.skip_reason, out.skip_detail, "; ".join(out.assumed), "; ".join(out.notes)]
            words += [self.quantity, self.unit]
            values = [out.details.get(name) for name in details]
            cells: list[Any] = [row.cells.get(name, "") for name in own]
            lines.append(["" if v is None else v for v in [*cells, *results, *words, *values]])
        _write_atomically(Path(path), lines)


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file that a comparison or a calibration is about.

    Attributes
    ----------
    kind : Kind
    columns, known : tuple of str
        Columns of the file; these and derived ones.
    rows : tuple of MeasuredRow
        Rows that passed the filter, with their derived cells.
    """

    kind: Kind
    columns: tuple[str, ...]
    known: tuple[str, ...]
    rows: tuple[MeasuredRow, ...]


def read_table(
    kind: str | Kind,
    path: str | os.PathLike[str],
    where: str | None = None,
    metric: str | None = None,
) -> Table:
    """Read, check and filter a table of one kind.

    Raises
    ------
    DataError
        Unknown kind or column, or a table that cannot be read (file and line named).
    """
    found = load_kind(kind).of_metric(metric)
    columns, rows = found.read(path) or read_rows(
        path, found.needed, found.measurements, found.aliases
    )
    rows = [row for row in rows if found.counts(row)]
    for row in rows:
        found.refuse_broken(row)
    rows = [
        MeasuredRow({**row.cells, **found.derived(row), **more}, row.file, row.line)
        for row, more in zip(rows, found.together(rows), strict=True)
    ]
    known = tuple(dict.fromkeys([*columns, *(rows[0].cells if rows else ())]))
    if where:
        mask = evaluate_mask(where, lambda name: _typed(rows, name), known, len(rows))
        rows = [row for row, chosen in zip(rows, mask, strict=True) if chosen]
    return Table(found, tuple(columns), known, tuple(rows))


LEAST_SECONDS = 5e-5
ROW_SECONDS = {"training": 5e-3, "memory": 5e-3, "serving": 5e-3}
"""Of a core for each row, about, by kind."""


def compare_file(
    kind: str | Kind,
    path: str | os.PathLike[str],
    where: str | None = None,
    by: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    hardware: str | None = None,
    metric: str | None = None,
    workers: Workers | None = None,
) -> Comparison:
    """Project every row of a table of measured runs.

    Parameters
    ----------
    kind : str or Kind
        One of `perfmodel.measured.kind.KINDS`, or what such a name stands for.
    path : str or path
        CSV with the columns of docs/accuracy.md (training), docs/serving.md (serving) or
        docs/calibration.md (kernels); unknown columns are ignored.
    where : str, optional
        Filter over columns, e.g. ``'is_latest_in_group == "yes" and n_gpus <= 512'``.
    by : sequence of str, optional
        Columns to group by; default: what the kind groups by.
    progress : callable, optional
        Called with (rows done, rows in all).
    hardware : str, optional
        Profile that stands in for what every row names, such as one that was calibrated.
    metric : str, optional
        What is compared, where the kind leaves a choice (serving: ``tpot``, ``ttft`` or
        ``throughput``).
    workers : Workers, optional
        Who projects the rows, some at a time; default: this process. The kind is one of `KINDS`
        then.

    Returns
    -------
    Comparison

    Raises
    ------
    DataError
        Unknown kind, metric or column, or a table that cannot be read (file and line named).
    HardwareError
        `hardware` is no profile.
    MachineError
        Workers cannot do it.
    """
    table = read_table(kind, path, where, metric)
    chosen_by = tuple(table.kind.group_by if by is None else dict.fromkeys(by))
    for name in chosen_by if by is not None else ():
        if name not in (*table.known, *OUTCOME_COLUMNS):
            hint = did_you_mean(name, [*table.known, *OUTCOME_COLUMNS])
            raise DataError(f"cannot group by '{name}': no such column{hint}")
    rows: Sequence[MeasuredRow] = table.rows
    seconds = ROW_SECONDS.get(table.kind.name, LEAST_SECONDS) * len(rows)
    check_amount(f"{len(rows):,} rows", "choose some with --where", seconds=seconds)
    if hardware is not None:
        table.kind.load_profile(hardware)
        rows = [row.replaced("hardware", hardware) for row in rows]
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(done, len(rows))

    if workers is None:
        outcomes = table.kind.project(rows, count)
    else:
        outcomes = project_on(workers, table.kind, rows, count)
    outcomes = table.kind.related(rows, outcomes)
    compared = tuple(
        ComparedRow({**row.cells, "assumed": _assumed(outcome)}, row.line, outcome)
        for row, outcome in zip(table.rows, outcomes, strict=True)
    )
    priced = compared
    if hardware is not None:
        priced = tuple(replace(one, cells={**one.cells, "hardware": hardware}) for one in compared)
    return Comparison(
        table.kind.name,
        table.kind.quantity,
        os.fspath(path),
        where,
        chosen_by,
        table.columns,
        compared,
        table.kind.unit,
        table.kind.further(priced),
        table.kind.below,
        table.kind.ranked_by,
    )


@dataclass(frozen=True, slots=True)
class _Shared:
    kind: str
    metric: str
    tried: tuple[MeasuredRow, ...]
    rows: int  # in all

    def project(self, rows: Sequence[MeasuredRow]) -> list[Outcome]:
        kind = load_kind(self.kind).of_metric(self.metric or None)
        return kind.project(rows, lambda count: None)


def project_on(
    workers: Workers,
    kind: Kind,
    rows: Sequence[MeasuredRow],
    progress: Callable[[int], None],
) -> list[Outcome]:
    """Return what `Kind.project` does, of rows that workers project.

    Parameters
    ----------
    workers : Workers
    kind : Kind
        One of `perfmodel.measured.kind.KINDS`.
    rows : sequence of MeasuredRow
    progress : callable
        Told how many more rows are done.

    Raises
    ------
    DataError
        As `Kind.project`, of the first row in error; a worker does not see a profile's file.
    MachineError
        As `perfmodel.sweeps.workers.Workers.results`.
    """
    order = sorted(range(len(rows)), key=lambda i: [rows[i].text(name) for name in kind.shares])
    places = [order[piece] for piece in cut(len(rows), PIECES * len(workers))]
    pieces = [[rows[i] for i in piece] for piece in places]
    shared = _Shared(kind.name, kind.metric, tuple(rows[:: -(-len(rows) // TRIED) or 1]), len(rows))
    files = {row.text("hardware") for row in rows if row.text("hardware").endswith(".toml")}
    if files and not workers.shares_files:
        _check_profiles(workers, kind.name, sorted(files))
    outcomes: list[Outcome] = [Outcome()] * len(rows)
    for number, found in workers.results(_project, shared, pieces, _warm):
        if isinstance(found, DataError):
            kind.project(rows, lambda count: None)  # reads all rows, the first in error first
            raise found
        for i, outcome in zip(places[number], found, strict=True):
            outcomes[i] = outcome
        progress(len(found))
    return outcomes


def _project(shared: _Shared, rows: Sequence[MeasuredRow]) -> list[Outcome] | DataError:
    try:
        return shared.project(rows)
    except DataError as error:
        return error


def _warm(shared: _Shared) -> dict[str, float]:
    return whole_work(lambda: shared.project(shared.tried), shared.rows / len(shared.tried))


def _check_profiles(workers: Workers, kind: str, files: Sequence[str]) -> None:
    """Refuse profiles that workers do not see as this process does."""
    for file in files:
        ours = profile_digest(kind, file)
        for worker, theirs in workers.client.run(profile_digest, kind, file).items():
            if ours and theirs != ours:
                what = "does not see" if not theirs else "sees another"
                raise DataError(
                    f"{workers.name}: worker {worker} {what} '{file}'; give the path of a file "
                    "that all machines share, or take --workers"
                )


def profile_digest(kind: str, file: str) -> str:
    """Return what tells a profile from others; empty where there is none."""
    try:
        return sha256(repr(load_kind(kind).load_profile(file)).encode()).hexdigest()
    except (OSError, PerfModelError):
        return ""


def statistics(
    rows: Sequence[ComparedRow], throughput: bool = False, below: float = 0.0
) -> dict[str, Any]:
    """Return count, coverage and errors of rows; None where there is nothing to count.

    ``bias`` is the mean signed relative error: above 0, projected steps take too long
    (or, with `throughput`, projected throughput is too low). With `below`,
    ``share_below_peak`` is the share of rows projected by more than that under the measurement.
    """
    found = [row.throughput_error if throughput else row.error for row in rows]
    errors = np.array([error for error in found if error is not None], float)
    scorable = sum(row.outcome.scorable for row in rows)
    under = {"share_below_peak": float((errors < -below).mean()) if errors.size else None}
    return {
        "count": int(errors.size),
        "rows": len(rows),
        "coverage": errors.size / scorable if scorable else None,
        **error_statistics(errors),
        **(under if below else {}),
    }


def error_statistics(errors: NDArray[np.float64]) -> dict[str, float | None]:
    """Return the errors of `statistics` of relative errors; None where there are none."""
    absolute = np.abs(errors)
    empty = not errors.size
    return {
        "median_absolute_error": None if empty else float(np.median(absolute)),
        "mean_absolute_error": None if empty else float(absolute.mean()),
        "p90_absolute_error": None if empty else float(np.percentile(absolute, 90)),
        "worst_absolute_error": None if empty else float(absolute.max()),
        "bias": None if empty else float(errors.mean()),
    }


def _assumed(outcome: Outcome) -> str:
    return "yes" if outcome.assumed else "no"


def _typed(rows: Sequence[MeasuredRow], name: str) -> NDArray[Any]:
    """Return a column as numbers where all its cells are, else as texts."""
    texts = [row.text(name) for row in rows]
    try:
        numbers = [float("nan") if text.lower() in NOTHING else float(text) for text in texts]
    except ValueError:
        return np.array(texts, str)
    return np.array(numbers) if any(texts) else np.array(texts, str)


def _spearman(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Correlation of the ranks of two columns, neither of them constant."""
    one, other = (_ranks(column) - (column.size + 1) / 2.0 for column in (left, right))
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks with ties shared."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse])


def _write_atomically(path: Path, lines: Sequence[Sequence[Any]]) -> None:
    with (
        atomic_path(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as stream,
    ):
        csv.writer(stream, lineterminator="\n").writerows(map(cells.written, lines))
