"""Columns: types of arrays, columns given together checked and made alike, texts in one buffer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

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


class Texts(Sequence[str]):
    """Texts one behind another, as UTF-8.

    Attributes
    ----------
    letters : bytes
    ends : int64[texts]
        Where each ends.
    """

    __slots__ = ("ends", "letters")

    def __init__(self, letters: bytes, ends: Integers) -> None:
        self.letters = letters
        self.ends = ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Return texts in this form; themselves where they have it.

        Raises
        ------
        UnicodeEncodeError
            One has half a surrogate pair.
        """
        if isinstance(texts, Texts):
            return texts
        texts = list(texts)
        joined = "".join(texts)
        if joined.isascii():
            return cls(joined.encode(), _ends(texts))
        encoded = [text.encode() for text in texts]
        return cls(b"".join(encoded), _ends(encoded))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """Return a text, or several."""
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        begin = self.ends[index - 1] if index else 0
        return self.letters[begin : self.ends[index]].decode()

    def __len__(self) -> int:
        """Return how many texts there are."""
        return len(self.ends)

    def __eq__(self, other: Any) -> bool:
        """Tell whether another sequence has the same texts."""
        if isinstance(other, Texts):
            return self.letters == other.letters and np.array_equal(self.ends, other.ends)
        return isinstance(other, tuple | list) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return a hash: texts do not change."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Show the texts."""
        return f"Texts.of({tuple(self)!r})"


def _ends(pieces: Sequence[str] | Sequence[bytes]) -> Integers:
    """Return where each of several pieces one behind another ends."""
    return np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))


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


def natural_order(item: tuple[str, Any]) -> tuple[Any, ...]:
    """Return the key that sorts "9-64" before "65-512", and ">512" last."""
    head = item[0].split("-")[0]
    return (0, int(head), item[0]) if re.fullmatch("[0-9]{1,18}", head) else (1, 0, item[0])
