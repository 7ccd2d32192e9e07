"""What the generator knows of models, and which it does not have."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.config import model_from_config
from perfmodel.model.presets import load_model
from perfmodel.wafer.twin.facts import generator_model
from tests.wafer.twin.examples import LATENT


def test_the_two_models_it_has():
    deepseek = generator_model(load_model("deepseek-v3"))
    assert (deepseek.dense_layers, deepseek.experts, deepseek.shared_intermediate) == (3, 256, 2048)
    assert deepseek.latent
    assert (deepseek.kv_rank, deepseek.rope) == (512, 64)
    llama = generator_model(load_model("llama-3-70b"))
    assert not llama.latent
    assert (llama.dense_layers, llama.kv_heads, llama.head_dim) == (80, 8, 128)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2-lite", "gemma-2-9b", "gpt3-175b"])
def test_others_are_refused_in_a_line(name):
    with pytest.raises(ModelError, match="has DeepSeek-V3 and Llama 3 only"):
        generator_model(load_model(name))


def test_heads_have_to_share_the_hidden_size():
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 96,
        "vocab_size": 100,
    }
    with pytest.raises(ModelError, match="attention 'full' of 4 x 32"):
        generator_model(model_from_config(config))


def test_layers_by_name():
    assert LATENT.layer_names() == ("decode0", "decode1", "decode2", "lm_head")
    assert LATENT.layer_names("lm_head, decode1") == ("decode1", "lm_head")
    assert [LATENT.has_experts(name) for name in LATENT.layer_names()] == [False, True, True, False]
    for wrong in ("decode3", "decode", "", "all,decode0"):
        with pytest.raises(ModelError, match="key 'layers': there is no layer"):
            LATENT.layer_names(wrong)
