"""Stored sweeps: the same after a round trip, read lazily, ranked and filtered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import perfmodel
from perfmodel import load_hardware, load_model, strategy_grid, sweep
from perfmodel.base import table as tables
from perfmodel.base.errors import DataError
from perfmodel.kernels.variables import RATE
from perfmodel.store import results as stored
from perfmodel.store.datasets import open_results
from perfmodel.store.files import save_results
from perfmodel.store.results import Ranked
from tests.sweeps.test_several import AXES

ROWS = Ranked(
    {
        "hardware": "dgx-h100",
        "tensor_parallel": degree,
        "pipeline_parallel": 1,
        "data_parallel": 8,
        "micro_batch_size": 1,
        "zero_stage": 1,
        "recompute": recompute,
        "step_time": 0.5 * degree,
        "memory_total": 1e9,
    }
    for degree, recompute in ((1, "none"), (2, "full"))
)


def test_text_and_html_show_what_differs() -> None:
    for text in (repr(ROWS), ROWS._repr_html_()):
        assert "recompute" in text
        assert "step_time" in text
        assert "zero_stage" not in text
    assert len(repr(ROWS).splitlines()) == 3
    assert repr(Ranked()) == "no strategies"


def test_a_data_frame_has_every_column() -> None:
    frame = ROWS.to_dataframe()
    assert frame.index.tolist() == [1, 2]
    assert frame["zero_stage"].tolist() == [1, 1]
    assert ROWS[1]["recompute"] == "full"


@pytest.fixture(scope="module")
def dataset() -> xr.Dataset:
    """A small sweep with two devices, a swept value and impossible strategies."""
    model = load_model("llama-3.1-8b")
    grid = strategy_grid(
        model,
        16,
        sequence_length=4096,
        global_batch_size=64,
        keep_impossible=True,
        tensor_parallel=[1, 2, 8, 16],
        pipeline_parallel=[1, 2],
        virtual_pipeline=[1, 2],
        context_parallel=[1, 2],
        micro_batch_size=[1, 8],
        recompute=["none", "full"],
        precision=["bf16", "nvfp4"],
    )
    base = load_hardware("dgx-h100")
    path = "system.network.1.bandwidth"
    rows = [base, base.with_values({path: 25e9}), load_hardware("dgx-b200")]
    return sweep(model, grid, rows, hardware_values={path: [50e9, 25e9, 50e9]}, dtype="float64")


@pytest.fixture
def file(dataset: xr.Dataset, tmp_path: Path) -> Path:
    path = tmp_path / "sweep.nc"
    save_results(dataset, path)
    return path


def test_a_round_trip_changes_nothing(dataset: xr.Dataset, file: Path) -> None:
    with open_results(file) as reopened:
        xr.testing.assert_identical(reopened.load(), dataset)
        for name in dataset.variables:
            assert reopened[name].dtype.kind in (dataset[name].dtype.kind, "O", "T"), name


def test_a_file_is_reopened_lazily(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "FEW", 1000)  # numbers that are read at once
    with open_results(file) as reopened:
        assert not reopened["step_time"].variable._in_memory
        assert stored.best(reopened, 1)
        assert not reopened["memory_buffers"].variable._in_memory


def test_the_file_is_compressed_and_self_describing(file: Path) -> None:
    with xr.open_dataset(file) as reopened:
        assert reopened["step_time"].encoding["zlib"]
        assert reopened.attrs["Conventions"] == "CF-1.11"
        assert '"versions"' in reopened.attrs["provenance"]


def test_best_ranks_rates_downwards_and_the_rest_upwards(dataset: xr.Dataset) -> None:
    rates = [row["tokens_per_second_per_device"] for row in stored.best(dataset, 8)]
    assert rates == sorted(rates, reverse=True)
    sizes = [row["memory_total"] for row in stored.best(dataset, 8, by="memory_total")]
    assert sizes == sorted(sizes)
    assert rates[0] == np.nanmax(
        dataset["tokens_per_second_per_device"].where(dataset["fits"]).values
    )


def test_best_leaves_out_what_does_not_fit_unless_asked(dataset: xr.Dataset) -> None:
    everything = stored.select(dataset, fitting=False)
    fitting = stored.select(dataset)
    assert 0 < fitting.size < everything.size
    assert all(row["fits"] for row in stored.best(dataset, 10_000))
    assert len(stored.best(dataset, 10_000, fitting=False)) == everything.size


def test_rows_hold_labels_and_plain_values(dataset: xr.Dataset) -> None:
    row = stored.best(dataset, 1, where='hardware == "dgx-h100"')[0]
    assert row["hardware"] == "dgx-h100"
    assert row["precision"] == "bf16"
    assert row["status"] == "valid"
    assert type(row["sequence_parallel"]) is bool
    assert type(row["step_time"]) is float
    assert type(row["tensor_parallel"]) is int


def test_filters_take_short_names_and_swept_values(dataset: xr.Dataset) -> None:
    rows = stored.best(dataset, 99, where="tp == 2 and system.network.1.bandwidth < 30e9")
    assert rows
    assert {row["tensor_parallel"] for row in rows} == {2}
    assert {row["system.network.1.bandwidth"] for row in rows} == {25e9}


def test_pareto_rows_are_not_beaten_and_beat_all_others(dataset: xr.Dataset) -> None:
    names = ["step_time", "memory_total"]
    front = np.array([[row[name] for name in names] for row in stored.pareto(dataset, names)])
    chosen = stored.select(dataset)
    costs = np.stack([stored.column(dataset, name)[chosen] for name in names], axis=1)
    assert np.all(np.diff(front[:, 0]) > 0)
    assert np.all(np.diff(front[:, 1]) < 0)
    for cost in costs:
        assert np.any(np.all(front <= cost, axis=1))
        assert not np.any(np.all(cost <= front, axis=1) & np.any(cost < front, axis=1))


def test_a_pareto_front_in_two_variables_lies_on_the_one_in_three(dataset: xr.Dataset) -> None:
    two = stored.pareto(dataset, ["tokens_per_second_per_device", "memory_total"])
    three = stored.pareto(
        dataset, ["tokens_per_second_per_device", "memory_total", "optimizer_time"]
    )
    values = {(row["step_time"], row["memory_total"]) for row in three}
    assert {(row["step_time"], row["memory_total"]) for row in two} <= values


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: stored.best(d, by="step_tim"), "did you mean step_time"),
        (lambda d: stored.best(d, by="recompute"), "it holds text"),
        (lambda d: stored.pareto(d, ["step_time"]), "two or more"),
        (lambda d: stored.pareto(d, ["step_time", "status"]), "not a number"),
        (lambda d: stored.best(d, where="tp <"), "filter"),
    ],
)
def test_bad_queries_say_what_is_wrong(dataset: xr.Dataset, call: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call(dataset)


def test_files_that_are_no_sweeps_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.nc"
    text.write_text("not netCDF")
    other = tmp_path / "other.nc"
    xr.Dataset({"x": ("y", [1.0])}).to_netcdf(other)
    for path, message in (
        (tmp_path / "none.nc", "does not exist"),
        (tmp_path, "is a folder"),
        (text, "not a readable netCDF-4 file"),
        (other, "not a perfmodel sweep"),
    ):
        with pytest.raises(DataError, match=message):
            open_results(path)


def test_best_of_none_is_refused(dataset):
    with pytest.raises(DataError, match="top: 0"):
        stored.best(dataset, 0)


@pytest.mark.parametrize(
    ("alias", "name"), [("h100", "dgx-h100"), ("DGX H100", "dgx-h100"), ("b200", "dgx-b200")]
)
def test_filters_know_aliases_of_hardware(dataset: xr.Dataset, alias: str, name: str) -> None:
    for text in ("hardware == '{}'", "'{}' == hardware", "hardware in ('{}',)"):
        found = stored.best(dataset, 3, where=text.format(alias))
        assert found == stored.best(dataset, 3, where=text.format(name))
        assert {row["hardware"] for row in found} == {name}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("hardware == 'tpu-v5p'", "hardware is never 'tpu-v5p' here; .*dgx-h100"),
        ("hardware == 'nonsense'", "hardware is never 'nonsense' here"),
        ("recompute == 'ful'", "recompute is never 'ful' here; did you mean full"),
        ("precision in ('bf16', 'fp9')", "precision is never 'fp9' here; did you mean fp8"),
    ],
)
def test_a_text_that_a_column_never_has_is_refused(
    dataset: xr.Dataset, where: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        stored.best(dataset, 1, where=where)


def test_an_unknown_variable_is_answered_with_all(dataset: xr.Dataset) -> None:
    with pytest.raises(DataError) as caught:
        stored.best(dataset, by="mfu")
    for name in ("step_time", "model_flops_utilization", "tp", "memory_total", "devices"):
        assert f" {name}" in str(caught.value)
    by_alias = stored.best(dataset, 3, by="micro_batch")
    assert by_alias == stored.best(dataset, 3, by="micro_batch_size")


def test_the_best_of_each_is_the_best_of_a_filter(dataset: xr.Dataset) -> None:
    found = stored.best_of_each(dataset, ["hardware", "recompute"])
    for row in found:
        where = f"hardware == '{row['hardware']}' and recompute == '{row['recompute']}'"
        assert stored.best(dataset, 1, where=where) == [row]
    assert len({(row["hardware"], row["recompute"]) for row in found}) == len(found) > 3
    assert stored.best_of_each(dataset, ["hardware"], where="tp > 1000") == []


DEVICES = (4, 8, 16)


@pytest.fixture(scope="module", params=["strong", "weak"])
def curve(request):
    results = perfmodel.sweep_several(
        "gpt2", "dgx-h100", DEVICES, global_batch_size=32, scaling=request.param, **AXES
    )
    return request.param, results, perfmodel.scaling(results)


def test_every_number_of_devices_has_its_best_strategy(curve):
    _, results, rows = curve
    assert [row["devices"] for row in rows] == list(DEVICES)
    assert results.perfmodel.scaling() == rows
    for row in rows:
        top = perfmodel.best(results, 1, where=f"devices == {row['devices']}")[0]
        assert row["step_time"] == top["step_time"]
        tokens = row["global_batch_size"] * row["sequence_length"]
        assert row["tokens_per_second"] == pytest.approx(tokens / row["step_time"])


def test_efficiency_is_that_of_a_device_against_the_smallest_run(curve):
    _, _, rows = curve
    assert rows[0]["scaling_efficiency"] == 1.0
    for row in rows:
        assert row["scaling_efficiency"] == row[RATE] / rows[0][RATE]


def test_strong_keeps_the_batch_and_weak_lets_it_grow(curve):
    kind, _, rows = curve
    batches = [row["global_batch_size"] for row in rows]
    assert batches == ([32, 32, 32] if kind == "strong" else [32, 64, 128])


def test_every_batch_and_hardware_has_a_curve_of_its_own():
    results = perfmodel.sweep_several(
        "gpt2", ["dgx-h100", "dgx-b200"], [4, 8], global_batch_size=[32, 64], **AXES
    )
    rows = perfmodel.scaling(results)
    curves = [(row["hardware"], row["global_batch_size"], row["devices"]) for row in rows]
    assert len(curves) == len(set(curves)) == 8
    assert curves[0][2] < curves[1][2]
    assert perfmodel.scaling(results, where="devices > 100") == []


def test_a_sweep_of_one_number_is_a_point():
    grid = perfmodel.strategy_grid("gpt2", 4, global_batch_size=32, **AXES)
    point = perfmodel.scaling(perfmodel.sweep("gpt2", grid, "dgx-h100"))
    assert [row["devices"] for row in point] == [4]
