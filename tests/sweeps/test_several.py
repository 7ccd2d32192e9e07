"""Several models, frameworks and numbers of devices: as each alone, one after another."""

from __future__ import annotations

import json

import numpy as np
import pytest

import perfmodel
from perfmodel.base import memory
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategy_grid
from perfmodel.sweeps.several import enumerate_problems, sweep, sweep_several
from perfmodel.sweeps.sweep import sweep_table


@pytest.fixture(scope="module")
def grid():
    return strategy_grid(
        "llama-3.1-8b", 8, sequence_length=2048, global_batch_size=[16, 32], micro_batch_size=1
    )


def test_all_is_every_strategy(grid):
    found = sweep("llama-3.1-8b", grid, "dgx-h100")
    table = sweep_table("llama-3.1-8b", grid, "dgx-h100", dtype="float32")
    assert found.sizes["strategy"] == len(grid)
    np.testing.assert_array_equal(found.step_time.values, table["step_time"].values)


def test_the_best_are_as_many_as_asked_for(grid):
    whole = sweep("llama-3.1-8b", grid, "dgx-h100").step_time.where(lambda it: it > 0)
    few = sweep("llama-3.1-8b", grid, "dgx-h100", keep="best", top=3, by="step_time")
    assert few.sizes["strategy"] == 3
    assert (whole.dtype, few.step_time.dtype) == ("float32", "float64")
    assert float(few.step_time.min()) >= float(whole.min()) * (1.0 - 1e-7)
    assert few.fits.all()


def test_nothing_else_can_be_kept(grid):
    with pytest.raises(DataError, match="keep: 'some' is not one of all, best"):
        sweep("llama-3.1-8b", grid, "dgx-h100", keep="some")


AXES = {
    "sequence_length": 1024,
    "pipeline_parallel": [1, 2],
    "tensor_parallel": [1, 2],
    "micro_batch_size": [1, 2],
    "recompute": "none",
    "virtual_pipeline": 1,
}
MODELS, FRAMEWORKS, DEVICES = ("gpt2", "gpt2-medium"), ("megatron", "fsdp"), (4, 8)
HARDWARE = ("dgx-h100", "dgx-b200")


@pytest.fixture(scope="module")
def results():
    return sweep_several(
        MODELS,
        HARDWARE,
        DEVICES,
        framework=FRAMEWORKS,
        global_batch_size=32,
        dtype="float64",
        **AXES,
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("devices", DEVICES)
def test_every_part_is_what_it_is_alone(results, model, framework, devices):
    rows = load_hardware("dgx-h100"), load_hardware("dgx-b200")
    grid = strategy_grid(
        model, devices, hardware=rows, framework=framework, global_batch_size=32, **AXES
    )
    alone = sweep_table(model, grid, rows, framework=framework)
    here = (
        (results["model"] == model)
        & (results["framework"] == framework)
        & (results["devices"] == devices)
    )
    part = results.isel(strategy=np.flatnonzero(here.values))
    assert part.sizes["strategy"] == len(grid) > 0
    for name, column in alone.data_vars.items():
        np.testing.assert_array_equal(part[name].values, column.labelled(), err_msg=name)
    for name, column in alone.coords.items():
        if name != "strategy":
            np.testing.assert_array_equal(part[name].values, column.labelled(), err_msg=name)


def test_the_dataset_says_what_is_in_it(results):
    assert results["devices"].dtype.kind == "i"
    assert results.attrs["devices"] == [4, 8]
    assert results.attrs["model"] == list(MODELS)
    provenance = json.loads(results.attrs["provenance"])
    assert set(provenance["model"]) == set(MODELS)
    assert set(provenance["framework"]) == set(FRAMEWORKS)
    assert results["strategy"].values.tolist() == list(range(results.sizes["strategy"]))


def test_filters_and_ranks_know_problems(results, tmp_path):
    top = perfmodel.best(results, 3, where="devices <= 4 and framework == 'fsdp'")
    assert {row["devices"] for row in top} == {4}
    assert {row["framework"] for row in top} == {"fsdp"}
    path = tmp_path / "several.nc"
    perfmodel.save_results(results, path)
    again = perfmodel.open_results(path)
    assert perfmodel.best(again, 3, where="devices <= 4 and framework == 'fsdp'") == top
    both = perfmodel.best(results, 40)
    assert "devices" in repr(both)
    assert "model" in repr(both)


def test_one_problem_knows_its_devices_too():
    one = sweep_several("gpt2", "dgx-h100", 4, global_batch_size=32, **AXES)
    assert "devices" not in one.coords
    assert one.attrs["devices"] == 4
    where = "devices == 4 and model == 'gpt2' and framework == 'megatron'"
    assert perfmodel.best(one, 1, where=where) == perfmodel.best(one, 1)
    assert perfmodel.best(one, 1, where="devices == 8") == []


def problems(devices, **changes):
    axes = {"global_batch_size": 32, **AXES, **changes.pop("axes", {})}
    models = [load_model("gpt2")]
    software = [load_framework(name) for name in changes.pop("frameworks", ["megatron"])]
    hardware = [load_hardware("dgx-h100")]
    return enumerate_problems(models, software, devices, axes, hardware=hardware, **changes)


def test_the_batch_grows_with_the_devices_in_weak_scaling():
    found = problems([4, 8, 12], scaling="weak", axes={"global_batch_size": [24, 48]})
    batches = {
        it.grid.devices: sorted(set(it.grid["global_batch_size"].tolist())) for it in found.problems
    }
    assert batches == {4: [24, 48], 8: [48, 96], 12: [72, 144]}
    with pytest.raises(StrategyError, match=r"weak scaling: 3 sequences on 2 devices .* on 3"):
        problems([2, 3], scaling="weak", axes={"global_batch_size": 3})
    with pytest.raises(StrategyError, match="'week' is not one of strong, weak"):
        problems([2, 4], scaling="week")


def test_numbers_of_devices_without_a_strategy_are_told():
    found = problems([4, 5], axes={"data_parallel": [2, 4]})
    assert list(found.empty) == [("gpt2", 5)]
    assert {problem.grid.devices for problem in found.problems} == {4}
    assert found.rejected["devices_mismatch"] > 0
    with pytest.raises(StrategyError, match="no strategy is possible on 5 devices"):
        sweep_several("gpt2", "dgx-h100", [5], global_batch_size=32, **AXES, data_parallel=2)


def test_two_of_one_name_are_refused():
    for models, framework in ((["gpt2", "gpt2"], "fsdp"), ("gpt2", ["fsdp", "fsdp"])):
        with pytest.raises(StrategyError, match="are called"):
            sweep_several(models, "dgx-h100", 4, framework=framework, global_batch_size=32, **AXES)


def test_the_product_is_counted_before_it_is_built(monkeypatch):
    one = problems([4])
    size = one.possible * (8 * 18 + 300)
    monkeypatch.setattr(memory, "memory_limit", lambda: 2.5 * size)
    assert problems([4]).possible == one.possible
    with pytest.raises(StrategyError, match="of memory"):
        problems([4, 4, 4, 4])
    with pytest.raises(StrategyError, match="of memory"):
        problems([4], frameworks=["megatron", "fsdp", "megatron-tuned", "torchtitan", "maxtext"])


def test_costs_know_the_model_and_devices_of_every_strategy(results):
    costed = perfmodel.add_cost(results, tokens=1e12, goodput=True)
    for model in MODELS:
        for devices in DEVICES:
            alone = sweep_several(
                model,
                HARDWARE,
                devices,
                framework="fsdp",
                global_batch_size=32,
                dtype="float64",
                **AXES,
            )
            alone = perfmodel.add_cost(alone, tokens=1e12, goodput=True)
            where = f"model == '{model}' and devices == {devices} and framework == 'fsdp'"
            found, expected = perfmodel.best(costed, 1, where=where), perfmodel.best(alone, 1)
            for name in ("goodput", "checkpoint_time", "training_time", "training_cost"):
                np.testing.assert_equal(found[0][name], expected[0][name])
