"""Every kind of figure, drawn by both libraries, and what a user may get wrong."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.kinds import KINDS, open_operations
from perfmodel.report.plots.marks import Text
from tests.data import table_of

EVERY = (
    *("pareto", "pareto-served", "pareto-wafer", "breakdown", "breakdown-band"),
    *("breakdown-served", "breakdown-wafer", "memory", "memory-stages", "memory-served"),
    *("heatmap", "heatmap-time", "scaling", "roofline", "roofline-kernels", "pipeline"),
    *("sensitivity", "accuracy"),
)


def described(figures, name: str) -> Plot:
    results, kind, options = figures[name]
    return perfmodel.plot(results, kind, **options)


@pytest.mark.parametrize("name", EVERY)
def test_all_axes_hold_what_is_drawn_and_name_their_units(figures, name):
    plot = described(figures, name)
    assert plot.kind == figures[name][1]
    for panel in plot.panels:
        for axis in (panel.x, panel.y):
            assert axis.ticks
            low, high = sorted((axis.low, axis.high))
            assert all(low <= at <= high for at, _ in axis.ticks)
        for mark in panel.marks:
            for axis, values in (
                (panel.x, getattr(mark, "x", ())),
                (panel.y, getattr(mark, "y", ())),
            ):
                shown = [values] if isinstance(mark, Text) else values
                assert all(-1e-9 <= axis.share(value) <= 1 + 1e-9 for value in shown), mark


@pytest.mark.parametrize("name", EVERY)
def test_equal_input_gives_equal_bytes(figures, name, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib (the extra 'plot') is not installed")
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    described(figures, name).save(first)
    described(figures, name).save(second)
    assert first.read_bytes() == second.read_bytes()


def test_the_fixtures_hold_every_kind(figures):
    assert {kind for _, kind, _ in figures.values()} == set(KINDS)
    assert set(figures) == set(EVERY)


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_those_of_the_function(kind):
    module, _, name = KINDS[kind].home.partition(":")
    parameters = list(inspect.signature(getattr(import_module(module), name)).parameters)
    assert set(KINDS[kind].options) == {*parameters[1:]} - {"paper"}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    table_of(__file__, "wrong_input_is_one_sentence"),
)
def test_wrong_input_is_one_sentence(training, kind, options, message):
    with pytest.raises(DataError, match=message):
        perfmodel.plot(training, kind, **options)


@pytest.mark.parametrize("kind", ["pipeline", "roofline"])
def test_figures_of_a_step_refuse_served_models(served, kind):
    with pytest.raises(DataError, match="of a training step"):
        perfmodel.plot(served, kind)


def test_results_that_do_not_say_what_was_swept_are_refused(training):
    bare = training.isel(strategy=slice(0, 5))
    bare.attrs = {name: it for name, it in bare.attrs.items() if name != "provenance"}
    with pytest.raises(DataError, match="do not say what was swept"):
        perfmodel.plot(bare, "roofline", everything=True)


def test_files_open_as_what_they_hold(kernels, training, tmp_path):
    from perfmodel.store.netcdf import write_netcdf

    for name, table in (("kernels.nc", kernels), ("sweep.nc", training)):
        write_netcdf(table, tmp_path / name)
        found = open_operations(tmp_path / name)
        assert dict(found.sizes) == dict(table.sizes)
    plot = perfmodel.plot(tmp_path / "sweep.nc", "pareto")
    assert plot.rows() == perfmodel.plot(training, "pareto").rows()


def test_datasets_are_drawn_as_tables_are(training):
    assert (
        perfmodel.plot(training.to_xarray(), "heatmap").rows()
        == perfmodel.plot(training, "heatmap").rows()
    )
