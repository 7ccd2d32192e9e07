"""Tables: labels and codes, rows taken, there and back to xarray."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from perfmodel.base.errors import DataError
from perfmodel.base.table import Column, Table, coded, flags, from_xarray


@pytest.fixture
def table() -> Table:
    pair = ("strategy", "hardware")
    return Table(
        {
            "step_time": Column(pair, np.arange(6.0).reshape(3, 2), {"units": "s"}),
            "fits": Column(pair, np.arange(6).reshape(3, 2) > 1, {"units": "1"}),
        },
        {
            "strategy": Column("strategy", np.arange(3)),
            "hardware": Column("hardware", ["a", "b"]),
            "recompute": Column("strategy", np.array([2, 0, 1], np.int8), flags(("x", "y", "z"))),
            "sharded": Column("strategy", np.array([1, 0, 1], np.int8), flags(("false", "true"))),
        },
        {"title": "t"},
    )


def test_codes_are_spoken_as_labels(table: Table) -> None:
    assert table["recompute"].labelled().tolist() == ["z", "x", "y"]
    assert table["sharded"].labelled().tolist() == [True, False, True]
    assert table["step_time"].labelled() is table["step_time"].values


def test_codes_may_have_gaps() -> None:
    column = Column("x", [100, 0], {"flag_values": np.array([0, 100]), "flag_meanings": "ok no"})
    assert column.labelled().tolist() == ["no", "ok"]


def test_rows_are_taken_along_their_dimension_only(table: Table) -> None:
    few = table.isel(strategy=[2, 0], hardware=slice(1, None))
    assert dict(few.sizes) == {"strategy": 2, "hardware": 1}
    assert few["step_time"].values.tolist() == [[5.0], [1.0]]
    assert few["recompute"].labelled().tolist() == ["y", "z"]
    assert few["hardware"].values.tolist() == ["b"]
    assert table["step_time"].values.shape == (3, 2)


def test_there_and_back(table: Table) -> None:
    dataset = table.to_xarray()
    assert dataset["recompute"].values.tolist() == ["z", "x", "y"]
    assert dataset["sharded"].dtype == bool
    again = from_xarray(dataset)
    assert dict(again.sizes) == dict(table.sizes)
    assert again["recompute"].labels == ("x", "y", "z")
    assert again["recompute"].values.tolist() == [2, 0, 1]
    xr.testing.assert_identical(again.to_xarray(), dataset)


def test_a_dataset_is_read_where_it_is_used(table: Table) -> None:
    again = from_xarray(table.to_xarray().isel(strategy=[1]))
    assert again["step_time"].values.tolist() == [[2.0, 3.0]]
    assert again.isel(hardware=[1])["step_time"].values.tolist() == [[3.0]]


def test_a_new_choice_gets_a_code_of_its_own() -> None:
    column = coded("x", np.array(["b", "new", "a"], object), ["a", "b"], {"units": "1"})
    assert column.labels == ("a", "b", "new")
    assert column.labelled().tolist() == ["b", "new", "a"]
    assert column.attrs["units"] == "1"


@pytest.mark.parametrize(
    ("values", "codes"), [([0, 2], [0, 1]), ([0, 1], [0]), ([0], [0, 2**40]), ([0], [0, -1])]
)
def test_codes_of_a_damaged_file_are_refused(values: list[int], codes: list[int]) -> None:
    attributes = {"flag_values": np.array(codes), "flag_meanings": "a b", "long_name": "x"}
    with pytest.raises(DataError, match="damaged column"):
        Column("strategy", values, attributes).labelled()
