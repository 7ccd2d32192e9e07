"""Which model a name in a table of serving runs means."""

from __future__ import annotations

import pytest

from perfmodel.measured.row_preset import served_model
from perfmodel.measured.rows import MeasuredRow, Skip

# Spellings of InferenceX, NVIDIA, AMD, Red Hat and of tables of results -> preset.
SPELLINGS = {
    "Llama-3.3-70B": "llama-3.3-70b",
    "nvidia/Llama-3.3-70B-Instruct-FP8": "llama-3.3-70b",
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": "llama-3.3-70b",
    "amd/Llama-3.1-405B-Instruct-FP8-KV": "llama-3.1-405b",
    "Llama-3.1": "llama-3.1-405b",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "QWEN3_235B": "qwen3-235b-a22b",
    "Qwen3.5": "qwen3.5-397b-a17b",
    "Kimi-K2": "kimi-k2",
    "nvidia/Kimi-K2.5-NVFP4": "kimi-k2.5",
    "GLM-4.6": "glm-4.5",
    "zai-org/GLM-5-FP8": "glm-5",
    "DeepSeek-V3.2": "deepseek-v3.2",
    "nvidia/DeepSeek-R1-0528-FP4-v2": "deepseek-v3",
    "amd/DeepSeek-R1-0528-MXFP4-Preview": "deepseek-v3",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss": "gpt-oss-120b",
    "Mixtral": "mixtral-8x22b",
    "Llama-4-Maverick-17B-128E": "llama-4-maverick",
    "MiniMax-M2.5": "minimax-m2",
}


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
