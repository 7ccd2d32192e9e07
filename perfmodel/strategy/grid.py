"""Sets of strategies in columns, and families of them that differ in nothing but the batch.

A strategy is everything that the user may choose for a run. A set of them is a struct of arrays:
one 1-D column per field, so that millions cost megabytes and no Python object per strategy ever
exists. Strategies of a family share most of their answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.fields import MOST
from perfmodel.base.memory import check_memory
from perfmodel.base.units import facts_html
from perfmodel.strategy.fields import (
    FIELD_BY_NAME,
    StrategyField,
)

if TYPE_CHECKING:
    from perfmodel.strategy.pipelines import Pipeline

VALID = 0
"""Status of a strategy that breaks no rule."""
FEWER_VALUES = "name fewer values per axis, or fewer axes"

Fields = Mapping[str, StrategyField]
"""What may be chosen, by name."""


def encode(name: str, value: Any, fields: Fields = FIELD_BY_NAME) -> int | float:
    """Turn one written value of a field into the number that its column stores.

    Raises
    ------
    StrategyError
        Unknown field, label or type, or a value beyond the field's limits.
    """
    if name not in fields:
        raise StrategyError(f"unknown strategy field '{name}'{did_you_mean(name, fields)}")
    spec = fields[name]
    if spec.kind == "choice":
        if isinstance(value, str) and value in spec.choices:
            return spec.choices.index(value)
        near = did_you_mean(str(value), spec.choices) if spec.form else ""
        near = near if "did you mean" in near else ""
        raise StrategyError(f"{name}: '{value}' is not {spec.expected}{near}")
    if spec.kind == "bool":
        if isinstance(value, bool | np.bool_) or value in (0, 1):
            return int(value)
        raise StrategyError(f"{name}: '{value}' is neither true nor false")
    whole = spec.kind == "int"
    known = int | np.integer if whole else int | float | np.integer | np.floating
    if isinstance(value, bool) or not isinstance(value, known) or value != value:
        raise StrategyError(f"{name}: {value!r} is not a {'whole ' if whole else ''}number")
    if value < spec.minimum:
        raise StrategyError(f"{name}: {value} is below {spec.minimum}")
    if value > spec.maximum:
        most = "larger than any run; check the number"
        most = most if spec.maximum == MOST else f"above {spec.maximum}"
        raise StrategyError(f"{name}: {value} is {most}")
    return int(value) if whole else float(value)


def decode(name: str, code: Any, fields: Fields = FIELD_BY_NAME) -> int | float | bool | str:
    """Inverse of `encode` for one stored number."""
    spec = fields[name]
    if spec.kind == "choice":
        return spec.choices[int(code)]
    if spec.kind == "float":
        return float(code)
    return bool(code) if spec.kind == "bool" else int(code)


@dataclass(frozen=True, slots=True)
class StrategyGrid:
    """Columns of strategies for one number of devices.

    Attributes
    ----------
    devices : int
        Devices of the run; the same for every strategy.
    columns : mapping of str to ndarray, shape (strategies,)
        One column per field of `FIELDS`: of floats for shares, else of integers.
    status : ndarray of uint8, shape (strategies,)
        0 where a strategy is possible, else the code of the rule that it breaks
        (`perfmodel.strategy.rules`).
    table : Pipeline, optional
        What strategies run whose ``pipeline_schedule`` is "table".
    families : Families, optional
        The same strategies, where they are known by what they share.
    """

    devices: int
    columns: Mapping[str, Integers]
    status: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    table: Pipeline | None = None
    families: Families | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        possible = int(np.count_nonzero(self.status == VALID))
        return (
            f"<StrategyGrid of {len(self):,} strategies on {self.devices:,} devices, "
            f"{possible:,} possible>"
        )

    def _repr_html_(self) -> str:
        axes = {}
        for name, column in self.columns.items():
            values = [str(decode(name, code)) for code in np.unique(column).tolist()]
            axes[name] = ", ".join(values[:20]) + (" …" if len(values) > 20 else "")
        return facts_html(repr(self)[1:-1], axes.items())

    def __len__(self) -> int:
        return len(self.columns["tensor_parallel"] if self.families is None else self.families)

    def __getitem__(self, name: str) -> Integers:
        return self.columns[name]

    def of_families(self, name: str) -> Integers:
        """Return the values of a field, once for strategies that are known to share it."""
        if self.families is None:
            return self.columns[name]
        shared = self.families.grid.columns
        return self.families.batch if name == "global_batch_size" else shared[name]

    def column(self, name: str, kind: Any) -> NDArray[Any]:
        """Return a field of every strategy as another type."""
        if self.families is None or name == "global_batch_size":
            return self.columns[name].astype(kind)
        return np.repeat(self.families.grid.columns[name].astype(kind), self.families.size)

    def row(self, index: int) -> dict[str, int | float | bool | str]:
        """Return one strategy with labels, for printing."""
        return {name: decode(name, column[index]) for name, column in self.columns.items()}

    def take(self, index: NDArray[Any] | slice) -> StrategyGrid:
        """Return the strategies at `index` (positions, mask or slice)."""
        return StrategyGrid(
            self.devices,
            {name: column[index] for name, column in self.columns.items()},
            self.status[index],
            self.table,
        )


def batches_of(grid: StrategyGrid) -> Integers:
    """Return the micro-batches of every strategy."""
    return grid["global_batch_size"] // (grid["data_parallel"] * grid["micro_batch_size"])


def attended_lengths(columns: Mapping[str, Integers]) -> Integers:
    """Return the tokens that attend to each other: of a packed document, or of a sequence."""
    documents = columns["document_length"]
    return np.where(documents > 0, documents, columns["sequence_length"])


def columns_from_rows(
    rows: Sequence[Mapping[str, Any]], fields: Fields = FIELD_BY_NAME
) -> dict[str, NDArray[Any]]:
    """Turn written strategies (field -> value) into columns; missing fields get defaults."""
    columns = {}
    for spec in fields.values():
        values = (row.get(spec.name, spec.default) for row in rows)
        columns[spec.name] = np.fromiter(
            (encode(spec.name, value, fields) for value in values), _dtype(spec), count=len(rows)
        )
    unknown = {name for row in rows for name in row} - set(fields)
    if unknown:
        encode(sorted(unknown)[0], 0, fields)
    return columns


def axis_product(
    axes: Mapping[str, NDArray[Any]], noun: str, row_bytes: float
) -> dict[str, NDArray[Any]]:
    """Return the Cartesian product of axes as flat columns.

    Parameters
    ----------
    axes : mapping of str to ndarray
    noun : str
        What the rows are, for messages.
    row_bytes : float
        One row, with what is derived from it [B].

    Raises
    ------
    StrategyError
        More than memory holds.
    """
    total = math.prod(values.size for values in axes.values())
    check_memory(f"{total:,} {noun}", row_bytes * total, FEWER_VALUES, StrategyError)
    meshed = np.meshgrid(*axes.values(), indexing="ij", copy=False)
    return {name: values.ravel() for name, values in zip(axes, meshed, strict=True)}


def axis_rows(axes: Mapping[str, NDArray[Any]], start: int, stop: int) -> dict[str, NDArray[Any]]:
    """Return rows of what `axis_product` returns, without the others."""
    at = np.unravel_index(np.arange(start, stop), [values.size for values in axes.values()])
    return {name: values[i] for (name, values), i in zip(axes.items(), at, strict=True)}


def axis_values(name: str, values: Any, fields: Fields = FIELD_BY_NAME) -> NDArray[Any]:
    """Turn the values of one axis (scalar or iterable) into a column without repeats.

    ``"all"`` stands for every label of a field that has labels.
    """
    if isinstance(values, str) and values == "all" and name in fields:
        values = fields[name].choices or values
    listed: Iterable[Any] = (
        [values] if isinstance(values, str | bytes) or not isinstance(values, Iterable) else values
    )
    encoded = list(dict.fromkeys(encode(name, value, fields) for value in listed))
    if not encoded:
        raise StrategyError(f"{name}: the list of values is empty")
    return np.asarray(encoded, _dtype(fields[name]))


def _dtype(spec: StrategyField) -> type[np.float64] | type[np.int64]:
    return np.float64 if spec.kind == "float" else np.int64


BATCH = "global_batch_size"


@dataclass(frozen=True, slots=True)
class Families:
    """Strategies in order, those of a family one after the other, in the order of their batches.

    Attributes
    ----------
    grid : StrategyGrid
        The first strategy of every family.
    first, size : ndarray of int64, shape (families,)
        Batches of family j are ``batch[first[j]:first[j] + size[j]]``, and ascend.
    number : ndarray of int64, shape (families,)
        Of its first strategy; those of the others follow.
    batch : ndarray of int64
        Sequences per step. Families may share them.
    """

    grid: StrategyGrid
    first: Integers
    size: Integers
    number: Integers
    batch: Integers

    def __len__(self) -> int:
        """Return the number of strategies."""
        return int(self.size.sum())

    def micro_batches(self, family: Integers) -> tuple[Integers, Integers]:
        """Return the micro-batches of all strategies of some families, and where each begins.

        Returns
        -------
        batches : ndarray of int64, shape (strategies of these families,)
        begin : ndarray of int64, shape (families + 1,)
        """
        grid, size = self.grid, self.size[family]
        each = (grid["data_parallel"] * grid["micro_batch_size"])[family]
        batches = self.batch[spread(self.first[family], size)] // np.repeat(each, size)
        return batches, np.concatenate(([0], np.cumsum(size)))

    def take(self, family: Integers | slice) -> Families:
        """Return some of the families; their strategies keep their numbers."""
        first, size, number = (column[family] for column in (self.first, self.size, self.number))
        return Families(self.grid.take(family), first, size, number, self.batch)

    def between(self, start: int, stop: int) -> Families:
        """Return the strategies from one number to before another, of families one after another.

        They are numbered anew.
        """
        ends = self.number + self.size
        rows = slice(
            int(np.searchsorted(ends, start, "right")), int(np.searchsorted(self.number, stop))
        )
        left = np.maximum(start - self.number[rows], 0)
        size = np.minimum(ends[rows], stop) - self.number[rows] - left
        number = np.cumsum(size) - size
        return Families(self.grid.take(rows), self.first[rows] + left, size, number, self.batch)

    def strategies(self, numbers: Integers) -> StrategyGrid:
        """Return some strategies, by their numbers; those of families must ascend."""
        family = np.searchsorted(self.number, numbers, "right") - 1
        found = self.grid.take(family)
        batch = self.batch[self.first[family] + numbers - self.number[family]]
        return StrategyGrid(
            found.devices, {**found.columns, BATCH: batch}, found.status, found.table
        )

    def listed(self) -> StrategyGrid:
        """Return all strategies, whose columns are made when they are asked for."""
        grid = self.grid
        status = np.repeat(grid.status, self.size)
        columns = Listed(self)
        return StrategyGrid(grid.devices, columns, status, grid.table, self)

    def like_the_one_before(self) -> Flags:
        """Tell which families have the batches of the family before, shape (families,)."""
        first, size = self.first, self.size
        found = np.zeros(size.size, bool)
        found[1:] = size[1:] == size[:-1]
        alike = np.flatnonzero(found)
        alike = alike[first[alike] != first[alike - 1]]
        own, other = spread(first[alike], size[alike]), spread(first[alike - 1], size[alike])
        if alike.size:
            begins = np.cumsum(size[alike]) - size[alike]
            found[alike] = np.logical_and.reduceat(self.batch[own] == self.batch[other], begins)
        return found


class Listed(Mapping[str, Integers]):
    """The columns of all strategies of some families; each is made when it is asked for."""

    def __init__(self, families: Families) -> None:
        self.families = families

    def __getitem__(self, name: str) -> Integers:
        families = self.families
        if name == BATCH:
            return families.batch[spread(families.first, families.size)]
        return np.repeat(families.grid[name], families.size)

    def __iter__(self) -> Iterator[str]:
        return iter(self.families.grid.columns)

    def __len__(self) -> int:
        return len(self.families.grid.columns)


def joined(parts: Sequence[Families]) -> Families:
    """Return families of one number of devices, one after another; their strategies anew."""
    grids = [part.grid for part in parts]
    columns = {name: np.concatenate([it[name] for it in grids]) for name in grids[0].columns}
    status = np.concatenate([it.status for it in grids])
    before = np.cumsum([0, *(part.batch.size for part in parts)])
    size = np.concatenate([part.size for part in parts])
    return Families(
        StrategyGrid(grids[0].devices, columns, status, grids[0].table),
        np.concatenate([part.first + it for part, it in zip(parts, before, strict=False)]),
        size,
        np.cumsum(size) - size,
        np.concatenate([part.batch for part in parts]),
    )


def spread(start: Integers, size: Integers) -> NDArray[np.int64]:
    """Return the numbers from each start on, `size` of each, one after the other."""
    if not size.size:
        return np.zeros(0, np.int64)
    ends = np.cumsum(size)
    return np.arange(ends[-1]) + np.repeat(start - (ends - size), size)


def families_of(grid: StrategyGrid) -> Families:
    """Return the families of the possible strategies of a grid.

    Parameters
    ----------
    grid : StrategyGrid
        Neighbours make a family whose batches ascend while nothing else differs. Strategies are
        numbered by their places.
    """
    if grid.families is not None and np.all(grid.status == VALID):
        return grid.families
    batch = np.ascontiguousarray(grid[BATCH])
    possible = grid.status == VALID if grid.status.size else np.ones(batch.size, bool)
    begins = possible.copy()
    begins[1:] &= (batch[1:] <= batch[:-1]) | ~possible[:-1]
    for name, column in grid.columns.items():
        if name != BATCH:
            begins[1:] |= possible[1:] & (column[1:] != column[:-1])
    first = np.flatnonzero(begins)
    family = np.cumsum(begins) - 1
    size = np.bincount(family[possible], minlength=first.size)
    return Families(grid.take(first), first, size, first, batch)
