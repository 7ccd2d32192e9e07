"""Columns of deployments and loads."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.served_fields import DEPLOYMENT_FIELDS
from perfmodel.kernels.serving.tables import STATES
from perfmodel.serving.enumerate import deployments_from_rows, load_grid, serving_grid
from perfmodel.serving.grid import KERNEL_STATES, STATUS_NAMES, STATUS_REASONS, joined
from perfmodel.software.engine import load_engine
from tests.data import table_of


@pytest.mark.parametrize(
    ("model", "row", "name"),
    table_of(__file__, "the_first_broken_rule_is_the_status"),
)
def test_the_first_broken_rule_is_the_status(model, row, name):
    grid = deployments_from_rows(model, [row])
    assert STATUS_NAMES[int(grid.status[0])].startswith(name)


def test_prefill_workers_count_among_the_devices():
    row = {"tensor_parallel": 4, "prefill_workers": 2, "prefill_tensor_parallel": 2}
    assert deployments_from_rows("llama-3.1-8b", [row], devices=8).status[0] == 0
    assert deployments_from_rows("llama-3.1-8b", [row], devices=7).status[0] == 1


def test_every_code_has_a_reason_and_kernel_states_their_names():
    assert STATUS_NAMES.keys() == STATUS_REASONS.keys()
    assert tuple(STATUS_NAMES[code] for code in KERNEL_STATES) == STATES


def test_layouts_of_two_pools_are_found_once():
    grid = serving_grid(
        "llama-3.1-70b",
        tensor_parallel=[4, 8],
        workers=[1, 2, 3],
        prefill_workers=[0, 1, 2],
        prefill_tensor_parallel=[2, 4],
    )
    layouts, decode, prefill = grid.layouts()
    assert sorted(layouts.columns["tensor_parallel"].tolist()) == [2, 4, 8]
    assert np.array_equal(layouts.columns["tensor_parallel"][decode], grid["tensor_parallel"])
    apart = grid["prefill_workers"] > 0
    assert np.array_equal(prefill >= 0, apart)
    of_prefill = layouts.columns["tensor_parallel"][prefill[apart]]
    assert np.array_equal(of_prefill, grid["prefill_tensor_parallel"][apart])


def test_a_row_has_every_field_with_labels_and_devices_count_both_pools():
    grid = serving_grid(
        "deepseek-r1",
        engine="sglang",
        tensor_parallel=1,
        attention_data_parallel=8,
        expert_parallel=8,
        workers=2,
        prefill_workers=3,
        prefill_attention_data_parallel=1,
        prefill_expert_parallel=1,
        prefill_tensor_parallel=4,
    )
    row = grid.row(0)
    assert row.keys() == {"engine", *(field.name for field in DEPLOYMENT_FIELDS)}
    assert (row["engine"], row["weight_precision"]) == (load_engine("sglang").name, "stated")
    assert grid.devices.tolist() == [2 * 8 + 3 * 4]
    assert "1 deployments" in repr(grid)
    assert "tensor_parallel" in grid._repr_html_()


def test_closed_and_open_loops_stand_beside_each_other():
    loads = load_grid(input_length=[128, 256], concurrency=[1, 8], arrival_rate=2.5)
    assert len(loads) == 2 * 3
    columns = loads.kernel_columns()
    assert columns.request_rate.tolist() == [0, 0, 0, 0, 2.5, 2.5]
    assert columns.concurrency.tolist() == [1, 8, 1, 8, 0, 0]
    assert columns.rounds.tolist() == [np.inf] * 6
    assert load_grid(concurrency=1, rounds=[0, 10]).kernel_columns().rounds.tolist() == [np.inf, 10]
    assert loads.take(np.array([5])).row(0)["input_length"] == 256


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({}, "concurrency: a value is needed"),
        ({"concurrency": float("nan")}, "nan is not a number"),
        ({"concurrency": -1}, "below 0"),
        ({"concurrency": 1, "length_spread": 1.5}, "above 1"),
        ({"concurrency": 1, "length_spread": 0.0}, "no share"),
        ({"concurrency": 1, "prefix": 1024}, "leave no prompt"),
        ({"concurrency": 1, "inputs": 5}, "unknown strategy field 'inputs'"),
    ],
)
def test_loads_that_mean_nothing_are_refused(axes, said):
    with pytest.raises(StrategyError, match=said):
        load_grid(**axes)


def test_rows_keep_what_is_impossible_with_its_status():
    grid = deployments_from_rows(
        "llama-3.1-8b",
        [{"tensor_parallel": 3}, {"tensor_parallel": 2, "engine": 1}],
        engine=["vllm", "trtllm"],
    )
    assert grid.status.tolist() == [2, 0]
    assert grid["block_tokens"].tolist() == [16, 32]
    with pytest.raises(StrategyError, match="position"):
        deployments_from_rows("llama-3.1-8b", [{"engine": 2}])


def test_grids_of_one_model_are_joined_in_their_order():
    grids = [
        serving_grid("llama-3.1-8b", tensor_parallel=[1, 2], weight_precision=name, workers=count)
        for name, count in (("bf16", 1), ("fp8", 3))
    ]
    both = joined(grids)
    assert [both.row(i) for i in range(4)] == [grid.row(i) for grid in grids for i in range(2)]
    with pytest.raises(StrategyError, match="one model and the same engines"):
        joined([grids[0], serving_grid("llama-3.1-8b", engine="sglang", tensor_parallel=1)])


def test_a_prefix_below_1_is_a_share_of_the_prompt():
    loads = load_grid(input_length=[1000, 4000], prefix=[0.25, 512], concurrency=1)
    assert loads["prefix"].tolist() == [250.0, 512.0, 1000.0, 512.0]
