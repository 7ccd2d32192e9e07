"""``perfmodel model``: the presets that there are, and what one holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.model.presets import load_model, preset_names
from tests.cli.running import document, run


def test_model_list_names_every_preset() -> None:
    entries = document("model", "list")["models"]
    assert [entry["name"] for entry in entries] == list(preset_names())
    printed = run("model", "list").stdout
    assert all(name in printed for name in preset_names())


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "gemma-2-9b", "gpt-oss-120b"])
def test_model_show_splits_the_parameters_by_kind(name: str) -> None:
    parameters = document("model", "show", name)["parameters"]
    apart = ("total", "active")
    kinds = sum(count for kind, count in parameters.items() if kind not in apart)
    assert kinds == parameters["total"] == load_model(name).parameter_count()


def test_mtp_is_shown_alike_in_parameters_and_flop() -> None:
    none = document("model", "show", "deepseek-v3")
    stated = document("model", "show", "deepseek-v3", "--mtp", "stated")
    model = load_model("deepseek-v3", mtp="stated")
    parameters = [found["parameters"] for found in (none, stated)]
    assert parameters[1]["total"] - parameters[0]["total"] == model.mtp_parameters()
    assert parameters[1]["active"] > parameters[0]["active"]
    assert (none["mtp_layers"], stated["mtp_layers"]) == (0, 1)
    # A module runs one layer, its projection of 2h to h, and the output matrix once more.
    h = model.hidden_size
    more = stated["flops_per_token"]["causal"] - none["flops_per_token"]["causal"]
    assert more > 6 * (2 * h * h + model.vocab_size * h)


def test_model_show_gives_both_flop_conventions() -> None:
    found = document("model", "show", "llama-3.1-70b", "--seq-len", "8192")
    flops = found["flops_per_token"]
    assert flops["sequence_length"] == 8192
    # Attention adds 6 layers x hidden x keys per token, half of the keys when causal
    # (Narayanan et al. 2021, eq. 3).
    assert flops["non_causal"] - flops["causal"] == pytest.approx(6 * 80 * 8192 * 8192)
    assert flops["causal"] > 6 * (found["parameters"]["total"] - found["parameters"]["embedding"])


def test_model_show_weighs_the_checkpoint() -> None:
    weights = document("model", "show", "gpt-oss-120b")["weights"]
    assert weights["total_bytes"] == 65_248_815_744  # safetensors of openai/gpt-oss-120b
    assert sum(weights["bytes"].values()) == weights["total_bytes"]
    assert weights["quantization"]["places"][0]["format"]["name"] == "mxfp4"
    text = run("model", "show", "gpt-oss-120b").stdout
    assert "weights as published: 65.25 GB, mxfp4 in groups of 32: experts" in text
    assert "weights as published: 16.06 GB in 16 bits" in run("model", "show", "llama-3-8b").stdout


def test_model_show_tells_the_kinds_of_layers() -> None:
    text = run("model", "show", "deepseek-v3").stdout
    assert "3 × mla attention, 128 heads of 192; gated MLP of 18,432" in text
    assert "58 × mla attention" in text
    assert "256 gated experts of 2,048, 8 per token, shared 2,048" in text
    assert "multi-token-prediction module\n" not in text
    assert "note: 1 multi-token-prediction module left out: --mtp stated counts it" in text
    stated = run("model", "show", "deepseek-v3", "--mtp", "stated").stdout
    assert "1 × multi-token-prediction module" in stated
    assert "left out" not in stated
    assert "window" in run("model", "show", "gemma-2-9b").stdout


def test_model_show_reads_a_file(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    path = tmp_path / "small.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    found = document("model", "show", str(path))
    assert found["name"] == "small"
    # Tables 2 x 100 x 64; a layer: q and output 2 x 64 x 64, k and v 2 x 64 x 32,
    # three matrices 64 x 128, two norms of 64; the last norm 64.
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert found["parameters"]["total"] == 2 * 100 * 64 + 2 * layer + 64
