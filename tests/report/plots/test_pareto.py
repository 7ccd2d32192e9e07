"""Fronts hold what no other strategy beats, and their lines bound what is beaten."""

from __future__ import annotations

import math

import numpy as np
import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.base.table import Column
from perfmodel.report.plots.marks import Cells, Line, Points
from perfmodel.store.results import column, scaling, select


def fronts(plot):
    """Points of every front by group, and all others."""
    (panel,) = plot.panels
    marks = [mark for mark in panel.marks if isinstance(mark, Points)]
    return {it.label: it for it in marks if it.alpha == 1.0}, [it for it in marks if it.alpha < 1.0]


def test_no_strategy_of_a_group_beats_a_point_of_its_front(training):
    found, _ = fronts(perfmodel.plot(training, "pareto"))
    chosen = select(training)
    memory, rate = (
        column(training, it)[chosen] for it in ("memory_total", "tokens_per_second_per_device")
    )
    hardware = column(training, "hardware")[chosen]
    assert set(found) == {"dgx-h100", "dgx-b200"}
    for name, front in found.items():
        own = hardware == name
        for x, y in zip(front.x, front.y, strict=True):
            assert not np.any((memory[own] < x) & (rate[own] >= y))
            assert not np.any((memory[own] <= x) & (rate[own] > y))
        best = rate[own].max()
        assert best in front.y
        assert memory[own].min() in front.x


def test_groups_are_those_asked_for(training):
    found, _ = fronts(perfmodel.plot(training, "pareto", group="tp"))
    assert set(found) == {"TP1", "TP2", "TP4"}
    assert len({it.colour for it in found.values()}) == 3
    assert len({it.marker for it in found.values()}) == 3
    alone, _ = fronts(perfmodel.plot(training, "pareto", group="none"))
    assert set(alone) == {""}


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("memory_total", "tokens_per_second_per_device"),
        ("model_flops_utilization", "memory_total"),
        ("step_time", "memory_total"),
    ],
)
def test_the_line_lies_where_the_best_of_the_others_ends(training, x, y):
    """At every x of the line, its y is the best among what is at least as good in x."""
    from perfmodel.store.results import LARGER_IS_BETTER

    plot = perfmodel.plot(training, "pareto", x=x, y=y, group="none")
    found, _ = fronts(plot)
    front = found[""]
    line = next(mark for mark in plot.panels[0].marks if isinstance(mark, Line))
    best = max if y in LARGER_IS_BETTER else min
    for a, b in zip(line.x, line.x[1:], strict=False):
        at = (a + b) / 2
        if a == b:
            continue
        height = line.y[line.x.index(a) + (line.x.count(a) > 1)]
        reached = [
            up
            for across, up in zip(front.x, front.y, strict=True)
            if (across >= at if x in LARGER_IS_BETTER else across <= at)
        ]
        assert height in line.y
        assert best(reached) in line.y


def test_bands_hold_their_points_and_follow_from_those_of_the_step(training):
    found, _ = fronts(perfmodel.plot(training, "pareto", band=True))
    for front in found.values():
        assert len(front.low) == len(front.y)
        assert all(a < b < c for a, b, c in zip(front.low, front.y, front.high, strict=True))
    times, _ = fronts(perfmodel.plot(training, "pareto", y="step_time", band=True))
    for front in times.values():
        assert all(a < b < c for a, b, c in zip(front.low, front.y, front.high, strict=True))


def test_users_speed_is_the_default_of_served_models(served):
    (panel,) = perfmodel.plot(served, "pareto").panels
    assert panel.x.title == "speed of one user (tokens/s)"
    assert panel.y.title == "throughput (tokens/s/device)"


def test_of_many_points_those_that_lie_on_others_are_left_out():
    from perfmodel.report.plots.pareto import _thinned

    generator = np.random.default_rng(0)
    values = [generator.normal(size=50_000), generator.normal(size=50_000)]
    kept = _thinned(np.arange(50_000), values, [100, 75])
    assert 1000 < kept.size < 7500
    assert np.all(np.diff(kept) > 0)


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


def test_curves_are_those_of_scaling_and_the_ideal_grows_with_devices(growing):
    rows = scaling(growing)
    above, below = perfmodel.plot(growing, "scaling").panels
    (points,) = [mark for mark in above.marks if isinstance(mark, Points)]
    assert points.x == [8, 16, 32]
    assert points.y == [row["tokens_per_second"] for row in rows]
    ideal = next(mark for mark in above.marks if isinstance(mark, Line) and mark.dashed)
    assert ideal.y == pytest.approx([rows[0]["tokens_per_second"] * it for it in (1, 2, 4)])
    (efficiency,) = [mark for mark in below.marks if isinstance(mark, Points)]
    assert efficiency.y == [row["scaling_efficiency"] for row in rows]
    assert below.x.ticks == ((8.0, "8"), (16.0, "16"), (32.0, "32"))
