"""Figures of compared rows: every row is a point of its group, and groups have their colours."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.measured.compare import ComparedRow, Comparison
from perfmodel.measured.figures import MOST_COLOURS, OTHERS, comparison_figure
from perfmodel.measured.rows import Outcome, Skip


def compared(groups: dict[str, list[tuple[float, float]]], by: tuple[str, ...] = ("hardware",)):
    """Measured and projected times by the value of a column."""
    rows = [
        ComparedRow({"hardware": name}, 2, Outcome(measured, projected))
        for name, points in groups.items()
        for measured, projected in points
    ]
    rows.append(ComparedRow({"hardware": "none"}, 3, Outcome.skipped(Skip("no profile"))))
    return Comparison("gemm", "time", "runs.csv", None, by, ("hardware",), tuple(rows))


def points_of(figure):
    """Label of each group up to its colon: its points."""
    (axes,) = figure.axes
    return {
        str(item.get_label()).split(":")[0]: np.asarray(item.get_offsets())
        for item in axes.collections
        if "median" in str(item.get_label())
    }


@pytest.fixture(autouse=True)
def drawing():
    pytest.importorskip("matplotlib", reason="matplotlib (the extra 'plot') is not installed")


def test_every_scored_row_is_a_point_measured_to_the_right_and_predicted_upwards():
    found = compared({"A100": [(1e-3, 2e-3), (4e-3, 3e-3)], "H100": [(5e-4, 5e-4)]})
    figure = comparison_figure(found)
    points = points_of(figure)
    assert points["A100"].tolist() == [[1e-3, 2e-3], [4e-3, 3e-3]]
    assert points["H100"].tolist() == [[5e-4, 5e-4]]
    assert set(points) == {"A100", "H100"}  # what was not scored is no point
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert (low, high) == axes.get_ylim()
    assert low < 5e-4
    assert high > 4e-3
    assert axes.get_xlabel() == "measured time"


@pytest.mark.parametrize(
    ("points", "ticks"),
    [
        ([(2e-6, 2e-6), (8e-3, 8e-3)], {"10 µs", "100 µs", "1 ms"}),
        ([(3e-3, 3e-3), (6e-3, 6e-3)], {"5 ms"}),  # less than a decade
        ([(0.5, 0.5), (30.0, 30.0)], {"1 s", "10 s"}),
    ],
)
def test_axes_are_in_readable_units(points, ticks):
    figure = comparison_figure(compared({"A100": points}))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        texts = {
            label.get_text()
            for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            if low <= place <= high
        }
        assert ticks <= texts


def test_labels_count_rows_and_give_the_median_error_by_hand():
    # errors of +100 % and -25 %: the median of 1 and 0.25
    figure = comparison_figure(compared({"A100": [(1e-3, 2e-3), (4e-3, 3e-3)]}))
    labels = [item.get_label() for item in figure.axes[0].collections]
    assert "A100: 2 rows, median 62.5%" in labels


def test_rare_groups_share_a_colour_beyond_the_most():
    groups = {f"d{i:02}": [(1e-3, 1e-3)] * (i + 1) for i in range(MOST_COLOURS + 3)}
    points = points_of(comparison_figure(compared(groups)))
    assert len(points) == MOST_COLOURS
    assert list(points)[-1] == OTHERS
    assert len(points[OTHERS]) == 1 + 2 + 3 + 4  # the four smallest groups
    assert sum(map(len, points.values())) == sum(map(len, groups.values()))


def test_without_a_column_to_group_by_all_rows_are_one_group():
    found = compared({"A100": [(1.0, 1.0)], "H100": [(2.0, 2.0)]}, by=())
    assert {name: len(points) for name, points in points_of(comparison_figure(found)).items()} == {
        "rows": 2
    }


def test_nothing_to_draw_is_refused():
    with pytest.raises(DataError, match=r"runs\.csv: no row was scored"):
        comparison_figure(compared({}))
