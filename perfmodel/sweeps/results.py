"""Reopen and query the results of sweeps."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.base.expression import evaluate_mask
from perfmodel.base.files import user_path
from perfmodel.base.table import Table, from_xarray
from perfmodel.base.variables import COSTS
from perfmodel.strategy.grid import FIELDS
from perfmodel.sweeps.ranked import Ranked

if TYPE_CHECKING:
    import xarray as xr

RATE = "tokens_per_second_per_device"
# Smaller is better for times and bytes; larger for everything in this set.
LARGER_IS_BETTER = {
    "tokens_per_second_per_device",
    "model_flops_utilization",
    "model_flops_utilization_non_causal",
    "hardware_flops_utilization",
    "goodput",
    "checkpoint_interval",
    "failure_interval",
}
# What a table of one problem says once, and one of several for every strategy.
OF_ALL = ("model", "framework", "devices")
MOST_NAMED = 20
# Short spellings, as on the command line: "tp" for "tensor_parallel".
ALIASES = {spec.option.replace("-", "_"): spec.name for spec in FIELDS}


def open_table(path: str | Path) -> Table:
    """Open a stored sweep; values are read when they are used.

    Raises
    ------
    DataError
        The file is missing, is not netCDF, or is not a sweep of this schema.
    """
    from perfmodel.sweeps.netcdf import read_netcdf

    source = user_path(path)
    if not source.is_file():
        what = "is a folder" if source.is_dir() else "does not exist"
        raise DataError(f"results file '{source}' {what}; 'perfmodel sweep -o FILE.nc' writes one")
    table = read_netcdf(source)
    missing = {"step_time", "memory_total", "status"} - set(table.variables)
    version = str(table.attrs.get("schema_version", ""))
    if missing or not version.startswith("1."):
        raise DataError(
            f"'{source}' is not a perfmodel sweep "
            f"(schema version {version or 'absent'}, expected 1.x)"
        )
    return table


def as_table(results: Table | xr.Dataset) -> Table:
    """Return results as a table, whichever they are."""
    return results if isinstance(results, Table) else from_xarray(results)


def column(results: Table | xr.Dataset, name: str) -> NDArray[Any]:
    """Return a variable or coordinate as one value per (strategy, hardware) pair.

    Strategy fields may be named as on the command line (``tp``, ``micro_batch``). Choices
    are returned as their labels. The order is that of ``strategy`` × ``hardware``
    flattened.

    Raises
    ------
    DataError
        No such name.
    """
    table = as_table(results)
    name = ALIASES.get(name, name)
    shape = (table.sizes["strategy"], table.sizes["hardware"])
    if name not in table:
        if _holds_for_all(table, name):
            return np.broadcast_to(np.asarray(table.attrs[name]), shape).reshape(-1)
        if name in COSTS:
            raise DataError(f"these results have no '{name}'; add_cost adds it")
        known = sorted({*column_names(table), *COSTS})
        hint = did_you_mean(name, known)
        hint = hint if "did you mean" in hint else f"; there are {', '.join(known)}"
        raise DataError(f"no variable '{name}'{hint}")
    found = table[name]
    values = found.labelled()
    if found.dims == ("strategy",):
        values = np.broadcast_to(values[:, None], shape)
    elif found.dims == ("hardware",):
        values = np.broadcast_to(values[None, :], shape)
    return values.reshape(-1)


def column_names(table: Table) -> list[str]:
    """Names that `column` and filters understand."""
    common = (name for name in OF_ALL if _holds_for_all(table, name))
    return sorted({*table.variables, *ALIASES, *common})


def _holds_for_all(table: Table, name: str) -> bool:
    """Whether a table says once what every one of its strategies has."""
    return name in OF_ALL and name not in table and np.ndim(table.attrs.get(name, ())) == 0


def _meant(table: Table, name: str, text: str) -> str:
    """Return a text that a filter compares a column with as the column has it.

    Hardware goes by its aliases, too.

    Raises
    ------
    DataError
        The column can never hold that text.
    """
    name = ALIASES.get(name, name)
    if name not in table:
        return text
    column = table[name]
    known = [str(item) for item in column.labels or () if item]
    if name == "hardware":
        known = [str(item) for item in column.values.tolist()]
    if text in known or not known:
        return text
    if name == "hardware":
        from perfmodel.hwprofiles.loader import resolve_name

        with contextlib.suppress(HardwareError):
            meant = resolve_name(text)[0]
            if meant in known:
                return meant
    hint = did_you_mean(text, known)
    hint = hint or f"; there are {', '.join(known[:MOST_NAMED])}"
    raise DataError(f"{name} is never '{text}' here{hint}")


def select(
    results: Table | xr.Dataset, where: str | None = None, *, fitting: bool = True
) -> NDArray[np.intp]:
    """Return the flat indices of possible pairs that fit in memory and pass a filter."""
    table = as_table(results)
    good = np.isfinite(column(table, "step_time"))
    if fitting:
        good &= column(table, "fits").astype(bool)
    if where:
        good &= evaluate_mask(
            where,
            lambda name: column(table, name),
            column_names(table),
            good.size,
            meant=lambda name, text: _meant(table, name, text),
        )
    return np.flatnonzero(good)


def best(
    results: Table | xr.Dataset,
    top: int = 10,
    *,
    by: str = RATE,
    where: str | None = None,
    fitting: bool = True,
) -> Ranked:
    """Return the best strategies of a sweep.

    Parameters
    ----------
    results : xarray.Dataset or Table
    top : int
        How many.
    by : str
        Variable to rank by; rates and utilisations rank largest first, the rest smallest.
    where : str, optional
        Filter, such as ``"tensor_parallel <= 8"``.
    fitting : bool
        Leave out what does not fit in memory.

    Returns
    -------
    Ranked
        A list with one dictionary per strategy, best first: the hardware, every strategy
        field (labels for choices) and every variable in SI units. Shown as a table.

    Raises
    ------
    DataError
        Unknown variable or malformed filter.
    """
    if top < 1:
        raise DataError(f"top: {top} is not a positive number of strategies")
    table = as_table(results)
    by = ALIASES.get(by, by)
    chosen = select(table, where, fitting=fitting)
    values = column(table, by)
    if values.dtype.kind not in "fiub":
        raise DataError(f"cannot rank by '{by}': it holds text")
    keys = values[chosen].astype(float)
    order = np.argsort(-keys if by in LARGER_IS_BETTER else keys, kind="stable")[:top]
    return rows(table, chosen[order])


def best_of_each(
    results: Table | xr.Dataset, names: Sequence[str], *, where: str | None = None
) -> Ranked:
    """Return the best fitting strategy for every combination of values of some columns.

    Parameters
    ----------
    results : xarray.Dataset or Table
    names : sequence of str
        Such as ``["model", "hardware"]``.
    where : str, optional

    Returns
    -------
    Ranked
        What has the most tokens per second and device, in the order of the combinations.

    Raises
    ------
    DataError
        An unknown name, or a malformed filter.
    """
    table = as_table(results)
    chosen = select(table, where)
    rate = column(table, RATE)
    parts = grouped(chosen, [column(table, name) for name in names])
    return rows(table, np.array([part[np.argmax(rate[part])] for part in parts], np.intp))


def grouped(chosen: NDArray[np.intp], columns: Sequence[NDArray[Any]]) -> list[NDArray[np.intp]]:
    """Part flat indices by the values that columns have there, in the order of the first."""
    if not chosen.size:
        return []
    codes = [np.unique(values[chosen], return_inverse=True)[1].reshape(-1) for values in columns]
    _, first, group = np.unique(
        np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True
    )
    return [chosen[group.reshape(-1) == number] for number in np.argsort(first)]


def pareto(
    results: Table | xr.Dataset,
    objectives: Sequence[str],
    *,
    where: str | None = None,
    fitting: bool = True,
) -> Ranked:
    """Return the strategies that no other one beats in every objective.

    Parameters
    ----------
    results : xarray.Dataset or Table
    objectives : sequence of str
        Two or more variables, such as ``["step_time", "memory_total"]``; or one text,
        separated by commas.
    where : str, optional
    fitting : bool

    Returns
    -------
    Ranked
        As `best`, in the order of the first objective; one of those that are equal in all.

    Raises
    ------
    DataError
        Fewer than two objectives, an unknown one, or a malformed filter.
    """
    if isinstance(objectives, str):
        objectives = [name.strip() for name in objectives.split(",")]
    if len(objectives) < 2:
        raise DataError("a Pareto front needs two or more variables, as in step_time,memory_total")
    table = as_table(results)
    chosen = select(table, where, fitting=fitting)
    costs = []
    for name in objectives:
        values = column(table, name)
        if values.dtype.kind not in "fiub":
            raise DataError(f"'{name}' is not a number and cannot be an objective")
        sign = -1.0 if ALIASES.get(name, name) in LARGER_IS_BETTER else 1.0
        costs.append(sign * values[chosen].astype(float))
    front = chosen[_non_dominated(np.stack(costs, axis=1))] if chosen.size else chosen
    return rows(table, front)


def rows(results: Table | xr.Dataset, flat: NDArray[np.intp]) -> Ranked:
    """Return the pairs at flat indices as dictionaries with plain Python values."""
    table = as_table(results)
    devices = table.sizes["hardware"]
    strategy, hardware = np.divmod(flat, devices)
    few, places = np.unique(strategy, return_inverse=True)
    small = table.isel(strategy=few)
    position = places * devices + hardware
    fields = [spec.name for spec in FIELDS]
    names = dict.fromkeys(["hardware", *fields, *small.data_vars, *small.coords])
    del names["strategy"]
    columns = {name: column(small, name)[position].tolist() for name in names}
    return Ranked(
        {"strategy": number} | dict(zip(columns, cells, strict=True))
        for number, cells in zip(
            strategy.tolist(), zip(*columns.values(), strict=True), strict=True
        )
    )


def _non_dominated(costs: NDArray[np.float64]) -> NDArray[np.intp]:
    """Indices of the Pareto front of costs, shape (n, objectives), in order of the first."""
    order = np.lexsort(costs.T[::-1])
    front: list[int] = []
    kept = np.empty((0, costs.shape[1]))
    if costs.shape[1] == 2:
        lowest = np.minimum.accumulate(costs[order, 1])
        earlier = np.concatenate(([np.inf], lowest[:-1]))
        return order[costs[order, 1] < earlier]
    for i in order:
        if not np.any(np.all(kept <= costs[i], axis=1)):
            front.append(int(i))
            kept = np.vstack((kept, costs[i]))
    return np.asarray(front, np.intp)
