"""Reopen and query the results of sweeps and of served models."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import plain_values
from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.base.expression import evaluate_mask
from perfmodel.base.files import user_path
from perfmodel.base.table import Column, Table, from_xarray
from perfmodel.kernels.serving.variables import MEMORY_VARIABLES, ROW_VARIABLES
from perfmodel.kernels.variables import COST_VARIABLES, RATE, STEP_VARIABLES, larger_is_better
from perfmodel.store.subject import TRAINING, subject_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


class Ranked(list[dict[str, Any]]):
    """Strategies as dictionaries of plain Python values in SI units, best first.

    Its text, also as HTML in a notebook, shows the fields in which the strategies differ and
    their main results.
    """

    def __repr__(self) -> str:
        return self._shown().to_string() if self else "no strategies"

    def _repr_html_(self) -> str:
        html: str = self._shown().to_html()
        return html

    def to_dataframe(self) -> pd.DataFrame:
        """Return all columns as a `pandas.DataFrame`, numbered from 1."""
        import pandas as pd

        return pd.DataFrame(list(self), index=range(1, len(self) + 1))

    def _shown(self) -> pd.DataFrame:
        from perfmodel.store.subject import TRAINING, subjects

        frame = self.to_dataframe()
        subject = next((one for one in subjects() if one.dims[0] in frame), TRAINING)
        fields = (*subject.of_all, *subject.fields) if subject is TRAINING else subject.fields
        differ = [
            name
            for name in fields
            if name not in subject.always and name in frame and frame[name].nunique() > 1
        ]
        shown = (*subject.always, *differ, *subject.results)
        return frame[[name for name in shown if name in frame]]


LARGER_IS_BETTER = (
    larger_is_better((*STEP_VARIABLES, *COST_VARIABLES))
    | larger_is_better((*ROW_VARIABLES, *MEMORY_VARIABLES))
    | {"tokens_per_second", "mesh_tokens_per_second", "cache_tokens_row", "cache_tokens_shifted"}
)
"""Of all others less is better; the last four are those of `perfmodel.wafer.result_subject`."""
# What a table of one problem says once, and one of several for every strategy.
OF_ALL = TRAINING.of_all
MOST_NAMED = 20
TRUST = "constants_trust"
"""Variable of how far constants are to be trusted, over kernel class and hardware."""
AT_ONCE = 2**20  # rows of stored results that are read at a time


def open_table(path: str | Path) -> Table:
    """Open a stored sweep; values are read when they are used.

    Files of earlier versions of the schema come in the present layout
    (`perfmodel.store.migration`).

    Raises
    ------
    DataError
        The file is missing, is not netCDF, or is not a sweep of this schema or an older one.
    """
    from perfmodel.store.damage import check_results, reading
    from perfmodel.store.files import read_zarr
    from perfmodel.store.migration import to_present
    from perfmodel.store.netcdf import read_netcdf

    source = user_path(path)
    in_folder = (source / "zarr.json").is_file()
    if not source.is_file() and not in_folder:
        what = "is a folder" if source.is_dir() else "does not exist"
        raise DataError(f"results file '{source}' {what}; 'perfmodel sweep -o FILE.nc' writes one")
    with reading(source):
        table = to_present(read_zarr(source) if in_folder else read_netcdf(source), source)
        check_results(table, source)
    return table


def as_table(results: Table | xr.Dataset) -> Table:
    """Return results as a table, whichever they are."""
    return results if isinstance(results, Table) else from_xarray(results)


def column(results: Table | xr.Dataset, name: str) -> NDArray[Any]:
    """Return a variable or coordinate as one value per combination of the dimensions.

    Fields may be named as on the command line (``tp``, ``micro_batch``). Choices are returned
    as their labels. The order is that of the dimensions (``strategy`` × ``hardware``, or
    ``deployment`` × ``hardware`` × ``load``) flattened.

    Raises
    ------
    DataError
        No such name.
    """
    table = as_table(results)
    subject = subject_of(table)
    name = subject.aliases.get(name, name)
    shape = shape_of(table)
    if name not in table:
        if _holds_for_all(table, name):
            return np.broadcast_to(np.asarray(table.attrs[name]), shape).reshape(-1)
        if name in subject.costs:
            raise DataError(f"these results have no '{name}'; add_cost adds it")
        known = sorted({*column_names(table), *subject.costs})
        hint = did_you_mean(name, known)
        hint = hint if "did you mean" in hint else f"; there are {', '.join(known)}"
        raise DataError(f"no variable '{name}'{hint}")
    found = table[name]
    if not set(found.dims) <= set(subject.dims):
        raise DataError(
            f"'{name}' is of {' × '.join(found.dims)}, not of {' × '.join(subject.dims)}"
        )
    axes = tuple(axis for axis, dim in enumerate(subject.dims) if dim not in found.dims)
    return np.broadcast_to(np.expand_dims(found.labelled(), axes), shape).reshape(-1)


def shape_of(table: Table) -> tuple[int, ...]:
    """Return the lengths of the dimensions of the main variables."""
    return tuple(table.sizes[dim] for dim in subject_of(table).dims)


def trust_by_hardware(table: Table) -> dict[str, dict[str, str]]:
    """Return the levels that a table of results holds: hardware -> kernel class -> level."""
    levels = table[TRUST].labelled()
    classes = table["kernel_class"].values.tolist()
    names = table["hardware"].values.tolist()
    return {
        str(name): dict(zip(classes, levels[:, i].tolist(), strict=True))
        for i, name in enumerate(names)
    }


def column_names(table: Table) -> list[str]:
    """Names that `column` and filters understand."""
    subject = subject_of(table)
    common = (name for name in subject.of_all if _holds_for_all(table, name))
    return sorted({*table.variables, *subject.aliases, *common})


def _holds_for_all(table: Table, name: str) -> bool:
    """Whether a table says once what every one of its strategies has."""
    once = name in subject_of(table).of_all and name not in table
    return once and np.ndim(table.attrs.get(name, ())) == 0


def _meant(table: Table, name: str, text: str) -> str:
    """Return a text that a filter compares a column with as the column has it.

    Hardware goes by its aliases, too.

    Raises
    ------
    DataError
        The column can never hold that text.
    """
    name = subject_of(table).aliases.get(name, name)
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


def decide_safely(table: Table) -> None:
    """Let the 90th percentile of the memory decide what fits: nothing that is tight does.

    Raises
    ------
    DataError
        Results of served models or of wafers, or of a version that did not have it.
    """
    if "tight" not in table:
        raise DataError("--safe: these results do not say what is tight in memory; sweep again")
    fits, tight = table["fits"], table["tight"]
    safe = fits.values.astype(bool) & ~tight.values.astype(bool)
    table["fits"] = Column(fits.dims, safe, fits.attrs)
    table["tight"] = Column(tight.dims, np.zeros_like(safe), tight.attrs)


def select(
    results: Table | xr.Dataset, where: str | None = None, *, fitting: bool = True
) -> NDArray[np.intp]:
    """Return the flat indices of possible rows that fit in memory and pass a filter."""
    table = as_table(results)
    good = np.isfinite(column(table, subject_of(table).answer))
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


def count_selected(results: Table | xr.Dataset, where: str | None, *, fitting: bool) -> int:
    """Return the number of rows that `select` returns, without holding all of them."""
    return sum(select(part, where, fitting=fitting).size for _, part in _parts(as_table(results)))


def _parts(table: Table) -> Iterator[tuple[int, Table]]:
    """Yield pieces of a table that is not in memory, each with the flat index of its first row."""
    dim, *others = subject_of(table).dims
    count = table.sizes[dim]
    step = max(AT_ONCE // max(math.prod(table.sizes[it] for it in others), 1), 1)
    if count <= step or not table[subject_of(table).answer].is_stored:
        yield 0, table
        return
    each = math.prod(table.sizes[it] for it in others)
    for start in range(0, count, step):
        yield start * each, table.isel(**{dim: slice(start, start + step)})


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
    table = as_table(results)
    return rows(table, best_rows(table, top, by, where=where, fitting=fitting))


def check_top(top: int) -> None:
    """Refuse to rank fewer strategies than one."""
    if top < 1:
        raise DataError(f"top: {top} is not a positive number of strategies")


def check_front(objectives: Sequence[str]) -> None:
    """Refuse a front of fewer variables than two."""
    if len(objectives) < 2:
        raise DataError("a Pareto front needs two or more variables, as in step_time,memory_total")


def best_rows(
    table: Table, top: int, by: str = RATE, *, where: str | None = None, fitting: bool = True
) -> NDArray[np.intp]:
    """Return the flat indices of what `best` returns; takes what it takes."""
    check_top(top)
    by = subject_of(table).aliases.get(by, by)
    found: list[tuple[NDArray[np.intp], NDArray[Any]]] = []
    for first, part in _parts(table):
        chosen = select(part, where, fitting=fitting)
        values = column(part, by)
        if values.dtype.kind not in "fiub":
            raise DataError(f"cannot rank by '{by}': it holds text")
        keys = values[chosen].astype(float)
        order = np.argsort(-keys if by in LARGER_IS_BETTER else keys, kind="stable")[:top]
        found.append((first + chosen[order], keys[order]))
    flat, keys = (np.concatenate(items) for items in zip(*found, strict=True))
    order = np.argsort(-keys if by in LARGER_IS_BETTER else keys, kind="stable")[:top]
    return np.asarray(flat[order])


def best_of_each(
    results: Table | xr.Dataset,
    names: Sequence[str],
    *,
    where: str | None = None,
    by: str = RATE,
    fitting: bool = True,
) -> Ranked:
    """Return the best strategy for every combination of values of some columns.

    Parameters
    ----------
    results : xarray.Dataset or Table
    names : sequence of str
        Such as ``["model", "hardware"]``.
    where, by, fitting
        As of `best`.

    Returns
    -------
    Ranked
        In the order of the combinations.

    Raises
    ------
    DataError
        An unknown name, or a malformed filter.
    """
    table = as_table(results)
    chosen = select(table, where, fitting=fitting)
    costs = np.empty(column(table, by).size)
    costs[chosen] = _costs(table, [by], chosen)[:, 0]
    parts = grouped(chosen, [column(table, name) for name in names])
    return rows(table, np.array([part[np.argmin(costs[part])] for part in parts], np.intp))


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
    table = as_table(results)
    return rows(table, front_rows(table, objectives, where=where, fitting=fitting))


def front_rows(
    table: Table, objectives: Sequence[str], *, where: str | None = None, fitting: bool = True
) -> NDArray[np.intp]:
    """Return the flat indices of what `pareto` returns; takes what it takes."""
    check_front(objectives)
    parts = []
    for first, part in _parts(table):
        chosen = select(part, where, fitting=fitting)
        costs = _costs(part, objectives, chosen)
        front = _non_dominated(costs) if chosen.size else np.zeros(0, np.intp)
        parts.append((first + chosen[front], costs[front]))
    flat, costs = (np.concatenate(items) for items in zip(*parts, strict=True))
    order = np.argsort(flat)  # as one of those that are equal in all is found
    flat, costs = flat[order], costs[order]
    return np.asarray(flat[_non_dominated(costs)] if flat.size else flat)


def front_among(
    table: Table, objectives: Sequence[str], chosen: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return those of some flat indices that no other of them beats in every objective.

    In the order of the first objective; one of those that are equal in all.
    """
    check_front(objectives)
    front = _non_dominated(_costs(table, objectives, chosen)) if chosen.size else chosen
    found: NDArray[np.intp] = chosen[front]
    return found


def _costs(table: Table, objectives: Sequence[str], chosen: NDArray[np.intp]) -> NDArray[Any]:
    """Return what is to be small of chosen rows, shape (rows, objectives)."""
    costs = []
    for name in objectives:
        values = column(table, name)
        if values.dtype.kind not in "fiub":
            raise DataError(f"'{name}' is not a number and cannot be an objective")
        meant = subject_of(table).aliases.get(name, name)
        sign = -1.0 if meant in LARGER_IS_BETTER else 1.0
        costs.append(sign * values[chosen].astype(float))
    return np.stack(costs, axis=1)


def rows(results: Table | xr.Dataset, flat: NDArray[np.intp]) -> Ranked:
    """Return the rows at flat indices as dictionaries with plain Python values."""
    table = as_table(results)
    subject = subject_of(table)
    numbers = dict(zip(subject.dims, np.unravel_index(flat, shape_of(table)), strict=True))
    few, places = {}, []
    for dim, at in numbers.items():
        if dim in subject.numbered:
            few[dim], at = np.unique(at, return_inverse=True)
        places.append(at)
    small = table.isel(**few)
    position = np.ravel_multi_index(places, shape_of(small))
    dims = set(subject.dims)  # parts of layers have one of their own
    names = dict.fromkeys(["hardware", *subject.fields, *small.data_vars, *small.coords])
    columns = {dim: numbers[dim].tolist() for dim in subject.numbered} | {
        name: plain_values(column(small, name)[position])
        for name in names
        if name not in subject.numbered and (name not in small or set(small[name].dims) <= dims)
    }
    return Ranked(
        dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)
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


GROUPS = ("model", "framework", "hardware", "sequence_length", "precision")
"""What a curve has one of."""


def scaling(
    results: Table | xr.Dataset, *, where: str | None = None, fitting: bool = True
) -> Ranked:
    """Return the best strategy on every number of devices, and how efficient it is.

    Parameters
    ----------
    results : xarray.Dataset or Table
        Of `perfmodel.sweep_several` or ``perfmodel sweep --devices 256,512,1024``.
    where : str, optional
        Filter, such as ``"tensor_parallel <= 8"``.
    fitting : bool
        Leave out what does not fit in memory.

    Returns
    -------
    Ranked
        One strategy per curve and number of devices, the smallest number first: what has the
        most tokens per second and device. Beside what `best` gives ``devices``,
        ``tokens_per_second`` [1/s] and ``scaling_efficiency`` [1]: tokens per second and device
        over those of the smallest number of devices of the curve. A curve is one model,
        framework, hardware row, sequence length, precision, and batch (of weak scaling the batch
        per device).

    Raises
    ------
    DataError
        Malformed filter, results of served models, or nothing that says on how many devices a
        strategy runs.
    """
    table = as_table(results)
    if subject_of(table) is not TRAINING:
        raise DataError("scaling compares training steps, and these are none")
    devices, rate = column(table, "devices"), column(table, RATE)
    batch = column(table, "global_batch_size").astype(float)
    if table.attrs.get("scaling") == "weak":
        batch = batch / devices
    of_curve = [*(column(table, name) for name in GROUPS), batch]
    found = Ranked()
    for curve in grouped(select(table, where, fitting=fitting), of_curve):
        counts = np.unique(devices[curve])
        here = (curve[devices[curve] == count] for count in counts)
        best = rows(table, np.array([part[np.argmax(rate[part])] for part in here], np.intp))
        for row, count in zip(best, counts.tolist(), strict=True):
            row["devices"] = count
            row["tokens_per_second"] = row[RATE] * count
            row["scaling_efficiency"] = row[RATE] / best[0][RATE]
        found += best
    return found
