"""Served models as a labelled table, stored, read again and ranked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfmodel import (
    add_cost,
    best,
    load_grid,
    load_hardware,
    load_model,
    open_results,
    pareto,
    serve,
    serving_grid,
)
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.served_fields import DEPLOYMENT_FIELDS, LOAD_FIELDS
from perfmodel.hwprofiles.trust import KERNELS
from perfmodel.kernels.serving.variables import ROW_VARIABLES, TIME_COMPONENTS, VARIABLES
from perfmodel.serving.requests import random_trace
from perfmodel.store.files import save_results
from perfmodel.store.results import TRUST, open_table
from perfmodel.sweeps.serving import Block, ServedGrid, serve_table
from perfmodel.sweeps.serving_replay import replay_table
from tests.sweeps.block_sweeps import assert_same

HARDWARE = ["dgx-h100", "dgx-h200"]
SHORT_LOADS = {"input_length": [512, 8192], "output_length": [1, 64], "concurrency": [1, 16]}


def served(deployments: int, loads: int, rows: int = 2) -> ServedGrid:
    grid = serving_grid("llama-3.1-8b", "dgx-h100", tensor_parallel=1, workers=[*range(1, 9)])
    asked = load_grid(input_length=512, output_length=64, concurrency=[*range(1, loads + 1)])
    hardware = [load_hardware(name) for name in HARDWARE[:rows]]
    return ServedGrid(grid.take(slice(deployments)), asked, hardware)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 9, 2), (3, 4, 2), (8, 1, 1)])
@pytest.mark.parametrize("pieces", [1, 2, 7, 100])
def test_blocks_cover_every_point_once(shape, pieces):
    deployments, loads, rows = shape
    seen = np.zeros((rows, deployments, loads), int)
    blocks = served(*shape).blocks(pieces)
    for block in blocks:
        part = seen[block]
        assert part.size == block.points > 0
        part += 1
    assert (seen == 1).all()
    assert len(blocks) >= min(pieces, seen.size)


def test_rows_of_hardware_are_the_blocks_of_one_piece():
    assert served(3, 4).blocks() == [Block(row, slice(0, 3), slice(0, 4)) for row in (0, 1)]


def test_a_grid_is_served_as_in_one_process(two_workers):
    grid = serving_grid(
        load_model("llama-3.1-70b"), HARDWARE, engine=["vllm", "sglang"], tensor_parallel=[1, 4, 8]
    )
    alone = serve_table("llama-3.1-70b", grid, SHORT_LOADS, HARDWARE)
    told: list[int] = []
    for dtype in (np.float64, np.float32):
        shared = serve_table(
            "llama-3.1-70b",
            grid,
            SHORT_LOADS,
            HARDWARE,
            dtype=dtype,
            workers=two_workers,
            progress=told.append,
        )
        if dtype is np.float64:
            assert_same(shared, alone)
            assert sum(told) == alone["status"].values.size
    assert_same(shared, serve_table("llama-3.1-70b", grid, SHORT_LOADS, HARDWARE, dtype=np.float32))


def test_pools_drafts_and_recursions_are_served_as_in_one_process(two_workers):
    pools = {"prefill_workers": [1, 2], "workers": [1, 3], "tensor_parallel": [2, 4]}
    loads = {"input_length": 1024, "output_length": 64, "arrival_rate": [0.5, 8.0]}
    experts = serving_grid("mixtral-8x7b", "dgx-h100", **pools)
    alone, shared = (
        serve_table(
            "mixtral-8x7b",
            experts,
            loads,
            "dgx-h100",
            prefill_hardware="dgx-h200",
            workers=it,
        )
        for it in (None, two_workers)
    )
    assert_same(shared, alone)
    loads = {"input_length": 512, "output_length": 16, "concurrency": [1, 2, 4, 8]}
    one = {"tensor_parallel": 1}
    for method in ("recursion", "decode"):
        alone, shared = (
            serve_table("llama-3.1-8b", one, loads, "dgx-h100", method=method, workers=it)
            for it in (None, two_workers)
        )
        assert_same(shared, alone)


def test_a_trace_is_replayed_as_in_one_process(two_workers):
    trace = random_trace(20, 4.0, (100, 3000), (2, 20))
    long = random_trace(3, 4.0, 130_000, 2_000)
    grid = serving_grid("llama-3.1-8b", "dgx-h100", tensor_parallel=[1, 2], workers=[1, 2])
    for asked, clients in ((trace, ()), (trace, (1, 3)), (long, ())):
        alone, shared = (
            replay_table(grid, asked, HARDWARE, concurrency=clients, workers=it)
            for it in (None, two_workers)
        )
        assert_same(shared, alone)


LOADS = {"input_length": [1024, 8192], "output_length": 512, "concurrency": [1, 64]}


@pytest.fixture(scope="module")
def table():
    deployments = {"tensor_parallel": [1, 2, 8], "engine": ["vllm", "sglang"]}
    return serve_table("llama-3.1-70b", deployments, LOADS, ["dgx-h100", "dgx-h200"])


def test_every_variable_has_units_and_its_dimensions(table):
    sizes = {"deployment": 6, "hardware": 2, "load": 4, "kernel_class": len(KERNELS)}
    assert dict(table.sizes) == sizes
    assert set(table.data_vars) == {*VARIABLES, TRUST}
    for item in ROW_VARIABLES:
        column = table[item.name]
        assert (column.values.shape, column.attrs["units"]) == ((6, 2, 4), item.units)
    fields = (*DEPLOYMENT_FIELDS, *LOAD_FIELDS)
    assert {"engine", "devices", *(item.name for item in fields)} <= set(table.coords)
    assert table["memory_total"].dims == ("deployment", "hardware")


def test_answers_are_finite_where_the_status_is_valid_and_only_there(table):
    status = table["status"].labelled()
    assert set(status.reshape(-1).tolist()) == {"valid", "memory_too_small"}
    alone = table["tensor_parallel"].values == 1
    assert (status[alone] == "memory_too_small").all()
    for item in ROW_VARIABLES:
        assert np.array_equal(np.isfinite(table[item.name].values), status == "valid"), item.name


def test_parts_of_a_pass_bounds_and_quantiles_are_in_order(table):
    here = table["fits"].values
    values = {
        name: table[name].values[here]
        for name in VARIABLES
        if name != "status" and table[name].dims == ("deployment", "hardware", "load")
    }
    for name in ("time_to_first_token", "time_per_output_token"):
        assert (values[f"{name}_low"] < values[f"{name}_mean"]).all()
        assert (values[f"{name}_mean"] < values[f"{name}_high"]).all()
        assert (values[f"{name}_p50"] <= values[f"{name}_p95"]).all()
        assert (values[f"{name}_p95"] <= values[f"{name}_p99"]).all()
    assert all((values[name] >= 0).all() for name in TIME_COMPONENTS)
    assert values["utilization"].max() <= 1 + 1e-9


def test_stored_results_are_read_ranked_and_filtered_by_short_names(table, tmp_path):
    path = tmp_path / "serve.nc"
    save_results(table, path)
    stored = open_table(path)
    (first,) = best(stored, 1, where="ttft_p95 < 5 and isl == 8192")
    assert first["input_length"] == 8192
    assert first["time_to_first_token_p95"] < 5
    assert first == best(table, 1, where="ttft_p95 < 5 and isl == 8192")[0]
    assert {"deployment", "load", "hardware", "engine"} <= first.keys()
    front = pareto(stored, "tokens_per_second_per_device,tokens_per_second_per_user")
    users = [row["tokens_per_second_per_user"] for row in front]
    assert users == sorted(users)
    assert "engine" in repr(front)
    with pytest.raises(DataError, match="did you mean"):
        best(stored, 1, by="ttft_p96")


def test_datasets_say_what_was_done_and_break_passes_down(table, tmp_path):
    path = tmp_path / "serve.nc"
    save_results(table, path)
    found = open_results(path)
    shares = found.perfmodel.breakdown(3)
    assert shares.drop(columns="pass_time").sum(axis=1).to_numpy() == pytest.approx(np.ones(3))
    told = json.loads(found.attrs["provenance"])
    assert {name.split("-")[0] for name in told["engine"]} == {"vllm", "sglang"}
    assert told["hardware"].keys() == {"dgx-h100", "dgx-h200"}


def test_a_grid_and_its_axes_give_the_same_and_single_precision_is_near():
    grid = serving_grid("llama-3.1-8b", "dgx-h100", tensor_parallel=[1, 2])
    loads = load_grid(concurrency=[4, 8])
    found = serve("llama-3.1-8b", grid, loads, load_hardware("dgx-h100"))
    again = serve(
        "llama-3.1-8b",
        {"tensor_parallel": [1, 2]},
        {"concurrency": [4, 8]},
        "h100",
        dtype=np.float32,
    )
    assert again["batch"].dtype == np.float32
    name = "time_to_first_token_p95"
    assert again[name].values == pytest.approx(found[name].values, rel=1e-6)


def test_a_load_beyond_the_context_has_a_status():
    loads = {"input_length": [1024, 131072], "concurrency": 1}
    found = serve("llama-3.1-8b", {"tensor_parallel": 1}, loads, "dgx-h100")
    assert found["status"].values[0, 0].tolist() == ["valid", "context_too_long"]
    assert np.isnan(found["batch"].values[0, 0, 1])


def test_an_answer_of_one_token_has_a_first_token_and_no_time_between_tokens():
    loads = {"input_length": 128, "output_length": [1, 2], "concurrency": 2}
    found = serve("llama-3.1-8b", {"tensor_parallel": 1}, loads, "dgx-h100")
    assert (found["status"].values == "valid").all()
    assert np.isnan(found["time_per_output_token_mean"].values[0, 0]).tolist() == [True, False]
    assert np.isfinite(found["request_time_p95"].values).all()
    with pytest.raises(DataError, match="these are none"):
        found.perfmodel.scaling()


def test_a_cache_below_one_request_has_a_status():
    axes = {"tensor_parallel": 2, "memory_share": 0.97}
    loads = {"input_length": [128, 100_000], "concurrency": 1}
    found = serve("llama-3.1-70b", axes, loads, "dgx-h100")
    assert found["status"].values[0, 0].tolist() == ["valid", "cache_below_one_request"]
    assert found["fits"].values[0, 0].tolist() == [True, False]


def test_products_that_a_device_lacks_have_a_status_and_narrow_weights_have_none():
    axes = {"tensor_parallel": 2, "weight_precision": "fp8"}
    loads = {"concurrency": 1}
    given = {**axes, "activation_precision": ["stated", "fp8"]}
    found = serve("llama-3.1-8b", given, loads, "dgx-a100")
    assert found["status"].values[:, 0, 0].tolist() == ["valid", "precision_unsupported"]


def test_what_means_nothing_is_refused():
    grid = serving_grid("llama-3.1-8b", tensor_parallel=1)
    with pytest.raises(StrategyError, match="deployments of llama"):
        serve("llama-3.1-70b", grid, {"concurrency": 1}, "dgx-h100")
    drafting = serving_grid("deepseek-r1", tensor_parallel=8)
    found = serve(load_model("deepseek-r1"), drafting, {"concurrency": 1}, "dgx-h200")
    assert found["status"].values.tolist() == [[["valid"]]]
    with pytest.raises(StrategyError, match="at least one"):
        serve("llama-3.1-8b", grid, {"concurrency": 1}, [])
    with pytest.raises(StrategyError, match="unknown method"):
        serve("llama-3.1-8b", grid, {"concurrency": 1}, "h100", method="exact")


def test_energy_and_cost_per_token_follow_from_declared_inputs(table):
    costed = add_cost(table, price={"h100": 2.0, "h200": 3.0}, pue=1.2)
    rate = table["tokens_per_second_per_device"].values
    price = np.array([2.0, 3.0]) / 3600.0
    expected = price[None, :, None] / rate
    assert np.allclose(costed["cost_per_token"].values, expected, equal_nan=True)
    power = costed["power_per_device"].values
    assert np.allclose(costed["energy_per_token"].values, power / rate, equal_nan=True)
    limit = 1.2 * 700.0
    assert np.nanmin(power) > 0.5 * limit
    assert np.nanmax(power) < 1.2 * 1.6 * 700.0
    assert best(costed, 1, by="cost_per_token")[0]["cost_per_token"] == np.nanmin(expected)
    wrapped = add_cost(table.to_xarray(), price=2.0)
    assert wrapped["cost_per_token"].dims == ("deployment", "hardware", "load")
    with pytest.raises(DataError, match="where a model is served"):
        add_cost(table, tokens=1e12)
    with pytest.raises(DataError, match="add_cost adds it"):
        best(table, 1, by="cost_per_token")


def test_what_is_impossible_keeps_its_reason_beside_what_is_not():
    axes = {"tensor_parallel": [1, 3], "keep_impossible": True}
    found = serve("llama-3.1-8b", axes, {"concurrency": [1, 2]}, ["dgx-h100", "dgx-h200"])
    assert (found["status"].values[1] == "heads_not_divisible").all()
    assert (found["status"].values[0] == "valid").all()
    assert np.isnan(found["batch"].values[1]).all()


def test_pools_on_different_hardware_differ_from_pools_on_one():
    axes = {"tensor_parallel": 2, "prefill_workers": 1, "workers": 2}
    loads = {"input_length": 4096, "output_length": 64, "concurrency": 4}
    name = "time_to_first_token_mean"
    on = {
        pool: serve("llama-3.1-8b", axes, loads, "dgx-h100", prefill_hardware=pool)
        for pool in (None, "dgx-h100", "dgx-a100")
    }
    assert on[None][name].values == pytest.approx(on["dgx-h100"][name].values, rel=0.1)
    assert on["dgx-a100"][name].values > 1.5 * on[None][name].values
    assert on[None]["devices"].values.tolist() == [6]
