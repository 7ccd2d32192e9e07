"""The checksum behind the end of a netCDF-4 file."""

from __future__ import annotations

import random
from pathlib import Path

import netCDF4
import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.table import Column, Table
from perfmodel.store import seal
from perfmodel.store.netcdf import read_netcdf, write_netcdf


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "x.nc"
    write_netcdf(Table({"x": Column("row", np.arange(5000.0))}, {}, {"title": "t"}), path)
    return path


def test_others_read_it(written: Path) -> None:
    with netCDF4.Dataset(written) as file:
        assert file["x"][4999] == 4999.0


def test_every_flipped_bit_is_found_before_the_library_looks(written: Path, monkeypatch) -> None:
    sound, rng = written.read_bytes(), random.Random(38)
    monkeypatch.setattr("netCDF4.Dataset", None)
    for _ in range(100):
        broken = bytearray(sound)
        broken[rng.randrange(len(sound) - seal.LENGTH)] ^= 1 << rng.randrange(8)
        written.write_bytes(broken)
        with pytest.raises(DataError, match="is damaged: it is not what was written"):
            read_netcdf(written)


def test_who_changes_it_takes_the_checksum_away(written: Path) -> None:
    assert seal.MARK in written.read_bytes()
    with netCDF4.Dataset(written, "a") as file:
        file["x"][0] = 7.0
    assert seal.MARK not in written.read_bytes()
    assert read_netcdf(written)["x"].values[0] == 7.0


def test_large_files_are_opened_unread(written: Path, monkeypatch) -> None:
    content = bytearray(written.read_bytes())
    content[-seal.LENGTH - 1] ^= 1
    written.write_bytes(content)
    monkeypatch.setattr(seal, "LARGEST", 1000)
    seal.check_seal(written)
    seal.seal(written)
    assert written.stat().st_size == len(content)
