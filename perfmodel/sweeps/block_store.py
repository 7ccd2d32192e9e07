"""Where finished blocks of a sweep are kept until all are: one store per kind of output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.files import atomic_path
from perfmodel.base.table import Column, Table, to_variable
from perfmodel.store.files import UNFINISHED, check_folder, write_zarr
from perfmodel.store.netcdf import join_netcdf, write_netcdf


class ZarrStore:
    """A zarr store that is written in place, every block a chunk of every variable."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "results.zarr"
        self._texts: dict[tuple[str, int, int], bytes] = {}

    def holds(self, number: int) -> bool:
        """Tell whether a block that was written is still there."""
        return (self.path / "zarr.json").is_file()

    def create(self, like: Table, count: int, block_size: int) -> None:
        """Make the store, or leave what is there; `like` is a piece of the results."""
        import zarr

        if self.path.exists():
            return
        making = self.path.with_suffix(".new")
        long = {name: it for name, it in like.variables.items() if "strategy" in it.dims}
        sizes = {**like.sizes, "strategy": block_size}
        encoding = {
            name: {"chunks": tuple(sizes[dim] for dim in column.dims)}
            | ({"fill_value": np.nan} if column.values.dtype.kind == "f" else {})
            for name, column in long.items()
        }
        text = "'status' is empty, and numbers are NaN, where nothing is computed yet"
        attrs = {**like.attrs, UNFINISHED: text}
        small = Table(like.data_vars, like.coords, attrs, like.sizes)
        write_zarr(small.isel(strategy=[0]), making, encoding)
        group = zarr.open_group(making, mode="r+")
        for name in long:
            array: Any = group[name]
            array.resize((count, *array.shape[1:]))
        making.rename(self.path)

    def write(self, number: int, start: int, table: Table) -> None:
        """Write a block, the whole of its chunks."""
        import zarr

        group = zarr.open_group(self.path, mode="r+")
        rows = slice(start, start + table.sizes["strategy"])
        for name, column in table.variables.items():
            if "strategy" not in column.dims:
                continue
            array: Any = group[name]
            if column.labels is None or column.is_flag:
                array[rows] = to_variable(column).values
            else:
                place = (number, *(0,) * (len(column.dims) - 1))
                chunk = self.path / name / array.metadata.encode_chunk_key(place)
                self._write_text(name, column, array, rows, chunk)

    def _write_text(self, name: str, column: Column, array: Any, rows: slice, chunk: Path) -> None:
        """Write choices; where all are one, the chunk is that of a block before.

        Texts one by one take longer than everything else.
        """
        codes = column.values
        one = (name, int(codes.flat[0]), codes.size) if codes.min() == codes.max() else None
        if one in self._texts:
            chunk.parent.mkdir(exist_ok=True)
            with atomic_path(chunk) as temporary:
                temporary.write_bytes(self._texts[one])
            return
        array[rows] = np.array(column.labels, np.dtypes.StringDType())[codes]
        if one is not None:
            self._texts[one] = chunk.read_bytes()

    def finish(self, target: Path, blocks: int, attrs: Mapping[str, Any]) -> None:
        """Put the store where the output shall be."""
        for torn in self.path.rglob("*.partial"):  # of writes that were killed
            torn.unlink()
        head = self.path / "zarr.json"
        document = json.loads(head.read_text(encoding="utf-8"))
        document["attributes"].pop(UNFINISHED, None)
        document["attributes"] |= attrs
        with atomic_path(head) as temporary:
            temporary.write_text(json.dumps(document, indent=2), encoding="utf-8")
        check_folder(target)
        if target.exists():
            shutil.rmtree(target)
        self.path.rename(target)


class PartsStore:
    """A netCDF file per block, of which one is made in the end: HDF5 survives no kill."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    def holds(self, number: int) -> bool:
        """Tell whether a block that was written is still there."""
        return self._part(number).is_file()

    def create(self, like: Table, count: int, block_size: int) -> None:
        """Do nothing: there are only blocks."""

    def write(self, number: int, start: int, table: Table) -> None:
        """Write a block, completely or not at all."""
        with atomic_path(self._part(number)) as temporary:
            write_netcdf(table, temporary)

    def finish(self, target: Path, blocks: int, attrs: Mapping[str, Any]) -> None:
        """Make one file of all blocks."""
        parts = [self._part(number) for number in range(blocks)]
        with atomic_path(target) as temporary:
            join_netcdf(parts, temporary, "strategy", attrs)

    def _part(self, number: int) -> Path:
        return self.path / f"{number:06}.nc"


Store = ZarrStore | PartsStore
STORES: Mapping[str, type[ZarrStore] | type[PartsStore]] = {".zarr": ZarrStore, ".nc": PartsStore}
"""Ending of an output that is written block by block -> its store."""
