"""netCDF files of tables: as xarray reads them, lazily, damaged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

from perfmodel.base.errors import DataError
from perfmodel.base.table import Column, Table, flags
from perfmodel.store import netcdf
from perfmodel.store.netcdf import (
    narrow,
    number_type,
    or_single,
    read_netcdf,
    whole_kind,
    write_netcdf,
)


@pytest.mark.parametrize(
    ("largest", "kind"),
    [
        (0, np.int8),
        (127, np.int8),
        (128, np.int16),
        (32_767, np.int16),
        (32_768, np.int32),
        (2**31 - 1, np.int32),
        (2**31, np.int64),
        (2**40, np.int64),
    ],
)
def test_whole_numbers_have_the_smallest_type_that_holds_them(largest: int, kind: type) -> None:
    assert whole_kind(largest) is kind
    column = np.array([0, largest])
    assert narrow(column).dtype == kind
    np.testing.assert_array_equal(narrow(column), column)


def test_results_have_one_of_two_types() -> None:
    assert number_type(np.float32) == number_type("float32") == np.dtype("f4")
    assert or_single("float32") == ""
    assert or_single("float64") == ", or dtype float32"
    for other in ("float16", "int64", "no such type"):
        with pytest.raises(DataError, match=f"dtype: '{other}' is not one of float32, float64"):
            number_type(other)


@pytest.fixture
def table() -> Table:
    count = 3000
    values = np.arange(2.0 * count).reshape(count, 2)
    values[5, 1] = np.nan
    about = {"units": "s", "long_name": "time"}
    return Table(
        {
            "time": Column(("strategy", "hardware"), values, about),
            "fits": Column("strategy", np.arange(count) % 2 == 0, {"units": "1"}),
        },
        {
            "strategy": Column("strategy", np.arange(count)),
            "hardware": Column("hardware", ["h100", "b200"], {"long_name": "hardware"}),
            "capacity": Column("hardware", [80e9, 192e9], {"units": "B"}),
            "kind": Column("strategy", np.arange(count) % 3, flags(("a", "b", "c"))),
        },
        {"title": "Test", "devices": 8},
    )


def test_what_is_written_is_read(table: Table, tmp_path: Path) -> None:
    write_netcdf(table, tmp_path / "x.nc")
    again = read_netcdf(tmp_path / "x.nc")
    assert set(again.coords) == set(table.coords)
    for name, column in table.variables.items():
        np.testing.assert_array_equal(again[name].values, column.values)
        assert again[name].labels == column.labels
        assert again[name].dims == column.dims
    assert again.attrs == table.attrs
    xr.testing.assert_identical(again.to_xarray(), table.to_xarray())


def test_xarray_reads_it_as_it_reads_its_own(table: Table, tmp_path: Path) -> None:
    write_netcdf(table, tmp_path / "ours.nc")
    with xr.open_dataset(tmp_path / "ours.nc") as ours:
        ours.load().to_netcdf(tmp_path / "theirs.nc")
        with xr.open_dataset(tmp_path / "theirs.nc") as theirs:
            xr.testing.assert_identical(theirs.load(), ours)
        assert ours["fits"].dtype == bool
        assert set(ours.coords) == set(table.coords)


@pytest.mark.parametrize("count", [4, netcdf.FEW_ROWS + 4])
def test_rows_are_read_without_the_rest(table: Table, tmp_path: Path, count: int) -> None:
    write_netcdf(table, tmp_path / "x.nc")
    chosen = np.random.default_rng(0).integers(0, 3000, count)  # unordered, some twice
    found = read_netcdf(tmp_path / "x.nc").isel(strategy=chosen, hardware=[1])
    np.testing.assert_array_equal(found["time"].values, table["time"].values[chosen][:, [1]])
    np.testing.assert_array_equal(found["fits"].values, table["fits"].values[chosen])


def test_columns_read_together_open_the_file_once(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_netcdf(table, tmp_path / "x.nc")
    stored = read_netcdf(tmp_path / "x.nc")
    opened = []
    library = netCDF4.Dataset
    monkeypatch.setattr(netCDF4, "Dataset", lambda path: opened.append(library(path)) or opened[-1])
    chosen = stored.isel(strategy=[1, 2]).isel(hardware=[0])
    assert len(opened) == 1
    assert chosen["kind"].values.tolist() == [1, 2]
    stored.to_xarray()
    assert len(opened) == 2
    assert not any(file.isopen() for file in opened)


def test_xarray_reads_what_is_used_and_leaves_no_file_open(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the garbage collector closes in another thread ends the process."""
    write_netcdf(table, tmp_path / "x.nc")
    opened = []
    library = netCDF4.Dataset
    monkeypatch.setattr(netCDF4, "Dataset", lambda path: opened.append(library(path)) or opened[-1])
    stored, whole = read_netcdf(tmp_path / "x.nc").to_xarray(), table.to_xarray()
    before = len(opened)
    np.testing.assert_array_equal(stored.time[7].values, whole.time[7].values)
    np.testing.assert_array_equal(
        stored.time.isel(strategy=[9, 2], hardware=1).values,
        whole.time.isel(strategy=[9, 2], hardware=1).values,
    )
    np.testing.assert_array_equal(stored.time[::-700, :1].values, whole.time[::-700, :1].values)
    assert len(opened) == before + 3  # nothing was read before it was used
    xr.testing.assert_identical(stored, whole)
    assert not any(file.isopen() for file in opened)


def test_threads_may_read_and_write_at_once(table: Table, tmp_path: Path) -> None:
    """HDF5 is not made for threads: without a lock this ends the process."""
    names = [f"{number}.nc" for number in range(3)]

    def use(name: str) -> bool:
        for _ in range(3):
            write_netcdf(table, tmp_path / name)
            again = read_netcdf(tmp_path / name)
            same = [np.array_equal(again[it].values, table[it].values) for it in ("fits", "kind")]
        return all(same)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(use, names)) == [True] * 3


def test_damage_is_one_line(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    write_netcdf(table, path)
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        place = int(random.integers(0, len(whole) - 64))
        damaged[place : place + 64] = random.bytes(64)
        path.write_bytes(damaged[: int(random.integers(len(whole) // 2, len(whole)))])
        refused += _refusal(path) is not None
    assert refused > 30


def _refusal(path: Path) -> str | None:
    try:
        for column in read_netcdf(path).variables.values():
            assert column.values is not None
    except DataError as error:
        text = str(error)
    else:
        return None
    assert str(path) in text
    assert "\n" not in text
    return text
