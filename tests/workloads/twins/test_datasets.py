"""Datasets of runs: what every engine's result is made of, named and in SI units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.workloads.twins.datasets import run_dataset
from perfmodel.workloads.twins.engines import run_workload
from tests.workloads.twins.test_engines import LOOP, TRACES

RUNS: list[tuple[str, dict[str, Any]]] = [
    ("micro.txt", LOOP),
    ("micro.txt", LOOP | {"model": "physical"}),
    ("aicb.txt", {"gpu_type": "A100"}),
    ("aicb.txt", {"hardware": "dgx-h100"}),
    ("micro.txt", TRACES | {"devices": 16}),
]


@pytest.mark.parametrize(("workload", "stated"), RUNS)
def test_every_variable_has_units_and_a_name(
    run_files: Path, workload: str, stated: dict[str, Any]
) -> None:
    dataset = run_dataset(run_workload(workload, **stated))
    for name, variable in dataset.variables.items():
        assert variable.attrs["units"], name
        assert variable.attrs["long_name"], name


def test_times_are_seconds_and_add_up(run_files: Path) -> None:
    loop = run_dataset(run_workload("micro.txt", **LOOP))
    assert float(loop["total_time"]) == pytest.approx(41565e-9)
    assert loop["layer_name"].values.tolist() == ["sum"]
    beside = run_dataset(run_workload("micro.txt", model="physical", **LOOP))
    assert float(beside["exact_total_time"]) == pytest.approx(41565e-9)
    result = run_workload("aicb.txt", gpu_type="A100")
    simai = run_dataset(result)
    assert float(simai["compute_time"].sum()) == pytest.approx(float(simai["total_compute"]))
    exposed = [result.data_parallel, result.tensor_parallel, result.expert_parallel]
    assert float(simai["exposed_communication"].sum()) == pytest.approx(
        sum(exposed) + result.expert_data_parallel
    )
    traces = run_workload("micro.txt", devices=16, **TRACES)
    assert np.array_equal(run_dataset(traces)["wall_time"], traces.wall_time)
