"""Models built by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import ModelError
from perfmodel.model.build import (
    dense_model,
    moe_model,
)

SIZES = st.integers(1, 64)


@given(layers=st.integers(1, 6), heads=SIZES, dim=SIZES, width=SIZES, vocab=SIZES, groups=SIZES)
def test_dense_count_is_the_sum_of_its_matrices(
    layers: int, heads: int, dim: int, width: int, vocab: int, groups: int
) -> None:
    h = 8 * dim
    model = dense_model(
        "m",
        layers=layers,
        hidden_size=h,
        heads=heads * groups,
        key_value_heads=groups,
        head_dim=dim,
        intermediate_size=width,
        vocab_size=vocab,
    )
    attention = 2 * h * dim * (heads * groups + groups)
    assert model.parameter_count() == layers * (attention + 3 * h * width + 2 * h) + h + (
        2 * vocab * h
    )


def test_builders_ask_for_what_they_lack() -> None:
    sizes: dict[str, Any] = {"layers": 2, "hidden_size": 10, "heads": 3, "vocab_size": 8}
    with pytest.raises(ModelError, match="state 'head_dim'"):
        dense_model("m", **sizes, intermediate_size=4)
    moe: dict[str, Any] = {**sizes, "heads": 5, "experts": 4, "experts_per_token": 1}
    with pytest.raises(ModelError, match="key 'intermediate_size': needed"):
        moe_model("m", **moe, expert_intermediate_size=4, first_dense_layers=1)
    with pytest.raises(ModelError, match="key 'layers'"):
        dense_model("m", **{**sizes, "layers": 0}, intermediate_size=4)
