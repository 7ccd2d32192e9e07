"""A small sweep, and files of every kind of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import load_hardware, save_results, serve, strategy_grid, sweep
from perfmodel.base.table import Table, from_xarray

AXES: dict[str, Any] = {
    "sequence_length": 4096,
    "tensor_parallel": [1, 2, 4],
    "pipeline_parallel": [1, 2],
    "context_parallel": 1,
    "virtual_pipeline": 1,
    "micro_batch_size": [1, 2],
    "zero_stage": [0, 1, 3],
    "recompute": ["none", "full"],
}


@pytest.fixture(scope="session")
def swept(llama_8b):
    """Strategies on two machines, impossible ones included."""
    grid = strategy_grid(
        llama_8b,
        16,
        sequence_length=8192,
        global_batch_size=64,
        tensor_parallel=[1, 2, 4],
        pipeline_parallel=[1, 2, 4],
        keep_impossible=True,
    )
    return sweep(llama_8b, grid, [load_hardware("dgx-h100"), load_hardware("dgx-b200")])


@pytest.fixture(scope="session")
def training() -> Table:
    """Strategies of a small model on two devices, some of which do not fit."""
    grid = strategy_grid("llama-3.1-8b", 16, global_batch_size=64, **AXES)
    return from_xarray(sweep("llama-3.1-8b", grid, ["dgx-h100", "dgx-b200"]))


@pytest.fixture(scope="session")
def swept_file(swept, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "sweep.nc"
    save_results(swept, path)
    return path


@pytest.fixture(scope="session")
def served(llama_8b):
    loads = {"input_length": 1024, "output_length": 64, "concurrency": [1, 8]}
    return serve(llama_8b, {"tensor_parallel": [1, 2]}, loads, load_hardware("dgx-h100"))


@pytest.fixture(scope="session")
def served_file(served, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "serve.nc"
    save_results(served, path)
    return path


COMPARED = """\
id,hardware,model,n_gpus,line,measured,projected,error,throughput_error,skip_reason,\
projected_step_time_low,projected_step_time_high,projected_forward_time,projected_backward_time
a,H100,"<b>x</b>, large",8,2,2.0,2.2,0.1,-0.0909,,2.0,2.4,0.7,1.5
b,H100,small,16,3,1.0,0.8,-0.2,0.25,,0.7,0.9,0.3,0.5
c,A100,small,,4,4.0,4.0,0.0,0.0,,3.5,4.5,1.0,3.0
d,A100,small,8,5,1.0,,,,no architecture,,,,
"""


@pytest.fixture(scope="session")
def compared_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "errors.csv"
    path.write_text(COMPARED, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def simulated():
    """Ranks as `perfmodel simulate -o` stores them."""
    import xarray as xr

    ranks = np.arange(4)
    seconds = {"units": "s", "long_name": "a time"}
    return xr.Dataset(
        {
            "wall_time": (("rank",), 1.0 + 0.1 * ranks, seconds),
            "gpu_time": (("rank",), np.full(4, 0.75), seconds),
            "exposed_communication": (("rank",), 0.25 + 0.1 * ranks, seconds),
            "collective_time": (("rank", "collective"), np.ones((4, 2)), seconds),
        },
        coords={"rank": ranks, "collective": ["all_reduce", "all_gather"]},
        attrs={"title": "Run of a workload", "schema_version": "1.1", "source": "perfmodel"},
    )
