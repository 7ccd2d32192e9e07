"""Arguments of kernels as plain Python reads them fastest: Python's own numbers.

Taking a number out of an array costs plain Python three times as much as out of a tuple, out
of a record thirty times, and arithmetic with what comes out five times. Values are the same,
and so are the digits. Where a number is divided by zero Python raises, as compiled code does.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np

from perfmodel.kernels._jit import compiling


class Values(tuple[Any, ...]):
    """A column, or rows of a table, that say how many they are as arrays do."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self)

    @property
    def shape(self) -> tuple[int]:
        """The same, as a shape."""
        return (len(self),)


def plain(value: Any) -> Any:
    """Return an argument of a kernel for plain Python; itself where kernels are compiled.

    Only inside `perfmodel.kernels.work.kernel_work`, and for what is read, not written.

    Parameters
    ----------
    value : number, array, record, or NamedTuple of such
        Columns and record arrays become `Values`, records become named tuples; arrays of
        numbers of more than one dimension stay arrays.
    """
    if compiling():
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(plain, value))
    if isinstance(value, np.void):
        # What stands in a record as an array stays one.
        names = value.dtype.names or ()
        return _row(names)(*(plain(value[name]) for name in names))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.names:
        if value.ndim > 1:
            return Values(map(plain, value))
        if any(kind.shape for kind, *_ in (value.dtype.fields or {}).values()):
            return Values(map(plain, value))
        return Values(map(_row(value.dtype.names)._make, value.tolist()))
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return Values(value.tolist())
    return value


class Rows(list[Any]):
    """Rows of a table that kernels write, or rows of such rows, that say how many they are."""

    @property
    def shape(self) -> tuple[int]:
        """Number of rows, as a shape."""
        return (len(self),)


def blank(kind: np.dtype[Any], *shape: int) -> Any:
    """Return a table of zeros that kernels write: ``table[i].field``, ``table[i][j].field``.

    Only inside `perfmodel.kernels.work.kernel_work`. A record array where kernels are compiled,
    else `Rows` of objects, which plain Python writes thirty times as fast; without a shape one
    record.
    """
    if compiling():
        return np.zeros(shape, kind).view(np.recarray) if shape else blank(kind, 1)[0]
    if shape:
        return Rows(blank(kind, *shape[1:]) for _ in range(shape[0]))
    zeros = zip(kind.names or (), np.zeros((), kind).item(), strict=True)
    return SimpleNamespace(**dict(zeros))


def column(table: Any, name: str) -> np.ndarray[Any, Any]:
    """Return a field of a table that is `blank` no more."""
    if isinstance(table, np.ndarray):
        return table[name]
    return np.array(
        [column(row, name) if isinstance(row, Rows) else getattr(row, name) for row in table]
    )


@functools.cache
def _row(names: tuple[str, ...]) -> Any:
    return namedtuple("_row", names)
