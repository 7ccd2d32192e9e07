"""Families: keys that only one of them knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.config import model_from_config
from perfmodel.model.presets import load_model
from tests.model.configs import DEEPSEEK, LLAMA


def test_deepseek_layers_by_their_keys() -> None:
    def routed(**changes: Any) -> list[bool]:
        model = model_from_config({**DEEPSEEK, **changes})
        return [layer.mlp.kind == "moe" for layer in model.layers]

    assert routed() == [False, True, True, True]
    assert routed(moe_layer_freq=2) == [False, False, True, False]
    assert routed(first_k_dense_replace=4) == [False] * 4
    assert routed(n_routed_experts=None, num_experts_per_tok=None) == [False] * 4
    assert len(model_from_config({**DEEPSEEK, "num_nextn_predict_layers": 2}).mtp_layers) == 2
    direct = model_from_config({**DEEPSEEK, "q_lora_rank": None}).layers[0].attention
    assert (direct.q_lora_rank, direct.head_dim) == (0, 12)


def test_qwen_moe_layers_by_their_keys() -> None:
    config = {
        **LLAMA,
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }

    def routed(**changes: Any) -> list[bool]:
        model = model_from_config({**config, **changes})
        return [layer.mlp.kind == "moe" for layer in model.layers]

    assert routed() == [True] * 4
    assert routed(decoder_sparse_step=2) == [False, True, False, True]
    assert routed(mlp_only_layers=[0, 3]) == [False, True, True, False]


def test_windows_by_their_keys() -> None:
    def windows(**changes: Any) -> list[int]:
        model = model_from_config({**LLAMA, "num_hidden_layers": 4, **changes})
        return [layer.attention.window for layer in model.layers]

    qwen = {"model_type": "qwen2", "sliding_window": 16, "max_window_layers": 3}
    assert windows(**qwen) == [0] * 4
    assert windows(**qwen, use_sliding_window=True) == [0, 0, 0, 16]
    assert windows(model_type="mistral", sliding_window=16) == [16] * 4
    assert windows(model_type="mistral", sliding_window=None) == [0] * 4
    kinds = ["sliding_attention", "full_attention"] * 2
    switched = {"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": True}
    assert windows(**switched, layer_types=kinds) == [8, 0, 8, 0]
    gemma = {"model_type": "gemma3_text", "sliding_window": 8, "head_dim": 8}
    assert windows(**gemma, sliding_window_pattern=2) == [8, 0, 8, 0]
    assert windows(**{**gemma, "model_type": "gemma2"}) == [8, 0, 8, 0]
    assert windows(**{**gemma, "model_type": "gemma2", "layer_types": kinds[::-1]}) == [0, 8, 0, 8]


def test_gemma_3_wrapper_that_states_only_what_differs_from_the_defaults() -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }  # config.json of google/gemma-3-4b-pt leaves the rest to Gemma3TextConfig
    model = model_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    preset = load_model("gemma-3-4b")
    assert (model.layers, model.parameter_count()) == (preset.layers, preset.parameter_count())


def test_more_visited_experts_than_there_are() -> None:
    with pytest.raises(ModelError, match="'num_experts_per_tok': 9 should be at most 'n_routed"):
        model_from_config({**DEEPSEEK, "num_experts_per_tok": 9})


def test_gated_streams_and_hashed_n_grams_of_qwen4_exp() -> None:
    # Counted by transformers 5.23 on the meta device, all else as Qwen4ExpTextConfig has it.
    config = {
        "model_type": "qwen4_exp_text",
        "indexer_n_heads": 8,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 16,
        "ple_layer_ids": [2, 5],
    }
    model = model_from_config(config)
    assert model.parameter_count() == 149_308_134_528
    assert model.layers[3].attention.indexer is not None
    assert (model.layers[0].norms, model.streams, model.final_norm) == (0, 4, False)


def test_deepseek_v2_without_latent_attention() -> None:
    model = model_from_config(
        {**DEEPSEEK, "model_type": "deepseek_v2", "use_mla": False, "kv_lora_rank": None}
    )
    assert model.layers[0].attention.kind == "full"


def test_arctic_runs_a_dense_block_beside_its_experts() -> None:
    layer = load_model("arctic").layers[0]
    assert [mlp.kind for mlp in layer.mlps] == ["dense", "moe"]
    assert (layer.mlps[0].intermediate_size, layer.norms) == (7168, 3)


def test_dream_sees_in_both_directions() -> None:
    assert not load_model("dream-7b").layers[0].attention.causal


def test_baichuan_13b_has_alibi() -> None:
    found = [load_model(f"baichuan2-{size}").position_embedding for size in ("7b", "13b")]
    assert found == ["rope", "alibi"]


def test_first_files_of_falcon() -> None:
    # config.json of tiiuae/falcon-7b and tiiuae/falcon-40b before transformers had the class.
    common = {"bias": False, "alibi": False, "parallel_attn": True, "vocab_size": 65024}
    small = {"hidden_size": 4544, "n_head": 71, "n_layer": 32, "multi_query": True}
    large = {"hidden_size": 8192, "n_head": 128, "n_head_kv": 8, "n_layer": 60}
    for model_type, sizes, name in (
        ("RefinedWebModel", small, "falcon-7b"),
        ("RefinedWeb", large, "falcon-40b"),
    ):
        model = model_from_config({"model_type": model_type, **common, **sizes})
        assert model.layers == load_model(name).layers
        assert model.parameter_count() == load_model(name).parameter_count()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("modle = 3", "no entry 'modle'; did you mean model?"),
        ("like = 3", "like: '3' should be a text"),
        ("ignore = 'x'", "ignore: 'x' should be a list"),
        ("layer = 1", "layer: '1' should be a table"),
        ("like = 'llama'\nmodel.layers = '= 9**9**9**9'", "a value is too large"),
        ("like = 'llama'\nmodel.layers = '= sum_of_primes(10**15, 0, 10)'", "operations"),
        ("like = 'llama'\nlet.x = '= y'\nlet.y = '= x'\nmodel.layers = '= x'", "needs itself"),
        ("like = 'llama'\nmixer.attention.part = 'nothing'", "'nothing'"),
        ("ignore = []", "model, layer should be stated"),
        (f"like = '{'x' * 5000}'", "which has no page"),
    ],
)
def test_pages_of_a_wrong_shape(line: str, words: str, tmp_path: Path) -> None:
    page = tmp_path / "mine.toml"
    page.write_text(line, encoding="utf-8")
    with pytest.raises(ModelError) as caught:
        model_from_config(LLAMA, family=str(page))
    assert words in str(caught.value)
