"""Deployments that make sense where nothing else is said."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.serving.enumerate import serving_grid
from tests.data import table_of


def test_tensor_parallelism_is_tried_over_a_node_and_workers_fill_the_devices():
    grid = serving_grid("llama-3.1-8b", "dgx-h200", devices=16)
    assert grid["tensor_parallel"].tolist() == [1, 2, 4, 8]
    assert grid["workers"].tolist() == [16, 8, 4, 2]


def test_degrees_whose_devices_cannot_hold_the_model_are_not_tried_unless_given():
    assert serving_grid("llama-3.1-70b", "dgx-h200")["tensor_parallel"].tolist() == [2, 4, 8]
    assert serving_grid("llama-3.1-70b", "dgx-h100")["tensor_parallel"].tolist() == [4, 8]
    both = serving_grid("llama-3.1-70b", ["dgx-h100", "dgx-h200"])
    assert both["tensor_parallel"].tolist() == [2, 4, 8]
    given = serving_grid("llama-3.1-70b", "dgx-h100", tensor_parallel=[1, 2])
    assert given["tensor_parallel"].tolist() == [1, 2]
    assert serving_grid("deepseek-r1", "dgx-h100")["tensor_parallel"].tolist() == [8]


def test_limits_are_the_engines_unless_given():
    grid = serving_grid("llama-3.1-8b", engine=["vllm", "sglang"], tensor_parallel=1)
    assert grid["block_tokens"].tolist() == [16, 1]
    grid = serving_grid("llama-3.1-8b", "dgx-h100", tensor_parallel=1, token_budget=[0, 512])
    assert grid["token_budget"].tolist() == [8192, 512]


def test_prefill_fields_multiply_only_where_there_is_a_prefill_pool():
    grid = serving_grid(
        "llama-3.1-8b", tensor_parallel=1, prefill_workers=[0, 2], prefill_tensor_parallel=[1, 2, 4]
    )
    assert grid["prefill_workers"].tolist() == [0, 2, 2, 2]
    assert grid["prefill_tensor_parallel"].tolist() == [0, 1, 2, 4]
    assert grid["prefill_pipeline_parallel"].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("model", "axes", "said"),
    [
        *table_of(__file__, "what_cannot_be_is_refused_with_its_reason"),
        ("llama-3.1-8b", {"memory_share": float("nan")}, "not a number"),
        ("llama-3.1-8b", {"engine": ["vllm", "vllm"]}, "twice"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(model, axes, said):
    with pytest.raises(StrategyError, match=said):
        serving_grid(model, **axes)


def test_impossible_deployments_are_kept_on_demand():
    grid = serving_grid("llama-3.1-8b", tensor_parallel=[2, 3], keep_impossible=True)
    assert grid.status.tolist() == [0, 2]


def test_a_pool_with_a_degree_of_its_own_has_no_others() -> None:
    axes = {"tensor_parallel": 1, "expert_parallel": 8, "attention_data_parallel": 8}
    grid = serving_grid("deepseek-v3", **axes, prefill_workers=2, prefill_tensor_parallel=4)
    assert grid["prefill_tensor_parallel"].tolist() == [4]
    assert grid["prefill_expert_parallel"].tolist() == [1]
    assert grid["prefill_attention_data_parallel"].tolist() == [1]
    alike = serving_grid("deepseek-v3", **axes, prefill_workers=2)
    assert alike["prefill_attention_data_parallel"].tolist() == [8]


def test_every_device_is_a_rank_where_ranks_are_asked_for() -> None:
    grid = serving_grid("deepseek-v3", expert_parallel=8, attention_data_parallel=8)
    assert grid["tensor_parallel"].tolist() == [1]
