"""Which rows and numbers of a population a page has room for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.report.kinds import SHORT, form_of, title_of
from perfmodel.report.packing import codes, levels, packed, ratio, size_of
from perfmodel.report.population import Choices, Population, larger_first

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


def spoken(choices: Choices) -> dict[str, Any]:
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
                **spoken(it),
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
