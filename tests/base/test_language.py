"""Expressions are evaluated as Python would, and nothing else of it is understood."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.language import Language

NAMES = SimpleNamespace(value={"a": 3, "part.b": [1, 2]}.__getitem__)


def value(text):
    return Language().compiled(ast.parse(text, mode="eval"))(NAMES)


@pytest.mark.parametrize(
    "text", ["-3 + 2 ** 5 // 4 % 7", "1 < 2 <= 2 != 3", "not (1 > 2 or 0) and 3 in [1, 3]"]
)
def test_what_needs_no_names_is_what_python_says(text):
    assert value(text) == eval(text)


def test_names_may_have_a_section():
    assert value("a in part.b or a - 1 not in part.b") is False
    assert value("a * 2 == 6 and 2 in part.b") is True


@pytest.mark.parametrize("text", ["f(1)", "a[0]", "lambda: 0", "a if a else 0", "{1: 2}"])
def test_anything_else_is_refused(text):
    with pytest.raises(DataError, match="is not understood"):
        value(text)
