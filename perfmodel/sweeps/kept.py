"""Sweep strategies into one labelled dataset: of all of them, or of the best alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.kernels.variables import RATE
from perfmodel.model.build import ModelSpec
from perfmodel.software.framework import Framework, load_framework
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.sweeps.ranking import objectives_of, rank_problems
from perfmodel.sweeps.sweep import Problem, hardware_rows, sweep_table

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.hwprofiles import Hardware

KEPT = ("all", "best")


def sweep(
    model: ModelSpec | str,
    grid: StrategyGrid,
    hardware: Hardware | str | Sequence[Hardware | str],
    *,
    framework: str | Framework = "megatron",
    dtype: Any = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
    keep: str = "all",
    top: int = 10,
    by: str = RATE,
    pareto: Sequence[str] = (),
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
    dtype : {"float32", "float64"}, optional
        In which results are kept: by default single precision, 6e-8 of each, which halves the
        memory, or double where only the best are. Sums are of double precision always, and so is
        what decides whether a strategy fits.
    threads : int, optional
        Threads over chunks of strategies; default: one per core.
    progress : callable, optional
        Called with the number of strategy-device pairs closed since the last call.
    hardware_values : mapping of str to sequence of float, optional
        Coordinates along ``hardware`` for swept values, by dotted path.
    keep : {"all", "best"}
        "best": of the strategies that fit in memory keep only the `top` best on every device, and
        those that are on a Pareto front, without making room for the others.
    top, by, pareto
        How many of the best to keep, by which variable of a step, and the variables of a front.

    Returns
    -------
    xarray.Dataset
        Dimensions ``strategy`` and ``hardware``; variables of
        `perfmodel.kernels.variables.VARIABLES`, each with ``units`` and ``long_name``; choices
        as labels. Its accessor ``perfmodel`` ranks and breaks down
        (`perfmodel.store.datasets`).

    Raises
    ------
    StrategyError
        No strategy or no hardware given.
    DataError
        Strategies cannot be ranked so, or another `dtype`.

    Examples
    --------
    >>> grid = strategy_grid("llama-3.1-70b", 1024, sequence_length=8192, global_batch_size=2048)
    >>> results = sweep("llama-3.1-70b", grid, "dgx-h100")
    """
    from perfmodel.store.datasets import wrapped

    if keep not in KEPT:
        raise DataError(f"keep: '{keep}' is not one of {', '.join(KEPT)}")
    if keep == "best":
        from perfmodel.model.presets import load_model

        problem = Problem(load_model(model), load_framework(framework), grid)
        found = rank_problems(
            [problem],
            hardware_rows(hardware),
            objectives_of(top, by, pareto),
            dtype=dtype or np.float64,
            threads=threads,
            progress=progress,
            hardware_values=hardware_values,
        )
        return wrapped(found.table)
    return wrapped(
        sweep_table(
            model,
            grid,
            hardware,
            framework=framework,
            dtype=dtype or np.float32,
            threads=threads,
            progress=progress,
            hardware_values=hardware_values,
        )
    )
