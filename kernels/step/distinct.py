"""Number the distinct rows of integer columns without sorting them."""

from __future__ import annotations

from perfmodel.kernels._jit import jit


@jit
def mark(column, seen):
    """Set ``seen[x]`` for every value x of a column.

    Parameters
    ----------
    column : int64[rows]
        Values 0 … ``seen.size - 1``.
    seen : uint8[values]
        Result.
    """
    for i in range(column.size):
        seen[column[i]] = 1


@jit
def append_digit(code, column, rank, radix):
    """Append a column's rank as the next digit of a mixed-radix number, in place.

    Parameters
    ----------
    code : int64[rows]
        Number so far; becomes ``code * radix + rank[column]``.
    column : int64[rows]
    rank : int64[values]
        Digit of each value.
    radix : int
        Number of digits.
    """
    for i in range(code.size):
        code[i] = code[i] * radix + rank[column[i]]


@jit
def translate(code, rank):
    """Replace every number by its rank, in place."""
    for i in range(code.size):
        code[i] = rank[code[i]]
