"""Models by name: their spellings, their parts, and unknown names."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.layers import active_layer_parameters, expert_parameters, layer_parameters
from perfmodel.model.presets import (
    find_preset,
    hub_names,
    list_models,
    load_model,
    model_from_record,
    preset_names,
)
from tests.data import table_of


@pytest.mark.parametrize("name", preset_names())
def test_parts_of_every_preset_add_up(name: str) -> None:
    model = load_model(name)
    h = model.hidden_size
    layers = 0
    for layer in model.layers:
        parts = layer_parameters(layer, h)
        assert parts.experts == layer.experts * expert_parameters(layer, h)
        assert active_layer_parameters(layer, h) <= parts.total
        layers += parts.total
    ends = model.embedding_parameters() + model.output_parameters() + model.final_norm_parameters()
    ends += sum(tower.parameter_count() for tower in model.encoders)
    assert model.parameter_count() == layers + ends + model.edge_parameters()
    assert model.active_parameter_count() <= model.parameter_count()
    if not any(layer.experts for layer in model.layers):
        assert model.active_parameter_count() == model.parameter_count()
    stated = load_model(name, mtp="stated")
    assert stated.parameter_count() == model.parameter_count() + stated.mtp_parameters()
    said = [text for text in model.remarks if "multi-token-prediction" in text]
    assert len(said) == bool(stated.mtp_layers)


def test_prediction_modules_are_left_out_unless_wanted() -> None:
    model, stated = load_model("deepseek-v3"), load_model("deepseek-v3", mtp="stated")
    assert not model.mtp_layers
    assert model.remarks == ("1 multi-token-prediction module left out: --mtp stated counts it",)
    assert len(stated.mtp_layers) == 1
    assert not stated.remarks
    assert load_model(stated) is stated
    assert "left out: --mtp stated counts them" in load_model("minimax-m2").remarks[0]
    with pytest.raises(ModelError, match="key 'mtp': 'all' should be one of none, stated"):
        load_model("deepseek-v3", mtp="all")


def test_summaries_cover_every_preset() -> None:
    summaries = list_models()
    assert tuple(summary.name for summary in summaries) == preset_names()
    for summary in summaries:
        assert summary.parameters == load_model(summary.name).parameter_count()
        assert summary.source


@pytest.mark.parametrize(
    ("written", "meant"),
    table_of(__file__, "preset_by_the_spellings_in_use"),
)
def test_preset_by_the_spellings_in_use(written: str, meant: str) -> None:
    assert find_preset(written) == meant


def test_no_two_presets_share_a_spelling() -> None:
    meant: dict[str, str] = {}
    for summary in list_models():
        for spelling in (summary.name, *summary.aliases, *summary.hub):
            last = spelling.rpartition("/")[2].lower()
            squashed = "".join(c for c in last if c.isalnum() or c == ".")
            assert meant.setdefault(squashed, summary.name) == summary.name
    assert all(find_preset(name) == name for name in preset_names())


def test_every_preset_of_the_hub_answers_to_its_name_there() -> None:
    assert all(find_preset(hub) == name for hub, name in hub_names().items())
    assert all(hub.count("/") == 1 for hub in hub_names())
    for summary in list_models():  # what is not on the Hub is of a paper
        assert summary.hub or "(Hugging Face)" not in summary.source
        if "(Hugging Face)" in summary.source:
            assert any(f"of {hub} (" in summary.source for hub in summary.hub), summary.source


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("mistralai/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("unsloth/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("openai/gpt3-175b", "gpt3-175b"),
    ],
)
def test_a_wrong_organisation_is_told_the_right_one(wrong: str, right: str) -> None:
    assert find_preset(wrong) is None
    with pytest.raises(ModelError, match=f"'{wrong}'; did you mean {right}\\?"):
        load_model(wrong)


def test_other_weights_than_the_presets_are_told() -> None:
    (text,) = load_model("meta-llama/Llama-3.1-8B-FP8").remarks
    assert text.startswith("the preset's weights are as published without '-FP8'")
    assert not load_model("meta-llama/Llama-3.1-8B").remarks


def test_qwens_fp8_checkpoints_are_in_blocks() -> None:
    model = load_model("Qwen/Qwen3-8B-FP8")
    assert model.matrix_precision("mlp") == "fp8_block"
    assert not model.remarks
    assert load_model("Qwen/Qwen3-8B").quantization is None
    assert replace(model, quantization=None) == load_model("Qwen/Qwen3-8B")


def test_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"'lama-3-8b'; did you mean llama-3-8b"):
        load_model("lama-3-8b")
    with pytest.raises(ModelError, match="there are presets of these families: Dream"):
        load_model("zzz")
    with pytest.raises(ModelError, match="should be a preset's name or a path"):
        load_model("  ")


def test_preset_says_where_it_is_from() -> None:
    assert load_model("llama-3.1-8b").source == (
        "config.json of meta-llama/Llama-3.1-8B (Hugging Face)"
    )
    assert "arXiv:2205.05198" in load_model("megatron-22b").source


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "minimax-m2"])
def test_a_record_through_json_is_the_same_model(name: str) -> None:
    model = load_model(name)
    assert model_from_record(json.loads(json.dumps(dataclasses.asdict(model)))) == model


@pytest.mark.parametrize("record", [{}, {"layers": 3}, {"layers": [{"attention": 1}]}])
def test_other_records_are_refused(record: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="no record of a model"):
        model_from_record(record)
