"""Formulas of family pages: what they compute, and what they complain of."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.formula import Absent, compile_formula, names_of
from tests.data import table_of


class Keys(dict[str, Any]):
    """Names of a formula in a plain mapping."""

    def value(self, name: str) -> Any:
        if name not in self:
            raise Absent(name)
        return self[name]

    def stated(self, name: str) -> bool:
        return name in self

    def per_layer(self, name: str, found: Any, index: int) -> Any:
        return found[index]

    def spend(self, operations: int) -> None:
        if operations > 1e6:
            raise ModelError("too many operations")


KEYS = Keys(
    h=64,
    a=8,
    zero=0,
    off=False,
    on=True,
    words=["x", "y"],
    i=1,
    pattern="ME",
    words_of_numbers=[1, 2],
    **{"s.k": 3},
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *table_of(__file__, "what_a_formula_computes"),
        ("sum_of_primes(20, 1, 2)", 29 + 31),
        ("numbers('3,4, 10')", [3, 4, 10]),
        ("numbers(words_of_numbers)", [1, 2]),
    ],
)
def test_what_a_formula_computes(text: str, value: object) -> None:
    assert compile_formula(text)(KEYS) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missing", "key 'missing': missing or null"),
        ("h // 7", "key 'h': 64 should be a multiple of '7', which is 7"),
        ("h // zero", "key 'h': 64 should be a multiple of 'zero', which is 0"),
        ("{'x': 1}[words[i]]", "key 'words': 'y' is not modelled; covered: x"),
        ("words[5]", "key 'words': no entry 5"),
    ],
)
def test_what_a_formula_complains_of(text: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        compile_formula(text)(KEYS)
    assert str(error.value) == message


@pytest.mark.parametrize("text", ["h +", "open('x')", "[x for x in words]", "h.a.b", "lambda: 1"])
def test_what_is_no_formula(text: str) -> None:
    with pytest.raises(ModelError, match="formula"):
        compile_formula(text)


def test_the_names_of_a_formula() -> None:
    assert names_of("max(h, s.k) if i else missing") == ("i", "missing", "h", "s.k", "s")
