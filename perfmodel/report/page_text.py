"""The text of a page for a browser: its styles, its programs and its data in one."""

from __future__ import annotations

import functools
import graphlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

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
        "title": html.escape(title.encode("utf-8", "replace").decode()),  # lone surrogates
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
