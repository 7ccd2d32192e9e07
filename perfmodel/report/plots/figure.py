"""A figure before anything draws it: panels with axes and marks, in SI units.

Whatever a figure shows is said here once. `draw_matplotlib` draws it for papers, ``page/figure.js``
for pages; `Plot.described` is what both are drawn from, as JSON.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.base.errors import DataError
from perfmodel.base.figures import FORMATS, check_plot
from perfmodel.base.files import atomic_path
from perfmodel.report.plots.marks import (
    Cells,
    Panel,
    Text,
    _axis_document,
    described_panel,
    rows_of,
)


@dataclass(frozen=True)
class Plot:
    """A figure: what `perfmodel.plot` returns.

    Attributes
    ----------
    kind : str
    panels : tuple of Panel
        One below the other.
    width, height : float
        [in].
    title : str
    notes : tuple of str
        What a caption should say: what was left out, what all that is shown have in common.
    facts : dict
        Further numbers of the figure for its JSON document.
    aligned : bool
        Whether the axes of panels begin at one edge.
    """

    kind: str
    panels: tuple[Panel, ...]
    width: float
    height: float
    title: str = ""
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    aligned: bool = True

    def save(self, path: str | Path) -> None:
        """Draw the figure into a file, completely or not at all.

        Parameters
        ----------
        path : str or Path
            ``.svg``, ``.png`` or ``.pdf``; ``.html`` is a page to point and zoom in.

        Raises
        ------
        DataError
            Another ending, the library for it is missing, or the file cannot be written.
        """
        check_saving(path)
        with atomic_path(path) as temporary:
            if temporary.suffix.lower() == PAGE:
                from perfmodel.report.page_text import page_html

                text = page_html(self.described(), start="single", theme="light")
                temporary.write_text(text, encoding="utf-8")
            else:
                from perfmodel.report.plots.draw_matplotlib import write

                write(self, temporary)

    def save_data(self, path: str | Path) -> None:
        """Write the numbers behind the figure as CSV, completely or not at all.

        Raises
        ------
        DataError
            The file cannot be written.
        """
        rows = self.rows()
        with (
            atomic_path(path) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, dict.fromkeys(name for row in rows for name in row))
            writer.writeheader()
            writer.writerows(rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers behind the figure, in SI units: a row per point, bar or cell."""
        found = []
        for number, panel in enumerate(self.panels, 1):
            where = {"panel": number} if len(self.panels) > 1 else {}
            for mark in panel.marks:
                found += [where | row for row in rows_of(panel, mark)]
        return found

    def described(self) -> dict[str, Any]:
        """Return all that is drawn, fit for JSON: what pages draw, with ``page/figure.js``."""
        return {
            "kind": self.kind,
            "title": self.title,
            "width": self.width,
            "height": self.height,
            "panels": [described_panel(panel) for panel in self.panels],
            "notes": list(self.notes),
        }

    def to_json_dict(self) -> dict[str, Any]:
        """Return axes and numbers, fit for JSON."""
        return {
            "kind": self.kind,
            "title": self.title,
            "width": self.width,
            "height": self.height,
            "panels": [
                {
                    "x": _axis_document(panel.x),
                    "y": _axis_document(panel.y),
                    "series": [
                        {"mark": type(mark).__name__.lower(), "label": mark.label, "rows": rows}
                        for mark in panel.marks
                        if not isinstance(mark, Text | Cells)
                        and (rows := list(rows_of(panel, mark)))
                    ]
                    + [
                        {"mark": "cells", "label": mark.scale.name, "rows": [*rows_of(panel, mark)]}
                        for mark in panel.marks
                        if isinstance(mark, Cells)
                    ],
                }
                for panel in self.panels
            ],
            "notes": list(self.notes),
            **self.facts,
        }

    def _repr_svg_(self) -> str:
        """Return the drawing for a notebook."""
        from perfmodel.report.plots.draw_matplotlib import svg_text

        return svg_text(self)


PAGE = ".html"


def check_saving(path: str | Path) -> None:
    """Make sure, before a long computation, that a figure can be drawn into a file.

    Raises
    ------
    DataError
        Another ending than those of figures, or what draws it is missing.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (*FORMATS, PAGE):
        known = ", ".join((*FORMATS, PAGE))
        raise DataError(f"cannot draw '{path}': a figure's name ends in {known}")
    if suffix != PAGE:
        check_plot(path)
