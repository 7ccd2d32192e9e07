"""Which rows and numbers a page has room for, and columns of numbers as text that it can hold.

Bytes stand by their place, deflated, in base64; the page unpacks them with ``DecompressionStream``.
Numbers that are only drawn are held as levels: steps of one size on a linear or logarithmic scale.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.report.kinds import SHORT, form_of, title_of
from perfmodel.report.population import Choices, Population, larger_first

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


MOST_EXACT = 60_000
"""Rows up to which it is tried whether all exact numbers find room."""
EXACT = 3000
"""Best rows whose exact numbers are kept where not all find room."""
BITS = (12, 12)
"""Of the levels of the first two figures: steps of 0.1 % over two orders of magnitude."""
FEWER_BITS = 9
"""Of the levels of others: steps of 0.9 % there."""
MOST_ALIKE = 64
"""Values of a choice for each of which the best row is exact."""


def choice_names(choices: Choices) -> dict[str, Any]:
    """Return how a page and a command call choices."""
    return {"option": choices.option, "default": choices.default, "short": choices.short}


def selected(
    whole: Population, rows: NDArray[np.intp], rank: str, wanted: int
) -> tuple[NDArray[np.intp], str]:
    """Return at most so many rows, in their order, and a sentence about it where they are fewer."""
    if rows.size <= wanted:
        return rows, ""
    fitting = np.intersect1d(rows, whole.fitting(), assume_unique=True)
    best = whole.best_first(fitting, rank)[: wanted // 2]
    others = np.setdiff1d(rows, best, assume_unique=True)
    every = -(-others.size // max(1, wanted - best.size))
    kept = np.union1d(best, others[::every])
    many = whole.kind.many
    return kept, (
        f"{kept.size:,} of {rows.size:,} {many} find room in this page: the best {best.size:,} "
        f"by {title_of(rank)}, and one in {every} of the others"
    )


def columns_of(
    part: Population, rank: str, room: int
) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    """Return the columns of a population, its exact numbers, and the bytes that both take."""
    varying, _ = part.dedicated()
    columns: list[dict[str, Any]] = []
    used = 0
    for name, it in varying.items():
        data = packed(codes(it.codes))
        used += size_of(data) + len(json.dumps([it.labels, it.numbers]))
        columns.append(
            {
                "name": name,
                "title": title_of(name),
                "about": it.text,
                "role": "choice",
                "labels": it.labels,
                "numbers": it.numbers and [n if n == n else None for n in it.numbers],
                "data": data,
                **choice_names(it),
            }
        )
    figures = [it for it in part.kind.figures if it in part.figures]
    figures += [it for it in part.figures if it not in figures]  # these are exact only, of many
    figures = [it for it in figures if np.isfinite(part.figures[it].values.astype(float)).any()]
    heads = {name: _head(part, name) for name in figures}
    everything = None
    if part.count <= MOST_EXACT:
        everything = _exact(part, figures, None)
        if used + everything[1] > room:
            everything = None
    if everything is not None:
        exact, size = everything
        return columns + list(heads.values()), exact, used + size
    exact, size = _exact(part, figures, _exact_rows(part, rank))
    used += size
    drawn: list[str] = []
    for name in (it for it in part.kind.figures if it in heads):
        found, size = _drawn(part, name, drawn)
        # Rate and memory are what the page is about; others have to find room.
        if len(drawn) >= len(BITS) and used + size > room:
            continue
        heads[name] |= found
        used += size
        if "levels" in found:
            drawn.append(name)
    return columns + list(heads.values()), exact, used


def _drawn(part: Population, name: str, drawn: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Return what charts need of a figure, and its bytes: a factor of another one, or levels."""
    values = part.figures[name].values
    for base in drawn[: len(BITS)]:
        if (found := ratio(values, part.figures[base].values)) is not None:
            return {"ratio": {"of": base, **found}}, size_of(found["codes"])
    found = levels(values, BITS[len(drawn)] if len(drawn) < len(BITS) else FEWER_BITS)
    return {"levels": found}, size_of(found)


def _head(part: Population, name: str) -> dict[str, Any]:
    it = part.figures[name]
    return {
        "name": name,
        "title": title_of(name),
        "short": SHORT.get(name, title_of(name)),
        "about": it.text,
        "units": it.units,
        "role": "figure",
        "form": form_of(name, it.units),
        "larger": larger_first(name),
    }


def _exact(
    part: Population, figures: Sequence[str], rows: NDArray[np.intp] | None
) -> tuple[dict[str, Any], int]:
    """Return numbers as the results have them, of some rows or all, and the bytes they take."""
    columns = {}
    for name in figures:
        values = part.figures[name].values
        values = values if rows is None else values[rows]
        single = values.dtype == np.float32
        columns[name] = packed(values if single else values.astype(np.float64))
    places = None if rows is None else packed(rows.astype(np.uint32))
    size = sum(map(size_of, columns.values())) + (size_of(places) if places else 0)
    return {
        "rows": places,
        "count": part.count if rows is None else rows.size,
        "columns": columns,
    }, size


def _exact_rows(part: Population, rank: str) -> NDArray[np.intp]:
    """Return the rows worth exact numbers: the best, on fronts, and the best of each choice."""
    fitting = part.fitting()
    order = part.best_first(fitting if fitting.size else np.arange(part.count), rank)
    found = [order[:EXACT]]
    for x, y in part.kind.trades:
        if x in part.figures and y in part.figures:
            found.append(_front(part, order, x, y))
    varying, _ = part.dedicated()
    for it in varying.values():
        if len(it.labels) <= MOST_ALIKE:
            found += [order[np.unique(it.codes[order], return_index=True)[1]]]
    return np.unique(np.concatenate(found))


def _front(part: Population, rows: NDArray[np.intp], x: str, y: str) -> NDArray[np.intp]:
    """Return the rows that no other one beats in both figures."""
    signs = [-1.0 if larger_first(name) else 1.0 for name in (x, y)]
    first, second = (
        sign * part.figures[name].values[rows].astype(float)
        for sign, name in zip(signs, (x, y), strict=True)
    )
    order = np.lexsort((second, first))
    lowest = np.minimum.accumulate(second[order])
    better = second[order] < np.concatenate(([np.inf], lowest[:-1]))
    return rows[order[better]]
