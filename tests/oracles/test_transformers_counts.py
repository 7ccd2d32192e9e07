"""Parameters of small files and of class defaults, as transformers 5.23 counts them.

Every line of ``transformers_counts/*.jsonl`` holds the keys of a file and what
``benchmarks/oracle_transformers.py count`` says of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.model.layers import layer_parameters
from perfmodel.model.presets import load_model

LINES = [
    json.loads(line)
    for path in sorted((Path(__file__).parent / "transformers_counts").glob("*.jsonl"))
    for line in path.read_text(encoding="utf-8").splitlines()
]


def _name(line: dict[str, Any]) -> str:
    config = line["config"]
    return f"{config['model_type']}-{len(config)}"


@pytest.mark.parametrize("line", LINES, ids=_name)
def test_counts_of_transformers(line: dict[str, Any]) -> None:
    model = load_model(line["config"])
    assert model.parameter_count() == line["total"]
    assert model.active_parameter_count() == line.get("active", model.active_parameter_count())
    layers = [layer_parameters(layer, model.hidden_size).total for layer in model.layers]
    assert layers == line.get("layers", layers)
