"""Models from the records that results keep."""

from __future__ import annotations

import dataclasses
import json

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.presets import load_model
from perfmodel.model.record import model_from_record


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "minimax-m2"])
def test_a_record_through_json_is_the_same_model(name: str) -> None:
    model = load_model(name)
    assert model_from_record(json.loads(json.dumps(dataclasses.asdict(model)))) == model


@pytest.mark.parametrize("record", [{}, {"layers": 3}, {"layers": [{"attention": 1}]}])
def test_other_records_are_refused(record: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="no record of a model"):
        model_from_record(record)
