"""FLOP beside torch's: what is named as counted by another rule, and small models in full."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfmodel.model.layers import LayerSpec
from perfmodel.model.presets import load_model
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec

NO_ORACLE = "torch and transformers are in the extra `oracle` only"


@pytest.fixture
def flops(script: Any) -> Any:
    return script.load("oracle.flops")


def with_mixer(mixer: Any) -> Any:
    return replace(load_model("llama-3.1-8b"), layers=(LayerSpec((mixer,)),) * 2)


def test_windows_and_mtp_are_left_out(flops: Any) -> None:
    assert {layer.attention.window for layer in load_model("gpt-oss-20b").layers} == {0, 128}
    full = flops.without_windows(load_model("gpt-oss-20b"))
    assert {(layer.attention.kind, layer.attention.window) for layer in full.layers} == {
        ("full", 0)
    }
    assert flops.without_windows(load_model("deepseek-v3")).mtp_layers == ()


def test_differences_have_names(flops: Any) -> None:
    delta = RecurrenceSpec("gated_delta", 8, 4, 16, 32, 4, chunk=64)
    assert flops.named_differences(with_mixer(delta), 10) == {
        "triangular solve": -2 * 10 * 8 * 2 * 64 * (16 + 32)
    }
    mamba = RecurrenceSpec("mamba2", 8, 2, 16, 32, 4, chunk=128)
    assert flops.named_differences(with_mixer(mamba), 10) == {
        "C B per head": 2 * 10 * (8 - 2) * 2 * 128 * 16,
        "states between chunks": 2 * 2 * (1 + 1) ** 2 * 8 * 16 * 32,
    }
    scan = RecurrenceSpec("mamba1", 64, 1, 16, 1, 4, time_step_rank=4)
    assert flops.named_differences(with_mixer(scan), 10) == {
        "elementwise scan": -2 * 10 * 9 * 64 * 16
    }
    assert flops.named_differences(load_model("llama-3.1-8b"), 10) == {}


def test_ends_of_convolutions_are_known_by_their_number(flops: Any) -> None:
    model = with_mixer(ShortConvolutionSpec(channels=7, kernel=3))
    padded = 2 * 2 * 3 * 7 * (10 + 2)
    assert flops.padding_of_convolutions(model, 10, padded) == 2 * 2 * 3 * 7 * 2
    assert flops.padding_of_convolutions(model, 10, padded - 1) == 0


def test_a_line_says_equal_or_by_how_much(flops: Any) -> None:
    entry = {
        "config": "a.json",
        "forward": {"perfmodel": 100.0, "torch": 100},
        "forward_and_backward": {"perfmodel": 303.0, "torch": 300},
        "named_differences": {"triangular solve": -7},
    }
    assert flops.line(entry) == (
        "a.json: forward equal, forward and backward +1.0000% of 300 (triangular solve -7)"
    )


SMALL: dict[str, Any] = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "vocab_size": 10,
    "intermediate_size": 16,
}


@pytest.mark.filterwarnings("default")  # of torch and transformers, not ours
@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "llama", **SMALL},
        {"model_type": "mixtral", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
        {"model_type": "mistral", **SMALL, "sliding_window": 4},
    ],
    ids=lambda keys: keys["model_type"],
)
def test_products_of_small_models_are_torchs(
    script: Any, tmp_path: Path, keys: dict[str, Any]
) -> None:
    pytest.importorskip("torch", reason=NO_ORACLE)
    pytest.importorskip("transformers", reason=NO_ORACLE)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    code, out, _ = script("oracle_transformers", "flops", path, "--seq-len", 16, "--json")
    (entry,) = json.loads(out)
    assert code == 0
    for what in ("forward", "forward_and_backward"):
        assert entry[what]["perfmodel"] == entry[what]["torch"]
