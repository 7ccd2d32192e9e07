"""Results as files of every kind, by the ending of their name."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from perfmodel import load_hardware, load_model, strategies_from_rows
from perfmodel.base.errors import DataError
from perfmodel.base.files import remove_temporaries
from perfmodel.base.table import Table
from perfmodel.store import files
from perfmodel.store.files import KINDS, check_results_path, flatten, save_results, stored_size
from perfmodel.sweeps.sweep import sweep_table


@pytest.fixture(scope="module")
def table() -> Table:
    model = load_model("llama-3.1-8b")
    row = {"sequence_length": 2048, "global_batch_size": 16, "tensor_parallel": 1}
    rows = [row | {"tensor_parallel": degree, "data_parallel": 8 // degree} for degree in (1, 2, 3)]
    rows[2]["data_parallel"] = 1  # impossible: 3 devices of 8
    grid = strategies_from_rows(model, 8, rows)
    return sweep_table(model, grid, [load_hardware("dgx-h100"), load_hardware("dgx-a100")])


def test_rows_are_all_pairs_the_hardware_fastest(table: Table) -> None:
    flat = flatten(table)
    assert flat.count == 6
    columns = dict(zip(flat.names, flat.columns(0, 6), strict=True))
    assert columns["hardware"].tolist() == ["dgx-h100", "dgx-a100"] * 3
    assert columns["tensor_parallel"].tolist() == [1, 1, 2, 2, 3, 3]
    np.testing.assert_array_equal(columns["step_time"], table["step_time"].values.reshape(-1))
    assert columns["recompute"].tolist() == ["none"] * 6
    assert "strategy" not in columns
    np.testing.assert_array_equal(
        np.concatenate([flat.columns(0, 4)[3], flat.columns(4, 6)[3]]), flat.columns(0, 6)[3]
    )


def test_csv_keeps_every_digit(table: Table, tmp_path: Path) -> None:
    save_results(table, tmp_path / "x.csv")
    with (tmp_path / "x.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["step_time"]) == table["step_time"].values[0, 0]
    assert rows[0]["sequence_parallel"] in ("true", "false")
    assert rows[4]["step_time"] == ""  # impossible
    assert rows[4]["status"] == "devices_mismatch"


def test_json_names_units_and_rows(table: Table, tmp_path: Path) -> None:
    save_results(table, tmp_path / "x.json")
    document = json.loads((tmp_path / "x.json").read_text())
    assert document["units"]["step_time"] == "s"
    assert document["rows"][1]["hardware"] == "dgx-a100"
    assert document["rows"][1]["step_time"] == table["step_time"].values[0, 1]
    assert document["rows"][5]["step_time"] is None
    assert isinstance(document["rows"][0]["fits"], bool)


def test_markdown_is_a_table(table: Table, tmp_path: Path) -> None:
    save_results(table, tmp_path / "x.md")
    lines = (tmp_path / "x.md").read_text().splitlines()
    assert len(lines) == 2 + 6
    assert len({line.count("|") for line in lines}) == 1
    assert "step_time [s]" in lines[0]


def test_pages_that_nobody_could_read_are_refused(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_MARKDOWN", 5)
    with pytest.raises(DataError, match="6 rows could not be read"):
        save_results(table, tmp_path / "x.md")
    assert not list(tmp_path.iterdir())


def test_parquet_keeps_types_and_units(table: Table, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    save_results(table, tmp_path / "x.parquet")
    found = parquet.read_table(tmp_path / "x.parquet")
    assert found.num_rows == 6
    assert found.column("step_time").to_pylist()[0] == table["step_time"].values[0, 0]
    assert math.isnan(found.column("step_time").to_pylist()[4])
    assert found.column("fits").type == "bool"
    assert found.schema.metadata[b"units:step_time"] == b"s"


def test_zarr_is_the_dataset_and_replaces_only_its_own(table: Table, tmp_path: Path) -> None:
    pytest.importorskip("zarr", reason="zarr is not installed")
    for _ in range(2):  # the second one replaces the first
        save_results(table, tmp_path / "x.zarr")
    with xr.open_zarr(tmp_path / "x.zarr", consolidated=False) as found:
        xr.testing.assert_equal(found.load(), table.to_xarray())
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]
    assert stored_size(tmp_path / "x.zarr") > 1000
    (tmp_path / "mine.zarr").mkdir()
    (tmp_path / "mine.zarr" / "notes.txt").write_text("keep me")
    with pytest.raises(DataError, match="is no zarr store"):
        check_results_path(tmp_path / "mine.zarr")
    with pytest.raises(DataError, match="is no zarr store"):
        save_results(table, tmp_path / "mine.zarr")
    assert (tmp_path / "mine.zarr" / "notes.txt").read_text() == "keep me"


@pytest.mark.parametrize("name", ["x.xlsx", "x", "x.nc.gz", "nc"])
def test_other_endings_are_refused_before_the_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"written as \.nc, \.csv, \.parquet, \.zarr, \.md, \.json"):
        check_results_path(tmp_path / name)


def test_a_missing_package_is_named_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    for suffix, kind in KINDS.items():
        if not kind.package:
            assert check_results_path(tmp_path / f"x{suffix}")
            continue
        with pytest.raises(DataError, match=rf"pip install 'perfmodel\[{kind.extra}\]'"):
            check_results_path(tmp_path / f"x{suffix}")


def test_a_store_that_is_being_written_goes_where_a_run_ends_at_once(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr", reason="zarr is not installed")
    left: list[str] = []

    def interrupted(table: Table, path: Path) -> None:
        (path / "half").write_text("written")
        remove_temporaries()
        left.extend(item.name for item in tmp_path.iterdir())

    kind = KINDS[".zarr"]
    monkeypatch.setitem(KINDS, ".zarr", dataclasses.replace(kind, write=interrupted))
    with pytest.raises(DataError, match="cannot write"):
        save_results(table, tmp_path / "x.zarr")
    assert left == []
