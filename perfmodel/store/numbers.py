"""In which types of numbers results and their coordinates are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError

NUMBER_TYPES = ("float32", "float64")


def number_type(dtype: Any) -> np.dtype[Any]:
    """Return the type in which results are kept.

    Raises
    ------
    DataError
        None of `NUMBER_TYPES`.
    """
    with contextlib.suppress(TypeError):
        found = np.dtype(dtype)
        if found.name in NUMBER_TYPES:
            return found
    raise DataError(f"dtype: '{dtype}' is not one of {', '.join(NUMBER_TYPES)}")


def or_single(dtype: Any) -> str:
    """Return the end of a hint to those whose results are wider than they have to be."""
    return ", or dtype float32" if np.dtype(dtype).itemsize > 4 else ""


def narrow(column: NDArray[Any]) -> NDArray[Any]:
    return column.astype(narrow_kind([column]))


def narrow_kind(columns: Sequence[NDArray[Any]]) -> type[np.integer[Any]]:
    """Return the smallest type of whole numbers that holds some columns."""
    return whole_kind(max(int(column.max(initial=0)) for column in columns))


def whole_kind(largest: int) -> type[np.integer[Any]]:
    """Return the smallest signed type that holds whole numbers from 0 to the largest.

    Small ones are for tables alone: datasets and files have 32 bits at least, so that products of
    degrees do not overflow (`perfmodel.base.table.Column.decoded`).
    """
    kinds = (np.int8, np.int16, np.int32)
    return next((kind for kind in kinds if largest <= np.iinfo(kind).max), np.int64)
