"""Steps that are looked at, and questions that are refused."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError, ModelError, StrategyError
from perfmodel.model.presets import load_model
from perfmodel.wafer.twin.nodes import PREFILL, decode_steps, iterations
from tests.wafer.twin.examples import system

DEEPSEEK = load_model("deepseek-v3")
SYSTEMS = {
    "prefill": system(4, tensor_parallel=4),
    "decode": system(4, data_parallel=2, tensor_parallel=2),
}


def test_steps():
    assert decode_steps(10) == (0, 9)
    assert decode_steps(1) == (0,)
    assert decode_steps(3, "all") == (0, 1, 2)
    for wrong in (0, -1, 2.0, 2**40):
        with pytest.raises(DataError, match="key 'osl'"):
            decode_steps(wrong)
    with pytest.raises(DataError, match="unknown 'some'; known: ends, all"):
        decode_steps(3, "some")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"layers": "decode61"}, ModelError, "there is no layer 'decode61'; known: decode0 to"),
        ({"prompt": 0}, DataError, "key 'isl'"),
        ({"prompt": 163840}, DataError, "163840 tokens and 4 steps exceed the 163840 positions"),
        ({"speculative": -1}, DataError, "key 'speculative'"),
        ({"batch": 0}, DataError, "key 'batch'"),
        (
            {"steps": (PREFILL,), "systems": {"decode": SYSTEMS["decode"]}},
            StrategyError,
            "no block",
        ),
        ({"model": load_model("mixtral-8x7b")}, ModelError, "DeepSeek-V3 and Llama 3 only"),
    ],
)
def test_wrong_questions(changes, error, said):
    asked = {"model": DEEPSEEK, "systems": SYSTEMS, "batch": 3, "prompt": 5, "steps": (0, 4)}
    with pytest.raises(error, match=said):
        iterations(**asked | changes)
