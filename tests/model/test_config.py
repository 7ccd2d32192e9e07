"""Reading ``config.json`` files, presets by name, and what wrong ones are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.config import covered_model_types, model_from_config, read_config
from perfmodel.model.families import ARCHITECTURES
from perfmodel.model.presets import load_model
from tests.data import MODEL_CONFIGS

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}

DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "vocab_size": 100,
}

# File -> preset with the same language model.
REAL_FILES = {
    "MiniMaxAI--MiniMax-M2.5.json": "minimax-m2",
    "Qwen--Qwen3-0.6B.json": "qwen3-0.6b",
    "Qwen--Qwen3-1.7B.json": "qwen3-1.7b",
    "Qwen--Qwen3-235B-A22B.json": "qwen3-235b-a22b",
    "Qwen--Qwen3-30B-A3B.json": "qwen3-30b-a3b",
    "Qwen--Qwen3-32B.json": "qwen3-32b",
    "Qwen--Qwen3-8B.json": "qwen3-8b",
    "deepseek-ai--DeepSeek-R1.json": "deepseek-r1",
    "deepseek-ai--DeepSeek-V3.json": "deepseek-v3",
    "meta-llama--Meta-Llama-3.1-405B.json": "llama-3.1-405b",
    "meta-llama--Meta-Llama-3.1-70B.json": "llama-3.1-70b",
    "meta-llama--Meta-Llama-3.1-8B.json": "llama-3.1-8b",
    "mistralai--Mixtral-8x22B-v0.1.json": "mixtral-8x22b",
    "mistralai--Mixtral-8x7B-v0.1.json": "mixtral-8x7b",
    "moonshotai--Kimi-K2.5.json": "kimi-k2",
    "openai--gpt-oss-120b.json": "gpt-oss-120b",
    "openai--gpt-oss-20b.json": "gpt-oss-20b",
}

# File -> key named in the refusal.
REFUSED_FILES = {
    "Qwen--Qwen3.5-27B.json": "layer_types",
    "Qwen--Qwen3.5-35B-A3B.json": "layer_types",
    "deepseek-ai--DeepSeek-V3.2.json": "index_topk",
    "deepseek-ai--DeepSeek-V4-Flash.json": "compress_ratios",
    "google--gemma-4-26B-A4B.json": "global_head_dim",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct.json": "attention_chunk_size",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json": "hybrid_override_pattern",
}


def real_file(name: str) -> Path:
    """Return a published file, or skip where there is none."""
    path = MODEL_CONFIGS / name
    if not path.exists():
        pytest.skip("the published config.json files are not part of the repository")
    return path


@pytest.mark.parametrize("file", REAL_FILES)
def test_published_file_is_the_model_of_its_preset(file: str) -> None:
    model, preset = load_model(real_file(file)), load_model(REAL_FILES[file])
    assert model.layers == preset.layers
    assert model.mtp_layers == preset.mtp_layers
    assert model.parameter_count() == preset.parameter_count()
    assert model.tied_embeddings == preset.tied_embeddings
    assert model.name == file.removesuffix(".json").split("--")[1]


@pytest.mark.parametrize("file", REFUSED_FILES)
def test_published_file_of_an_architecture_not_modelled_names_its_key(file: str) -> None:
    path = real_file(file)
    with pytest.raises(ModelError) as error:
        load_model(path)
    assert str(error.value).startswith(f"{path}: ")
    assert f"key {REFUSED_FILES[file]!r}" in str(error.value)
    assert "not modelled yet" in str(error.value)


def test_the_two_tables_above_name_every_published_file() -> None:
    real_file("Qwen--Qwen3-8B.json")
    assert {path.name for path in MODEL_CONFIGS.glob("*.json")} == {*REAL_FILES, *REFUSED_FILES}


def test_directory_and_file_give_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(LLAMA))
    for given_path in (folder, file, str(file), f"{folder}/"):
        model = load_model(given_path)
        assert model.name == "my-model"
        assert model.source == str(file)
        assert model.num_layers == 2
    assert load_model(LLAMA).layers == model.layers


def test_small_llama_by_hand() -> None:
    model = model_from_config(LLAMA)
    attention = 64 * 64 * 2 + 64 * 16 * 2  # q and o, k and v (2 heads of 8)
    layer = attention + 3 * 64 * 128 + 2 * 64
    assert model.parameter_count() == 2 * layer + 64 + 2 * 100 * 64
    tied = model_from_config({**LLAMA, "tie_word_embeddings": True})
    assert tied.parameter_count() == model.parameter_count() - 100 * 64
    biased = model_from_config({**LLAMA, "attention_bias": True, "mlp_bias": True})
    biases = (64 + 16 + 16 + 64) + (128 + 128 + 64)
    assert biased.parameter_count() == model.parameter_count() + 2 * biases


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
    assert windows(model_type="qwen3", sliding_window=8, layer_types=kinds) == [8, 0, 8, 0]
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


def test_architecture_stands_in_for_a_missing_model_type() -> None:
    without = {key: value for key, value in LLAMA.items() if key != "model_type"}
    model = model_from_config({**without, "architectures": ["LlamaForCausalLM"]})
    assert model.family == "llama"
    assert set(ARCHITECTURES.values()) == set(covered_model_types())


def test_more_visited_experts_than_there_are() -> None:
    with pytest.raises(ModelError, match="'num_experts_per_tok': 9 should be at most 'n_routed"):
        model_from_config({**DEEPSEEK, "num_experts_per_tok": 9})


def test_sparse_attention_under_a_known_model_type_is_refused() -> None:
    with pytest.raises(ModelError, match="key 'index_topk': 2048 changes the architecture"):
        model_from_config({**DEEPSEEK, "index_topk": 2048})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"hidden_size": 64,\n "x": }', "not valid JSON, line 2, column 7"),
        ("", "not valid JSON, line 1, column 1"),
        ("[1, 2]", "should hold a JSON object, holds list"),
        ("[" * 100_000, "not usable JSON"),
    ],
)
def test_broken_file_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "broken.json"
    file.write_text(text)
    with pytest.raises(ModelError) as error:
        read_config(file)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)


def test_binary_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="not text in UTF-8"):
        load_model(tmp_path)


@pytest.mark.parametrize("path", ["nowhere.json", "./nowhere", "/nowhere/at/all", "a/b/c"])
def test_missing_file_is_called_missing(path: str) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_model(path)
