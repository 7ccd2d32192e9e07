"""Stored results that cannot be right: whatever a flipped bit breaks ends in one line.

Readers of files work within `reading`; `check_results` then looks at what was read, so that those
who use it need not.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.fields import Field
from perfmodel.base.files import shortened
from perfmodel.base.table import Column, Table
from perfmodel.kernels.variables import COSTS, VARIABLES
from perfmodel.store.subject import Subject, subject_of

SIGNED = ("elasticity", "low_change", "high_change")
LARGEST = 1e30
"""No time, size, rate or count of results is larger; infinite ones say that there is none."""
TINY = 1e-30
"""No answer takes less time."""


@contextlib.contextmanager
def reading(source: object) -> Iterator[None]:
    """Turn whatever a library says of a damaged file, or stumbles over, into an error.

    Raises
    ------
    DataError
        Names the file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.simplefilter("error", RuntimeWarning)
            yield
    except (PerfModelError, ImportError):
        raise
    except MemoryError:
        raise DataError(f"'{source}' is damaged, or larger than memory") from None
    except Exception as error:
        raise DataError(f"'{source}' is damaged: {str(error) or type(error).__name__}") from None


def check_results(table: Table, source: object) -> None:
    """Refuse results that contradict themselves; numbers are looked at when they are read.

    Parameters
    ----------
    table : Table
        Of the present schema; its columns are changed.
    source : object
        The file, for messages.

    Raises
    ------
    DataError
        A column of another shape, or numbers that no run has.
    """
    subject = subject_of(table)
    for name in subject.required | {subject.answer, *subject.numbered} & set(table.variables):
        dims = table[name].dims
        if not set(dims) <= set(subject.dims) or (name == subject.answer and dims != subject.dims):
            raise DataError(f"'{source}' is damaged: '{name}' is over {dims}")
    for name, column in table.variables.items():
        if not all(isinstance(column.attrs.get(it, ""), str) for it in ("units", "long_name")):
            raise DataError(f"'{source}' is damaged: units of '{name}' are no text")
        if set(column.dims) - set(table.sizes):
            raise DataError(f"'{source}' is damaged: '{name}' is over {column.dims}")
        column.check(functools.partial(_check, source, name, column, subject))


def check_row(row: Mapping[str, Any], source: object) -> None:
    """Refuse one stored strategy with a number that no run has.

    Parameters
    ----------
    row : mapping
        Its variables by name, and whatever else a file says of it.
    source : object
        The file, for messages.

    Raises
    ------
    DataError
        Names the number.
    """
    for name in {**VARIABLES, **COSTS}.keys() & row.keys():
        value = row[name]
        if isinstance(value, int | float) and not (0 <= value <= LARGEST or value == math.inf):
            raise DataError(f"'{source}' is damaged: {name} is {shortened(str(value))}")


def _check(
    source: object, name: str, column: Column, subject: Subject, values: NDArray[Any]
) -> None:
    """Refuse values of a column that no results have."""
    wrong: Any = None
    if not values.size or name in SIGNED:
        return
    if column.labels is not None:
        wrong = _beyond(values, 0, len(column.labels) - 1)
    elif name in subject.chosen and values.dtype.kind in "if":
        spec: Field = subject.chosen[name]
        wrong = _beyond(values, min(spec.minimum, 0), spec.maximum)
    elif name in subject.variables and values.dtype.kind in "if":
        wrong = _beyond(values, TINY if name == subject.answer else 0, LARGEST)
    elif name in subject.variables and values.dtype.kind not in "b":
        wrong = values.flat[0]
    if wrong is not None:
        shown = f"{wrong:.6g}" if isinstance(wrong, np.number) else shortened(wrong)
        raise DataError(f"'{source}' is damaged: {name} is {shown} in one place")


def _beyond(values: NDArray[Any], least: float, most: float) -> Any:
    """Return a value beyond limits; an infinite one says that there is none."""
    lowest = np.fmin.reduce(values, axis=None)
    if lowest < least:
        return lowest
    large = values[(values > most) & np.isfinite(values)]
    return large[0] if large.size else None
