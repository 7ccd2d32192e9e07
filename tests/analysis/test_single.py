"""One strategy, or the numbers and the reason why it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.analysis.single import one_strategy
from perfmodel.base.errors import StrategyError
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.strategy.grid import VALID
from tests.data import table_of

SIZES = {"global_batch_size": 16, "sequence_length": 2048}


def test_what_is_left_open_has_its_default() -> None:
    model = load_model("llama-3.1-8b")
    grid = one_strategy(model, 16, SIZES | {"tensor_parallel": 4, "pipeline_parallel": None})
    assert grid.status.tolist() == [VALID]
    assert grid.row(0)["data_parallel"] == 4


@pytest.mark.parametrize(
    ("model", "axes", "message"),
    table_of(__file__, "impossible_strategies_come_with_their_numbers"),
)
def test_impossible_strategies_come_with_their_numbers(
    model: str, axes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StrategyError) as error:
        one_strategy(load_model(model), 16, SIZES | axes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("framework", "axes", "stage", "recompute"),
    [
        ("megatron", {}, 1, "none"),
        ("fsdp", {}, 3, "none"),
        ("maxtext", {}, 3, "full"),
        ("torchtitan", {"pipeline_parallel": 2}, 2, "selective"),
        ("nanotron", {}, 0, "none"),
        ("maxtext", {"zero_stage": 1, "recompute": "none"}, 1, "none"),
    ],
)
def test_what_is_left_open_is_as_runs_of_the_software_have_it(
    framework: str, axes: dict[str, Any], stage: int, recompute: str
) -> None:
    model = load_model("llama-3.1-8b")
    row = one_strategy(model, 16, SIZES | axes, framework).row(0)
    assert (row["zero_stage"], row["recompute"]) == (stage, recompute)
    assert not row["sequence_parallel"]  # it needs tensor parallelism
    row = one_strategy(model, 16, SIZES | axes | {"tensor_parallel": 4}, framework).row(0)
    assert row["sequence_parallel"] == load_framework(framework).sequence_parallel


def test_models_with_sinks_exchange_heads_under_transformer_engine() -> None:
    axes = SIZES | {"context_parallel": 2}
    for model, kind in (("gpt-oss-20b", "all_to_all"), ("llama-3.1-8b", "ring")):
        row = one_strategy(load_model(model), 16, axes, "megatron").row(0)
        assert row["context_parallel_kind"] == kind
