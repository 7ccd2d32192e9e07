"""Texts that are made at the first look are those that are made at once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import xarray as xr

from perfmodel.base import table as tables
from perfmodel.base.table import Column, Table, flags, from_xarray

CODES = np.array([2, 0, 1, 1, 2, 0], np.int8)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[xr.Dataset, xr.Dataset]:
    """The same codes as a dataset of few rows has them, and as one of many."""
    column = Column("row", CODES, {"long_name": "choice", **flags(("low", "middle", "high"))})
    table = Table({}, {"choice": column}, {}, {"row": CODES.size})
    few = table.to_xarray()
    monkeypatch.setattr(tables, "MANY", 0)
    return few, table.to_xarray()


def test_texts_are_alike(both: tuple[xr.Dataset, xr.Dataset]) -> None:
    few, many = both
    assert few.choice.variable._in_memory
    assert not many.choice.variable._in_memory
    assert many.isel(row=[4, 1]).choice.values.tolist() == ["high", "low"]
    assert many.choice[2].item() == "middle"
    xr.testing.assert_identical(few, many)
    assert np.shares_memory(many.choice.values, many.choice.values)  # made once


def test_texts_survive_what_datasets_go_through(both: tuple[xr.Dataset, xr.Dataset]) -> None:
    few, many = both
    xr.testing.assert_identical(pickle.loads(pickle.dumps(many)), few)
    xr.testing.assert_identical(many.copy(deep=True), few)
    chosen = many.where(many.choice == "high", drop=True)
    assert chosen.choice.values.tolist() == ["high", "high"]
    assert from_xarray(many).coords["choice"].values.tolist() == CODES.tolist()
