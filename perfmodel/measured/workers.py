"""Rows of a measured table projected on workers, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.workers import PIECES, Workers, cut, whole_work
from perfmodel.measured.kind import Kind, load_kind
from perfmodel.measured.rows import MeasuredRow, Outcome

TRIED = 16
"""Rows that tell what work there is, and which kernels it needs."""


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
        As `perfmodel.base.workers.Workers.results`.
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
