"""Counts of perfmodel beside those of an oracle."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from perfmodel.model.presets import load_model


@pytest.fixture
def compare(script: Any) -> Any:
    return script.load("oracle.compare")


def expected(script: Any) -> Any:
    """Return what an oracle would say of a model that is read without fault."""
    count = script.load("oracle.meta").Count
    layers = (218_112_000,) * 32
    return count("LlamaForCausalLM", 8_030_261_248, 0, 8_030_261_248, 0, layers)


def test_a_model_that_is_read_well_differs_in_nothing(script: Any, compare: Any) -> None:
    assert compare.differing(load_model("llama-3.1-8b"), expected(script)) == []


def test_totals_active_and_layers_are_compared(script: Any, compare: Any) -> None:
    right, model = expected(script), load_model("llama-3.1-8b")
    assert compare.differing(model, replace(right, text=1))[0].startswith("total 8,030,261,248")
    assert compare.differing(model, replace(right, active=1))[0].startswith("active")
    assert compare.differing(model, replace(right, active=None)) == []
    one = replace(right, layers=(*right.layers[:-1], 7))
    assert compare.differing(model, one) == [
        "1 of 32 layers, the first 31: 218,112,000 should be 7"
    ]
    fewer = replace(right, layers=right.layers[:3])
    assert compare.differing(model, fewer) == ["32 layers should be 3"]


def test_verdicts_are_listed_and_counted(compare: Any, capsys: pytest.CaptureFixture[str]) -> None:
    exact, wrong = compare.Verdict("a", "exact"), compare.Verdict("b", "wrong", "total 1")
    assert compare.report([exact], as_json=False) == 0
    assert compare.report([exact, wrong], as_json=False) == 1
    text = capsys.readouterr().out
    assert "a: exact\nb: wrong: total 1\n1 exact, 1 wrong, 0 refused" in text
    assert compare.report([wrong], as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["counts"]["wrong"] == 1
