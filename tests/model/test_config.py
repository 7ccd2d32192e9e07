"""Reading ``config.json`` files, presets by name, and what wrong ones are told."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.config import model_from_config, read_config
from perfmodel.model.presets import load_model
from tests.data import MODEL_CONFIGS, needed, table_of
from tests.model.configs import DEEPSEEK, LLAMA

REAL_FILES = table_of(__file__, "real_files")

NEW_FILES = {
    "Qwen--Qwen3.5-27B.json",
    "Qwen--Qwen3.5-35B-A3B.json",
    "deepseek-ai--DeepSeek-V3.2.json",
    "deepseek-ai--DeepSeek-V4-Flash.json",
    "google--gemma-4-26B-A4B.json",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct.json",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json",
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


def test_every_published_file_has_the_parameters_that_transformers_counts() -> None:
    table = needed(MODEL_CONFIGS / "exact_parameters.csv")
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    assert {row["config"] for row in rows} == {*REAL_FILES, *NEW_FILES}
    for row in rows:
        model = load_model(MODEL_CONFIGS / row["config"])
        # Checkpoints hold the load-balancing correction as buffers.
        expected = int(row["text_parameters"]) + int(row["correction_buffers"])
        assert model.parameter_count() == expected, row["config"]
        assert model.active_parameter_count() == int(row["active_parameters"]), row["config"]
        assert model.num_layers == int(row["layers"]), row["config"]


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


def test_an_unknown_type_is_read_as_the_family_whose_keys_it_has() -> None:
    model = model_from_config({**LLAMA, "model_type": "brand_new"})
    assert model.layers == model_from_config(LLAMA).layers
    (remark,) = model.remarks
    assert "'brand_new' is unknown: read as llama" in remark
    assert "--as FAMILY" in remark
    unread = {"vision_patches": 14, "width_list": [4, 8], "use_gates": True}
    harmless = {"bos_token_id": 5, "rope_theta": 10000, "use_cache": True, "max_length": 99}
    odd = model_from_config({**LLAMA, "model_type": "brand_new", **unread, **harmless})
    assert odd.remarks[1] == (
        "keys that llama does not have, which may be missed: vision_patches, width_list, use_gates"
    )
    latent = model_from_config({**DEEPSEEK, "model_type": "brand_new"})
    assert latent.layers[0] == model_from_config(DEEPSEEK).layers[0]
    with pytest.raises(ModelError, match="its keys are of no known family; --as FAMILY"):
        model_from_config({"model_type": "brand_new", "width": 5})


def test_a_family_of_the_users_choice(tmp_path: Path) -> None:
    model = model_from_config({**LLAMA, "model_type": "brand_new"}, family="qwen3")
    assert model.layers[0].attention.qk_norm
    assert model.remarks == ("read as qwen3 (model_type 'brand_new')",)
    page = tmp_path / "mine.toml"
    page.write_text('like = "llama"\n[mixer.attention]\nsinks = true\n')
    assert model_from_config(LLAMA, family=str(page)).layers[0].attention.sinks
    with pytest.raises(ModelError, match="no family is called 'lama'; did you mean llama"):
        model_from_config(LLAMA, family="lama")
    with pytest.raises(ModelError, match="cannot read "):
        model_from_config(LLAMA, family=str(tmp_path / "none.toml"))


def test_defaults_of_the_class_stand_in_for_absent_keys_and_are_told() -> None:
    # Qwen3MoeConfig() of transformers 5.23: 24 layers of 128 experts, hidden size 2,048.
    model = model_from_config({"model_type": "qwen3_moe"})
    assert (model.num_layers, model.hidden_size, model.layers[0].experts) == (24, 2048, 128)
    assert "as their class has them: hidden_size 2,048, num_hidden_layers 24" in model.remarks[0]
    saved = {"model_type": "qwen3_moe", "num_local_experts": 64}  # as transformers 5 writes it
    assert model_from_config(saved).layers[0].experts == 64


@pytest.mark.parametrize("wrapper", [True, False])
def test_a_wrapper_decides_whether_embeddings_are_tied(wrapper: bool) -> None:
    text = {**LLAMA, "tie_word_embeddings": not wrapper}
    config = {"model_type": "llava", "tie_word_embeddings": wrapper, "text_config": text}
    assert model_from_config(config).tied_embeddings is wrapper


def test_a_drafter_is_no_model_of_its_own() -> None:
    config = {"model_type": "gemma4_assistant", "text_config": {"model_type": "gemma4_text"}}
    with pytest.raises(ModelError, match="'gemma4_assistant' drafts tokens for another model"):
        model_from_config(config)


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
