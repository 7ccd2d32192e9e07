"""Results as one JSON document, all that a page shows, and as one file for any browser.

The seam between who computes and who shows: `document` turns results into a dictionary fit for
JSON; ``load(document)`` of the page (``page/main.js``) shows it, and may be called again with
another one, without loading the page anew. `write_report` writes both into one file; a
server may send the same dictionary as JSON.

A document has ``title``, ``perfmodel`` (version), ``populations`` and ``provenance``. A population
is the rows of one kind of results:

``kind``, ``title``, ``one``, ``many``
    What they are, and what a row is called.
``rows``, ``total``, ``selection``, ``left_out``
    Rows in the document; of the results; a sentence where some are not in it; ``[reason, count]``
    of rows without an answer.
``common``
    ``{name, title, value, option}`` of choices that all rows have.
``columns``
    Choices that differ: ``{name, role: "choice", labels, numbers?, data}``, `data` being codes of
    labels. Figures: ``{name, role: "figure", form, larger, …}`` with one of ``levels``
    (`packing.levels`), ``ratio`` (`packing.ratio`, with ``of``) or neither, if it is exact only.
``exact``
    ``{rows, columns}``: numbers as the results have them, of some rows, or of all (`rows` null).
``pictures``
    Row -> the passes of its pipeline (`timelines.pipeline.drawn_pipeline`).
``rank``, ``judged``, ``answer``, ``trades``, ``axes``, ``table``, ``waterfalls``, ``bands``,
``limits``, ``map``, ``heading``, ``command``
    What is shown at first (`kinds.Kind`); `judged`: whether less or more of a figure is better.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.base.files import atomic_path, check_writable
from perfmodel.base.version import __version__
from perfmodel.report.kinds import SERVING, SLOWEST_FIRST, TRAINING, title_of
from perfmodel.report.packing import choice_names, columns_of, selected
from perfmodel.report.page_text import page_html
from perfmodel.report.plots.pipeline import drawn_pipeline
from perfmodel.report.population import Population, joined
from perfmodel.report.sources import Source, distinct, opened
from perfmodel.store import results

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.base.table import Table

ROOM = 4_700_000
"""Bytes of a document as JSON; the page itself has the rest of 5 MB."""
MOST_ROWS = 1_200_000
PICTURES = 6
ROOM_OF_PICTURES = 250_000
TEXTS = 40_000
"""Bytes that titles, labels and the like of a population take beside its columns."""


class NothingSelected(DataError):
    """No row has an answer and passes the filter."""


def document(
    sources: Sequence[str | Path | Table | xr.Dataset],
    *,
    names: Sequence[str] | None = None,
    title: str | None = None,
    where: str | None = None,
    costs: Mapping[str, Any] | None = None,
    top: int = 10,
    room: int = ROOM,
    pictures: int = PICTURES,
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
    pictures : int
        Best strategies whose pipelines are drawn, each of which takes some tenths of a second.

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
    read = [
        opened(source, name, where, costs or {})
        for source, name in zip(sources, stated, strict=True)
    ]
    for source, name in zip(read, distinct([it.name for it in read]), strict=True):
        source.name = source.provenance["name"] = name
    if costs and not any(it.population.kind.name in (TRAINING.name, SERVING.name) for it in read):
        raise DataError("prices, tokens and goodput: none of these results costs anything")
    if not any(source.population.count for source in read):
        passes = " and passes the filter" if where else ""
        raise NothingSelected(f"no {read[0].population.kind.one} has an answer{passes}")
    groups: dict[str, list[Source]] = {}
    for source in read:
        if source.population.count:
            groups.setdefault(source.population.kind.name, []).append(source)
    provenance = [source.provenance for source in read]
    first = read[0]
    heading = title or (first.table.attrs.get("title") if first.table is not None else None)
    return {
        "title": str(heading or first.population.kind.title),
        "perfmodel": __version__,
        "populations": _populations(
            groups, top, room - len(json.dumps(provenance)), where, pictures
        ),
        "provenance": provenance,
    }


def _populations(
    groups: Mapping[str, Sequence[Source]], top: int, room: int, where: str | None, pictures: int
) -> list[dict[str, Any]]:
    """Return all populations, the smallest first in taking of the room what it needs."""
    counts = {key: sum(it.population.count for it in its) for key, its in groups.items()}
    found = {}
    for number, key in enumerate(sorted(groups, key=counts.__getitem__)):
        share = room // (len(groups) - number)
        found[key] = _population_document(groups[key], top, share, where, pictures)
        if number + 1 < len(groups):
            room -= len(json.dumps(found[key]))
    return [found[key] for key in groups]


def _population_document(
    sources: Sequence[Source], top: int, room: int, where: str | None, pictures: int
) -> dict[str, Any]:
    whole = joined([it.population for it in sources], [it.name for it in sources])
    kind = whole.kind
    answer = whole.figures.get(kind.rank) or next(iter(whole.figures.values()))
    rank = kind.rank if kind.rank in whole.figures else next(iter(whole.figures))
    rows = np.flatnonzero(np.isfinite(answer.values.astype(float)))
    room -= TEXTS + (ROOM_OF_PICTURES if kind is TRAINING else 0)
    wanted = min(rows.size, MOST_ROWS)
    while True:
        kept, selection = selected(whole, rows, rank, wanted)
        part = whole.take(kept)
        columns, exact, used = columns_of(part, rank, room)
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
            {"name": name, "title": title_of(name), "value": value, **choice_names(it)}
            for name, (value, it) in common.items()
        ],
        "columns": columns,
        "exact": exact,
        "pictures": _pictures(sources, part, rank, pictures),
        "rank": rank,
        "judged": rank not in SLOWEST_FIRST,
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
        "heading": kind.heading,
        "command": f"perfmodel {kind.verb}" if kind.verb else "",
    }


def _part_title(name: str, strip: Sequence[str]) -> str:
    for part in strip:
        name = name.removesuffix(part).removeprefix(part)
    return name.replace("_", " ")


def _pictures(sources: Sequence[Source], part: Population, rank: str, most: int) -> dict[str, Any]:
    """Return pictures of the pipelines of the best strategies, and of the best of each hardware."""
    if part.kind is not TRAINING or not most:
        return {}
    order = part.best_first(part.fitting(), rank)
    chosen = list(order[:most])
    for name in ("hardware", "file", "framework", "model"):
        if name in part.choices:
            at = np.unique(part.choices[name].codes[order], return_index=True)[1]
            chosen += list(order[at[:most]])
    files = part.choices["file"].codes if "file" in part.choices else np.zeros(part.count, int)
    found: dict[str, Any] = {}
    room = ROOM_OF_PICTURES
    for row in dict.fromkeys(map(int, chosen)):
        table = sources[int(files[row])].table
        assert table is not None
        (line,) = results.rows(table, part.flat[[row]])
        picture = drawn_pipeline(table, line)
        size = len(json.dumps(picture))
        if picture is not None and size <= room:
            found[str(row)] = picture
            room -= size
    return found


LARGEST = 5_000_000
"""Bytes of a page."""


def write_report(
    sources: str | Path | Table | xr.Dataset | Sequence[str | Path | Table | xr.Dataset],
    output: str | Path,
    *,
    title: str | None = None,
    where: str | None = None,
    costs: Mapping[str, Any] | None = None,
    top: int = 10,
) -> dict[str, Any]:
    """Write results as one HTML page that needs no network, completely or not at all.

    Parameters
    ----------
    sources : path, Table or xarray.Dataset, or a sequence of them
        What `perfmodel sweep`, `serve`, `wafer` and `simulate` wrote with ``-o``, and ``compare``
        with ``--output``; or such results themselves. Several of one kind stand side by side.
    output : str or Path
        File to write; replaced if it exists. At most `LARGEST` bytes.
    title : str, optional
        Heading; by default that of the results.
    where : str, optional
        Filter, as of `perfmodel.best`: only these rows are in the page.
    costs : mapping, optional
        Arguments of `perfmodel.add_cost`, such as ``{"price": 2.5, "tokens": 15e12}``.
    top : int
        Rows of the table of the best.

    Returns
    -------
    dict
        ``output``, ``bytes``, and ``populations``: of each ``kind``, ``rows`` in the page, of
        which ``exact`` with all their numbers, ``total`` in the results, and ``selection``.

    Raises
    ------
    DataError
        A file is no result of perfmodel's, nothing passes the filter, or the page cannot be
        written.

    Examples
    --------
    >>> write_report(["h100.nc", "b200.nc"], "report.html", where="devices <= 1024")
    """

    target = check_page_path(output)
    listed = [sources] if isinstance(sources, str | Path) or hasattr(sources, "sizes") else sources
    found = document(list(listed), title=title, where=where, costs=costs, top=top)  # type: ignore[arg-type]
    text = page_html(found).encode()
    if len(text) > LARGEST:
        raise DataError(
            f"cannot write '{output}': the page would have {len(text):,} B, more than {LARGEST:,}; "
            "report fewer files at once"
        )
    with atomic_path(output) as temporary:
        temporary.write_bytes(text)
    return {
        "output": str(target),
        "bytes": len(text),
        "populations": [
            {
                "kind": it["kind"],
                "rows": it["rows"],
                "exact": int(it["exact"]["count"]),
                "total": it["total"],
                "selection": it["selection"],
                "pictures": len(it["pictures"]),
            }
            for it in found["populations"]
        ],
    }


def check_page_path(output: str | Path) -> Path:
    """Make sure, before results are read, that a page can be written; return where.

    Raises
    ------
    DataError
        The name ends otherwise than a page's, or the file cannot be written.
    """
    if Path(output).suffix.lower() not in (".html", ".htm"):
        raise DataError(f"cannot write '{output}': a page's name ends in .html")
    return check_writable(output)
