"""Objects as a notebook shows them: a line of text and a small table."""

from __future__ import annotations

import html
from collections.abc import Iterable


def facts_html(title: str, facts: Iterable[tuple[str, object]]) -> str:
    """Return a line and a table of two columns as HTML; anything in them is text."""
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
        for name, value in facts
    )
    return f"<p>{html.escape(title)}</p><table>{cells}</table>"
