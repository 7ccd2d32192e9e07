"""What a run has that nobody names, of one strategy, of tables of them, and of sweeps."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.strategy.defaults import (
    DEGREES,
    as_software_has_it,
    completed,
    defaults_of,
    following,
    unlike_software,
)
from perfmodel.strategy.enumerate import strategies_from_rows, strategy_grid

LENGTHS = {"sequence_length": 4096, "global_batch_size": 64}


@pytest.mark.parametrize(
    ("framework", "row", "expected"),
    [
        ("megatron", {}, {"data_parallel": 16, "zero_stage": 1}),
        ("megatron", {"tensor_parallel": 2}, {"sequence_parallel": True, "data_parallel": 8}),
        ("megatron", {"virtual_pipeline": 2}, {"pipeline_schedule": "interleaved"}),
        ("maxtext", {"context_parallel": 2}, {"context_parallel_kind": "all_gather"}),
        ("torchtitan", {}, {"zero_stage": 3, "recompute": "selective"}),
        ("torchtitan", {"pipeline_parallel": 2}, {"zero_stage": 2}),
        ("fsdp", {"tensor_parallel": 16}, {"data_parallel": 1, "zero_stage": 0}),
        ("megatron", {"zero_stage": 0, "data_parallel": 2}, {"zero_stage": 0, "data_parallel": 2}),
    ],
)
def test_open_fields_follow_from_others_and_from_the_software(framework, row, expected) -> None:
    found = completed(row, 16, defaults_of(framework, load_model("llama-3.1-8b")))
    assert {name: found[name] for name in expected} == expected


def test_experts_are_replicated_where_the_rest_is_not() -> None:
    row = {"tensor_parallel": 8, "expert_tensor_parallel": 1}
    for model, stage in (("mixtral-8x7b", 1), ("llama-3.1-8b", 0)):
        assert completed(row, 8, defaults_of("megatron", load_model(model)))["zero_stage"] == stage


def test_columns_have_what_single_strategies_have() -> None:
    defaults = defaults_of("maxtext", load_model("llama-3.1-8b"))
    columns = {name: np.array([1, 2, 4]) for name in DEGREES[:2]}
    columns |= {name: np.ones(3, np.int64) for name in DEGREES[2:]}
    found = following(columns, 64, (), defaults)
    assert found["data_parallel"].tolist() == [64, 16, 4]
    assert found["sequence_parallel"].tolist() == [0, 1, 1]
    assert len(set(found["context_parallel_kind"][1:])) == 1
    assert "data_parallel" not in following(columns, 64, {"data_parallel"}, defaults)


def test_a_grid_takes_what_it_left_open_from_the_software_that_runs_it() -> None:
    model = load_model("llama-3.1-8b")
    grid = strategy_grid(model, 8, context_parallel=2, tensor_parallel=2, **LENGTHS)
    assert grid.open == {"sequence_parallel", "context_parallel_kind"}
    found = as_software_has_it(grid, model, "maxtext")
    assert {row["context_parallel_kind"] for row in map(found.row, range(len(found)))} == {
        "all_gather"
    }
    assert as_software_has_it(grid, model, "megatron") is grid
    stated = strategy_grid(model, 8, context_parallel=2, context_parallel_kind="ring", **LENGTHS)
    again = as_software_has_it(stated, model, "maxtext")
    assert {again.row(i)["context_parallel_kind"] for i in range(len(again))} == {"ring"}


def test_what_is_not_as_the_software_has_it_is_named() -> None:
    model, framework = load_model("llama-3.1-8b"), load_framework("maxtext")
    row = strategies_from_rows(model, 8, [{"context_parallel": 2, **LENGTHS}], None, framework)
    assert unlike_software(row.row(0), framework, model) == []
    other = {**row.row(0), "context_parallel_kind": "ring", "zero_stage": 1}
    assert unlike_software(other, framework, model) == ["context_parallel_kind", "zero_stage"]
