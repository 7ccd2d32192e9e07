"""Results as files: the kind is what the name ends in."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base import cells
from perfmodel.base.columns import plain_values
from perfmodel.base.errors import DataError
from perfmodel.base.files import atomic_folder, atomic_path, check_writable, user_path
from perfmodel.base.table import Column, Index, Table, flags, from_xarray
from perfmodel.kernels.variables import COSTS, VARIABLES
from perfmodel.store.damage import reading
from perfmodel.store.netcdf import ENCODING, read_positions, write_netcdf

if TYPE_CHECKING:
    import xarray as xr

CHUNK = 65_536  # rows that are turned into text at a time
UNFINISHED = "unfinished"
"""Attribute of a zarr store in which blocks are missing."""
MOST_MARKDOWN = 10_000  # rows of a page that somebody could still read


def save_results(results: Table | xr.Dataset, path: str | Path) -> None:
    """Write results, completely or not at all; the kind of file is what its name ends in.

    ``.nc`` (netCDF-4) and ``.zarr`` keep everything, labels and provenance included. ``.csv``,
    ``.parquet``, ``.md`` and ``.json`` have a row for every combination of the dimensions
    (strategy and hardware) and a column for every coordinate and variable, in SI units.

    Parameters
    ----------
    results : Table or xarray.Dataset
    path : str or Path
        File to write; replaced if it exists.

    Raises
    ------
    DataError
        Another ending, a package that such files need is not installed, or the file cannot
        be written.
    """
    kind = KINDS[_suffix(path)]
    table = results if isinstance(results, Table) else from_xarray(results)
    place = _zarr_folder if kind.folder else atomic_path
    with place(path) as temporary:
        kind.write(table, temporary)


def check_results_path(path: str | Path) -> str:
    """Make sure, before a long computation, that results can be written; return where.

    Raises
    ------
    DataError
        As of `save_results`.
    """
    kind = KINDS[_suffix(path)]
    if kind.package and importlib.util.find_spec(kind.package) is None:
        raise DataError(
            f"cannot write '{path}': {_suffix(path)} files need {kind.package}: "
            f"pip install 'perfmodel[{kind.extra}]'"
        )
    if kind.folder:
        check_folder(user_path(path))
        return str(user_path(path))
    return str(check_writable(path))


def stored_size(path: str | Path) -> int:
    """Return how large stored results are [B]."""
    place = Path(path)
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def _suffix(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in KINDS:
        what = f"ends in '{suffix}'" if suffix else "has no ending"
        raise DataError(
            f"cannot write '{path}': its name {what}; results are written as {', '.join(KINDS)}"
        )
    return suffix


# ---------------------------------------------------------------- rows of all dimensions


CLASSES = "kernel_class"
"""A dimension beside the results, whose columns stand in no row."""


@dataclass(frozen=True, slots=True)
class Flat:
    """A table with one row per combination of its dimensions, in chunks."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    count: int
    columns: Callable[[int, int], list[NDArray[Any]]]


def flatten(table: Table) -> Flat:
    """Return the rows of a table; the last of the dimensions varies fastest."""
    main = next(iter(table.data_vars.values()), None)
    order = list(main.dims) if main is not None else []
    order += [dim for dim in table.sizes if dim not in order and dim != CLASSES]
    shape = tuple(table.sizes[dim] for dim in order)
    shown = {
        name: column
        for name, column in table.variables.items()
        if CLASSES not in column.dims
        # The number of a row says nothing that the row doesn't.
        and not (name in table.sizes and column.attrs.get("units") == "1" and _counts(column))
    }

    def columns(first: int, last: int) -> list[NDArray[Any]]:
        positions = np.unravel_index(np.arange(first, last), shape) if shape else ()
        at = dict(zip(order, positions, strict=True))
        found = []
        for column in shown.values():
            index = tuple(at[dim] for dim in column.dims)
            values = column.values[index] if index else np.full(last - first, column.values)
            found.append(column.decoded(values))
        return found

    units = tuple(str(column.attrs.get("units", "1")) for column in shown.values())
    return Flat(tuple(shown), units, math.prod(shape), columns)


def _counts(column: Column) -> bool:
    values = column.values
    return values.dtype.kind in "iu" and bool(np.array_equal(values, np.arange(values.size)))


def _rows(flat: Flat) -> Iterator[tuple[Any, ...]]:
    for first in range(0, flat.count, CHUNK):
        columns = flat.columns(first, min(first + CHUNK, flat.count))
        yield from zip(*map(plain_values, columns), strict=True)


def _plain(value: Any) -> Any:
    """Return a cell as JSON has it; what is no finite number is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- kinds of files


def _write_csv(table: Table, path: Path) -> None:
    flat = flatten(table)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(cells.written(flat.names))
        for row in _rows(flat):
            writer.writerow(cells.written("" if it != it else _word(it) for it in row))


def _word(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _write_json(table: Table, path: Path) -> None:
    flat = flatten(table)
    head = {
        name: value
        for name, value in table.attrs.items()
        if isinstance(value, str | int | float) and name != "provenance"
    } | {"units": dict(zip(flat.names, flat.units, strict=True))}
    opening = json.dumps(head, indent=2, ensure_ascii=False, default=_number)[:-2]
    with path.open("w", encoding="utf-8") as file:
        file.write(opening + ',\n  "rows": [')
        for number, row in enumerate(_rows(flat)):
            cells = dict(zip(flat.names, map(_plain, row), strict=True))
            text = json.dumps(cells, ensure_ascii=False, allow_nan=False)
            file.write((",\n    " if number else "\n    ") + text)
        file.write("\n  ]\n}\n")


def _number(value: Any) -> Any:
    return value.item()


def _write_markdown(table: Table, path: Path) -> None:
    flat = flatten(table)
    if flat.count > MOST_MARKDOWN:
        raise DataError(
            f"cannot write '{path.name}': a page of {flat.count:,} rows could not be read, at most "
            f"{MOST_MARKDOWN:,}; narrow the axes, or write .csv, .parquet or .nc"
        )
    heads = [
        name if unit == "1" else f"{name} [{unit}]"
        for name, unit in zip(flat.names, flat.units, strict=True)
    ]
    with path.open("w", encoding="utf-8") as file:
        file.write(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}\n")
        for row in _rows(flat):
            cells = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in row)
            file.write(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n")


def _write_parquet(table: Table, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = flatten(table)
    about = {f"units:{name}": unit for name, unit in zip(flat.names, flat.units, strict=True)}
    about |= {name: str(value) for name, value in table.attrs.items()}

    def batch(first: int, last: int) -> pa.Table:
        arrays = [
            pa.array(column.tolist() if column.dtype.kind in "OU" else column)
            for column in flat.columns(first, last)
        ]
        return pa.table(arrays, names=list(flat.names)).replace_schema_metadata(about)

    with pq.ParquetWriter(path, batch(0, 0 if not flat.count else 1).schema) as writer:
        for first in range(0, flat.count, CHUNK):
            writer.write_table(batch(first, min(first + CHUNK, flat.count)))


def _write_zarr(table: Table, path: Path) -> None:
    write_zarr(table, path, {})


def write_zarr(table: Table, path: Path, encoding: Mapping[str, Any]) -> None:
    """Write a table as a zarr store; `encoding` as of `xarray.Dataset.to_zarr`."""
    dataset = table.to_xarray()
    # Texts of fixed length have no place in zarr's format yet.
    fixed = {
        name: values.astype(object)
        for name, values in dataset.coords.items()
        if values.dtype.kind == "U"
    }
    dataset.assign_coords(fixed).to_zarr(path, mode="w", consolidated=False, encoding=encoding)


def read_zarr(path: Path) -> Table:
    """Return what `write_zarr` wrote; values are read when they are used.

    Raises
    ------
    DataError
        The store is damaged, or blocks of it are missing.
    """
    try:
        import zarr
    except ImportError:
        raise DataError(
            f"cannot read '{path}': .zarr files need zarr: pip install 'perfmodel[zarr]'"
        ) from None
    with reading(path):
        group: Any = zarr.open_group(path, mode="r")
        return _table_of(dict(group.arrays()), dict(group.attrs), path)


def _table_of(arrays: Mapping[str, Any], attrs: Mapping[str, Any], path: Path) -> Table:
    """Return the table of a group's arrays."""
    if UNFINISHED in attrs:
        raise DataError(f"'{path}' is not finished; 'perfmodel sweep --resume' goes on with it")
    known = list({**VARIABLES, **COSTS})  # a folder has no order of its own
    places = {name: known.index(name) if name in known else len(known) for name in arrays}
    columns = {
        name: _stored_array(arrays[name], path)
        for name in sorted(arrays, key=lambda it: (places[it], it))
    }
    sizes = {
        str(dim): size
        for array in arrays.values()
        for dim, size in zip(array.metadata.dimension_names, array.shape, strict=True)
    }
    if any(
        array.shape != tuple(sizes[dim] for dim in array.metadata.dimension_names)
        for array in arrays.values()
    ):
        raise ValueError("arrays of one dimension differ in length")
    named = {word for it in arrays.values() for word in it.attrs.get("coordinates", "").split()}
    named |= set(sizes)
    return Table(
        {name: column for name, column in columns.items() if name not in named},
        {name: column for name, column in columns.items() if name in named},
        attrs,
        sizes,
    )


def _is_no_chunk(record: logging.LogRecord) -> bool:
    return "exception was never retrieved" not in record.getMessage()


def _stored_array(array: Any, path: Path) -> Column:
    """Return a column whose values stay in the store until they are used."""
    attributes = {name: it for name, it in array.attrs.items() if name not in ENCODING}
    dims = tuple(map(str, array.metadata.dimension_names))
    choices = str(attributes.pop("choices", "")).split()

    def at_places(at: tuple[Any, ...]) -> NDArray[Any]:
        with reading(path):
            try:
                return np.asarray(array.oindex[at or ...])
            except Exception:
                # Other chunks may fail as well, of which asyncio would tell one by one, later.
                logging.getLogger("asyncio").addFilter(_is_no_chunk)
                raise

    def read(positions: Mapping[str, Index]) -> NDArray[Any]:
        values = read_positions(at_places, dims, positions)
        if array.attrs.get("dtype") == "bool":  # as older versions of xarray write it
            values = values.astype(bool)
        if not choices:
            return np.array(values.tolist()) if values.dtype.kind in "OT" else values
        codes = np.zeros(values.shape, np.int8)
        for code, label in enumerate(choices):
            codes[values == label] = code
        return codes

    numbers = array.dtype if array.dtype.kind in "fi" and "dtype" not in array.attrs else None
    kept = attributes | (flags(choices) if choices else {})
    return Column(dims, attrs=kept, read=read, stored_dtype=numbers)


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of file is written, and what that needs."""

    write: Callable[[Table, Path], None]
    package: str = ""
    extra: str = ""
    folder: bool = False


KINDS: Mapping[str, Kind] = {
    ".nc": Kind(write_netcdf),
    ".csv": Kind(_write_csv),
    ".parquet": Kind(_write_parquet, "pyarrow", "parquet"),
    ".zarr": Kind(_write_zarr, "zarr", "zarr", folder=True),
    ".md": Kind(_write_markdown),
    ".json": Kind(_write_json),
}
"""Ending -> kind of file."""


def check_folder(target: Path) -> None:
    """Make sure that a folder of results may stand at `target`, or be replaced there."""
    if not target.parent.is_dir():
        raise DataError(f"cannot write '{target}': folder '{target.parent}' does not exist")
    check_writable(target.parent / f".{target.name}.check")
    ours = (target / "zarr.json").is_file() or (target / ".zgroup").is_file()
    if target.exists() and not ours:
        raise DataError(f"cannot write '{target}': it exists and is no zarr store")


@contextlib.contextmanager
def _zarr_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder for a store that may be where `path` says."""
    target = user_path(path)
    check_folder(target)
    with atomic_folder(target) as temporary:
        yield temporary
