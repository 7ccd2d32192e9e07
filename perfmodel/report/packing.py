"""Columns of numbers as text that a page can hold: bytes by their place, deflated, base64.

The page unpacks them with ``DecompressionStream``. Numbers that are only drawn are held as levels:
steps of one size on a linear or a logarithmic scale.
"""

from __future__ import annotations

import base64
import math
import zlib
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

Packed = dict[str, Any]
"""``type`` (as "u2", "f4"), ``count`` and ``data``: base64 of deflated bytes, all first bytes of
the numbers, then all second ones: those of a column resemble each other."""

EFFORT = ContextVar("effort", default=6)
"""Of zlib: more takes three times as long for 2 % less. Who answers while one waits sets less."""
LITTLE_ENDIAN = {
    np.dtype(code).newbyteorder("<"): code for code in ("u1", "u2", "u4", "i4", "f4", "f8")
}
MOST_FACTORS = 256
SAME = 2e-6
"""Relative: two numbers of single precision that were computed differently agree so far."""


def packed(values: NDArray[Any]) -> Packed:
    """Return an array of numbers as text.

    Parameters
    ----------
    values : ndarray of uint8, uint16, uint32, int32, float32 or float64
    """
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    places = values.view(np.uint8).reshape(values.size, values.itemsize).T
    data = zlib.compress(places.tobytes(), EFFORT.get())
    return {
        "type": LITTLE_ENDIAN[values.dtype],
        "count": int(values.size),
        "data": base64.b64encode(data).decode("ascii"),
    }


def unpacked(column: Packed) -> NDArray[Any]:
    """Return what `packed` took: the page's own way, in Python."""
    kind = np.dtype(column["type"]).newbyteorder("<")
    data = zlib.decompress(base64.b64decode(column["data"]))
    places = np.frombuffer(data, np.uint8).reshape(kind.itemsize, column["count"])
    return np.ascontiguousarray(places.T).view(kind).reshape(-1)


def size_of(column: Packed) -> int:
    """Return how many bytes a packed column adds to a page."""
    return len(column["data"]) + sum(
        len(inner["data"]) for inner in column.values() if isinstance(inner, dict)
    )


def codes(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers from 0 in the fewest bytes that hold them."""
    largest = int(values.max(initial=0))
    return values.astype("u1" if largest < 2**8 else "u2" if largest < 2**16 else "u4")


def levels(values: NDArray[Any], bits: int) -> Packed:
    """Return numbers as levels of one of ``2 ** bits - 2`` equal steps.

    Level 0 is no number, level 1 is zero and what lies below the scale; the others go from ``low``
    to ``high``, both included: by equal factors (``scale`` is "log") where nothing is negative,
    else by equal differences ("linear").

    Parameters
    ----------
    values : ndarray of float
    bits : int
        2 to 16.

    Returns
    -------
    dict
        As `packed`, and ``scale``, ``low``, ``high``, ``bits`` and ``error``: how far the number of
        a level is from what it stands for at most; relative of a logarithmic scale, else in the
        unit of the numbers.
    """
    values = values.astype(np.float64)
    finite = np.isfinite(values)
    logarithmic = bool((values[finite] >= 0.0).all())
    counted = finite & (values > 0.0) if logarithmic else finite
    some = values[counted]
    low, high = (float(some.min()), float(some.max())) if some.size else (1.0, 1.0)
    steps = 2**bits - 3
    of, where = (np.log, math.log) if logarithmic else (np.asarray, float)
    width = (where(high) - where(low)) / steps
    found = np.zeros(values.size, np.uint16)
    found[finite] = 1
    if some.size:
        place = np.rint((of(some) - where(low)) / width) if width else np.zeros(some.size)
        found[counted] = 2 + place.astype(np.uint16)
    error = math.expm1(width / 2) if logarithmic else width / 2
    about = {"scale": "log" if logarithmic else "linear", "low": low, "high": high, "bits": bits}
    return {**packed(codes(found) if bits <= 8 else found), **about, "error": error}


def from_levels(column: Packed) -> NDArray[np.float64]:
    """Return the numbers that `levels` stand for: the page's own way, in Python."""
    low, high = column["low"], column["high"]
    share = np.arange(2 ** column["bits"] - 2) / (2 ** column["bits"] - 3)
    if column["scale"] == "log":
        steps = low * (high / low) ** share
    else:
        steps = low + (high - low) * share
    return np.concatenate(([np.nan, 0.0], steps))[unpacked(column)]


def ratio(values: NDArray[Any], base: NDArray[Any]) -> Packed | None:
    """Return a column as one of a few factors times another, or over it; None where it is not.

    Step time times rate is the tokens of a step: one of a few numbers, whatever the strategy. Then
    the levels of the one are those of the other, and the page holds them once.

    Parameters
    ----------
    values, base : ndarray of float, shape (rows,)

    Returns
    -------
    dict or None
        ``power`` (1: times, -1: over), ``factors`` and ``codes`` (packed, of the factors).
    """
    if not (np.isfinite(values).all() and np.isfinite(base).all()):
        return None
    if values.min(initial=1.0) <= 0.0 or base.min(initial=1.0) <= 0.0:
        return None
    for power in (1, -1):
        few = slice(None, None, max(1, values.size // 4096))
        if len(_groups(_logs(values[few], base[few], power))[0]) > MOST_FACTORS:
            continue
        centres, numbers = _groups(_logs(values, base, power))
        if len(centres) <= MOST_FACTORS:
            factors = np.exp(centres).tolist()
            return {"power": power, "factors": factors, "codes": packed(codes(numbers))}
    return None


def _logs(values: NDArray[Any], base: NDArray[Any], power: int) -> NDArray[np.float64]:
    return np.asarray(np.log(values.astype(float)) - power * np.log(base.astype(float)))


def _groups(logs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return the means of numbers that are the same but for rounding, and which of them each is.

    More means than `MOST_FACTORS` where numbers of one group are not the same.
    """
    order = np.argsort(logs, kind="stable")
    ascending = logs[order]
    starts = np.flatnonzero(np.diff(ascending, prepend=-np.inf) > SAME)
    if len(starts) > MOST_FACTORS:
        return ascending[starts], order
    ends = np.append(starts[1:], ascending.size)
    if np.any(ascending[ends - 1] - ascending[starts] > 4 * SAME):
        return np.zeros(MOST_FACTORS + 1), order
    numbers = np.empty(logs.size, np.intp)
    numbers[order] = np.repeat(np.arange(starts.size), ends - starts)
    return np.add.reduceat(ascending, starts) / (ends - starts), numbers
