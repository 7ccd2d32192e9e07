"""Every rule fires for a strategy that breaks it, and for no possible one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel.base.axes import columns_from_rows
from perfmodel.model.adapters import AdapterSpec
from perfmodel.model.build import dense_model
from perfmodel.model.presets import load_model
from perfmodel.strategy.enumerate import describe_rejected, strategies_from_rows, strategy_grid
from perfmodel.strategy.grid import VALID
from perfmodel.strategy.rules import (
    LATE_RULES,
    PRECISION_UNSUPPORTED,
    RULES,
    STATUS_NAMES,
    STATUS_REASONS,
    strategy_status,
)
from tests.data import table_of
from tests.operations import layers

RUN = {"sequence_length": 8192, "global_batch_size": 64}
LLAMA, MIXTRAL = "llama-3.1-8b", "mixtral-8x7b"  # 32 layers, 32 heads over 8 groups; 8 experts

TUNED = load_model(LLAMA, adapters=AdapterSpec(6, frozen="nf4"))

# Rule -> (model, devices, what makes the strategy break just this rule).
BREAKING: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "devices_mismatch": (LLAMA, 8, {"tensor_parallel": 3, "sequence_parallel": False}),
    "heads_not_divisible": (LLAMA, 6, {"tensor_parallel": 6, "sequence_parallel": False}),
    "width_not_divisible": (
        dense_model(
            "odd",
            layers=4,
            hidden_size=1024,
            heads=16,
            intermediate_size=2730,
            vocab_size=1024,
        ),
        4,
        {"tensor_parallel": 4},
    ),
    "sequence_not_divisible": (LLAMA, 8, {"context_parallel": 8, "sequence_length": 1020}),
    "batch_not_divisible": (LLAMA, 8, {"global_batch_size": 12}),
    "too_few_layers": (LLAMA, 64, {"pipeline_parallel": 64}),
    "schedule_mismatch": (LLAMA, 1, {"virtual_pipeline": 2}),
    "batches_not_divisible": (
        LLAMA,
        8,
        {"pipeline_parallel": 4, "virtual_pipeline": 2, "global_batch_size": 12},
    ),
    "sequence_parallel_alone": (LLAMA, 8, {"sequence_parallel": True}),
    "experts_not_divisible": (MIXTRAL, 16, {"expert_parallel": 16}),
    "expert_group_mismatch": (MIXTRAL, 4, {"expert_parallel": 8}),
    "context_heads_not_divisible": (
        LLAMA,
        64,
        {"context_parallel": 64, "context_parallel_kind": "all_to_all"},
    ),
    "unknown_zero_stage": (LLAMA, 8, {"zero_stage": 4}),
    "shard_group_mismatch": (LLAMA, 8, {"shard_group": 3}),
    # With Megatron-Core's own words: "When using MoE and tensor parallelism, sequence
    # parallelism must be used" (transformer_config.py).
    "experts_need_sequence_parallel": (
        MIXTRAL,
        8,
        {"tensor_parallel": 2, "sequence_parallel": False},
    ),
    "expert_group_spread": (
        MIXTRAL,
        12,  # pairs of ranks do not fill the three data ranks inside the pipeline
        {
            "tensor_parallel": 2,
            "pipeline_parallel": 2,
            "data_parallel": 3,
            "expert_parallel": 2,
            "global_batch_size": 48,
            "mapping": "data-pipeline-tensor-context",
        },
    ),
    "shard_group_spread": (
        "llama-3.1-8b",
        24,  # sets of four do not fill the six data ranks inside the tensor axis
        {
            "tensor_parallel": 2,
            "context_parallel": 2,
            "data_parallel": 6,
            "global_batch_size": 48,
            "shard_group": 4,
            "mapping": "data-tensor-context-pipeline",
        },
    ),
    "schedule_batches": (
        LLAMA,
        8,
        {"pipeline_parallel": 4, "pipeline_schedule": "dualpipe", "global_batch_size": 14},
    ),
    "schedule_table_missing": (
        LLAMA,
        8,
        {"pipeline_parallel": 4, "pipeline_schedule": "table"},
    ),
    "document_length_mismatch": (LLAMA, 8, {"document_length": 16384}),
    "rank_not_divisible": (TUNED, 4, {"tensor_parallel": 4}),
    "frozen_needs_wide_products": (TUNED, 8, {"precision": "fp8"}),
    "recomputed_layers_mismatch": (LLAMA, 8, {"recompute_num_layers": 2}),
    "no_paired_stage": (
        LLAMA,
        8,
        {"offload_activations": 1.0, "offload_activations_to": "stage"},
    ),
}


def model_of(named):
    return load_model(named) if isinstance(named, str) else named


@pytest.mark.parametrize(
    ("recompute", "method", "layers", "possible"),
    [
        ("full", "single", 0, True),
        ("full", "block", 0, True),
        ("full", "uniform", 4, True),
        ("full", "uniform", 0, False),
        ("full", "every", 0, False),
        ("full", "single", 2, False),
        ("selective", "block", 2, False),
        ("none", "every", 2, False),
    ],
)
def test_numbers_of_layers_need_a_method_and_whole_layers(
    recompute: str, method: str, layers: int, possible: bool
) -> None:
    row = {"recompute": recompute, "recompute_method": method, "recompute_num_layers": layers}
    row |= {"data_parallel": 8, "global_batch_size": 8, "sequence_length": 4096}
    status = strategies_from_rows(load_model("llama-3.1-8b"), 8, [row]).status[0]
    assert STATUS_NAMES[int(status)] == ("valid" if possible else "recomputed_layers_mismatch")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_fires_and_says_why(rule):
    assert rule.name in BREAKING, f"write a case that breaks the new rule {rule.name}"
    named, devices, changes = BREAKING[rule.name]
    grid = strategies_from_rows(model_of(named), devices, [{**RUN, **changes}])
    assert STATUS_NAMES[int(grid.status[0])] == rule.name
    assert STATUS_REASONS[rule.code] == rule.reason
    text = describe_rejected({rule.name: 3}, devices)
    assert rule.reason in text
    assert "(3)" in text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_rule_fires_for_a_possible_strategy(rule):
    model = load_model(LLAMA)
    row = {**RUN, "tensor_parallel": 2, "sequence_parallel": True, "data_parallel": 4}
    assert not rule.broken(columns_from_rows([row]), model, 8).any()


def test_codes_and_names_are_stable_and_distinct():
    codes = [rule.code for rule in RULES]
    assert len(set(codes)) == len(codes) == len({rule.name for rule in RULES})
    assert VALID not in codes
    assert PRECISION_UNSUPPORTED not in codes
    assert max(codes) < PRECISION_UNSUPPORTED < 128  # stored as int8
    assert all(" " not in name for name in STATUS_NAMES.values())  # flag_meanings
    # Stored files hold these codes, so they must never change.
    assert {name: code for code, name in STATUS_NAMES.items() if code in (0, 1, 2, 14, 100)} == {
        "valid": 0,
        "devices_mismatch": 1,
        "heads_not_divisible": 2,
        "shard_group_mismatch": 14,
        "precision_unsupported": 100,
    }


def test_the_first_broken_rule_is_the_status():
    model = load_model(LLAMA)
    columns = columns_from_rows(
        [{**RUN, "tensor_parallel": 3, "zero_stage": 4, "sequence_parallel": False}]
    )
    assert strategy_status(columns, model, 8).tolist() == [1]
    assert strategy_status(columns, model, 8, rules=LATE_RULES).tolist() == [13]


@pytest.mark.parametrize(
    ("changes", "possible"),
    table_of(__file__, "borders_of_the_rules"),
)
def test_borders_of_the_rules(changes, possible):
    row = {**RUN, "global_batch_size": 256, **changes}
    grid = strategies_from_rows(load_model(LLAMA), 16, [row])
    assert (grid.status[0] == VALID) == possible, STATUS_NAMES[int(grid.status[0])]


def test_experts_divide_over_both_degrees():
    rows = [
        {**RUN, "expert_parallel": ep, "expert_tensor_parallel": etp}
        for ep, etp in ((8, 1), (4, 2), (8, 2), (1, 16), (8, 4), (3, 1))
    ]
    grid = strategies_from_rows(load_model(MIXTRAL), 16, rows)
    assert (grid.status == VALID).tolist() == [True, True, True, True, False, False]


def test_status_is_computed_without_touching_the_columns():
    model = load_model(LLAMA)
    columns = columns_from_rows([RUN])
    before = {name: column.copy() for name, column in columns.items()}
    strategy_status(columns, model, 1)
    for name, column in columns.items():
        np.testing.assert_array_equal(column, before[name])


def status_of(model, devices, **changes):
    grid = strategies_from_rows(model, devices, [{**RUN, **changes}])
    return STATUS_NAMES[int(grid.status[0])]


@pytest.mark.parametrize(
    ("name", "possible", "impossible"),
    [
        ("gated delta", 16, 64),  # 32 heads of values over 16 of keys
        ("mamba2", 64, 128),  # 64 heads in 8 groups, which ranks may repeat
        ("mamba1", 64, 3),
        ("short convolution", 64, 3),
        ("compressed", 8, 16),  # 16 heads of one key, 8 groups of the output
        ("mlp alone", 64, 3),
    ],
)
def test_tensor_ranks_divide_the_heads_of_every_kind(name, possible, impossible):
    model = layers.model_of(name)
    for degree, breaks in ((possible, False), (impossible, True)):
        found = status_of(model, degree, tensor_parallel=degree)
        dense = name == "mlp alone"
        assert (found == ("width_not_divisible" if dense else "heads_not_divisible")) == breaks


@pytest.mark.parametrize("kind", ["ring", "all_gather", "all_to_all"])
@pytest.mark.parametrize("name", layers.LAYERS)
def test_context_ranks_are_possible_with_every_kind_of_layer(name, kind):
    model = layers.model_of(name)
    assert status_of(model, 4, context_parallel=4, context_parallel_kind=kind) == "valid"


def test_only_exchanged_heads_have_to_divide_over_context_ranks():
    """64 ranks are more than the 16 or 32 heads, but for those that gather keys instead."""
    fields = {"context_parallel": 64, "context_parallel_kind": "all_to_all"}
    broken = {
        name
        for name in layers.LAYERS
        if status_of(layers.model_of(name), 64, **fields) == "context_heads_not_divisible"
    }
    gathers = {"sparse latent", "shared choice", "block sparse", "window of one"}
    gathers |= {"heavily compressed", "compressed"}
    none = {"mlp alone", "latent experts", "short convolution", "mamba1", "mamba2"}
    assert set(layers.LAYERS) - broken == gathers | none


def test_a_layer_without_attention_or_experts_can_be_enumerated():
    grid = strategy_grid(layers.model_of("mamba2", "mlp alone", "latent experts"), 16, **RUN)
    assert (grid.status == VALID).all()
    assert {1, 2, 4, 8} <= set(grid["tensor_parallel"].tolist())
    assert grid["expert_parallel"].max() > 1
