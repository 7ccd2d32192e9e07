"""What every number and switch does to a projection: a tornado of the strongest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.figures import BLUE, INK, ORANGE, PURPLE
from perfmodel.base.files import SETTINGS, parse_json, read_text, user_path
from perfmodel.base.table import Table
from perfmodel.report.plots.axes import category_axis, number_axis
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Bars, Line, Panel, Paper

NEEDED = ("parameter", "low_change", "high_change")
TOP = 12
ROW, FRAME = 0.2, 0.75
"""Height of a parameter's row, and of what is around them [in]."""
LARGEST = 2**26  # B
PARTS = 2
"""Of a dotted path that name a parameter, and one more beside a number."""


def sensitivity_plot(table: Table, *, top: int = TOP, paper: Paper) -> Plot:
    """Describe the figure; options as of `perfmodel.plot`."""
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise DataError(
            f"these results have no {', '.join(missing)}; 'perfmodel sensitivity -o FILE.nc' has"
        )
    columns = {name: table[name].labelled().tolist() for name in NEEDED}
    optional = {
        name: table[name].labelled().tolist()
        if name in table
        else [default] * len(columns["parameter"])
        for name, default in (("elasticity", math.nan), ("kind", ""), ("other", ""))
    }
    rows = [
        dict(zip((*columns, *optional), cells, strict=True))
        for cells in zip(*columns.values(), *optional.values(), strict=True)
    ]
    moving = [row for row in rows if _reach(row) > 0.0]
    if not moving:
        raise DataError("nothing to draw: no parameter changes anything")
    moving.sort(key=lambda row: -_reach(row))
    shown = moving[:top]
    reach = [float(row[name]) for row in shown for name in NEEDED[1:]]
    said = str(table.attrs.get("variable", "step_time")).replace("_", " ")
    ends = [0.0, *(it for it in reach if math.isfinite(it))]
    axis = number_axis("share_of_change", "1", ends, label=f"change of {said}")
    factors = [table.attrs.get(f"{end}_factor") for end in ("low", "high")]
    labels = [
        f"× {float(it):g}" if it else end for it, end in zip(factors, ("low", "high"), strict=True)
    ]
    marks: list[Any] = []
    for name, label, colour in zip(NEEDED[1:], labels, (BLUE, ORANGE), strict=True):
        own = [at for at, row in enumerate(shown) if not row["other"] and _known(row[name])]
        marks.append(_bars(shown, own, name, colour, label))
    own = [at for at, row in enumerate(shown) if row["other"] and _known(row["high_change"])]
    marks.append(_bars(shown, own, "high_change", PURPLE, "switched"))
    marks = [mark for mark in marks if len(mark.at)]
    marks.append(Line([0.0, 0.0], [-0.5, len(shown) - 0.5], INK, width=0.6))
    names = [_name(row, paper) for row in shown]
    lines = sum(1 + 0.55 * name.count("\n") for name in names)
    height = round(FRAME + ROW * lines, 3)
    notes = [str(table.attrs.get("title", ""))]
    if any(_known(row["elasticity"]) for row in shown):
        notes.append("in brackets: elasticity, relative change for a small relative change")
    if len(moving) > len(shown):
        notes.append(f"the {len(shown)} strongest of {len(moving):,} that change anything")
    panel = Panel(axis, category_axis("parameter", names), tuple(marks))
    return Plot("sensitivity", (panel,), paper.width, height, notes=tuple(filter(None, notes)))


def _bars(rows: list[dict[str, Any]], own: list[int], name: str, colour: str, label: str) -> Bars:
    lengths = [float(rows[at][name]) for at in own]
    return Bars(own, [0.0] * len(own), lengths, colour, label, height=0.62)


def _known(value: Any) -> bool:
    return value is not None and math.isfinite(float(value))


def _reach(row: Mapping[str, Any]) -> float:
    return max((abs(float(row[name])) for name in NEEDED[1:] if _known(row[name])), default=0.0)


def _name(row: Mapping[str, Any], paper: Paper) -> str:
    """Return the end of a path, with the elasticity in brackets."""
    path, equals, other = str(row["parameter"]).partition("=")
    parts = path.split(".")
    parts = parts[-PARTS - any(part.isdigit() for part in parts[-PARTS:]) :]
    words = ".".join(parts).replace("_", " ") + equals + other
    if not _known(row["elasticity"]):
        return words
    said = f"({row['elasticity']:+.2f})".replace("-", "−")
    return f"{words} {said}" if paper.wide or len(words) < 16 else f"{words}\n{said}"


def read_sensitivity(path: str | Path) -> Table:
    """Open what ``perfmodel sensitivity`` wrote: ``.nc``, or the JSON that it prints.

    Raises
    ------
    DataError
        The file is missing, broken, or something else.
    """
    from perfmodel.base.table import Column
    from perfmodel.store.netcdf import read_netcdf

    source = user_path(path)
    if not source.is_file():
        raise DataError(f"'{source}' does not exist; 'perfmodel sensitivity -o FILE.nc' writes one")
    if source.suffix.lower() != ".json":
        return read_netcdf(source)
    try:
        document = parse_json(read_text(source, "JSON", LARGEST), source, SETTINGS)
    except FormatError as error:
        raise DataError(str(error)) from None
    rows = next(_records(document), [])
    if not rows:
        raise DataError(
            f"'{source}' has no list with {', '.join(NEEDED)}; "
            "'perfmodel sensitivity --json' prints one"
        )
    names = dict.fromkeys(name for row in rows for name in row)
    data = {}
    for name in names:
        values = [row.get(name) for row in rows]
        numbers = all(isinstance(it, int | float | None) for it in values)
        without = math.nan if numbers else ""
        data[name] = Column("parameter", [without if it is None else it for it in values])
    attrs = {name: it for name, it in document.items() if isinstance(it, str | int | float)}
    return Table(data, {"parameter": data.pop("parameter")}, attrs)


def _records(document: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the lists of objects with what is needed, wherever they stand."""
    if isinstance(document, dict):
        for item in document.values():
            yield from _records(item)
    elif isinstance(document, list) and all(
        isinstance(it, dict) and set(NEEDED) <= set(it) for it in document
    ):
        yield document
