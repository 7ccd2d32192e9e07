"""What a model is made of."""

from __future__ import annotations

import pytest

from perfmodel.analysis.model_facts import parameters_by_kind
from perfmodel.model.presets import load_model, preset_names


@pytest.mark.parametrize("name", preset_names())
def test_parameters_of_every_preset_add_up(name: str) -> None:
    model = load_model(name, mtp="stated")
    parameters = parameters_by_kind(model)
    total, _ = parameters.pop("total"), parameters.pop("active")
    assert sum(parameters.values()) == total == model.parameter_count()
