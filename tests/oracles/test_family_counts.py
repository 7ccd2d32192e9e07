"""Families held against transformers: parameters of small variants, flags either way.

``family_counts.json`` holds per ``model_type`` the keys that all its variants state, and of each
variant the keys that differ with the total and the active parameters that transformers 5.23
counts on the meta device (correction biases of routers included, modules for multi-token
prediction left out).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.config import model_from_config
from perfmodel.model.spec import ModelSpec

COUNTS = json.loads(Path(__file__).with_name("family_counts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model_type", COUNTS)
def test_parameters_of_variants(model_type: str) -> None:
    table = COUNTS[model_type]
    found, expected = [], []
    for changes, total, active in table["counts"]:
        config = {"model_type": model_type, **table["base"], **changes}
        model = model_from_config(config).without_mtp()
        found.append((changes, model.parameter_count(), model.active_parameter_count()))
        expected.append((changes, total, active))
    assert found == expected


REFUSED = {
    "afmoe": {"attention_bias": True},
    "aria_text": {"mlp_bias": True},
    "bart": {"tie_word_embeddings": False},
    "bert": {"add_cross_attention": True},
    "big_bird": {"attention_type": "block_sparse"},
    "cwm": {"attention_bias": True},
    "deepseek_v2": {"mlp_bias": True},
    "doge": {"is_moe": True},
    "ernie4_5_moe": {"use_bias": True},
    "t5": {"is_encoder_decoder": False},
}


@pytest.mark.parametrize(("model_type", "changes"), REFUSED.items())
def test_variants_that_a_page_cannot_say_are_refused(
    model_type: str, changes: dict[str, Any]
) -> None:
    config = {"model_type": model_type, **COUNTS[model_type]["base"], **changes}
    with pytest.raises(ModelError, match=f"key '{next(iter(changes))}'"):
        model_from_config(config)


def windows(config: dict[str, Any]) -> list[int]:
    return [layer.attention.window for layer in model_from_config(config).layers]


def test_windows_by_the_rule_of_a_family() -> None:
    def of(model_type: str, **changes: Any) -> list[int]:
        base = COUNTS[model_type]["base"]
        return windows({"model_type": model_type, **base, "sliding_window": 16, **changes})

    assert of("cohere2") == [16, 16, 16, 0] * 2
    assert of("cohere2", sliding_window_pattern=2) == [16, 0] * 4
    assert of("cohere2", sliding_window=None) == [0] * 8
    assert of("cohere2_moe", first_k_dense_replace=2) == [0, 0, 16, 16, 16, 0, 16, 16]
    assert of("exaone4") == [16, 16, 16, 0] * 2
    assert of("exaone4", sliding_window=None) == [0] * 8
    assert of("dots1", max_window_layers=6) == [0] * 6 + [16] * 2
    assert of("afmoe", global_attn_every_n_layers=2) == [16, 0] * 4
    assert of("cwm") == [0, 16, 16, 16] * 2
    assert of("flint") == [0, 0, 16, 16, 16, 0, 16, 0]
    assert of("beam") == [16] * 5 + [0, 16, 0]


def test_norms_and_parallel_blocks_of_falcon() -> None:
    def of(**changes: Any) -> tuple[int, bool, int]:
        base = COUNTS["falcon"]["base"]
        layer = model_from_config({"model_type": "falcon", **base, **changes}).layers[0]
        return layer.norms, layer.parallel_block, layer.attention.key_value_heads

    assert of() == (1, True, 1)
    assert of(new_decoder_architecture=True, num_kv_heads=2) == (2, True, 2)
    assert of(new_decoder_architecture=True, num_ln_in_parallel_attn=1) == (1, True, 8)
    assert of(parallel_attn=False, multi_query=False) == (2, False, 8)


def test_bert_is_bidirectional_unless_a_decoder() -> None:
    def causal(**changes: Any) -> bool:
        base = COUNTS["bert"]["base"]
        config = {"model_type": "bert", **base, **changes}
        return model_from_config(config).layers[0].attention.causal

    assert (causal(), causal(is_decoder=True)) == (False, True)


def test_encoder_of_an_encoder_decoder_is_a_tower_whose_parameters_count() -> None:
    def of(model_type: str, **changes: Any) -> ModelSpec:
        return model_from_config(
            {"model_type": model_type, **COUNTS[model_type]["base"], **changes}
        )

    model = of("t5", num_decoder_layers=2)
    (encoder,) = model.towers
    # By hand: h 64, 8 heads of 16, a block of 96, 32 distances.
    attention, block = 4 * 64 * 128, 2 * 64 * 96
    assert encoder.parameter_count() == 3 * (attention + block + 2 * 64) + 32 * 8 + 64
    decoder = 2 * (2 * attention + block + 3 * 64) + 32 * 8 + 64
    assert model.parameter_count() == encoder.parameter_count() + decoder + 1000 * 64
    assert [len(stack.layers) for stack in (encoder, model)] == [3, 2]
    own, cross = model.layers[0].attentions
    assert (own.causal, own.cross, cross.causal, cross.cross) == (True, False, False, True)
    assert not encoder.layers[0].attention.causal
    assert model.remarks[0].startswith("the encoder (")
    alone = of("bart", architectures=["BartForCausalLM"])
    assert (alone.towers, alone.remarks) == ((), ())
