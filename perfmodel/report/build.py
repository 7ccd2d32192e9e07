"""Results as one file for any browser: styles, programs and data in one text."""

from __future__ import annotations

import functools
import graphlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.base.files import atomic_path, check_writable

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.base.table import Table

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
    from perfmodel.report.document import document

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


POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""What a browser lets a page do: nothing but run what is in it."""
START = "main"
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_HOLE = re.compile(r"<!-- (\w+) -->")


def page_html(
    found: Mapping[str, Any] | None,
    *,
    start: str = START,
    theme: str = "",
    policy: str = POLICY,
    controls: str = "",
    style: str = "",
    script: str = "",
) -> str:
    """Return the page that shows a document.

    Parameters
    ----------
    found : mapping or None
        What `perfmodel.report.document.document` returned, or a described figure; None for a page
        that gets its documents later, by ``perfmodel.load(document)``.
    start : str
        The module that shows it; `single` shows a figure (`perfmodel.report.plots.figure.Plot`).
    theme : {"", "light", "dark"}
        Colours, whatever the reader's system prefers.
    policy : str
        Its content security policy.
    controls, style, script : str
        HTML above the results, and styles and programs after the page's own: for a server that
        adds controls. They are put in as they are.

    Returns
    -------
    str
        HTML. The same document gives the same text.
    """
    data = "" if found is None else _embedded(found)
    title = "perfmodel" if found is None else str(found["title"]) or f"perfmodel: {found['kind']}"
    holes = {
        "policy": html.escape(policy, quote=True),
        "title": html.escape(title),
        "style": _read("page.css") + style,
        "controls": controls,
        "data": data,
        "theme": f' data-theme="{theme}"' if theme else "",
        "script": program(start) + script,
    }
    return _HOLE.sub(lambda match: holes[match[1]], _read("page.html"))


def _embedded(found: Mapping[str, Any]) -> str:
    """Return a document as JSON that nothing in HTML can end early."""
    text = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # U+2028 and U+2029 were once ends of lines in scripts; lone surrogates are no UTF-8.
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@functools.cache
def program(start: str = START) -> str:
    """Return a module and those that it needs as one script, each in a scope of its own."""
    sources: dict[str, str] = {}
    imports: dict[str, list[str]] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name] = _read(f"{name}.js")
            imports[name] = [it for _, it in _IMPORT.findall(sources[name])]
            waiting += imports[name]
    order = graphlib.TopologicalSorter({name: sorted(imports[name]) for name in sorted(sources)})
    return '"use strict";\n' + "\n".join(
        _scoped(it, sources[it], last=it == start) for it in order.static_order()
    )


def _scoped(name: str, source: str, last: bool) -> str:
    """Return a module as a constant that holds what it exports; the last one runs as it is."""
    body = _EXPORT.sub("", _IMPORT.sub(r"const \1 = $\2;", source))
    if last:
        return body
    exports = ", ".join(_EXPORT.findall(source))
    return f"const ${name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"


def _read(name: str) -> str:
    return (resources.files("perfmodel.report") / "page" / name).read_text(encoding="utf-8")
