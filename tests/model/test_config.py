"""Reading ``config.json`` files, presets by name, and what wrong ones are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.config import covered_model_types, model_from_config, read_config
from perfmodel.model.families import ARCHITECTURES
from perfmodel.model.presets import load_model
from tests.data import MODEL_CONFIGS, needed
from tests.model.configs import DEEPSEEK, LLAMA

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
    return needed(MODEL_CONFIGS / name)


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


def test_architecture_stands_in_for_a_missing_model_type() -> None:
    without = {key: value for key, value in LLAMA.items() if key != "model_type"}
    model = model_from_config({**without, "architectures": ["LlamaForCausalLM"]})
    assert model.family == "llama"
    assert set(ARCHITECTURES.values()) == set(covered_model_types())


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
