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
    expert_degrees,
    following,
    likeliest,
    likely_chunks,
    likely_rows,
    micro_batches,
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
    assert grid.open == {"sequence_parallel", "context_parallel_kind", "expert_tensor_parallel"}
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


@pytest.mark.parametrize(
    ("layers", "pipeline", "chunks"),
    [
        (96, 8, 6),  # GPT-3 in MLPerf
        (126, 8, 8),  # Llama 3.1 405B with embedding and output: 128 layers
        (126, 16, 4),
        (80, 8, 5),
        (61, 16, 2),  # DeepSeek-V3 with embedding, output and prediction module: 64
        (7, 7, 1),
        (3, 8, 1),
    ],
)
def test_chunks_have_about_two_layers(layers: int, pipeline: int, chunks: int) -> None:
    assert likely_chunks(layers, pipeline, 2) == chunks


def test_expert_ranks_fill_what_experts_are_divided_over() -> None:
    def degrees(framework: str, model: str, ranks: int, tensor: int = 1, **stated: int):
        return expert_degrees(load_framework(framework), load_model(model), tensor, ranks, **stated)

    bridge = "megatron-bridge@0.4"
    assert degrees(bridge, "deepseek-v3", 64) == (64, 1)  # on 256 GB200, 4 stages
    assert degrees(bridge, "deepseek-v3", 256) == (64, 1)  # no measured row states more
    assert degrees(bridge, "qwen3-30b-a3b", 96) == (32, 1)
    assert degrees(bridge, "mixtral-8x7b", 8, inner=2) == (4, 2)
    assert degrees("nemo@24.09", "mixtral-8x7b", 8, 2) == (4, 2)
    assert degrees("megatron", "mixtral-8x7b", 8, 2) == (8, 1)
    assert degrees("fsdp", "mixtral-8x7b", 8) == (1, 1)
    assert degrees("megatron", "llama-3.1-8b", 8) == (1, 1)
    assert degrees("megatron", "mixtral-8x7b", 8, expert=2) == (2, 1)


def chosen(rows, fits, times) -> int:
    count = len(rows)
    memory = [1e9 * (3 - i) for i in range(count)]
    return likeliest(rows, np.ones(count, bool), np.array(fits, bool), memory, np.array(times))


def test_the_smallest_micro_batch_that_is_nearly_fastest_is_likely() -> None:
    def choice(zero: int, times: list[float], fits: list[int]) -> int:
        rows = [{"micro_batch_size": 2**i, "zero_stage": zero} for i in range(3)]
        return chosen(rows, fits, times)

    assert choice(1, [1.015, 1.01, 1.0], [1, 1, 1]) == 0
    assert choice(1, [1.20, 1.01, 1.0], [1, 1, 1]) == 1
    assert choice(1, [1.20, 1.02, 1.0], [1, 0, 0]) == 0
    assert choice(3, [1.015, 1.01, 1.0], [1, 1, 1]) == 2  # parameters are gathered for each
    assert choice(3, [1.015, 1.01, 1.0], [0, 0, 0]) == 2  # the least memory


def test_chunks_that_are_possible_are_preferred() -> None:
    rows = [{"virtual_pipeline": n} for n in (5, 1)]
    assert chosen(rows, [1, 1], [1.1, 1.0]) == 0
    assert chosen(rows, [0, 1], [1.1, 1.0]) == 1


def test_recomputation_is_the_least_that_fits() -> None:
    rows = [
        {"micro_batch_size": size, "recompute": level}
        for size, level in ((4, "full"), (1, "selective"), (1, "full"))
    ]
    assert chosen(rows, [1, 1, 1], [0.8, 1.0, 1.2]) == 1
    assert chosen(rows, [1, 0, 1], [0.8, 1.0, 1.2]) == 0


def test_micro_batches_are_few_but_where_parameters_are_gathered_for_each() -> None:
    assert micro_batches(load_framework("megatron"), 24, 1, 1) == [1, 2, 4]
    assert micro_batches(load_framework("fsdp"), 24, 1, 3) == [1, 2, 4, 8]
    assert micro_batches(load_framework("maxtext"), 24, 1, 3) == [24]
    assert micro_batches(load_framework("torchtitan@0.1"), 32, 8, 3) == [4]


def test_what_is_named_is_kept() -> None:
    model = load_model("qwen3-30b-a3b")
    (row,) = likely_rows(
        {
            **LENGTHS,
            "expert_parallel": 4,
            "pipeline_parallel": 2,
            "virtual_pipeline": 1,
            "micro_batch_size": 2,
            "recompute": "full",
        },
        16,
        model,
        "megatron",
    )
    assert (row["expert_parallel"], row["micro_batch_size"], row["recompute"]) == (4, 2, "full")
    rows = likely_rows({**LENGTHS, "pipeline_parallel": 2}, 16, model, "megatron")
    assert rows[0]["expert_parallel"] == 8
    assert {row["virtual_pipeline"] for row in rows} == {6, 1}
    assert {row["recompute"] for row in rows} == {"none", "selective", "full"}
