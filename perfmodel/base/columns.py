"""Columns: types of arrays, and columns that are given together checked and made alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from perfmodel.base.errors import DataError, PerfModelError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Column = NDArray[np.floating[Any]]
"""Floats of either width: results may be kept in single precision."""


def plain_values(values: NDArray[Any]) -> list[Any]:
    """Return values as Python's own; of single precision with the digits that it has, no more."""
    if values.dtype == np.float32:
        return [float(str(value)) for value in values]
    return values.tolist()


def broadcast(
    what: str,
    columns: Mapping[str, Any],
    dtype: DTypeLike | None = np.float64,
    error: type[PerfModelError] = DataError,
) -> dict[str, NDArray[Any]]:
    """Return numbers and arrays broadcast together, then flattened, as kernels want them.

    Parameters
    ----------
    what : str
        What the rows describe, for messages.
    columns : mapping of str to array_like
    dtype : dtype, optional
        Of all of them; None leaves each its own.
    error : type of PerfModelError
        What to raise.

    Returns
    -------
    dict of str to ndarray, shape (rows,)
        Each with its own contiguous memory.

    Raises
    ------
    PerfModelError
        Something that is no number, or shapes that do not broadcast.
    """
    arrays = {}
    for name, column in columns.items():
        try:
            arrays[name] = np.asarray(column, dtype)
        except (TypeError, ValueError) as reason:
            raise error(f"{what}: {name} should be numbers ({reason})") from None
    try:
        alike = np.broadcast_arrays(*arrays.values())
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise error(f"{what}: shapes do not broadcast together: {shapes}") from None
    return {name: array.flatten() for name, array in zip(arrays, alike, strict=True)}


def check_least(
    place: str, columns: Mapping[str, Floats], least: float, *, whole: bool = False
) -> None:
    """Raise DataError where a number is not finite, below `least` or, if asked, not whole.

    ``{row}`` in `place` becomes the number of the first row that is wrong.
    """
    for name, column in columns.items():
        if not whole and least <= column.min(initial=np.inf) <= column.max(initial=least) < np.inf:
            continue
        right = np.isfinite(column) & (column >= least)
        if whole:
            right &= column == np.floor(column)
        if not right.all():
            row = int(np.argmin(right))
            raise DataError(
                f"{place.format(row=row)}: {name} is {column[row]:g}; it must be a "
                f"{'whole' if whole else 'finite'} number of at least {least:g}"
            )
