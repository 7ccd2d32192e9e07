"""Every scored row is a point, and groups have their errors."""

from __future__ import annotations

import numpy as np
import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.measured.compare import Comparison
from perfmodel.measured.rows import ComparedRow, Outcome, Skip
from perfmodel.report.plots.accuracy import MOST_GROUPS, OTHERS
from perfmodel.report.plots.marks import Line, Points


def comparison(groups: dict[str, list[tuple[float, float]]], by: tuple[str, ...] = ("hardware",)):
    """Measured and projected times by the value of a column."""
    rows = [
        ComparedRow({"hardware": name}, 2, Outcome(measured, projected))
        for name, points in groups.items()
        for measured, projected in points
    ]
    rows.append(ComparedRow({"hardware": "none"}, 3, Outcome.skipped(Skip("no profile"))))
    return Comparison("gemm", "time", "runs.csv", None, by, ("hardware",), tuple(rows))


def points_of(plot):
    return {
        mark.label: list(zip(mark.x, mark.y, strict=True))
        for mark in plot.panels[0].marks
        if isinstance(mark, Points)
    }


def test_every_scored_row_is_a_point_measured_to_the_right_and_predicted_upwards():
    found = comparison({"A100": [(1e-3, 2e-3), (4e-3, 3e-3)], "H100": [(5e-4, 5e-4)]})
    plot = perfmodel.plot(found, "accuracy")
    points = points_of(plot)
    assert points == {"A100": [(1e-3, 2e-3), (4e-3, 3e-3)], "H100": [(5e-4, 5e-4)]}
    scatter = plot.panels[0]
    assert (scatter.x.low, scatter.x.high) == (scatter.y.low, scatter.y.high)
    assert scatter.x.label == "measured time"


@pytest.mark.parametrize(
    ("points", "ticks"),
    [
        ([(2e-6, 2e-6), (8e-3, 8e-3)], {"10 µs", "100 µs", "1 ms"}),
        ([(3e-3, 3e-3), (6e-3, 6e-3)], {"4 ms", "6 ms"}),  # less than a decade
        ([(0.5, 0.5), (30.0, 30.0)], {"1 s", "10 s"}),
    ],
)
def test_axes_are_in_readable_units(points, ticks):
    (scatter, _) = perfmodel.plot(comparison({"A100": points}), "accuracy").panels
    assert ticks <= {text for _, text in scatter.x.ticks}


def test_errors_of_groups_are_medians_and_percentiles_by_hand():
    found = comparison({"A100": [(1.0, 2.0), (4.0, 3.0), (1.0, 1.1)], "H100": [(1.0, 0.9)]})
    _, errors = perfmodel.plot(found, "accuracy").panels
    medians = [mark for mark in errors.marks if isinstance(mark, Points)]
    assert [mark.x[0] for mark in medians] == pytest.approx([0.1, -0.1])
    ranges = [
        mark for mark in errors.marks if isinstance(mark, Line) and "percentile" in mark.label
    ]
    assert ranges[0].x == pytest.approx(np.percentile([1.0, -0.25, 0.1], [10, 90]))
    assert [text for _, text in errors.y.ticks] == ["A100 (3)", "H100 (1)"]


def test_rare_groups_share_a_row_beyond_the_most():
    groups = {f"d{i:02}": [(1e-3, 1e-3)] * (i + 1) for i in range(MOST_GROUPS + 3)}
    points = points_of(perfmodel.plot(comparison(groups), "accuracy"))
    assert len(points) == MOST_GROUPS
    assert list(points)[-1] == OTHERS
    assert len(points[OTHERS]) == 1 + 2 + 3 + 4  # the four smallest groups
    assert sum(map(len, points.values())) == sum(map(len, groups.values()))


def test_without_a_column_to_group_by_all_rows_are_one_group():
    found = comparison({"A100": [(1.0, 1.0)], "H100": [(2.0, 2.0)]}, by=())
    assert {name: len(it) for name, it in points_of(perfmodel.plot(found, "accuracy")).items()} == {
        "": 2
    }


def test_a_written_comparison_is_read_back(tmp_path):
    found = comparison({"A100": [(1e-3, 2e-3)], "H100": [(5e-4, 5e-4)]})
    path = tmp_path / "rows.csv"
    found.write_rows(path)
    plots = [perfmodel.plot(it, "accuracy") for it in (path, found)]
    assert points_of(plots[0]) == points_of(plots[1])
    assert plots[0].panels[0].x == plots[1].panels[0].x  # quantity and unit are in the file


def test_filters_and_groups_are_of_the_files_columns(compared):
    plot = perfmodel.plot(compared, "accuracy", where="m > 16", group="none")
    assert points_of(plot) == {"": [(4e-3, 3e-3), (5e-4, 5.2e-4)]}
    with pytest.raises(DataError, match="cannot group by 'hardwar': no such column; did you mean"):
        perfmodel.plot(compared, "accuracy", group="hardwar")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column line, measured"),
        ("a,b\n1,2\n", "no column line, measured, projected, skip_reason"),
        ("line,measured,projected,skip_reason\n1,2\n", ":2: 2 cells; the header has 4"),
        ("line,measured,projected,skip_reason\n1,x,2,\n", ":2: measured 'x' is not a positive"),
        ("line,measured,projected,skip_reason\n1,1,-2,\n", ":2: projected '-2' is not a positive"),
    ],
)
def test_other_tables_are_refused(tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        perfmodel.plot(path, "accuracy")


def test_nothing_to_draw_is_refused():
    with pytest.raises(DataError, match=r"runs\.csv: no row was scored"):
        perfmodel.plot(comparison({}), "accuracy")
