"""Store, reopen and query the datasets of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.expression import evaluate_mask
from perfmodel.base.files import atomic_path
from perfmodel.strategy.grid import FIELDS

if TYPE_CHECKING:
    import xarray as xr

# Smaller is better for times and bytes; larger for everything in this set.
LARGER_IS_BETTER = {
    "tokens_per_second_per_device",
    "model_flops_utilization",
    "model_flops_utilization_non_causal",
    "hardware_flops_utilization",
}
# Short spellings, as on the command line: "tp" for "tensor_parallel".
ALIASES = {spec.option.replace("-", "_"): spec.name for spec in FIELDS}


def save_results(dataset: xr.Dataset, path: str | Path) -> None:
    """Write a dataset as compressed netCDF-4, completely or not at all.

    Parameters
    ----------
    dataset : xarray.Dataset
    path : str or Path
        File to write; replaced if it exists.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    compression = {"zlib": True, "complevel": 1, "shuffle": True}
    encoding = {
        name: dict(compression)
        for name, variable in dataset.variables.items()
        if variable.dtype.kind in "fiub" and variable.ndim
    }
    with atomic_path(path) as temporary:
        try:
            dataset.to_netcdf(temporary, engine="netcdf4", format="NETCDF4", encoding=encoding)
        except RuntimeError as error:  # how netCDF reports a full disk
            raise DataError(f"cannot write '{path}': {error}") from None


def open_results(path: str | Path) -> xr.Dataset:
    """Open a stored sweep; values are read when they are used.

    Raises
    ------
    DataError
        The file is missing, is not netCDF, or is not a sweep of this schema.
    """
    import xarray as xr

    source = Path(path).expanduser()
    if not source.is_file():
        what = "is a folder" if source.is_dir() else "does not exist"
        raise DataError(f"results file '{source}' {what}; 'perfmodel sweep -o FILE.nc' writes one")
    try:
        dataset = xr.open_dataset(source, engine="netcdf4")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(f"'{source}' is not a readable netCDF-4 file: {reason}") from None
    missing = {"step_time", "memory_total", "status"} - set(dataset.variables)
    version = str(dataset.attrs.get("schema_version", ""))
    if missing or not version.startswith("1."):
        dataset.close()
        raise DataError(
            f"'{source}' is not a perfmodel sweep "
            f"(schema version {version or 'absent'}, expected 1.x)"
        )
    return dataset


def column(dataset: xr.Dataset, name: str) -> NDArray[Any]:
    """Return a variable or coordinate as one value per (strategy, hardware) pair.

    Strategy fields may be named as on the command line (``tp``, ``micro_batch``). Flags
    are returned as their labels. The order is that of ``strategy`` × ``hardware``
    flattened.

    Raises
    ------
    DataError
        No such name.
    """
    name = ALIASES.get(name, name)
    if name not in dataset.variables:
        hint = did_you_mean(name, column_names(dataset))
        hint = hint or "; there are step_time, memory_total, tensor_parallel and the like"
        raise DataError(f"no variable '{name}'{hint}")
    variable = dataset[name]
    values = variable.values
    if "flag_meanings" in variable.attrs and name not in ("sequence_parallel",):
        labels = np.array(variable.attrs["flag_meanings"].split())
        order = np.searchsorted(np.atleast_1d(variable.attrs["flag_values"]), values)
        values = labels[order]
    shape = (dataset.sizes["strategy"], dataset.sizes["hardware"])
    if variable.dims == ("strategy",):
        values = np.broadcast_to(values[:, None], shape)
    elif variable.dims == ("hardware",):
        values = np.broadcast_to(values[None, :], shape)
    return values.reshape(-1)


def column_names(dataset: xr.Dataset) -> list[str]:
    """Names that `column` and filters understand."""
    return sorted({*map(str, dataset.variables), *ALIASES})


def select(
    dataset: xr.Dataset, where: str | None = None, *, fitting: bool = True
) -> NDArray[np.intp]:
    """Return the flat indices of possible pairs that fit in memory and pass a filter."""
    good = np.isfinite(column(dataset, "step_time"))
    if fitting:
        good &= column(dataset, "fits").astype(bool)
    if where:
        good &= evaluate_mask(
            where, lambda name: column(dataset, name), column_names(dataset), good.size
        )
    return np.flatnonzero(good)


def best(
    dataset: xr.Dataset,
    top: int = 10,
    *,
    by: str = "tokens_per_second_per_device",
    where: str | None = None,
    fitting: bool = True,
) -> list[dict[str, Any]]:
    """Return the best strategies of a sweep.

    Parameters
    ----------
    dataset : xarray.Dataset
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
    list of dict
        One per strategy, best first: the hardware, every strategy field (labels for
        choices) and every variable in SI units.

    Raises
    ------
    DataError
        Unknown variable or malformed filter.
    """
    if top < 1:
        raise DataError(f"top: {top} is not a positive number of strategies")
    chosen = select(dataset, where, fitting=fitting)
    values = column(dataset, by)
    if values.dtype.kind not in "fiub":
        raise DataError(f"cannot rank by '{by}': it holds text")
    keys = values[chosen].astype(float)
    order = np.argsort(-keys if by in LARGER_IS_BETTER else keys, kind="stable")[:top]
    return rows(dataset, chosen[order])


def pareto(
    dataset: xr.Dataset,
    objectives: Sequence[str],
    *,
    where: str | None = None,
    fitting: bool = True,
) -> list[dict[str, Any]]:
    """Return the strategies that no other one beats in every objective.

    Parameters
    ----------
    dataset : xarray.Dataset
    objectives : sequence of str
        Two or more variables, such as ``["step_time", "memory_total"]``.
    where : str, optional
    fitting : bool

    Returns
    -------
    list of dict
        As `best`, in the order of the first objective; one of those that are equal in all.

    Raises
    ------
    DataError
        Fewer than two objectives, an unknown one, or a malformed filter.
    """
    if len(objectives) < 2:
        raise DataError("a Pareto front needs two or more variables, as in step_time,memory_total")
    chosen = select(dataset, where, fitting=fitting)
    costs = []
    for name in objectives:
        values = column(dataset, name)
        if values.dtype.kind not in "fiub":
            raise DataError(f"'{name}' is not a number and cannot be an objective")
        sign = -1.0 if name in LARGER_IS_BETTER else 1.0
        costs.append(sign * values[chosen].astype(float))
    front = chosen[_non_dominated(np.stack(costs, axis=1))] if chosen.size else chosen
    return rows(dataset, front)


def rows(dataset: xr.Dataset, flat: NDArray[np.intp]) -> list[dict[str, Any]]:
    """Return the pairs at flat indices as dictionaries with plain Python values."""
    devices = dataset.sizes["hardware"]
    strategy, hardware = np.divmod(flat, devices)
    small = dataset.isel(strategy=np.unique(strategy)).load()
    position = np.searchsorted(np.unique(strategy), strategy) * devices + hardware
    names = ["hardware", *(spec.name for spec in FIELDS), *map(str, small.data_vars)]
    extra = [str(name) for name in small.coords if str(name) not in names and name != "strategy"]
    columns = {name: column(small, name)[position] for name in names + extra}
    columns["sequence_parallel"] = columns["sequence_parallel"].astype(bool)
    return [
        {"strategy": int(strategy[i])}
        | {name: values[i].item() for name, values in columns.items()}
        for i in range(flat.size)
    ]


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
