"""The README's table of errors, and the whole tables of docs/accuracy.md."""

from __future__ import annotations

from typing import Any

import pytest

from tests.data import DOCS, NO_DOCUMENTS, ROOT

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason=NO_DOCUMENTS)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_readme_says_what_the_accuracy_page_says() -> None:
    """Rows scored, median, mean, p90 and worst of every line."""
    block = (ROOT / "README.md").read_text().split("<!-- truth:")[1].split("<!-- end -->")[0]
    pages = [(DOCS / name).read_text() for name in ("accuracy.md", "collectives.md")]
    whole = [cells(line) for text in pages for line in text.splitlines() if line.startswith("| ")]
    lines = [cells(line) for line in block.splitlines()[3:]]
    assert len(lines) >= 10
    for title, *figures in lines:
        if title.endswith("(families alike)"):
            averages = [row[-5:-1] for row in whole if row[0] == "**families alike**"]
            assert figures[1:] in averages, title
            continue
        if title.endswith("left out)"):
            name = f"families alike: {title.rpartition('(')[2].rstrip(')')}"
            assert figures[1:] in [row[-5:-1] for row in whole if row[0] == name], title
            continue
        names = ("all",) if title.startswith("Training steps") else (f"**{title}**",)
        found = [row[2:7] for row in whole if row[0] in names and len(row) >= 7]
        assert figures in found, title


def test_lines_that_are_not_scored_again_stay(script: Any) -> None:
    update = script.load("update_readme")
    text = "a\n<!-- truth: b -->\n| h |\n|---|\n| One | 1 |\n| Two | 2 |\n<!-- end -->\nc"
    block = update.truth_block(text, {"Two": "| Two | 3 |", "Three": "| Three | 4 |"})
    assert block.splitlines()[2:] == ["| One | 1 |", "| Two | 3 |", "| Three | 4 |"]


def test_a_line_has_the_five_figures(script: Any) -> None:
    update = script.load("update_readme")
    found = dict.fromkeys(update.COLUMNS, 0.05) | {"count": 1234}
    assert (
        update.truth_line("Streams", found) == "| Streams | 1,234 | 5.0 % | 5.0 % | 5.0 % | 5.0 % |"
    )
