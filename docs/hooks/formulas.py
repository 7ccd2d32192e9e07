"""Formulas between dollars become MathML, which browsers draw by themselves: no script, no font."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.S)


def on_page_content(text: str, **_: Any) -> str:
    text = INLINE.sub(lambda found: convert(html.unescape(found[1])), text)
    return BLOCK.sub(lambda found: shown(found[1]), text)


def shown(formula: str) -> str:
    """Return a formula on a line of its own, which scrolls where a phone is narrower."""
    drawn = convert(html.unescape(formula.strip()), display="block")
    return f'<div class="formula" tabindex="0">{drawn}</div>'
