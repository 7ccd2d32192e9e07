"""Datasets of sweeps: the schema of the design, several devices, and a baseline."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.trust import KERNELS
from perfmodel.kernels.variables import (
    MEMORY_COMPONENTS,
    SCHEMA_VERSION,
    STEP_VARIABLES,
    TIME_COMPONENTS,
    VARIABLES,
)
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.store.files import save_results
from perfmodel.store.netcdf import read_netcdf
from perfmodel.store.results import TRUST
from perfmodel.strategy.enumerate import strategies_from_rows, strategy_grid
from perfmodel.strategy.rules import STATUS_NAMES
from perfmodel.sweeps.several import sweep
from perfmodel.sweeps.sweep import sweep_table
from tests.data import BASELINES

RUN = {"sequence_length": 4096, "global_batch_size": 64}


@pytest.fixture(scope="module")
def grid(llama_8b):
    """Possible and impossible strategies in two precisions."""
    return strategy_grid(
        llama_8b,
        16,
        **RUN,
        tensor_parallel=[1, 2, 3],
        pipeline_parallel=[1, 4],
        context_parallel=1,
        precision=["bf16", "fp8"],
        zero_stage=1,
        keep_impossible=True,
    )


@pytest.fixture(scope="module")
def hardware(h100, a100):
    slow = h100.with_values({"system.network.1.bandwidth": 25e9})
    return [h100, a100, slow]


@pytest.fixture(scope="module")
def dataset(llama_8b, grid, hardware):
    values = {"system.network.1.bandwidth": [50e9, 25e9, 25e9]}
    return sweep(llama_8b, grid, hardware, hardware_values=values, dtype="float64")


def test_dimensions_and_variables(dataset, grid, hardware):
    sizes = {"strategy": len(grid), "hardware": len(hardware), "kernel_class": len(KERNELS)}
    assert dict(dataset.sizes) == sizes
    assert set(dataset.data_vars) == {*VARIABLES, TRUST}
    for name in VARIABLES:
        dims = ("strategy",) if name.startswith("model_flops_per_token") else None
        assert dataset[name].dims == (dims or ("strategy", "hardware")), name
    assert dataset["fits"].dtype == bool
    assert dataset["step_time"].dtype == np.float64


def test_every_variable_states_its_units(dataset):
    for name, variable in dataset.drop_vars(TRUST).data_vars.items():
        assert variable.attrs["units"] == VARIABLES[name].units
        assert variable.attrs["long_name"] == VARIABLES[name].long_name
    for name, coordinate in dataset.coords.items():
        assert coordinate.attrs["long_name"], name
        if coordinate.dtype.kind in "iuf":
            assert coordinate.attrs["units"], name


def test_every_field_is_a_coordinate(dataset, grid):
    for spec in FIELDS:
        coordinate = dataset.coords[spec.name]
        assert coordinate.dims == ("strategy",)
        labels = np.array(spec.choices or (False, True))
        expected = grid[spec.name] if spec.kind == "int" else labels[grid[spec.name].astype(int)]
        np.testing.assert_array_equal(coordinate.values, expected)
        assert coordinate.attrs.get("choices", "").split() == list(spec.choices or ())


def test_choices_are_codes_in_tables_and_files(dataset, tmp_path):
    save_results(dataset, tmp_path / "sweep.nc")
    stored = read_netcdf(tmp_path / "sweep.nc")
    chosen = [spec for spec in FIELDS if spec.choices]
    assert len(chosen) > 3
    for spec in chosen:
        column = stored[spec.name]
        meanings = column.attrs["flag_meanings"].split()
        assert meanings == list(spec.choices)
        assert column.attrs["flag_values"].tolist() == list(range(len(meanings)))
        assert column.attrs["flag_values"].dtype == column.values.dtype  # CF-1.11, 3.5


def test_hardware_rows_have_distinct_names_and_their_values(dataset, hardware):
    names = dataset["hardware"].values.tolist()
    assert names == ["dgx-h100", "dgx-a100", "dgx-h100[system.network.1.bandwidth=2.5e+10]"]
    np.testing.assert_array_equal(
        dataset["memory_capacity"], [row.device.memory.capacity for row in hardware]
    )
    assert dataset["system.network.1.bandwidth"].values.tolist() == [50e9, 25e9, 25e9]


def test_status_says_what_is_possible(dataset, grid):
    status = dataset["status"]
    assert status.attrs["choices"].split() == list(STATUS_NAMES.values())
    impossible = grid.status != 0
    assert impossible.any()
    expected = [[STATUS_NAMES[code]] * 3 for code in grid.status[impossible].tolist()]
    assert status.values[impossible].tolist() == expected
    fp8 = ~impossible & (grid["precision"] == 2)
    # An A100 has no fp8 (NVIDIA A100 whitepaper); an H100 has.
    assert np.all(status.values[fp8, 1] == "precision_unsupported")
    assert np.all(status.values[fp8][:, [0, 2]] == "valid")
    possible = status.values == "valid"
    for name in ("step_time", *TIME_COMPONENTS, "tokens_per_second_per_device"):
        values = dataset[name].values
        assert np.all(np.isfinite(values[possible])), name
    assert np.all(np.isnan(dataset["step_time"].values[~possible]))
    assert not dataset["fits"].values[~possible].any()


def test_components_add_up_in_every_row(dataset):
    times = sum(dataset[name].values for name in TIME_COMPONENTS)
    np.testing.assert_allclose(times, dataset["step_time"].values, rtol=1e-12)
    memory = sum(dataset[name].values for name in MEMORY_COMPONENTS)
    np.testing.assert_allclose(memory, dataset["memory_total"].values, rtol=1e-14)


def test_fits_is_memory_within_capacity(dataset):
    good = np.isfinite(dataset["step_time"].values)
    within = dataset["memory_total"].values <= dataset["memory_capacity"].values
    np.testing.assert_array_equal(dataset["fits"].values, good & within)


def test_tight_is_what_fits_by_less_than_the_error_of_memory(llama_8b, grid, h100):
    table = sweep(llama_8b, grid, h100.with_values({"device.memory.capacity": 4e10}))
    over = table["memory_high"].values > table["memory_capacity"].values
    tight = table["fits"].values & over
    np.testing.assert_array_equal(table["tight"].values, tight)
    assert 0 < tight.sum() < table["fits"].values.sum()


def test_every_hardware_row_is_as_if_alone(dataset, grid, hardware, llama_8b):
    for index, row in enumerate(hardware):
        alone = sweep(llama_8b, grid, row, dtype="float64")
        for item in STEP_VARIABLES:
            np.testing.assert_array_equal(
                alone[item.name].values[:, 0], dataset[item.name].values[:, index]
            )


def test_a_slower_network_is_slower(dataset, grid):
    good = np.isfinite(dataset["step_time"].values[:, 0])
    fast, slow = dataset["step_time"].values[good][:, 0], dataset["step_time"].values[good][:, 2]
    assert np.all(slow >= fast * (1 - 1e-12))
    assert np.any(slow > fast)


def test_provenance(dataset, llama_8b):
    attributes = dataset.attrs
    assert attributes["Conventions"] == "CF-1.11"
    assert attributes["schema_version"] == SCHEMA_VERSION
    assert attributes["devices"] == 16
    assert attributes["model"] == llama_8b.name
    provenance = json.loads(attributes["provenance"])
    assert set(provenance) == {"model", "hardware", "framework", "versions"}
    assert provenance["model"]["hidden_size"] == 4096  # config.json of Llama-3.1-8B
    assert list(provenance["hardware"]) == dataset["hardware"].values.tolist()
    assert provenance["framework"]["name"] == "megatron"
    assert {"perfmodel", "python", "numpy", "numba"} <= set(provenance["versions"])
    text = json.dumps(provenance)
    assert "25000000000" in text  # the value that was set on the third row


def test_results_have_single_precision_unless_double_is_asked_for(
    llama_8b, grid, dataset, hardware
):
    single = sweep(llama_8b, grid, hardware)
    for item in VARIABLES.values():
        if item.name in ("fits", "tight", "status"):
            np.testing.assert_array_equal(single[item.name], dataset[item.name])
            continue
        assert single[item.name].dtype == np.float32
        assert single[item.name].nbytes == dataset[item.name].nbytes / 2
        np.testing.assert_allclose(
            single[item.name].values, dataset[item.name].values, rtol=1.3e-7, atol=1e-30
        )
    times = sum(single[name].values for name in TIME_COMPONENTS)
    np.testing.assert_allclose(times, single["step_time"].values, rtol=1e-6)
    memory = sum(single[name].values for name in MEMORY_COMPONENTS)
    np.testing.assert_allclose(memory, single["memory_total"].values, rtol=1e-6)
    with pytest.raises(DataError, match="dtype: 'float16' is not one of float32, float64"):
        sweep(llama_8b, grid, hardware, dtype="float16")


def test_what_fits_is_decided_before_memory_is_rounded(llama_8b, grid, h100):
    """Of a device that has exactly what a strategy needs, or one byte's fraction less."""
    few = grid.take(np.flatnonzero(grid.status == 0)[:6])
    needs = sweep(llama_8b, few, h100, dtype="float64")["memory_total"].values[:, 0]
    rounded_up = 0
    for exact in np.unique(needs):
        for capacity in (exact, np.nextafter(exact, 0.0)):
            row = h100.with_values({"device.memory.capacity": float(capacity)})
            found = sweep(llama_8b, few, row)
            np.testing.assert_array_equal(found["fits"].values[:, 0], needs <= capacity)
            np.testing.assert_array_equal(
                found["memory_total"].values[:, 0] <= capacity, found["fits"].values[:, 0]
            )
            np.testing.assert_allclose(found["memory_total"].values[:, 0], needs, rtol=1.3e-7)
        rounded_up += float(np.float32(exact)) > exact
    assert rounded_up  # where rounding alone would decide otherwise


def test_whole_numbers_are_small_in_tables_and_safe_in_datasets(llama_8b, grid, hardware):
    table = sweep_table(llama_8b, grid, hardware, dtype="float32")
    assert table["tensor_parallel"].values.dtype == np.int8
    assert table["sequence_length"].values.dtype == np.int16
    assert not any(table["padding"].values.strides)  # one value, seen from every row
    dataset = table.to_xarray()
    for spec in FIELDS:
        if spec.kind == "int":
            assert dataset[spec.name].dtype == np.int32
    product = dataset["tensor_parallel"] * dataset["sequence_length"]
    np.testing.assert_array_equal(product, grid["tensor_parallel"] * grid["sequence_length"])


def test_frameworks_are_named_or_given(llama_8b, grid, h100):
    named = sweep(llama_8b, grid, h100, framework="fsdp")
    given = sweep(llama_8b, grid, h100, framework=load_framework("fsdp"))
    np.testing.assert_array_equal(named["step_time"], given["step_time"])
    assert named.attrs["framework"] == "fsdp"
    with pytest.raises(StrategyError, match="unknown framework"):
        sweep(llama_8b, grid, h100, framework="fdsp")


def test_progress_counts_pairs(llama_8b, grid, hardware):
    seen: list[int] = []
    sweep(llama_8b, grid, hardware, progress=seen.append)
    assert sum(seen) == int((grid.status == 0).sum()) * len(hardware)


def test_only_impossible_strategies_give_their_reasons(llama_8b, h100):
    grid = strategies_from_rows(llama_8b, 8, [{**RUN, "tensor_parallel": 3}])
    dataset = sweep(llama_8b, grid, h100)
    assert np.isnan(dataset["step_time"].values).all()
    assert dataset["status"].values.tolist() == [["devices_mismatch"]]
    assert not dataset["fits"].values.any()


def test_nothing_to_sweep_is_an_error(llama_8b, grid, h100):
    with pytest.raises(StrategyError, match="at least one strategy and one hardware profile"):
        sweep(llama_8b, grid, [])
    with pytest.raises(StrategyError, match="at least one strategy and one hardware profile"):
        sweep(llama_8b, grid.take(slice(0, 0)), h100)


@pytest.mark.parametrize(
    ("profile", "unsupported"),
    [
        ("dgx-1-v100", {"bf16", "fp8", "mxfp8", "nvfp4"}),  # V100 whitepaper: fp16 and fp32
        ("dgx-a100", {"fp8", "mxfp8", "nvfp4"}),  # A100 whitepaper
        ("dgx-h100", {"mxfp8", "nvfp4"}),  # H100 whitepaper
        ("dgx-b200", set()),  # Blackwell architecture brief
        ("tpu-v5p-pod", {"fp16", "mxfp8", "nvfp4"}),  # Cloud TPU v5p page: bf16 and int8
    ],
)
def test_precisions_that_a_device_lacks(llama_8b, profile, unsupported):
    precisions = ["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
    grid = strategies_from_rows(llama_8b, 8, [{**RUN, "precision": name} for name in precisions])
    dataset = sweep(llama_8b, grid, load_hardware(profile))
    for i, name in enumerate(precisions):
        lacking = dataset["status"].values[i, 0] == "precision_unsupported"
        assert lacking == bool(np.isnan(dataset["step_time"].values[i, 0]))
        if profile != "tpu-v5p-pod" or name in ("bf16", "fp16", "nvfp4"):
            assert lacking == (name in unsupported), name
        assert lacking == bool(np.isnan(dataset["memory_total"].values[i, 0]))
        assert bool(dataset["fits"].values[i, 0]) <= (not lacking)


@pytest.mark.parametrize(
    ("profile", "precision"),
    [("dgx-1-v100", "bf16"), ("dgx-1-v100", "fp16"), ("tpu-v5p-pod", "fp16")],
)
def test_one_precision_that_a_device_lacks_is_no_failure(llama_8b, profile, precision):
    grid = strategies_from_rows(llama_8b, 8, [{**RUN, "precision": precision}])
    dataset = sweep(llama_8b, grid, load_hardware(profile))
    lacking = dataset["status"].values[0, 0] == "precision_unsupported"
    assert lacking == ((profile, precision) != ("dgx-1-v100", "fp16"))


def test_sequence_lengths_share_one_sweep(llama_8b, h100):
    rows = [{**RUN, "sequence_length": length} for length in (2048, 8192, 4096)]
    grid = strategies_from_rows(llama_8b, 8, rows)
    dataset = sweep(llama_8b, grid, h100, dtype="float64")
    flops = dataset["model_flops_per_token"].values
    assert flops[0] < flops[2] < flops[1]
    rates = dataset["tokens_per_second_per_device"].values[:, 0]
    utilization = dataset["model_flops_utilization"].values[:, 0]
    np.testing.assert_allclose(utilization, rates * flops / h100.device.peak("bf16"), rtol=1e-12)


# -- regression ------------------------------------------------------------------------

BASELINE_CASES: dict[str, tuple[int, str, list[dict[str, Any]]]] = {
    "llama-3.1-70b": (
        512,
        "megatron",
        [
            {"tensor_parallel": 8, "pipeline_parallel": 4, "virtual_pipeline": 5},
            {"tensor_parallel": 4, "context_parallel": 2, "pipeline_parallel": 4},
            {"tensor_parallel": 8, "zero_stage": 3, "recompute": "full"},
            {"tensor_parallel": 4, "pipeline_parallel": 8, "recompute": "selective"},
        ],
    ),
    "mixtral-8x7b": (
        64,
        "megatron-tuned",
        [
            {"expert_parallel": 8, "pipeline_parallel": 4, "virtual_pipeline": 8},
            {"tensor_parallel": 2, "expert_parallel": 8, "precision": "fp8"},
        ],
    ),
}


@pytest.mark.parametrize("name", BASELINE_CASES)
def test_baseline(request, name):
    """A few projections as they were when last accepted, to 1e-6.

    After a deliberate change of a model, rewrite the files with
    ``pytest tests/sweeps/test_sweep.py --regenerate-baselines`` and read their difference.
    """
    devices, framework, rows = BASELINE_CASES[name]
    model = load_model(name)
    run = {"sequence_length": 8192, "global_batch_size": 512}
    grid = strategies_from_rows(model, devices, [{**run, **row} for row in rows])
    assert not grid.status.any()
    dataset = sweep(
        model,
        grid,
        [load_hardware("dgx-h100"), load_hardware("mi300x-server")],
        framework=framework,
        dtype="float64",
    )
    # Twelve digits: a last-digit difference of another processor changes no file.
    found = {
        item.name: [[float(f"{x:.12g}") for x in row] for row in dataset[item.name].values.tolist()]
        for item in STEP_VARIABLES
    }
    file = BASELINES / f"{name}.json"
    if request.config.getoption("--regenerate-baselines"):
        BASELINES.mkdir(exist_ok=True)
        lines = [f'  "{key}": {json.dumps(values)}' for key, values in found.items()]
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        pytest.skip(f"{file.name} rewritten")
    expected = json.loads(file.read_text(encoding="utf-8"))
    assert set(found) == set(expected)
    for key, values in found.items():
        np.testing.assert_allclose(values, expected[key], rtol=1e-6, atol=1e-15, err_msg=key)
