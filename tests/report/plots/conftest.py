"""Small results of every sort, each made once."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfmodel
from perfmodel.base.table import Column, Table, flags, from_xarray
from perfmodel.sweeps.grids import kernel_grid
from tests.report.conftest import AXES

COLUMNS = (
    *("hardware", "m", "line", "measured", "projected", "skip_reason"),
    *("quantity", "quantity_unit"),
)
"""Of a written comparison."""


@pytest.fixture(scope="session")
def growing() -> Table:
    """The same on three numbers of devices."""
    counts = (8, 16, 32)
    found = perfmodel.sweep_several(
        "llama-3.1-8b", "dgx-h100", counts, global_batch_size=64, **AXES
    )
    return from_xarray(found)


@pytest.fixture(scope="session")
def served() -> Table:
    loads = {"input_length": 2048, "output_length": 256, "concurrency": [1, 8, 64]}
    degrees = {"tensor_parallel": [1, 2]}
    return from_xarray(perfmodel.serve("llama-3.1-8b", degrees, loads, ["dgx-h100", "dgx-h200"]))


@pytest.fixture(scope="session")
def wafer() -> Table:
    mappings = perfmodel.wafer_grid(grid=[420, 540], context=[1024, 4096])
    return from_xarray(perfmodel.project_wafer("llama-3-8b", ["wse-2", "wse-3"], mappings))


@pytest.fixture(scope="session")
def kernels() -> Table:
    """Matrix products, from memory-bound to compute-bound ones."""
    axes = {"m": [1, 64, 4096], "n": [4096], "k": [4096], "precision": ["bf16", "fp8"]}
    return kernel_grid("gemm", [perfmodel.load_hardware("dgx-h100")], axes)


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``perfmodel compare -o`` writes: two devices, and a row without a projection."""
    path = tmp_path_factory.mktemp("compared") / "rows.csv"
    points = [("A100", 1e-3, 2e-3), ("A100", 4e-3, 3e-3), ("H100", 5e-4, 5.2e-4)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for line, (device, measured, projected) in enumerate(points, 2):
            writer.writerow([device, 8 * line, line, measured, projected, "", "time", "s"])
        writer.writerow(["V100", 8, 5, 1e-3, "", "no profile", "time", "s"])
    return path


@pytest.fixture(scope="session")
def sensitivity() -> Table:
    """A table as ``perfmodel sensitivity`` makes it, of five parameters."""
    names = [
        "device.memory.bandwidth",
        "device.tdp",
        "recompute=full",
        "idle",
        "system.network.0.x",
    ]

    def column(values: list[Any]) -> Column:
        return Column("parameter", np.array(values), {"units": "1"})

    data = {
        "elasticity": column([-0.3, -0.4, np.nan, 0.0, 0.1]),
        "low_change": column([0.3, 0.35, 0.0, 0.0, np.nan]),
        "high_change": column([-0.2, -0.2, 0.25, 0.0, 0.1]),
    }
    coords = {
        "parameter": column(names),
        "other": column(["", "", "full", "", ""]),
        "kind": Column("parameter", np.zeros(5, np.int8), flags(("hardware",))),
    }
    attrs = {"variable": "step_time", "low_factor": 0.5, "high_factor": 2.0, "title": "A title"}
    return Table(data, coords, attrs, {"parameter": 5})


@pytest.fixture
def figures(
    training: Table,
    growing: Table,
    served: Table,
    wafer: Table,
    kernels: Table,
    compared: Path,
    sensitivity: Table,
) -> dict[str, tuple[Any, str, dict[str, Any]]]:
    """A name for each figure that there is: results, kind, options."""
    return {
        "pareto": (training, "pareto", {"band": True}),
        "pareto-served": (served, "pareto", {}),
        "pareto-wafer": (wafer, "pareto", {"log": True}),
        "breakdown": (training, "breakdown", {"top": 4}),
        "breakdown-band": (training, "breakdown", {"each": "hardware,tp", "band": True}),
        "breakdown-served": (served, "breakdown", {"each": "hardware"}),
        "breakdown-wafer": (wafer, "breakdown", {"top": 3, "width": "page"}),
        "memory": (training, "memory", {"everything": True, "by": "memory_total"}),
        "memory-stages": (training, "memory", {"stages": True, "where": "pp == 2"}),
        "memory-served": (served, "memory", {"each": "hardware,tp"}),
        "heatmap": (training, "heatmap", {"where": "hardware == 'dgx-h100'"}),
        "heatmap-time": (training, "heatmap", {"value": "step_time", "x": "zero", "log": True}),
        "scaling": (growing, "scaling", {}),
        "roofline": (training, "roofline", {}),
        "roofline-kernels": (kernels, "roofline", {}),
        "pipeline": (training, "pipeline", {"where": "pp == 2 and recompute == 'full'"}),
        "sensitivity": (sensitivity, "sensitivity", {}),
        "accuracy": (compared, "accuracy", {"title": "A title", "width": 3.0}),
    }
