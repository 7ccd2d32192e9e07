"""Typed keys of a config.json: what each may hold, and errors that name it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import ModelError
from perfmodel.model.config import model_from_config
from perfmodel.model.presets import load_model
from tests.data import table_of

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *table_of(__file__, "config_at_fault_names_file_and_key"),
        ({"hidden_size": math.nan}, "key 'hidden_size': nan should be a positive integer"),
        ({"hidden_size": [64]}, "key 'hidden_size': [64] should be a positive integer"),
        ({"hidden_size": None}, "key 'hidden_size': missing or null"),
        ({"num_hidden_layers": 10**8}, "key 'num_hidden_layers': 100000000 should be at most"),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["full_attention"]},
            "key 'layer_types': 1 entries should be 2",
        ),
        (
            {"model_type": "gpt_oss", "layer_types": ["linear_attention"] * 2},
            "key 'layer_types': 'linear_attention' is not modelled; covered: full_attention",
        ),
        ({"architectures": 5, "model_type": None}, "key 'architectures': 5 should be a list"),
    ],
)
def test_config_at_fault_names_file_and_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = tmp_path / "some.json"
    file.write_text(json.dumps({**LLAMA, **changes}))
    with pytest.raises(ModelError) as error:
        load_model(file)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", [key for key in LLAMA if key.endswith(("size", "layers", "heads"))])
@given(value=st.none() | st.booleans() | st.integers(-3, 0) | st.floats() | st.text())
def test_no_size_but_a_positive_integer_gets_through(key: str, value: object) -> None:
    if value is None and key == "num_key_value_heads":
        return  # as many as query heads
    with pytest.raises(ModelError, match=key):
        model_from_config({**LLAMA, key: value})
