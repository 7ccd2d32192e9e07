"""A test that does not run says why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.data import ROOT

FIRST_IS_REASON = ("skip",)  # called inside a test; the marks take `reason` by name
BY_NAME = ("skipif", "xfail", "importorskip")


def without_reason(source: str) -> Iterator[int]:
    """Yield the lines that leave a test out without a word."""
    if not any(f".{name}(" in source for name in (*FIRST_IS_REASON, *BY_NAME)):
        return  # most files: reading them as code takes seconds
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        stated = {item.arg for item in node.keywords}
        if "pytest" not in ast.unparse(node.func):
            continue
        if node.func.attr in FIRST_IS_REASON and not node.args and "reason" not in stated:
            yield node.lineno
        if node.func.attr in BY_NAME and "reason" not in stated:
            yield node.lineno


def test_every_skip_has_a_reason() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(Path(__file__).parents[1].rglob("*.py"))
        for line in without_reason(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_skips_without_a_reason_are_found() -> None:
    source = (
        "import pytest\npytest.skip()\npytest.skip('why')\n"
        "@pytest.mark.skipif(True)\ndef a(): pass\n"
        "@pytest.mark.skipif(True, reason='why')\ndef b(): pass\n"
        "pytest.importorskip('c')\nother.skip()\n"
    )
    assert sorted(without_reason(source)) == [2, 4, 8]
