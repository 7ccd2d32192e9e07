"""Results as one file for any browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.base.files import atomic_path, check_writable
from perfmodel.report.page_text import page_html

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
