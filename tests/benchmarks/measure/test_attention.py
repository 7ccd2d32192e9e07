"""Which attention calls are measured."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.measure.scripts import arguments_of


def test_attention_shapes_hold_what_they_should(script: Any) -> None:
    module = script("attention")
    found = module.shapes(arguments_of(module))
    assert found
    for shape in found:
        assert shape["heads"] % shape["kv_heads"] == 0
        assert shape["q_len"] == (1 if shape["phase"] == "decode" else shape["kv_len"])
    assert {shape["phase"] for shape in found} == {"fwd", "bwd", "decode"}
