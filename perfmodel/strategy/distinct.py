"""Find the distinct rows of a strategy grid's columns in a few linear passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers

LARGEST_TABLE = 1 << 24


def distinct_keys(
    columns: Mapping[str, Integers], names: Sequence[str]
) -> tuple[dict[str, Integers], Integers]:
    """Reduce the named columns to their distinct rows.

    Parameters
    ----------
    columns : mapping of str to ndarray of int64, shape (n,)
        Values >= 0.
    names : sequence of str
        Which columns make the key.

    Returns
    -------
    distinct : dict of str to ndarray, shape (keys,)
    index : ndarray of int64, shape (n,)
        Key of each row.
    """
    rows = columns[names[0]].size
    code = np.zeros(rows, np.int64)
    digits: list[tuple[str, NDArray[np.int64]]] = []
    span = 1
    for name in names:
        column = np.ascontiguousarray(columns[name])
        if rows and column.min() == column.max():
            continue  # one value tells no rows apart
        rank, values = _rank(column)
        if values.size * span > 2**62:
            code, span = _compact_by_sorting(code)
        if rank is None:
            code *= values.size
            code += np.searchsorted(values, column)
        elif values.size > 1:
            code *= values.size
            code += rank[column]
        span *= values.size
        digits.append((name, values))
    if span <= LARGEST_TABLE:
        seen, distinct_codes = _seen(code, span)
        code = (np.cumsum(seen, dtype=np.int64) - 1)[code]
        first = np.zeros(distinct_codes.size, np.int64)
        first[code[::-1]] = np.arange(rows - 1, -1, -1)
    else:
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return {name: columns[name][first] for name in names}, code


def _seen(column: Integers, size: int) -> tuple[NDArray[np.uint8], Integers]:
    seen = np.zeros(size, np.uint8)
    seen[column] = 1
    return seen, np.flatnonzero(seen)


def _rank(column: Integers) -> tuple[Integers | None, Integers]:
    """Rank of every value (as a lookup table where values are small) and the values."""
    largest = int(column.max(initial=0))
    if largest >= LARGEST_TABLE:
        return None, np.unique(column)
    seen, values = _seen(column, largest + 1)
    return np.cumsum(seen, dtype=np.int64) - 1, values


def _compact_by_sorting(code: Integers) -> tuple[Integers, int]:
    values, inverse = np.unique(code, return_inverse=True)
    return inverse.astype(np.int64), int(values.size)
