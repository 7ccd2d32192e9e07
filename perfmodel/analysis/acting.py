"""Numbers of the hardware that were set and that cannot change an answer: found by trying.

Whether a number acts on a request is not read off the formulas: the request is answered again with
other values of it, and all results are compared, bit by bit. Two profiles more cost a few
milliseconds, as everything but the prices of operations is shared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import HardwareError, PerfModelError
from perfmodel.base.fields import Field
from perfmodel.base.table import Table
from perfmodel.hwprofiles.hardware import canonical_path, get_value, known_paths

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.hwprofiles.schema import Scalar
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid
    from perfmodel.sweeps.sweep import Problem

Results = Callable[[list["Hardware"], int], Sequence[object]]
"""What a request answers on each of some profiles, as things that can be compared; of many
strategies or points on at most about so many."""

FACTORS = (0.5, 2.0, 0.125, 8.0, 1e-3, 1e3)
"""By what a number is multiplied to see whether it acts."""
CAPACITY = "device.memory.capacity"
"""Acts on every request, as it is said beside what is needed; so it explains nothing."""
NAMED, TOGETHER = 2, 6
"""Numbers that are named in the place of one that does not act, and that are tried at once."""
MOST_VALUES = 8
"""Values of a swept number that are tried."""
FEW, MANY = 48, 10_000
"""Strategies, deployments or loads on which numbers are tried; the many where few show nothing."""


@dataclass(frozen=True)
class Idle:
    """A number that changes no result.

    Attributes
    ----------
    path : str
    never : bool
        It cannot; else it only does not with the value that was set, since others bind.
    others : tuple of str
        Numbers that do.
    """

    path: str
    never: bool
    others: tuple[str, ...]


def idle_numbers(
    profile: Hardware,
    settings: Mapping[str, Scalar],
    swept: Mapping[str, Sequence[Scalar]],
    results: Results,
) -> list[Idle]:
    """Return the numbers that were set or swept and change no result of a request.

    Parameters
    ----------
    profile : Hardware
        As it is without them.
    settings : mapping of str to scalar
        Values that replace its own, by dotted path.
    swept : mapping of str to sequence of scalar
        Several of them.
    results : callable
        Answers the request.
    """
    fixed = {canonical_path(profile, path): value for path, value in settings.items()}
    several = {canonical_path(profile, path): _some(values) for path, values in swept.items()}
    values = fixed | {path: each[0] for path, each in several.items()}
    tried = _Tried(profile, values, results)
    stated = {path: [None] for path in fixed} | {path: [*each] for path, each in several.items()}
    stated = {path: each for path, each in stated.items() if not tried.is_text(path)}
    still = tried.without_effect(stated)
    # A value that is the profile's own changes nothing, and may be able to.
    own = [path for path in fixed if path in stated and tried.is_own(path)]
    if not still and not own:
        return []
    tried.most = MANY
    still = tried.without_effect({path: stated[path] for path in still})
    never = tried.without_effect({path: tried.probes(path) for path in (*still, *own)})
    found = dict.fromkeys((*still, *never))
    return [Idle(path, path in never, tried.acting_near(path)) for path in found]


def _some(values: Sequence[Scalar]) -> list[Scalar]:
    """Return both ends of swept values and some between: thousands would tell no more."""
    places = np.linspace(0, len(values) - 1, min(len(values), MOST_VALUES)).astype(np.intp)
    return [values[place] for place in places.tolist()]


@dataclass
class _Tried:
    """A request, answered with other numbers."""

    profile: Hardware
    values: Mapping[str, Scalar]
    results: Results
    most: int = FEW

    def __post_init__(self) -> None:
        self.home = self.profile.with_values(self.values)
        self.known = known_paths(self.home)

    def is_own(self, path: str) -> bool:
        """Tell whether a value is what the profile has anyway."""
        return get_value(self.home, path) == get_value(self.profile, path)

    def is_text(self, path: str) -> bool:
        """Tell whether a value is a free text, which answers nothing."""
        return self.known[path].kind == "text" and not self.known[path].choices

    def without_effect(self, variants: Mapping[str, Sequence[Scalar | None]]) -> list[str]:
        """Return the paths of which no other value changes a result; None: as in the profile.

        What has no other value that could be is taken to act, and so is all where the request
        has no answer.
        """
        rows: list[tuple[str, Hardware]] = []
        for path, others in variants.items():
            rows += [(path, row) for value in others if (row := self._with(path, value))]
        answers = self._answers([self.home, *(row for _, row in rows)])
        same: dict[str, bool] = {}
        for (path, _), answer in zip(rows, answers[1:], strict=True):
            equal = answers[0] is not None and answer == answers[0]
            same[path] = same.get(path, True) and equal
        return [path for path, every in same.items() if every]

    def _with(self, path: str, value: Scalar | None) -> Hardware | None:
        """Return the profile with another value; None where that is the same, or cannot be."""
        values = {key: it for key, it in self.values.items() if key != path}
        if value is not None:
            values[path] = value
        try:
            row = self.profile.with_values(values)
        except HardwareError:
            return None
        return None if get_value(row, path) == get_value(self.home, path) else row

    def _answers(self, rows: list[Hardware]) -> list[object]:
        """Return the results on each, None where there are none."""
        try:
            return [*self.results(rows, self.most)]
        except PerfModelError:
            return [None] if len(rows) == 1 else [it for row in rows for it in self._answers([row])]

    def probes(self, path: str) -> list[Scalar | None]:
        """Return values that would show whether a number or a switch acts."""
        field, value = self.known[path], get_value(self.home, path)
        former = get_value(self.profile, path)
        if field.kind == "flag":
            return [not value]
        if isinstance(value, str) or isinstance(former, str):
            return [it for it in field.choices if it != value]
        sizes = [size for size in dict.fromkeys((value, former)) if size > 0]
        sizes = sizes or [self._large(path)]
        return [*dict.fromkeys(_number(size * by, field) for size in sizes for by in FACTORS)]

    def _large(self, path: str) -> float:
        """Return a value of a number that is 0."""
        _, group, key = path.split(".", 2) if path.startswith("calibration.") else ("", "", "")
        return self.home.calibration[group][key].high / FACTORS[-1] or 1.0 if group else 1.0

    def acting_near(self, path: str) -> tuple[str, ...]:
        """Return numbers that act: of the same table first, of the same name, then all others."""
        parent, _, leaf = path.rpartition(".")
        numbers = [
            it
            for it, field in self.known.items()
            if field.kind in ("number", "count") and it not in (path, CAPACITY)
        ]
        near = [it for it in numbers if it.rpartition(".")[0] == parent]
        alike = [it for it in numbers if it.rpartition(".")[2] == leaf and it not in near]
        facts = [it for it in numbers if it.startswith(("device.", "system."))]
        for some in (alike + near if parent.startswith("system.network") else near, facts):
            wanted = [it for it in some if get_value(self.home, it)]
            found: list[str] = []
            while wanted and len(found) < NAMED:
                part, wanted = wanted[:TOGETHER], wanted[TOGETHER:]
                idle = self.without_effect({it: self.probes(it)[:2] for it in part})
                found += [it for it in part if it not in idle]
            if found:
                return tuple(found[:NAMED])
        return ()


def _number(value: float, field: Field) -> float:
    return max(round(value), 1) if field.kind == "count" else value


def digests(table: Table) -> list[bytes | None]:
    """Return one digest of all numbers of a table for each row of hardware; None without times."""
    found = [hashlib.blake2b() for _ in range(table.sizes["hardware"])]
    answered = np.zeros(len(found), bool)
    for column in table.variables.values():
        if "hardware" not in column.dims or column.values.dtype.kind not in "fiub":
            continue
        values = np.moveaxis(column.values, column.dims.index("hardware"), 0)
        if column.attrs.get("units") == "s":
            answered |= np.isfinite(values).reshape(len(found), -1).any(axis=1)
        for digest, part in zip(found, values, strict=True):
            digest.update(np.ascontiguousarray(part).tobytes())
    return [it.digest() if has else None for it, has in zip(found, answered, strict=True)]


def training_results(problems: Sequence[Problem], costs: Mapping[str, Any] | None) -> Results:
    """Return what projects training steps, with their costs where these count."""
    from perfmodel.store.cost import add_cost
    from perfmodel.sweeps.sweep import sweep_problems

    def results(rows: list[Hardware], most: int) -> list[bytes | None]:
        some = [replace(it, grid=it.grid.take(spread(it.grid, most))) for it in problems]
        if not any(len(it.grid) for it in some):
            return [None] * len(rows)
        table = sweep_problems(some, rows, provenance=costs is not None)
        return digests(table if costs is None else add_cost(table, **costs))

    return results


def serving_results(
    grid: DeploymentGrid, loads: LoadGrid, method: str, costs: Mapping[str, Any] | None
) -> Results:
    """Return what projects operating points, with their costs where these count."""
    from perfmodel.store.cost import add_cost
    from perfmodel.sweeps.serving import serve_table

    def results(rows: list[Hardware], most: int) -> list[bytes | None]:
        some = grid.take(spread(grid, most))
        asked = loads.take(spread(loads, max(most // len(some), FEW)))
        table = serve_table(grid.model, some, asked, rows, method=method)
        return digests(table if costs is None else add_cost(table, **costs))

    return results


def spread(grid: Any, most: int) -> Any:
    """Return positions of some rows of a grid: the ends of every column, and some between."""
    if len(grid) <= most:
        return slice(None)
    ends = [at for it in grid.columns.values() for at in (int(np.argmin(it)), int(np.argmax(it)))]
    return np.unique([*ends, *np.linspace(0, len(grid) - 1, most).astype(np.intp)])
