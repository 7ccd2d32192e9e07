"""Grids of mappings."""

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.mappings import parse_grid, wafer_grid


@pytest.mark.parametrize(
    ("given", "sides"),
    [
        (420, (420, 420)),
        ("420", (420, 420)),
        ("420x360", (420, 360)),
        ((3, 4), (3, 4)),
        ("3×4", (3, 4)),
    ],
)
def test_ways_to_write_a_grid(given, sides):
    assert parse_grid(given) == sides


@pytest.mark.parametrize(
    "given", ["", "x3", "3x", "3x4x5", "-3", "1e2", 0, -1, 2**20, 1.5, None, "9" * 40]
)
def test_what_is_no_grid(given):
    with pytest.raises(StrategyError, match="grid"):
        wafer_grid(grid=given)


def test_axes_are_multiplied_out():
    grid = wafer_grid(grid=[300, "300x200"], context=[1, 2, 3], product="all", regions=range(2))
    assert len(grid) == 2 * 3 * len(set(grid["product"].tolist())) * 2
    assert repr(grid).startswith("<WaferGrid of")
    columns = grid.kernel_columns()
    assert {len(column) for column in columns} == {len(grid)}
    assert set(columns.rows.tolist()) == {300.0}


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"grid": []},
        {"grid": 3, "context": 0},
        {"grid": 3, "context": []},
        {"grid": 3, "sides": 1},
        {"grid": 3, "product": "mesh"},
        {"grid": 3, "batch": float("nan")},
    ],
)
def test_what_is_no_mapping(axes):
    with pytest.raises(StrategyError):
        wafer_grid(**axes)
