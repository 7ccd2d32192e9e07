"""Two projections side by side: what was changed, and what that changes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.kernels.variables import COSTS, VARIABLES
from perfmodel.store.results import LARGER_IS_BETTER, OF_ALL, as_table

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.base.table import Table

SETTINGS = (
    *("model", "mtp_layers", "framework", "devices", "hardware"),
    *(spec.name for spec in FIELDS),
    *("fits", "tight"),
)
"""What is chosen, and the verdict: compared as they are."""
MATCHED = ("step_time", "tokens_per_second_per_device", "memory_total", *COSTS)
"""What is compared over all strategies that two sweeps share."""
SAME = 1e-6  # relative; what single precision keeps


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity of two projections.

    Attributes
    ----------
    name : str
        As in `perfmodel.kernels.variables`.
    a, b : float
        Before and after, in its units.
    """

    name: str
    a: float
    b: float

    @property
    def absolute(self) -> float:
        """After less before."""
        return self.b - self.a

    @property
    def relative(self) -> float:
        """After over before, less 1; infinite where there was nothing before."""
        if self.a == self.b:
            return 0.0
        return self.b / self.a - 1.0 if self.a else math.copysign(math.inf, self.b)


@dataclass(frozen=True, slots=True)
class Difference:
    """What two projections differ in.

    Attributes
    ----------
    settings : dict of str to tuple
        What was chosen differently (and whether it fits): both values by name.
    changes : dict of str to Change
        Every quantity that both have, changed or not, by name.
    """

    settings: dict[str, tuple[Any, Any]]
    changes: dict[str, Change]


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity changes over strategies.

    Attributes
    ----------
    median, lowest, highest : float
        Of the relative changes [1].
    better, worse, same : int
        How many strategies it makes better, worse, or leaves (to `SAME`).
    best, worst : int
        Places in `Matched.strategies` of the largest change for the better and for the worse.
    """

    median: float
    lowest: float
    highest: float
    better: int
    worse: int
    same: int
    best: int
    worst: int


@dataclass(frozen=True, slots=True)
class Matched:
    """What two sweeps say about the strategies that both hold.

    Attributes
    ----------
    strategies : ndarray of int, shape (count, 4)
        Strategy and hardware in the first, strategy and hardware in the second.
    only_a, only_b : int
        Possible strategy-device pairs that the other sweep lacks.
    gained, lost : int
        Those that fit in memory only in the second, only in the first.
    spreads : dict of str to Spread
        By quantity.
    """

    strategies: NDArray[np.intp]
    only_a: int
    only_b: int
    gained: int
    lost: int
    spreads: dict[str, Spread]


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> Difference:
    """Compare two projections.

    Parameters
    ----------
    a, b : mapping
        Results by name, in SI units: what `perfmodel.project` returns, an entry of what
        `perfmodel.best` returns, or a document of ``perfmodel project --json``.

    Returns
    -------
    Difference

    Examples
    --------
    >>> run = {"sequence_length": 8192, "global_batch_size": 512, "tensor_parallel": 8}
    >>> found = difference(project("llama-3.1-70b", "dgx-h100", 256, **run),
    ...                    project("llama-3.1-70b", "dgx-b200", 256, **run))
    >>> found.changes["step_time"].relative < -0.4
    True
    """
    chosen = {name: (a[name], b[name]) for name in SETTINGS if name in a and name in b}
    return Difference(
        {name: values for name, values in chosen.items() if values[0] != values[1]},
        {
            name: Change(name, float(a[name]), float(b[name]))
            for name in (*VARIABLES, *COSTS)
            if name not in SETTINGS and _number(a.get(name)) and _number(b.get(name))
        },
    )


def _number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max  # whole numbers of a file may be longer


def matched(a: Table | xr.Dataset, b: Table | xr.Dataset) -> Matched:
    """Compare all strategies that two sweeps share.

    Parameters
    ----------
    a, b : Table or xarray.Dataset
        Of `perfmodel.sweep`. Strategies match where all fields are equal, and model, framework and
        devices where a sweep has several. Hardware is matched by name; where no name is in both
        and each has one row, these two are compared.

    Returns
    -------
    Matched

    Raises
    ------
    DataError
        The sweeps share no possible strategy.
    """
    first, second = as_table(a), as_table(b)
    pairs = _hardware_pairs(first, second)
    keys_a, keys_b = _keys(first, second)
    _, at_a, at_b = np.intersect1d(keys_a, keys_b, return_indices=True)
    possible = {
        (i, j): np.isfinite(_over(first, "step_time", at_a, i))
        & np.isfinite(_over(second, "step_time", at_b, j))
        for i, j in pairs
    }
    parts = [
        np.stack(np.broadcast_arrays(at_a[good], i, at_b[good], j), axis=1)
        for (i, j), good in possible.items()
    ]
    strategies = np.concatenate([np.empty((0, 4), np.intp), *parts])
    if not len(strategies):
        raise DataError(
            "the two sweeps share no possible strategy on hardware of the same name "
            "(or on one row each)"
        )
    fits_a, fits_b = (_picked(table, "fits", strategies, at) for table, at in _sides(first, second))
    return Matched(
        strategies,
        int(np.isfinite(first["step_time"].values).sum()) - len(strategies),
        int(np.isfinite(second["step_time"].values).sum()) - len(strategies),
        int(np.count_nonzero(fits_b & ~fits_a)),
        int(np.count_nonzero(fits_a & ~fits_b)),
        dict(_spreads(first, second, strategies)),
    )


def _sides(first: Table, second: Table) -> tuple[tuple[Table, int], tuple[Table, int]]:
    return (first, 0), (second, 2)


def _picked(table: Table, name: str, strategies: NDArray[np.intp], at: int) -> NDArray[Any]:
    return table[name].values[strategies[:, at], strategies[:, at + 1]]


def _over(table: Table, name: str, strategy: NDArray[np.intp], hardware: int) -> NDArray[Any]:
    return table[name].values[strategy, hardware]


def _spreads(
    first: Table, second: Table, strategies: NDArray[np.intp]
) -> Iterator[tuple[str, Spread]]:
    for name in MATCHED:
        if name not in first or name not in second:
            continue
        before, after = (
            _picked(table, name, strategies, at).astype(np.float64)
            for table, at in _sides(first, second)
        )
        good = np.flatnonzero(np.isfinite(before) & np.isfinite(after) & (before > 0))
        if not good.size:
            continue
        relative = after[good] / before[good] - 1.0
        gain = relative if name in LARGER_IS_BETTER else -relative
        yield (
            name,
            Spread(
                float(np.median(relative)),
                float(relative.min()),
                float(relative.max()),
                int(np.count_nonzero(gain > SAME)),
                int(np.count_nonzero(gain < -SAME)),
                int(np.count_nonzero(np.abs(gain) <= SAME)),
                int(good[np.argmax(gain)]),
                int(good[np.argmin(gain)]),
            ),
        )


def _hardware_pairs(first: Table, second: Table) -> list[tuple[int, int]]:
    names_a, names_b = (table["hardware"].values.tolist() for table in (first, second))
    shared = [(names_a.index(name), names_b.index(name)) for name in names_a if name in names_b]
    return shared or ([(0, 0)] if len(names_a) == len(names_b) == 1 else [])


def _of_strategies(table: Table, name: str) -> NDArray[Any]:
    """Return what every strategy has; what a sweep says once holds for all."""
    if name in table:
        return table[name].labelled()
    return np.full(table.sizes["strategy"], table.attrs.get(name))


def _keys(first: Table, second: Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One number per strategy, equal where all fields of two strategies are equal."""
    count = first.sizes["strategy"]
    keys = np.zeros(count + second.sizes["strategy"], np.int64)
    for name in (*(spec.name for spec in FIELDS), *OF_ALL):
        if name not in first and name not in second:
            continue  # each sweep has one model, …: these are what is compared
        columns = [_of_strategies(table, name) for table in (first, second)]
        _, codes = np.unique(np.concatenate(columns), return_inverse=True)
        # Numbered anew after every field, so that no product of ranges can overflow.
        _, keys = np.unique(keys * (codes.max(initial=0) + 1) + codes, return_inverse=True)
    return keys[:count], keys[count:]
