"""Written values of fields as the numbers that columns store, and axes of them as columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.fields import MOST, Field
from perfmodel.base.memory import check_memory
from perfmodel.base.strategy_fields import FIELD_BY_NAME

LEAST = 1.0 / MOST
"""No share, rate or time that a user chooses is smaller, unless it is 0."""
FEWER_VALUES = "name fewer values per axis, or fewer axes"

Fields = Mapping[str, Field]
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
    if value < spec.minimum or 0 < value < LEAST:
        least = spec.minimum if value <= spec.minimum else f"{LEAST:g}, but not 0"
        raise StrategyError(f"{name}: {value} is below {least}")
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


def _dtype(spec: Field) -> type[np.float64] | type[np.int64]:
    return np.float64 if spec.kind == "float" else np.int64
