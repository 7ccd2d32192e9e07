"""The accessor of result datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.kernels.variables import TIME_COMPONENTS


@pytest.fixture(scope="module")
def dataset() -> xr.Dataset:
    grid = perfmodel.strategy_grid(
        "llama-3.1-8b",
        16,
        sequence_length=4096,
        global_batch_size=64,
        tensor_parallel=[1, 2],
        pipeline_parallel=[1, 2],
    )
    return perfmodel.sweep("llama-3.1-8b", grid, ["dgx-h100", "dgx-b200"])


def test_questions_are_those_of_the_functions(dataset: xr.Dataset) -> None:
    where = "tp == 2"
    assert dataset.perfmodel.best(3, where=where) == perfmodel.best(dataset, 3, where=where)
    names = ["step_time", "memory_total"]
    assert dataset.perfmodel.pareto(names) == perfmodel.pareto(dataset, names)
    assert perfmodel.pareto(dataset, "step_time, memory_total") == perfmodel.pareto(dataset, names)


def test_shares_of_a_breakdown_add_up(dataset: xr.Dataset) -> None:
    found = dataset.perfmodel.breakdown(4)
    assert len(found) == 4
    np.testing.assert_allclose(found[list(TIME_COMPONENTS)].sum(axis=1), 1.0, rtol=1e-6)
    (strategy, hardware) = found.index[0]
    step = dataset["step_time"].sel(strategy=strategy, hardware=hardware)
    assert np.float32(found["step_time"].iloc[0]) == step.values


@pytest.mark.parametrize("name", ["sweep.nc", "sweep.zarr"])
def test_a_stored_sweep_answers_alike(dataset: xr.Dataset, tmp_path: Path, name: str) -> None:
    perfmodel.save_results(dataset, tmp_path / name)
    with perfmodel.open_results(tmp_path / name) as stored:
        assert stored.perfmodel.best(2) == dataset.perfmodel.best(2)
        assert stored["recompute"].values[0] == "none"
        subset = stored.sel(hardware=["dgx-b200"])
        assert {row["hardware"] for row in subset.perfmodel.best(5)} == {"dgx-b200"}


def test_two_sweeps_are_compared_by_their_best(dataset: xr.Dataset) -> None:
    h100, b200 = (dataset.sel(hardware=[name]) for name in ("dgx-h100", "dgx-b200"))
    found = h100.perfmodel.compare(b200)
    before, after = (float(it.perfmodel.best(1)[0]["step_time"]) for it in (h100, b200))
    assert found.loc["step_time", "change"] == pytest.approx(after / before - 1)
    assert found.loc["hardware", ["a", "b"]].tolist() == ["dgx-h100", "dgx-b200"]
    with pytest.raises(DataError, match="in both sweeps"):
        h100.perfmodel.compare(b200, where="tp == 99")


def test_scaling_is_that_of_the_function(dataset: xr.Dataset) -> None:
    assert dataset.perfmodel.scaling() == perfmodel.scaling(dataset)
    assert {row["scaling_efficiency"] for row in dataset.perfmodel.scaling()} == {1.0}
