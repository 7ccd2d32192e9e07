"""Stored results of which something is wrong: one line says so, whichever the form."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.base.table import Column
from perfmodel.store.damage import check_row, reading
from perfmodel.store.files import save_results
from perfmodel.store.results import as_table, best, open_table


@pytest.fixture(scope="module")
def table():
    grid = perfmodel.strategy_grid(
        "llama-3.1-8b", 8, sequence_length=1024, global_batch_size=8, tensor_parallel=[2, 4]
    )
    return as_table(perfmodel.sweep("llama-3.1-8b", grid, ["dgx-h100"]))


@pytest.mark.parametrize("ending", ["nc", "zarr"])
@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("memory_total", -1e9, "memory_total is -1e+09"),
        ("step_time", 1e37, "step_time is 1e+37"),
        ("tensor_parallel", -3, "tensor_parallel is -3"),
        ("tensor_parallel", 2**30, ""),
    ],
)
def test_numbers_that_no_run_has(table, tmp_path: Path, ending, name, wrong, words) -> None:
    column = table[name]
    values = np.array(column.values)
    values.flat[0] = wrong
    room = table.coords if name in table.coords else table.data_vars
    before, room[name] = room[name], Column(column.dims, values, column.attrs)
    try:
        save_results(table, tmp_path / f"x.{ending}")
    finally:
        room[name] = before
    opened = open_table(tmp_path / f"x.{ending}")
    if not words:
        assert best(opened, 1, fitting=False)
        return
    with pytest.raises(DataError, match="is damaged: ") as caught:
        best(opened, 1, fitting=False)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (KeyError("x"), "'f.nc' is damaged: 'x'"),
        (ValueError(), "'f.nc' is damaged: ValueError"),
        (MemoryError(), "larger than memory"),
        (DataError("as it was"), "as it was"),
        (RuntimeWarning("odd"), "is damaged: odd"),
    ],
)
def test_whatever_a_reader_stumbles_over_is_one_line(raised, words) -> None:
    with pytest.raises(DataError) as caught, reading("f.nc"):
        raise raised
    assert words in str(caught.value)


@pytest.mark.parametrize("ending", ["nc", "zarr"])
def test_a_flipped_bit_ends_in_a_result_or_one_line(table, tmp_path: Path, ending) -> None:
    path = tmp_path / f"x.{ending}"
    save_results(table, path)
    files = sorted(file for file in [path, *path.rglob("*")] if file.is_file())
    random = np.random.default_rng(1)
    for _ in range(60):
        file = files[random.integers(len(files))]
        whole = file.read_bytes()
        changed = bytearray(whole)
        changed[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        file.write_bytes(changed)
        with contextlib.suppress(DataError):
            best(open_table(path), 2)
        file.write_bytes(whole)


@pytest.mark.parametrize("value", [-1.0, -1e-9, 1e31, float("nan"), -float("inf"), -(10**400)])
def test_a_row_with_a_number_that_no_run_has(value) -> None:
    check_row({"step_time": 1.0, "memory_total": float("inf"), "other": -1.0}, "x.json")
    with pytest.raises(DataError, match=r"'x.json' is damaged: memory_total is "):
        check_row({"step_time": 1.0, "memory_total": value}, "x.json")
