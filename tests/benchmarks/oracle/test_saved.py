"""What a layer keeps for its backward pass, beside torch's min-cut partition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.model.presets import load_model

NO_ORACLE = "torch and transformers are in the extra `oracle` only"


@pytest.fixture
def saved(script: Any) -> Any:
    return script.load("oracle.saved")


def test_perfmodels_bytes_are_those_of_one_device(saved: Any) -> None:
    model = load_model("llama-3.1-8b")
    hidden, wide, keys, statistics = 6 * 2 * 4096, 3 * 2 * 14336, 2 * 2 * 1024, 4 * 32
    per_token = hidden + wide + keys + statistics
    assert saved.modelled_bytes(model, model.layers[0], 64) == 64 * per_token


def test_lines_say_by_how_much_they_differ(saved: Any) -> None:
    rows = [
        {"layer": 0, "perfmodel": 990.0, "torch": 1000},
        {"layer": 3, "perfmodel": 5.0, "note": "x"},
    ]
    assert list(saved.lines({"config": "a", "layers": rows}, 1)) == [
        "a, layer 0: 990 B per token, torch 1,000 (-1.00%)",
        "a, layer 3: 5 B per token; x",
    ]


@pytest.mark.filterwarnings("default")  # of torch and transformers, not ours
def test_a_plain_layer_keeps_what_perfmodel_says(script: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_ORACLE)
    pytest.importorskip("transformers", reason=NO_ORACLE)
    keys = {
        "model_type": "llama",
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 100,
        "intermediate_size": 2048,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    for mode in ((), ("--eager",)):
        _, out, _ = script("oracle_transformers", "saved", path, "--seq-len", 256, "--json", *mode)
        (row,) = json.loads(out)[0]["layers"]
        # torch keeps a statistic per token and norm besides, in fp32.
        assert row["torch"] == row["perfmodel"] + 256 * 2 * 4


@pytest.mark.filterwarnings("default")
def test_scans_and_convolutions_keep_what_their_kernels_do(script: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_ORACLE)
    pytest.importorskip("transformers", reason=NO_ORACLE)
    keys = {
        "model_type": "qwen3_5_text",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 1,
        "layer_types": ["linear_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "vocab_size": 100,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys), encoding="utf-8")
    _, out, _ = script("oracle_transformers", "saved", path, "--seq-len", 256, "--json")
    (row,) = json.loads(out)[0]["layers"]
    assert row["torch"] == pytest.approx(row["perfmodel"], rel=0.02)
