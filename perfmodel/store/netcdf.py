"""Tables as netCDF-4 files that `xarray` opens as it would its own.

Written column by column with netCDF4 itself: a signal then ends the run between two columns,
and neither writing nor reading needs xarray.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError
from perfmodel.base.files import HDF5
from perfmodel.base.table import Column, Index, Table
from perfmodel.store.damage import reading
from perfmodel.store.seal import check_seal, seal

if TYPE_CHECKING:
    from netCDF4 import Dataset, Variable

NUMBER_TYPES = ("float32", "float64")


def number_type(dtype: Any) -> np.dtype[Any]:
    """Return the type in which results are kept.

    Raises
    ------
    DataError
        None of `NUMBER_TYPES`.
    """
    with contextlib.suppress(TypeError):
        found = np.dtype(dtype)
        if found.name in NUMBER_TYPES:
            return found
    raise DataError(f"dtype: '{dtype}' is not one of {', '.join(NUMBER_TYPES)}")


def or_single(dtype: Any) -> str:
    """Return the end of a hint to those whose results are wider than they have to be."""
    return ", or dtype float32" if np.dtype(dtype).itemsize > 4 else ""


def narrow(column: NDArray[Any]) -> NDArray[Any]:
    return column.astype(narrow_kind([column]))


def narrow_kind(columns: Sequence[NDArray[Any]]) -> type[np.integer[Any]]:
    """Return the smallest type of whole numbers that holds some columns."""
    return whole_kind(max(int(column.max(initial=0)) for column in columns))


def whole_kind(largest: int) -> type[np.integer[Any]]:
    """Return the smallest signed type that holds whole numbers from 0 to the largest.

    Small ones are for tables alone: datasets and files have 32 bits at least, so that products of
    degrees do not overflow (`perfmodel.base.table.Column.decoded`).
    """
    kinds = (np.int8, np.int16, np.int32)
    return next((kind for kind in kinds if largest <= np.iinfo(kind).max), np.int64)


# Reading scattered rows one by one takes longer than reading all, from about here on.
FEW_ROWS = 256
PRESSED = {"zlib": True, "complevel": 1, "shuffle": True}
SMALL = 8192  # B; the bookkeeping of compressed chunks takes as much
# Marks of the encoding, which xarray takes away as well.
ENCODING = ("_FillValue", "coordinates", "dtype")


def write_netcdf(table: Table, path: Path) -> None:
    """Write a table as compressed netCDF-4 (CF conventions: flags, coordinates).

    Raises
    ------
    RuntimeError
        The library refuses, as where the disk is full; `perfmodel.base.files.atomic_path` says why.
    """
    import netCDF4

    with HDF5, netCDF4.Dataset(path, "w", format="NETCDF4") as file:
        for dim, size in table.sizes.items():
            file.createDimension(dim, size)
        file.setncatts({key: value for key, value in table.attrs.items() if value is not None})
        for name, column in table.variables.items():
            _write_column(file, name, column, table)
    seal(path)


def join_netcdf(parts: Sequence[Path], path: Path, dim: str, attrs: Mapping[str, Any]) -> None:
    """Write what parts hold that follow each other along a dimension, one part at a time.

    Parameters
    ----------
    parts : sequence of Path
        As `write_netcdf` wrote them, all of one length but the last.
    path : Path
    dim : str
    attrs : mapping
        What the attributes of the parts lack.

    Raises
    ------
    RuntimeError
        As of `write_netcdf`.
    """
    import netCDF4

    with _opened(parts[0]) as first, _opened(parts[-1]) as last:
        step = len(first.dimensions[dim])
        count = step * (len(parts) - 1) + len(last.dimensions[dim])
    with HDF5, netCDF4.Dataset(path, "w", format="NETCDF4") as file:
        file.set_auto_maskandscale(False)
        for number, part in enumerate(parts):
            with _opened(part) as source:
                if not number:
                    _declare(file, source, dim, count, step)
                    file.setncatts({name: source.getncattr(name) for name in source.ncattrs()})
                    file.setncatts(attrs)
                for name, variable in source.variables.items():
                    if dim in variable.dimensions:
                        at = [slice(None)] * variable.ndim
                        start = number * step
                        stop = start + len(source.dimensions[dim])
                        at[variable.dimensions.index(dim)] = slice(start, stop)
                        file[name][tuple(at)] = variable[...]
    seal(path)


def _declare(file: Dataset, source: Dataset, dim: str, count: int, step: int) -> None:
    """Make the dimensions and variables of a source, `dim` longer; copy what is not along it."""
    for name, dimension in source.dimensions.items():
        file.createDimension(name, count if name == dim else len(dimension))
    for name, variable in source.variables.items():
        along = dim in variable.dimensions
        attributes = {it: variable.getncattr(it) for it in variable.ncattrs()}
        fill = attributes.pop("_FillValue", None)
        options: dict[str, Any] = {}
        if along and count * variable.dtype.itemsize > SMALL:
            sizes = {**{it: len(found) for it, found in source.dimensions.items()}, dim: step}
            chunks = [min(sizes[it], len(file.dimensions[it])) for it in variable.dimensions]
            options = {**PRESSED, "chunksizes": chunks}
        made = file.createVariable(
            name, variable.dtype, variable.dimensions, fill_value=fill, **options
        )
        made.setncatts(attributes)
        if options:  # whole chunks are written, once
            made.set_var_chunk_cache(size=variable.dtype.itemsize * math.prod(chunks))
        if not along:
            made[...] = variable[...]


def _write_column(file: Dataset, name: str, column: Column, table: Table) -> None:
    # Compressed, 32 bits of a small number take as much as eight, and whoever reads them may
    # multiply degrees.
    values = column.values if column.labels else column.labelled()
    attributes = dict(column.attrs)
    # CF: what a variable lies over, beside the labels of its own dimensions.
    if name in table.data_vars:
        over = [
            other
            for other, coordinate in table.coords.items()
            if other not in table.sizes and set(coordinate.dims) <= set(column.dims)
        ]
        if over:
            attributes["coordinates"] = " ".join(over)
    fill: Any = None
    if values.dtype.kind == "b":
        values, attributes["dtype"] = values.astype(np.int8), "bool"
    elif values.dtype.kind == "f":
        fill = np.array(np.nan, values.dtype)
    elif values.dtype.kind in "OU":
        values = values.astype(object)
    kind: Any = str if values.dtype.kind == "O" else values.dtype
    large = kind is not str and values.nbytes > SMALL
    options: dict[str, Any] = PRESSED if large else {}
    variable = file.createVariable(name, kind, column.dims, fill_value=fill, **options)
    variable.setncatts(attributes)
    if values.ndim or kind is not str:
        variable[...] = values
    else:
        variable[0] = values.item()


def read_netcdf(path: Path) -> Table:
    """Return what `write_netcdf` wrote; values are read when they are used.

    Raises
    ------
    DataError
        The file is no netCDF-4 file, or is damaged.
    """
    opened = functools.partial(_opened, path)
    with opened() as file:
        found = {str(name): _stored(variable, opened) for name, variable in file.variables.items()}
        named = {
            name
            for variable in file.variables.values()
            for name in str(getattr(variable, "coordinates", "")).split()
        }
        named |= set(file.dimensions)
        return Table(
            {name: column for name, column in found.items() if name not in named},
            {name: column for name, column in found.items() if name in named},
            {name: file.getncattr(name) for name in file.ncattrs()},
            {str(name): len(dimension) for name, dimension in file.dimensions.items()},
        )


_open: dict[str, Dataset] = {}
"""Files that are open to be read, by path."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Dataset]:
    """Give an open file, and close it: one left to the garbage collector is closed in any thread.

    Who asks for it again before that is given the same: opening takes longer than most columns.
    """
    with HDF5:
        if str(path) in _open:
            yield _open[str(path)]
        else:
            yield from _newly_opened(path)


def _newly_opened(path: Path) -> Iterator[Dataset]:
    import netCDF4

    try:
        check_seal(Path(path))
        file = netCDF4.Dataset(path)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(f"'{path}' is not a readable netCDF-4 file: {reason}") from None
    try:
        with reading(path):
            file.set_auto_maskandscale(False)
            file.set_always_mask(False)
            _open[str(path)] = file
            yield file
    finally:
        _open.pop(str(path), None)
        file.close()


def _stored(
    variable: Variable, opened: Callable[[], contextlib.AbstractContextManager[Dataset]]
) -> Column:
    """Return a column whose values stay in the file until they are used."""
    attributes = {name: variable.getncattr(name) for name in variable.ncattrs()}
    name, dims = variable.name, tuple(map(str, variable.dimensions))

    def read(positions: Mapping[str, Index]) -> Any:
        with opened() as file:
            values = read_positions(lambda at: np.asarray(file[name][at or ...]), dims, positions)
        return values.astype(bool) if attributes.get("dtype") == "bool" else values

    kept = {name: value for name, value in attributes.items() if name not in ENCODING}
    kind = variable.dtype
    if kind is not str and attributes.get("dtype") == "bool":
        kind = np.dtype(bool)
    numbers = kind if isinstance(kind, np.dtype) and "flag_meanings" not in kept else None
    return Column(dims, attrs=kept, read=read, opened=opened, stored_dtype=numbers)


def read_positions(
    read: Callable[[tuple[Any, ...]], NDArray[Any]],
    dims: Sequence[str],
    positions: Mapping[str, Index],
) -> NDArray[Any]:
    """Return what a stored array has at positions of its dimensions, reading not much more.

    Parameters
    ----------
    read : callable
        Returns the array at slices, or at sorted numbers, of each of its dimensions.
    dims : sequence of str
    positions : mapping of str to ndarray
        Of some of the dimensions.
    """
    few = {dim: np.unique(at) for dim, at in positions.items() if 0 < at.size <= FEW_ROWS}
    runs = {dim: _run(at) for dim, at in positions.items() if dim not in few}
    values = read(tuple(few.get(dim, runs.get(dim, slice(None))) for dim in dims))
    for axis, dim in enumerate(dims):
        at = positions.get(dim)
        if at is not None:
            at = np.searchsorted(few[dim], at) if dim in few else at - runs[dim].start
            values = np.take(values, at, axis=axis)
    return values


def _run(at: Index) -> slice:
    """Return the shortest slice with all positions."""
    return slice(int(at.min()), int(at.max()) + 1) if at.size else slice(0, 0)
