"""Results as one JSON document: all that a page shows, without the page.

The seam between who computes and who shows: `document` turns results into a dictionary fit for
JSON; ``load(document)`` of the page (``page/main.js``) shows it, and may be called again with
another one, without loading the page anew. `perfmodel.report.build` writes both into one file; a
server may send the same dictionary as JSON.

A document has ``title``, ``perfmodel`` (version), ``populations`` and ``provenance``. A population
is the rows of one kind of results:

``kind``, ``title``, ``one``, ``many``
    What they are, and what a row is called.
``rows``, ``total``, ``selection``, ``left_out``
    Rows in the document; of the results; a sentence where some are not in it; ``[reason, count]`` of
    rows without an answer.
``common``
    ``{name, title, value, option}`` of choices that all rows have.
``columns``
    Choices that differ: ``{name, role: "choice", labels, numbers?, data}``, `data` being codes of
    labels. Figures: ``{name, role: "figure", form, larger, …}`` with one of ``levels``
    (`packing.levels`), ``ratio`` (`packing.ratio`, with ``of``) or neither, if it is exact only.
``exact``
    ``{rows, columns}``: numbers as the results have them, of some rows, or of all (`rows` null).
``pictures``
    Row -> the passes of its pipeline (`pictures.pipeline_picture`).
``rank``, ``answer``, ``trades``, ``axes``, ``table``, ``waterfalls``, ``bands``, ``limits``,
``map``, ``command``
    What is shown at first (`kinds.Kind`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel._version import __version__
from perfmodel.base.errors import DataError
from perfmodel.base.files import user_path
from perfmodel.base.table import Table, from_xarray
from perfmodel.report.kinds import SHORT, TRAINING, form_of, title_of
from perfmodel.report.packing import codes, levels, packed, ratio, size_of
from perfmodel.report.pictures import pipeline_picture
from perfmodel.report.population import Choices, Population, joined, larger_first
from perfmodel.report.provenance import Facts, file_facts, table_provenance
from perfmodel.report.results import population_of
from perfmodel.report.runs import comparison_of, is_comparison, simulation_of
from perfmodel.sweeps import results

if TYPE_CHECKING:
    import xarray as xr

ROOM = 4_600_000
"""Bytes of the packed columns of a document; page and texts have the rest of 5 MB."""
MOST_ROWS = 1_200_000
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
PICTURES = 6


class NothingSelected(DataError):
    """No row has an answer and passes the filter."""


@dataclass
class Source:
    """One file of results, or a table that a program holds.

    Attributes
    ----------
    name : str
    population : Population
    table : Table or None
        What pictures are made from.
    provenance : dict
    """

    name: str
    population: Population
    table: Table | None
    provenance: dict[str, Any] = field(default_factory=dict)


def document(
    sources: Sequence[str | Path | Table | xr.Dataset],
    *,
    names: Sequence[str] | None = None,
    title: str | None = None,
    where: str | None = None,
    costs: Mapping[str, Any] | None = None,
    top: int = 10,
    room: int = ROOM,
    pictures: bool = True,
) -> dict[str, Any]:
    """Return results as one document of plain dictionaries, lists, texts and numbers.

    Parameters
    ----------
    sources : sequence of path, Table or xarray.Dataset
        Files that sweeps, served models, meshes, simulations (``-o``) or comparisons
        (``compare --output``) wrote, or such results themselves.
    names : sequence of str, optional
        What each is called; by default the name of its file, or its title.
    title : str, optional
        Heading; by default that of the results.
    where : str, optional
        Filter, as of `perfmodel.best`.
    costs : mapping, optional
        Arguments of `perfmodel.add_cost`; without any, costs are added where a price is known.
    top : int
        Rows of the table of the best.
    room : int
        Bytes that packed columns may take.
    pictures : bool
        Whether pipelines of the best are drawn, which takes a second.

    Raises
    ------
    DataError
        A file is missing, damaged or no result of perfmodel's, or the filter is malformed.
    NothingSelected
        No row has an answer and passes the filter.
    """
    if not sources:
        raise DataError("a report needs one file of results or more")
    stated = list(names) if names is not None else [None] * len(sources)
    opened = [
        _opened(source, name, where, costs or {})
        for source, name in zip(sources, stated, strict=True)
    ]
    for source, name in zip(opened, _distinct([it.name for it in opened]), strict=True):
        source.name = source.provenance["name"] = name
    groups: dict[str, list[Source]] = {}
    for source in opened:
        groups.setdefault(source.population.kind.name, []).append(source)
    if not any(source.population.count for source in opened):
        what = opened[0].population.kind.one
        passes = " and passes the filter" if where else ""
        raise NothingSelected(f"no {what} has an answer{passes}")
    groups = {key: its for key, its in groups.items() if any(it.population.count for it in its)}
    weights = {key: sum(it.population.count for it in its) for key, its in groups.items()}
    found = [
        _population_document(
            its, top, room * weights[key] // sum(weights.values()), where, pictures=pictures
        )
        for key, its in groups.items()
    ]
    first = opened[0]
    heading = title or (first.table.attrs.get("title") if first.table is not None else None)
    return {
        "title": str(heading or first.population.kind.title),
        "perfmodel": __version__,
        "populations": found,
        "provenance": [source.provenance for source in opened],
    }


# ---------------------------------------------------------------- what is read


def _opened(
    source: str | Path | Table | xr.Dataset,
    name: str | None,
    where: str | None,
    costs: Mapping[str, Any],
) -> Source:
    facts: Facts = []
    if isinstance(source, str | Path):
        path = user_path(source)
        name = name or path.name
        if is_comparison(path):
            facts = file_facts(path)
            about = {"name": name, "facts": facts, "hardware": [], "more_hardware": 0}
            return Source(name, comparison_of(path, where), None, about)
        table = _read(path)
        facts = file_facts(path)
    else:
        table = source if isinstance(source, Table) else from_xarray(source)
        name = name or str(table.attrs.get("title", "results"))
    if {"rank", "layer", "row"} & set(table.sizes):
        population = simulation_of(table, where)
    else:
        table = _with_costs(table, costs)
        population = population_of(table, where)
    return Source(name, population, table, table_provenance(name, table, facts))


def _read(path: Path) -> Table:
    """Return the table of a file: results, or a simulation."""
    from perfmodel.sweeps.netcdf import read_netcdf

    if path.suffix.lower() == ".csv" and path.is_file():
        raise DataError(
            f"'{path}' is not a table of compared runs; 'perfmodel compare KIND RUNS.csv --output "
            "FILE.csv' writes one, and sweeps are read as .nc or .zarr"
        )
    if path.is_file():
        table = read_netcdf(path)
        if {"rank", "layer", "row"} & set(table.sizes) and "schema_version" in table.attrs:
            return table
    return results.open_table(path)


def _with_costs(table: Table, costs: Mapping[str, Any]) -> Table:
    """Return results with their costs, where they say what hardware they are for."""
    from perfmodel.sweeps.cost import add_cost
    from perfmodel.sweeps.subject import subject_of

    if not subject_of(table).costs or ("cost" in table.attrs and not costs):
        return table
    try:
        return add_cost(table, **costs)
    except DataError:
        if costs:
            raise
        return table  # nobody asked, and the results do not say


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names with a number behind those that stand there twice."""
    found: list[str] = []
    for name in names:
        tries = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
        found.append(next(it for it in tries if it not in found))
    return found


# ---------------------------------------------------------------- what is kept


def _population_document(
    sources: Sequence[Source], top: int, room: int, where: str | None, *, pictures: bool
) -> dict[str, Any]:
    whole = joined([it.population for it in sources], [it.name for it in sources])
    kind = whole.kind
    answer = whole.figures.get(kind.rank) or next(iter(whole.figures.values()))
    rank = kind.rank if kind.rank in whole.figures else next(iter(whole.figures))
    rows = np.flatnonzero(np.isfinite(answer.values.astype(float)))
    wanted = min(rows.size, MOST_ROWS)
    while True:
        kept, selection = _selected(whole, rows, rank, wanted)
        part = whole.take(kept)
        columns, exact, used = _columns(part, rank, room)
        if used <= room or wanted <= 1:
            break
        wanted = max(1, int(wanted * 0.95 * room / used))
    varying, common = part.dedicated()
    present = {it["name"] for it in columns} | {it for it in common}
    return {
        "kind": kind.name,
        "title": kind.title,
        "one": kind.one,
        "many": kind.many,
        "rows": part.count,
        "total": whole.total,
        "possible": int(rows.size),
        "where": where,
        "selection": selection,
        "left_out": [[reason, count] for reason, count in whole.left_out.most_common()],
        "common": [
            {"name": name, "title": title_of(name), "value": value, **_spoken(it)}
            for name, (value, it) in common.items()
        ],
        "columns": columns,
        "exact": exact,
        "pictures": _pictures(sources, part, rank) if pictures else {},
        "rank": rank,
        "answer": kind.answer,
        "trades": [list(pair) for pair in kind.trades if set(pair) <= present],
        "axes": [*varying, *(name for name in kind.axes if name in present)],
        "table": [name for name in kind.table if name in present],
        "top": top,
        "waterfalls": [
            {
                "title": it.title,
                "whole": it.whole,
                "parts": [
                    {"name": name, "title": _part_title(name, it.strip)}
                    for name in it.parts
                    if name in part.figures
                ],
            }
            for it in kind.waterfalls
            if it.whole in part.figures
        ],
        "bands": {
            name: list(ends)
            for name, ends in kind.bands.items()
            if name in part.figures and all(end in part.figures for end in ends if end)
        },
        "limits": {name: it for name, it in whole.limits.items() if name in part.figures},
        "map": list(kind.map),
        "command": f"perfmodel {kind.verb}" if kind.verb else "",
    }


def _part_title(name: str, strip: Sequence[str]) -> str:
    for part in strip:
        name = name.removesuffix(part).removeprefix(part)
    return name.replace("_", " ")


def _spoken(choices: Choices) -> dict[str, Any]:
    return {"option": choices.option, "default": choices.default, "short": choices.short}


def _selected(
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


def _columns(
    part: Population, rank: str, room: int
) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    """Return the columns of a population, its exact numbers, and the bytes that both take."""
    varying, _ = part.dedicated()
    columns: list[dict[str, Any]] = []
    used = 0
    for name, it in varying.items():
        data = packed(codes(it.codes))
        used += size_of(data)
        columns.append(
            {
                "name": name,
                "title": title_of(name),
                "about": it.text,
                "role": "choice",
                "labels": it.labels,
                "numbers": it.numbers and [n if n == n else None for n in it.numbers],
                "data": data,
                **_spoken(it),
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
            found.append(order[np.unique(it.codes[order], return_index=True)[1]])
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


def _pictures(sources: Sequence[Source], part: Population, rank: str) -> dict[str, Any]:
    """Return pictures of the pipelines of the best strategies, and of the best of each hardware."""
    if part.kind is not TRAINING:
        return {}
    order = part.best_first(part.fitting(), rank)
    chosen = list(order[:PICTURES])
    for name in ("hardware", "file", "framework", "model"):
        if name in part.choices:
            at = np.unique(part.choices[name].codes[order], return_index=True)[1]
            chosen += list(order[at[:PICTURES]])
    files = part.choices["file"].codes if "file" in part.choices else np.zeros(part.count, int)
    found = {}
    for row in dict.fromkeys(map(int, chosen)):
        table = sources[int(files[row])].table
        assert table is not None
        (line,) = results.rows(table, part.flat[[row]])
        if (picture := pipeline_picture(table, line)) is not None:
            found[str(row)] = picture
    return found
