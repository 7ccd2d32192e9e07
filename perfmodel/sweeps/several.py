"""Sweeps of strategies: of one model, and of several models, devices and frameworks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.axes import axis_values
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.kernels.variables import RATE
from perfmodel.model.presets import load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework, load_framework
from perfmodel.strategy.defaults import as_software_has_it, defaults_of
from perfmodel.strategy.enumerate import enumerate_strategies
from perfmodel.strategy.grid import VALID, StrategyGrid
from perfmodel.sweeps.ranking import objectives_of, rank_problems
from perfmodel.sweeps.sweep import Problem, hardware_rows, result_bytes, sweep_problems, sweep_table

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
        From `strategy_grid` or `strategies_from_rows`. What was not named there is as the
        `framework` has it, where a sweep tries one value (`perfmodel.strategy.defaults`).
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
    model = load_model(model)
    grid = as_software_has_it(grid, model, framework)
    if keep == "best":
        problem = Problem(model, load_framework(framework), grid)
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


SCALINGS = ("strong", "weak")


@dataclass(frozen=True, slots=True)
class Problems:
    """What is going to be projected, and what is impossible.

    Attributes
    ----------
    problems : list of Problem
        Those with at least one strategy.
    rejected : Counter
        Impossible strategies by the name of the rule that they break.
    empty : dict of (str, int) to dict
        Model and devices without a possible strategy -> its rejected ones.
    """

    problems: list[Problem] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    empty: dict[tuple[str, int], Mapping[str, int]] = field(default_factory=dict)

    @property
    def possible(self) -> int:
        """Number of possible strategies."""
        return sum(int(np.count_nonzero(it.grid.status == VALID)) for it in self.problems)


def enumerate_problems(
    models: Sequence[ModelSpec],
    frameworks: Sequence[Framework],
    devices: Sequence[int],
    axes: Mapping[str, Any],
    *,
    hardware: Sequence[Hardware],
    scaling: str = "strong",
    keep_impossible: bool = False,
    dtype: Any = np.float64,
    keep: str = "all",
) -> Problems:
    """Enumerate the strategies of every model on every number of devices, for every software.

    Parameters
    ----------
    models, frameworks, devices : sequence
        Every combination is a problem.
    axes : mapping of str to value or list of values
        As of `perfmodel.strategy.enumerate.enumerate_strategies`.
    hardware : sequence of Hardware
        Rows on which they are going to be projected.
    scaling : {"strong", "weak"}
        Whether `global_batch_size` is that of every run, or of the smallest and grows with the
        devices.
    keep_impossible, dtype, keep
        As of `enumerate_strategies` and `sweep`.

    Raises
    ------
    StrategyError
        As of `enumerate_strategies`; a batch that cannot grow with the devices; more than memory
        holds; two models or frameworks of one name.
    """
    found = Problems()
    each = result_bytes(len(hardware), dtype) * (keep == "all")
    kept = 0
    for model, count, given in combinations(models, frameworks, devices, axes, scaling):
        possible = 0
        for alike in alike_by_default(frameworks, model):
            enumerated = enumerate_strategies(
                model,
                count,
                given,
                hardware=hardware,
                framework=alike[0],
                keep_impossible=keep_impossible,
                result_bytes=each * len(alike),
                others=kept,
            )
            kept += len(enumerated.grid)
            for name, number in enumerated.rejected.items():
                found.rejected[name] += number * len(alike)
            possible += int(np.count_nonzero(enumerated.grid.status == VALID))
            if len(enumerated.grid):
                found.problems.extend(Problem(model, it, enumerated.grid) for it in alike)
        if not possible:
            found.empty[model.name, count] = enumerated.rejected
    return found


def alike_by_default(
    frameworks: Sequence[Framework], model: ModelSpec
) -> Iterator[list[Framework]]:
    """Yield frameworks whose runs of a model have the same where nobody says, together.

    They follow each other as they are given.
    """
    for _, alike in groupby(frameworks, lambda it: defaults_of(it, model)):
        yield list(alike)


def combinations(
    models: Sequence[ModelSpec],
    frameworks: Sequence[Framework],
    devices: Sequence[int],
    axes: Mapping[str, Any],
    scaling: str,
) -> Iterator[tuple[ModelSpec, int, dict[str, Any]]]:
    """Yield every model with every number of devices, and the axes there.

    Raises
    ------
    StrategyError
        Two models or frameworks of one name; a batch that cannot grow with the devices.
    """
    for kind, items in (("models", models), ("frameworks", frameworks)):
        names = [item.name for item in items]
        if twice := [name for name in names if names.count(name) > 1]:
            raise StrategyError(f"two {kind} are called '{twice[0]}'; results could not tell them")
    for model in models:
        for count in devices:
            batch = _batches(axes, count, min(devices), scaling)
            yield model, count, {**axes, "global_batch_size": batch}


def _batches(axes: Mapping[str, Any], count: int, smallest: int, scaling: str) -> Any:
    """Return the sequences per step on a number of devices."""
    if scaling not in SCALINGS:
        raise StrategyError(f"scaling: '{scaling}' is not one of {', '.join(SCALINGS)}")
    given = axes.get("global_batch_size")
    if scaling == "strong" or given is None:
        return given
    batches = axis_values("global_batch_size", given).tolist()
    for batch in batches:
        if batch * count % smallest:
            raise StrategyError(
                f"weak scaling: {batch:,} sequences on {smallest:,} devices are no whole number on "
                f"{count:,}"
            )
    return [batch * count // smallest for batch in batches]


def sweep_several(
    models: ModelSpec | str | Sequence[ModelSpec | str],
    hardware: Hardware | str | Sequence[Hardware | str],
    devices: int | Sequence[int],
    *,
    sequence_length: int | Sequence[int],
    global_batch_size: int | Sequence[int],
    framework: str | Framework | Sequence[str | Framework] = "megatron",
    scaling: str = "strong",
    mtp: str = "none",
    dtype: Any = np.float32,
    threads: int | None = None,
    **axes: Any,
) -> xr.Dataset:
    """Project the strategies of several models, numbers of devices and frameworks.

    Parameters
    ----------
    models : ModelSpec or str, or sequence of them
    hardware : Hardware or str, or sequence of them
    devices : int or sequence of int
    sequence_length, global_batch_size, **axes
        As of `strategy_grid`.
    framework : str or Framework, or sequence of them
    scaling : {"strong", "weak"}
        Whether `global_batch_size` is that of every run, or of the smallest and grows with the
        devices.
    mtp : {"none", "stated"}
        As of `perfmodel.load_model`.
    dtype, threads
        As of `sweep`.

    Returns
    -------
    xarray.Dataset
        As of `sweep`, with the coordinates ``model``, ``framework`` and ``devices`` along
        ``strategy`` where there is more than one combination.

    Raises
    ------
    StrategyError
        As of `enumerate_problems`, or no strategy is possible at all.

    Examples
    --------
    >>> results = sweep_several("llama-3.1-70b", "dgx-h100", [256, 512, 1024],
    ...                         sequence_length=8192, global_batch_size=512, scaling="weak")
    >>> scaling(results)
    """
    from perfmodel.store.datasets import wrapped

    axes |= {"sequence_length": sequence_length, "global_batch_size": global_batch_size}
    asked = named(models, hardware, devices, framework, axes, mtp)
    found = enumerate_problems(**asked, scaling=scaling, dtype=dtype)
    if not found.problems:
        raise none_possible(found.rejected, asked["devices"])
    table = sweep_problems(found.problems, asked["hardware"], dtype=dtype, threads=threads)
    table.attrs["scaling"] = scaling
    return wrapped(table)


def named(
    models: Any, hardware: Any, devices: Any, framework: Any, axes: Mapping[str, Any], mtp: str
) -> dict[str, Any]:
    """Return what a user names, one or several of each, as `enumerate_problems` takes it."""
    return {
        "models": [load_model(item, mtp=mtp) for item in listed(models)],
        "frameworks": [load_framework(item) for item in listed(framework)],
        "devices": listed(devices),
        "axes": axes,
        "hardware": hardware_rows(hardware),
    }


def none_possible(rejected: Mapping[str, int], devices: Sequence[int]) -> StrategyError:
    """Return the error that says why no strategy is possible."""
    from perfmodel.strategy.enumerate import describe_rejected

    return StrategyError(describe_rejected(rejected, max(devices)))


def listed(values: Any) -> list[Any]:
    """Return values as a list, a single one too."""
    several = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
    return list(values) if several else [values]
