"""Strategy fields and the column form in which sets of strategies are kept.

A strategy is everything that the user may choose for a run. A set of them is a
struct of arrays: one 1-D column per field, so that millions cost megabytes and
no Python object per strategy ever exists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.fields import MOST
from perfmodel.base.memory import check_memory
from perfmodel.base.units import facts_html
from perfmodel.strategy.fields import (
    CONTEXT_PARALLEL_KINDS,
    FIELD_BY_NAME,
    FIELDS,
    MAPPING_AXES,
    MAPPINGS,
    PIPELINE_SCHEDULES,
    RECOMPUTE,
    StrategyField,
)

if TYPE_CHECKING:
    from perfmodel.strategy.families import Families
    from perfmodel.strategy.pipelines import Pipeline

FEWER_VALUES = "name fewer values per axis, or fewer axes"

__all__ = [
    "CONTEXT_PARALLEL_KINDS",
    "FIELDS",
    "FIELD_BY_NAME",
    "MAPPINGS",
    "MAPPING_AXES",
    "PIPELINE_SCHEDULES",
    "RECOMPUTE",
    "StrategyField",
    "StrategyGrid",
    "axis_values",
    "batches_of",
    "columns_from_rows",
    "decode",
    "encode",
]

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
        possible = int(np.count_nonzero(self.status == 0))
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
