"""A model as a whole: layers by kind, vocabulary, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import ModelError
from perfmodel.model.build import (
    dense_model,
)
from perfmodel.model.presets import load_model


def test_layer_kinds_point_back_at_the_layers() -> None:
    for name in ("deepseek-v3", "gemma-3-27b", "gpt-oss-120b", "llama-3-8b"):
        model = load_model(name)
        distinct, index = model.layer_kinds()
        assert len(set(distinct)) == len(distinct)
        assert tuple(distinct[i] for i in index) == model.layers
    assert load_model("deepseek-v3").layer_kinds()[1] == (0,) * 3 + (1,) * 58


@given(vocab=st.integers(1, 10**6), multiple=st.integers(1, 4096))
def test_vocabulary_padding_is_the_next_multiple(vocab: int, multiple: int) -> None:
    model = dense_model(
        "m", layers=1, hidden_size=8, heads=2, intermediate_size=8, vocab_size=vocab
    )
    padded = model.with_vocab_padding(multiple).vocab_size
    assert padded % multiple == 0
    assert 0 <= padded - vocab < multiple


def test_megatron_pads_the_vocabulary_of_gpt_2_to_51200() -> None:
    padded = load_model("gpt2").with_vocab_padding(128 * 8)
    assert padded.vocab_size == 51_200  # Megatron-LM, --make-vocab-size-divisible-by 128, tp 8


def test_model_at_fault_names_the_key() -> None:
    model = load_model("gpt2")
    for changes, key in (
        ({"hidden_size": -1}, "hidden_size"),
        ({"layers": ()}, "layers"),
        ({"layers": [1]}, "layers"),
        ({"max_positions": 0}, "max_positions"),
        ({"position_embedding": "sinus"}, "position_embedding"),
    ):
        with pytest.raises(ModelError, match=f"key '{key}'"):
            dataclasses.replace(model, **changes)
