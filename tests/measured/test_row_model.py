"""A row's model: cells to layers, and cells at fault."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.measured.row_model import (
    model_from_row,
    named_preset,
    served_model,
    trained_model,
    wide_layers,
)
from perfmodel.measured.rows import MeasuredRow, Skip
from tests.data import table_of

ROW = {"model": "m", "layers": "2", "hidden": "64", "heads": "4", "vocab": "100", "ffn": "256"}


def test_row_follows_the_habit_of_its_kind() -> None:
    plain = model_from_row({**ROW, "gated_mlp": "0", "seq": "512"})
    assert (plain.layers[0].norm, plain.tied_embeddings, plain.max_positions) == (
        "layer",
        True,
        512,
    )
    gated = model_from_row({**ROW, "gated_mlp": "1"})
    assert (gated.layers[0].norm, gated.tied_embeddings) == ("rms", False)
    assert model_from_row(ROW) == model_from_row({**ROW, "gated_mlp": "0"})
    assert model_from_row({**ROW, "ffn": "200"}).layers[0].mlp.gated
    assert model_from_row(ROW, tied_embeddings=False).output_parameters() == 6400


def test_row_with_windows() -> None:
    note = "1 of 2 layers sliding window 32"
    model = model_from_row({**ROW, "gated_mlp": "1", "attn_note": note})
    assert [layer.attention.window for layer in model.layers] == [32, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": ""}, "column 'layers': empty or 0"),
        ({"hidden": "-3"}, "column 'hidden': '-3' should be a whole number"),
        ({"heads": "2.5"}, "column 'heads': '2.5' should be a whole number"),
        ({"vocab": "many"}, "column 'vocab': 'many' should be a whole number"),
        ({"ffn": ""}, "column 'ffn': empty"),
        ({"gated_mlp": "2"}, "column 'gated_mlp': 2 should be 0 or 1"),
        ({"attn_note": "some sliding"}, "column 'attn_note': 'some sliding' should be like"),
        ({"n_experts": "8"}, "column 'topk': empty or 0"),
    ],
)
def test_row_at_fault_names_the_column(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ModelError) as error:
        model_from_row({**ROW, **changes})
    assert message in str(error.value)


def test_rows_of_the_development_table_give_the_counts_stated_beside_them(
    training_runs: list[dict[str, str]],
) -> None:
    rows = [row for row in training_runs if row["params_total_B"]]
    assert rows
    for row in rows:
        model = model_from_row(row)
        tied = model.vocab_size * model.hidden_size if model.tied_embeddings else 0
        positions = model.max_positions * model.hidden_size
        learned = positions if model.position_embedding == "learned" else 0
        count = (model.parameter_count() + tied - learned) / 1e9
        assert count == pytest.approx(float(row["params_total_B"]), rel=2e-3), row["model"]


@pytest.mark.parametrize(
    ("name", "preset", "layers"),
    [
        ("LLAMA3_70B", "llama-3-70b", 0),
        ("KF-7B (Llama-3-8B)", "llama-3-8b", 0),
        ("DeepSeek-V3 671B (MLPerf)", "deepseek-v3", 0),
        ("Llama-2-70B LoRA r16", "llama-2-70b", 0),
        ("Qwen3-8B pretraining", "qwen3-8b", 0),
        ("LLAMA3-70B-12layers", "llama-3-70b", 12),
        ("llama2-7B-16L", "llama-2-7b", 16),
        ("GPT 12L h512", "", 0),
        ("", "", 0),
    ],
)
def test_names_of_trained_models(name: str, preset: str, layers: int) -> None:
    assert named_preset(name) == (preset, layers)


def test_a_row_may_cut_a_known_model_but_not_contradict_it() -> None:
    model, notes = trained_model({"model": "DeepSeek-V3", "layers": "4", "vocab": "1000"})
    assert (model.num_layers, model.vocab_size, model.hidden_size) == (4, 1000, 7168)
    assert notes == ("architecture of deepseek-v3, 4 layers",)
    assert len(trained_model({"model": "DeepSeek-V3"}, 1)[0].mtp_layers) == 1
    assert trained_model(ROW)[0] == model_from_row(ROW)
    with pytest.raises(ModelError, match="column 'hidden': 64, but 'Qwen3-8B' has 4096"):
        trained_model({"model": "Qwen3-8B", "hidden": "64"})


def test_latent_attention_has_no_windows() -> None:
    latent = {"mla_kv_lora": "16", "mla_nope": "8", "mla_rope": "8", "mla_v": "8"}
    experts = {"n_experts": "4", "topk": "2", "attn_note": "1 of 2 layers sliding window 32"}
    assert model_from_row({**ROW, **experts}).layers[0].attention.window == 32
    with pytest.raises(ModelError, match="latent attention has no windows"):
        model_from_row({**ROW, **experts, **latent})


# Spellings of InferenceX, NVIDIA, AMD, Red Hat and of tables of results -> preset.
SPELLINGS = table_of(__file__, "spellings")


def named(name: str, **cells: str) -> MeasuredRow:
    return MeasuredRow({"model": name, **cells}, "runs.csv", 2)


@pytest.mark.parametrize(("name", "preset"), SPELLINGS.items())
def test_usual_spellings_mean_a_preset(name: str, preset: str) -> None:
    model, notes = served_model(named(name))
    assert model.name == preset
    assert all(preset in note for note in notes)


# A later member of a family is no larger earlier one, and words that are no size are not left out.
@pytest.mark.parametrize("name", ["DeepSeek-V4", "DeepSeek-V9", "Qwen3-Giant", "", "b"])
def test_what_is_not_known_is_no_architecture(name: str) -> None:
    with pytest.raises(Skip) as caught:
        served_model(named(name))
    assert not caught.value.scorable


def test_an_unknown_name_may_come_with_its_architecture() -> None:
    sizes = {"layers": "2", "hidden": "64", "heads": "4", "vocab": "1000", "ffn": "128"}
    model, notes = served_model(named("ours", **sizes))
    assert model.num_layers == 2
    assert notes == ("architecture from the row",)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Qwen/Qwen3.6-27B", "qwen3.5-27b"),
        ("qwen3.8-27b-nvfp4", "qwen3.5-27b"),
        ("MiniMaxAI/MiniMax-M2.7", "minimax-m2"),
        ("moonshotai/Kimi-K2.6", "kimi-k2.5"),
        ("zai-org/GLM-5.2-FP8", "glm-5"),
        ("deepseek-ai/DeepSeek-Math-V2", "deepseek-v3.2"),
        ("deepseek-ai/DeepSeek-V4-Flash (preview)", "deepseek-v4-flash"),
        ("cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit", "kimi-linear-48b-a3b"),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b"),
        ("openai/gpt-oss-safeguard-120b", "gpt-oss-120b"),
    ],
)
def test_later_releases_have_the_shape_of_a_known_one(name: str, preset: str) -> None:
    assert served_model(MeasuredRow({"model": name}, "runs.csv", 2))[0].name == preset


@pytest.mark.parametrize(
    ("note", "precision", "found"),
    [
        ("nvfp4 on first 85 % of layers, rest bf16", "nvfp4", (0, 4)),
        ("nvfp4 on first 85 % of layers, rest bf16", "mxfp8", (0, 0)),
        ("first 2 and last 8 layers in bf16", "nvfp4", (2, 8)),
        ("First and last 1 layers in BF16; 3 nodes", "fp8", (1, 1)),
        ("last 4 layers stay in 16 bits", "mxfp8", (0, 4)),
        ("last 4 layers slower; bf16 elsewhere", "mxfp8", (0, 0)),
        ("", "nvfp4", (0, 0)),
    ],
)
def test_layers_that_stay_in_16_bits(note, precision, found):
    assert wide_layers(note, 32, precision) == found
