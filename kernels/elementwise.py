"""Arithmetic of kernels that NumPy can do for whole columns, where they are not compiled.

A kernel is a function of numbers, and compiled it runs once for each row. As plain Python that
takes some microseconds a line. A kernel that chooses between numbers by `larger`, `smaller` and
`chosen`, not by ``if``, is the same formula for columns: `over_columns` returns it so. The
digits are the same, as both add, multiply and divide the same numbers in the same order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from perfmodel.kernels._jit import jit_inline
from perfmodel.kernels.uncompiled import rebuilt


@jit_inline
def larger(a, b):
    """Return the larger of two numbers; `b` where they are equal or one is none."""
    return a if a > b else b


@jit_inline
def smaller(a, b):
    """Return the smaller of two numbers; `b` where they are equal or one is none."""
    return a if a < b else b


@jit_inline
def chosen(condition, a, b):
    """Return `a` where a condition holds, else `b`; both are evaluated."""
    return a if condition else b


@jit_inline
def square_root(value):
    """Return the square root of a number that is not negative."""
    return math.sqrt(value)


_OVER_COLUMNS: dict[str, Callable[..., Any]] = {
    "larger": lambda a, b: np.where(a > b, a, b),
    "smaller": lambda a, b: np.where(a < b, a, b),
    "chosen": np.where,
    "square_root": np.sqrt,
}


@functools.cache
def over_columns(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel, and all that it calls, as a function of columns.

    Parameters
    ----------
    kernel : function
        A kernel, without ``if`` on what may be a column.

    Returns
    -------
    callable
        Of the same arguments, each a number or an array; arrays broadcast.
    """
    return rebuilt(kernel, over_columns, _OVER_COLUMNS)
