"""Sweep strategies over hardware into one labelled table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel._version import __version__
from perfmodel.base.errors import StrategyError
from perfmodel.base.memory import check_memory
from perfmodel.base.provenance import versions
from perfmodel.base.table import Column, Table, flags
from perfmodel.base.variables import SCHEMA_VERSION, STEP_VARIABLES, VARIABLES, Variable
from perfmodel.hwprofiles.paths import row_names, unit_of
from perfmodel.model.build import ModelSpec
from perfmodel.software.framework import Framework, load_framework
from perfmodel.strategy.grid import FIELDS, StrategyGrid
from perfmodel.strategy.rules import PRECISION_UNSUPPORTED, STATUS_NAMES, VALID

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.hwprofiles import Hardware


def sweep(
    model: ModelSpec | str,
    grid: StrategyGrid,
    hardware: Hardware | str | Sequence[Hardware | str],
    *,
    framework: str | Framework = "megatron",
    dtype: Any = np.float64,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
) -> xr.Dataset:
    """Project a training step for every strategy on every device.

    Parameters
    ----------
    model : ModelSpec or str
        As of `load_model`: a preset's name, or a path of a ``config.json``.
    grid : StrategyGrid
        From `strategy_grid` or `strategies_from_rows`.
    hardware : Hardware or str, or sequence of them
        Profiles or their names, one row each; swept values are further rows
        (`Hardware.with_values`).
    framework : str or Framework
        Declared behaviour of the training software.
    dtype : numpy floating type
        Of the results; ``float32`` halves the memory of very large sweeps.
    threads : int, optional
        Threads over chunks of strategies; default: one per core.
    progress : callable, optional
        Called with the number of strategy-device pairs closed since the last call.
    hardware_values : mapping of str to sequence of float, optional
        Coordinates along ``hardware`` for swept values, by dotted path.

    Returns
    -------
    xarray.Dataset
        Dimensions ``strategy`` and ``hardware``; variables of
        `perfmodel.base.variables.VARIABLES`, each with ``units`` and ``long_name``; choices
        as labels. Its accessor ``perfmodel`` ranks and breaks down
        (`perfmodel.sweeps.datasets`).

    Raises
    ------
    StrategyError
        No strategy or no hardware given.

    Examples
    --------
    >>> grid = strategy_grid("llama-3.1-70b", 1024, sequence_length=8192, global_batch_size=2048)
    >>> results = sweep("llama-3.1-70b", grid, "dgx-h100")
    """
    from perfmodel.sweeps.datasets import wrapped

    return wrapped(
        sweep_table(
            model,
            grid,
            hardware,
            framework=framework,
            dtype=dtype,
            threads=threads,
            progress=progress,
            hardware_values=hardware_values,
        )
    )


def sweep_table(
    model: ModelSpec | str,
    grid: StrategyGrid,
    hardware: Hardware | str | Sequence[Hardware | str],
    *,
    framework: str | Framework = "megatron",
    dtype: Any = np.float64,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
) -> Table:
    """Return what `sweep` does as a table, with codes for choices; takes what it takes."""
    from perfmodel.hwprofiles import load_hardware
    from perfmodel.model.presets import load_model
    from perfmodel.training.project import Workload, project_grid

    model = load_model(model)
    given = (
        [hardware] if isinstance(hardware, str) or not isinstance(hardware, Sequence) else hardware
    )
    rows = [load_hardware(item) if isinstance(item, str) else item for item in given]
    if not rows or not len(grid):
        raise StrategyError("a sweep needs at least one strategy and one hardware profile")
    names = row_names(rows)
    if twice := [name for name in names if names.count(name) > 1]:
        raise StrategyError(f"hardware '{twice[0]}' is given twice")
    check_memory(
        f"{len(grid):,} strategies on {len(rows):,} rows of hardware",
        len(grid) * result_bytes(len(rows), dtype),
        "take fewer of them, or dtype float32",
        StrategyError,
    )
    framework = load_framework(framework)
    possible = np.flatnonzero(grid.status == VALID)
    everything = possible.size == len(grid)
    values = np.empty((len(rows), len(STEP_VARIABLES), len(grid)), dtype)
    if not possible.size:
        values[:] = np.nan
        rows_to_project: Sequence[Hardware] = ()
    else:
        work = Workload(model, grid if everything else grid.take(possible))
        rows_to_project = rows
    for index, device in enumerate(rows_to_project):
        out = values[index] if everything else np.empty((len(STEP_VARIABLES), possible.size), dtype)
        project_grid(work, device, framework, out, threads=threads, progress=progress)
        if not everything:
            values[index] = np.nan
            values[index][:, possible] = out
    table = Table(
        {
            variable.name: _labelled(variable, values[:, i].T)
            for i, variable in enumerate(STEP_VARIABLES)
        },
        _coordinates(grid, rows, hardware_values or {}),
        _attributes(model, grid, rows, framework),
        {"strategy": len(grid), "hardware": len(rows)},
    )
    return _add_derived(table, model, grid, rows)


def result_bytes(hardware_rows: int, dtype: Any = np.float64) -> int:
    """Return what a sweep keeps of one strategy [B]: variables, verdict and status."""
    return hardware_rows * (len(STEP_VARIABLES) * np.dtype(dtype).itemsize + 2)


def _labelled(
    variable: Variable, values: Any, dims: Sequence[str] = ("strategy", "hardware")
) -> Column:
    attributes = {"units": variable.units, "long_name": variable.long_name}
    if variable.formula:
        attributes["formula"] = variable.formula
    return Column(dims, values, attributes)


def _coordinates(
    grid: StrategyGrid, rows: Sequence[Hardware], swept: Mapping[str, Sequence[float]]
) -> dict[str, Column]:
    coordinates = {
        "strategy": Column(
            "strategy", np.arange(len(grid)), {"long_name": "strategy", "units": "1"}
        ),
        "hardware": Column(
            "hardware", row_names(rows), {"long_name": "hardware profile", "units": "1"}
        ),
        "memory_capacity": Column(
            "hardware",
            np.array([row.device.memory.capacity for row in rows], np.float64),
            {"units": "B", "long_name": "memory of one device"},
        ),
    }
    for path, numbers in swept.items():
        about = {"long_name": f"swept value of {path}", "units": unit_of(rows[0], path)}
        coordinates[path] = Column("hardware", numbers, about)
    for spec in FIELDS:
        attributes: dict[str, Any] = {"units": "1", "long_name": spec.description}
        column = grid[spec.name]
        if spec.kind == "int":
            column = column.astype(np.int32 if column.max(initial=0) < 2**31 else np.int64)
        else:
            column = column.astype(np.int8)
            attributes |= flags(spec.choices or ("false", "true"))
        coordinates[spec.name] = Column("strategy", column, attributes)
    return coordinates


def _add_derived(
    table: Table, model: ModelSpec, grid: StrategyGrid, rows: Sequence[Hardware]
) -> Table:
    """Add FLOP per token, the memory verdict and the status of every pair."""
    from perfmodel.operations.flops import model_flops_per_token

    lengths, inverse = np.unique(grid["sequence_length"], return_inverse=True)
    for name, causal in (
        ("model_flops_per_token", True),
        ("model_flops_per_token_non_causal", False),
    ):
        flops = model_flops_per_token(model, lengths, causal=causal)[inverse]
        table[name] = _labelled(VARIABLES[name], flops, ["strategy"])
    step = table["step_time"].values
    capacity = table["memory_capacity"].values
    fits = np.isfinite(step) & (table["memory_total"].values <= capacity)
    table["fits"] = _labelled(VARIABLES["fits"], fits)
    status = np.where(
        (grid.status == VALID)[:, None] & ~np.isfinite(step),
        np.uint8(PRECISION_UNSUPPORTED),
        grid.status[:, None],
    ).astype(np.int8)
    table["status"] = _labelled(VARIABLES["status"], status)
    table["status"].attrs |= {
        "flag_values": np.array(list(STATUS_NAMES), np.int8),
        "flag_meanings": " ".join(STATUS_NAMES.values()),
    }
    return table


def _attributes(
    model: ModelSpec, grid: StrategyGrid, rows: Sequence[Hardware], framework: Framework
) -> dict[str, Any]:
    provenance = {
        "model": dataclasses.asdict(model),
        "hardware": {name: row.to_dict() for name, row in zip(row_names(rows), rows, strict=True)},
        "framework": dataclasses.asdict(framework),
        "versions": versions("numpy", "numba"),
    }
    return {
        "Conventions": "CF-1.11",
        "schema_version": SCHEMA_VERSION,
        "title": f"Training step of {model.name} on {grid.devices} devices",
        "source": f"perfmodel {__version__}",
        "model": model.name,
        "framework": framework.name,
        "devices": grid.devices,
        "provenance": json.dumps(provenance),
    }
