"""Cells hold the best over all other fields; what is impossible is hatched."""

from __future__ import annotations

import math

import numpy as np
import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.base.table import Column
from perfmodel.report.plots.marks import Cells
from perfmodel.store.results import column, select


def cells_of(plot) -> Cells:
    (cells,) = plot.panels[0].marks
    return cells


@pytest.mark.parametrize(
    ("value", "best"), [("tokens_per_second_per_device", max), ("step_time", min)]
)
def test_every_cell_has_the_best_of_its_strategies(training, value, best):
    plot = perfmodel.plot(training, "heatmap", value=value)
    cells, chosen = cells_of(plot), select(training)
    tensor, pipeline, values = (
        column(training, it)[chosen] for it in ("tensor_parallel", "pipeline_parallel", value)
    )
    for row, stages in enumerate((1, 2)):
        for place, degree in enumerate((1, 2, 4)):
            own = values[(tensor == degree) & (pipeline == stages)]
            expected = best(own.tolist(), default=math.nan)
            np.testing.assert_equal(cells.values[row][place], expected)
    assert cells.reverse == (best is min)
    flat = [it for line in cells.values for it in line if math.isfinite(it)]
    assert cells.share(best(flat)) == 1.0  # bright is good
    assert cells.texts[0][0]


def test_what_does_not_fit_is_a_dash_and_what_is_impossible_is_hatched(training):
    table = training.isel(strategy=np.arange(training.sizes["strategy"]))
    tensor = column(training, "tensor_parallel").reshape(-1, 2)
    fits = training["fits"].values.astype(bool) & (tensor != 2)
    time = np.where(tensor == 4, np.nan, training["step_time"].values)
    table["fits"] = Column(training["fits"].dims, fits, training["fits"].attrs)
    table["step_time"] = Column(training["step_time"].dims, time, training["step_time"].attrs)
    cells = cells_of(perfmodel.plot(table, "heatmap"))
    assert [line[1] for line in cells.texts] == ["–", "–"]
    assert cells.hatched == ((0, 2), (1, 2))
    assert cells.hatched_label


def test_too_many_values_are_refused(training):
    with pytest.raises(DataError, match="at most 40 can be told apart"):
        perfmodel.plot(training, "heatmap", x="step_time")


def test_numbers_that_have_no_room_are_left_out(served):
    narrow = cells_of(perfmodel.plot(served, "heatmap", x="tp", y="hardware", width=1.6))
    wide = cells_of(perfmodel.plot(served, "heatmap", x="tp", y="hardware", width="page"))
    assert len(wide.texts[0][0]) >= len(narrow.texts[0][0])
