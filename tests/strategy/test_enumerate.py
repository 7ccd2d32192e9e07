"""Enumeration of strategies: completeness, reasons, and bad axes."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base import memory
from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import FIELD_BY_NAME, FIELDS
from perfmodel.model.presets import load_model
from perfmodel.strategy import enumerate
from perfmodel.strategy.enumerate import (
    describe_rejected,
    enumerate_strategies,
    strategies_from_rows,
    strategy_grid,
)
from perfmodel.strategy.grid import VALID
from perfmodel.strategy.rules import STATUS_NAMES, strategy_status
from tests.amount import cases

RUN: dict[str, Any] = {"sequence_length": 8192, "global_batch_size": 64}


def rows_of(grid):
    return [tuple(grid.row(i).items()) for i in range(len(grid))]


@pytest.fixture(scope="module")
def llama_70b_1024():
    return strategy_grid(
        load_model("llama-3.1-70b"), 1024, sequence_length=8192, global_batch_size=2048
    )


def contains(grid, **fields):
    mask = np.ones(len(grid), bool)
    for name, value in fields.items():
        spec = FIELD_BY_NAME[name]
        code = spec.choices.index(value) if spec.kind == "choice" else int(value)
        mask &= grid[name] == code
    return bool(mask.any())


@pytest.mark.parametrize(
    "known",
    [
        # Llama 3 pre-training at 8,192 tokens: tensor 8, pipeline 16 (arXiv:2407.21783, table 4)
        {"tensor_parallel": 8, "pipeline_parallel": 16, "data_parallel": 8},
        # Megatron-Bridge llama3_70b pretrain recipe: tensor 4, pipeline 4, virtual 5
        {"tensor_parallel": 4, "pipeline_parallel": 4, "virtual_pipeline": 5},
        # NeMo llama3.1-70b long-context recipe: tensor 4, context 2, pipeline 4
        {"tensor_parallel": 4, "context_parallel": 2, "pipeline_parallel": 4},
        # torchtitan llama3_70b: FSDP over everything, tensor 8, full recomputation
        {"tensor_parallel": 8, "pipeline_parallel": 1, "zero_stage": 3, "recompute": "full"},
        {"tensor_parallel": 1, "data_parallel": 1024, "zero_stage": 3},
    ],
)
def test_the_default_grid_holds_known_good_strategies(llama_70b_1024, known):
    assert contains(llama_70b_1024, **known)


def test_the_default_grid_is_sensible(llama_70b_1024):
    grid = llama_70b_1024
    product = np.prod(
        [
            grid[name]
            for name in (
                "tensor_parallel",
                "context_parallel",
                "pipeline_parallel",
                "data_parallel",
            )
        ],
        axis=0,
    )
    assert np.all(product == 1024)
    assert np.all(grid.status == VALID)
    assert np.all(strategy_status(grid.columns, load_model("llama-3.1-70b"), 1024) == VALID)
    np.testing.assert_array_equal(grid["sequence_parallel"] == 1, grid["tensor_parallel"] > 1)
    # ZeRO-2 and -3 against a pipeline repeat their communication every micro-batch.
    assert np.all((grid["pipeline_parallel"] == 1) | (grid["zero_stage"] <= 1))
    assert 1000 < len(grid) < 100_000
    assert set(grid.columns) == {spec.name for spec in FIELDS}


def test_no_strategy_comes_twice(llama_70b_1024):
    table = np.stack([llama_70b_1024[spec.name] for spec in FIELDS], axis=1)
    assert len(np.unique(table, axis=0)) == len(table)


@pytest.mark.parametrize("length", [1, 512, 2048, 4095, 4096, 131072])
def test_every_sequence_length_has_strategies(llama_8b, length):
    grid = strategy_grid(
        llama_8b,
        8,
        sequence_length=length,
        global_batch_size=64,
        tensor_parallel=1,
        pipeline_parallel=1,
    )
    assert np.all(grid["sequence_length"] == length)
    assert 1 in grid["context_parallel"]


@pytest.mark.parametrize(
    ("name", "devices"),
    [("deepseek-v3", 2048), ("mixtral-8x7b", 64), ("gpt3-175b", 1024), ("gemma-3-27b", 8)],
)
def test_other_models_have_strategies(name, devices):
    grid = strategy_grid(
        load_model(name),
        devices,
        sequence_length=4096,
        global_batch_size=2 * devices,
        micro_batch_size=1,
        recompute="full",
    )
    assert len(grid) > 10
    if name == "deepseek-v3":
        assert contains(grid, expert_parallel=64, pipeline_parallel=16)  # arXiv:2412.19437, 3.2


def test_one_value_of_every_axis_makes_one_strategy(llama_8b):
    axes: dict[str, Any] = {
        "tensor_parallel": 2,
        "sequence_parallel": False,
        "context_parallel": 2,
        "context_parallel_kind": "all_gather",
        "pipeline_parallel": 2,
        "virtual_pipeline": 4,
        "pipeline_schedule": "interleaved",
        "data_parallel": 8,
        "zero_stage": 2,
        "shard_group": 4,
        "expert_parallel": 1,
        "expert_tensor_parallel": 1,
        "micro_batch_group": 2,
        "micro_batch_size": 2,
        "recompute": "full",
        "recompute_method": "block",
        "recompute_num_layers": 2,
        "precision": "fp8",
        "mapping": "tensor-context-pipeline-data",
        "document_length": 512,
        "padding": 0.125,
        "offload_activations": 0.5,
        "offload_optimizer": 1.0,
        "offload_parameters": 0.25,
        "offload_activations_to": "host",
        "offload_optimizer_to": "nvme",
        "offload_parameters_to": "host",
    }
    grid = strategy_grid(llama_8b, 64, **RUN, **axes)
    assert len(grid) == 1
    assert grid.row(0) == {**axes, **RUN}


def test_given_axes_multiply(llama_8b):
    grid = strategy_grid(
        llama_8b,
        16,
        sequence_length=[4096, 8192],
        global_batch_size=(32, 64),
        tensor_parallel=[1, 2, 4],
        pipeline_parallel=1,
        context_parallel=1,
        micro_batch_size=1,
        recompute=["none", "full"],
        zero_stage=[1, 3],
        precision=["bf16", "fp8"],
    )
    assert len(grid) == 2 * 2 * 3 * 2 * 2 * 2
    assert len(set(rows_of(grid))) == len(grid)


AXES = {
    "tensor_parallel": st.lists(st.integers(1, 9), min_size=1, max_size=3),
    "pipeline_parallel": st.lists(st.sampled_from([1, 2, 3, 4, 64]), min_size=1, max_size=3),
    "virtual_pipeline": st.lists(st.integers(1, 3), min_size=1, max_size=2),
    "context_parallel": st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2),
    "expert_parallel": st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2),
    "micro_batch_size": st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=2),
    "zero_stage": st.lists(st.integers(0, 5), min_size=1, max_size=3),
    "shard_group": st.lists(st.sampled_from([0, 2, 3]), min_size=1, max_size=2),
    "recompute": st.lists(st.sampled_from(["none", "full"]), min_size=1, max_size=2),
    "pipeline_schedule": st.lists(st.sampled_from(["gpipe", "1f1b", "interleaved"]), min_size=1),
}


@settings(max_examples=cases(40))
@given(axes=st.fixed_dictionaries(AXES), devices=st.sampled_from([1, 8, 12, 64]))
def test_rejected_are_exactly_those_that_keep_impossible_keeps(axes, devices):
    model = load_model("llama-3.1-8b")
    wanted = {"sequence_length": 8192, "global_batch_size": 48, **axes}
    found = enumerate_strategies(model, devices, wanted)
    kept = enumerate_strategies(model, devices, wanted, keep_impossible=True)
    np.testing.assert_array_equal(
        kept.grid.status, strategy_status(kept.grid.columns, model, devices)
    )
    counts = Counter(STATUS_NAMES[int(code)] for code in kept.grid.status if code != VALID)
    assert found.rejected == dict(counts)
    assert kept.rejected == dict(counts)
    assert rows_of(found.grid) == rows_of(kept.grid.take(kept.grid.status == VALID))
    assert np.all(found.grid.status == VALID)


def test_counts_agree_on_the_default_axes_too(llama_8b):
    wanted = {"sequence_length": 8192, "global_batch_size": 64}
    found = enumerate_strategies(llama_8b, 64, wanted)
    kept = enumerate_strategies(llama_8b, 64, wanted, keep_impossible=True)
    assert found.rejected == kept.rejected
    assert len(kept.grid) == len(found.grid) + sum(found.rejected.values())


@pytest.mark.parametrize("stage", [4, 5, [4, 7]])
def test_an_unknown_zero_stage_is_never_possible(llama_8b, stage):
    with pytest.raises(StrategyError, match="zero_stage is above 3"):
        strategy_grid(llama_8b, 8, **RUN, zero_stage=stage)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"tensor_parallel": 0}, "tensor_parallel: 0 is below 1"),
        ({"tensor_parallel": -8}, "tensor_parallel: -8 is below 1"),
        ({"tensor_parallel": math.nan}, "tensor_parallel: nan is not a whole number"),
        ({"pipeline_parallel": "four"}, "pipeline_parallel: 'four' is not a whole number"),
        ({"micro_batch_size": True}, "micro_batch_size: True is not a whole number"),
        ({"sequence_length": 0}, "sequence_length: 0 is below 1"),
        ({"global_batch_size": 12.5}, "global_batch_size: 12.5 is not a whole number"),
        ({"recompute": "partial"}, "recompute: 'partial' is not one of none, selective, full"),
        ({"precision": ["bf16", "fp7"]}, "precision: 'fp7' is not one of"),
        ({"tensor_paralel": 8}, "unknown strategy field 'tensor_paralel'; did you mean tensor_p"),
        ({"expert_parallel": []}, "expert_parallel: the list of values is empty"),
        ({"sequence_length": None}, "sequence_length: a value is needed"),
        ({"global_batch_size": None}, "global_batch_size: a value is needed"),
        ({"tensor_parallel": [2**40], "context_parallel": [2**40]}, "no strategy is possible"),
    ],
)
def test_bad_axes(llama_8b, axes, message):
    with pytest.raises(StrategyError, match=message):
        strategy_grid(llama_8b, 64, **{**RUN, **axes})


@pytest.mark.parametrize("devices", [0, -8, 1.5, "8", True, None, math.nan])
def test_bad_devices(llama_8b, devices):
    with pytest.raises(StrategyError, match=r"devices: .* is not a positive whole number"):
        strategy_grid(llama_8b, devices, **RUN)
    with pytest.raises(StrategyError, match=r"devices: .* is not a positive whole number"):
        strategies_from_rows(llama_8b, devices, [RUN])


def test_a_run_is_not_of_any_size(llama_8b):
    with pytest.raises(StrategyError, match=r"devices: 18446744073709551616 is larger than any"):
        strategy_grid(llama_8b, 2**64, **RUN)


def test_degrees_that_do_not_multiply_to_the_devices_are_named(llama_8b):
    axes: dict[str, Any] = {"tensor_parallel": 8, "pipeline_parallel": 4, "data_parallel": 4}
    with pytest.raises(StrategyError, match="do not multiply to the number of devices"):
        strategy_grid(llama_8b, 64, **RUN, **axes)


def test_an_impossible_grid_counts_its_reasons(llama_8b):
    with pytest.raises(StrategyError, match=r"on 64 devices: global_batch_size .* \(\d+\)"):
        strategy_grid(
            llama_8b, 64, sequence_length=8192, global_batch_size=7, tensor_parallel=1,
            pipeline_parallel=1, context_parallel=1, virtual_pipeline=1, zero_stage=1,
        )  # fmt: skip


def test_the_longest_reasons_come_first():
    text = describe_rejected(
        {"devices_mismatch": 5, "too_few_layers": 2000, "unknown_zero_stage": 7}, 12345
    )
    assert text.startswith("no strategy is possible on 12,345 devices: pipeline_parallel")
    assert "(2,000)" in text
    assert "every axis is empty" in describe_rejected({}, 8)


def test_too_many_combinations_are_refused(llama_8b):
    many = list(range(1, 2001))
    with pytest.raises(StrategyError, match="name fewer values per axis"):
        strategy_grid(
            llama_8b, 64, **RUN, tensor_parallel=many, pipeline_parallel=many, context_parallel=many
        )


def test_the_free_axes_are_counted_before_they_are_built(llama_8b, monkeypatch):
    axes: dict[str, Any] = {**RUN, "mapping": "all", "precision": "all", "tensor_parallel": [1, 8]}
    strategies = len(strategy_grid(llama_8b, 64, **axes))
    monkeypatch.setattr(memory, "memory_limit", lambda: 100 * strategies)
    monkeypatch.setattr(enumerate, "Multiplied", lambda *_: pytest.fail("it was built"))
    with pytest.raises(StrategyError, match=rf"^{strategies:,} strategies need about .* fewer"):
        strategy_grid(llama_8b, 64, **axes)


def test_what_is_kept_of_each_strategy_counts(llama_8b, monkeypatch):
    monkeypatch.setattr(memory, "memory_limit", lambda: 10**9)
    found = enumerate_strategies(llama_8b, 64, RUN, result_bytes=1e3)
    with pytest.raises(StrategyError, match=rf"^{len(found.grid):,} strategies need about"):
        enumerate_strategies(llama_8b, 64, RUN, result_bytes=1e9)


def test_rows_get_what_they_leave_out(llama_8b):
    rows = [
        {**RUN},
        {**RUN, "tensor_parallel": 4, "pipeline_parallel": 2},
        {**RUN, "pipeline_parallel": 4, "virtual_pipeline": 2},
        {**RUN, "tensor_parallel": 4, "sequence_parallel": False},
        {**RUN, "context_parallel": 2, "data_parallel": 32},
    ]
    grid = strategies_from_rows(llama_8b, 64, rows)
    assert grid["data_parallel"].tolist() == [64, 8, 16, 16, 32]
    assert grid["sequence_parallel"].tolist() == [0, 1, 0, 0, 0]
    assert [grid.row(i)["pipeline_schedule"] for i in range(3)] == ["1f1b", "1f1b", "interleaved"]
    assert np.all(grid.status == VALID)
    assert rows == [dict(row) for row in rows]


def test_rows_are_not_altered(llama_8b):
    row = {**RUN, "tensor_parallel": 4}
    before = dict(row)
    strategies_from_rows(llama_8b, 8, [row])
    assert row == before


@pytest.mark.parametrize("value", ["two", None, math.nan, 2.5, [2], True, 0, -2])
@pytest.mark.parametrize("name", ["tensor_parallel", "pipeline_parallel", "virtual_pipeline"])
def test_bad_values_in_rows(llama_8b, name, value):
    with pytest.raises(StrategyError, match=f"{name}: "):
        strategies_from_rows(llama_8b, 8, [{**RUN, name: value}])


def test_a_row_keeps_its_reason(llama_8b):
    grid = strategies_from_rows(llama_8b, 8, [{**RUN, "tensor_parallel": 3}, RUN])
    assert [STATUS_NAMES[int(code)] for code in grid.status] == ["devices_mismatch", "valid"]


@pytest.mark.parametrize(
    ("hardware", "largest"),
    [
        ((), 8),  # a node of eight
        ("dgx-h100", 8),
        ("h100-nvl", 8),  # pairs over NVLink, four of them in a node
        ("gh200", 1),
        ("gb200-nvl72", 64),  # 72 devices; 64 heads
        (["dgx-h100", "gb200-nvl72"], 64),
        ("tpu-v5p-pod", 64),  # a slice of 8,960
    ],
)
def test_tensor_parallelism_is_tried_within_the_scale_up_domain(hardware, largest):
    axes = {"pipeline_parallel": 1, "recompute": "full", "micro_batch_size": 1}
    grid = strategy_grid(
        load_model("llama-3.1-70b"),
        128,
        sequence_length=8192,
        global_batch_size=2048,
        hardware=hardware,
        **axes,
    )
    assert grid["tensor_parallel"].max() == largest


def test_latent_attention_has_no_key_value_heads_to_divide():
    grid = strategy_grid(
        load_model("deepseek-v3"),
        256,
        sequence_length=131072,
        global_batch_size=256,
        tensor_parallel=1,
        context_parallel=32,
        context_parallel_kind="all_to_all",
    )
    assert len(grid)
