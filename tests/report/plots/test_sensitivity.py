"""A tornado: the strongest on top, switches apart, JSON as good as a table."""

from __future__ import annotations

import json

import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.report.plots.marks import Bars
from perfmodel.report.plots.sensitivity import read_sensitivity


def test_the_strongest_is_on_top_and_what_changes_nothing_is_left_out(sensitivity):
    (panel,) = perfmodel.plot(sensitivity, "sensitivity").panels
    names = [text.replace("\n", " ") for _, text in panel.y.ticks]
    assert names == [
        "device.tdp (−0.40)",
        "memory.bandwidth (−0.30)",
        "recompute=full",
        "network.0.x (+0.10)",
    ]
    bars = {mark.label: mark for mark in panel.marks if isinstance(mark, Bars)}
    assert dict(zip(bars["× 0.5"].at, bars["× 0.5"].length, strict=True)) == {0: 0.35, 1: 0.3}
    assert dict(zip(bars["× 2"].at, bars["× 2"].length, strict=True)) == {0: -0.2, 1: -0.2, 3: 0.1}
    assert (bars["switched"].at, bars["switched"].length) == ([2], [0.25])
    assert panel.x.title == "change of step time (%)"


def test_top_leaves_out_the_weaker_ones(sensitivity):
    plot = perfmodel.plot(sensitivity, "sensitivity", top=2)
    assert len(plot.panels[0].y.ticks) == 2
    assert "the 2 strongest of 4 that change anything" in plot.notes


def test_json_is_read_wherever_the_list_stands(sensitivity, tmp_path):
    names = ("parameter", "elasticity", "low_change", "high_change", "other")
    columns = [sensitivity[name].labelled().tolist() for name in names]
    rows = [
        {name: None if it != it else it for name, it in zip(names, cells, strict=True)}
        for cells in zip(*columns, strict=True)
    ]
    path = tmp_path / "sensitivity.json"
    path.write_text(json.dumps({"variable": "step_time", "found": {"parameters": rows}}))
    plot = perfmodel.plot(path, "sensitivity")
    assert [it["parameter"] for it in plot.rows()] == [
        it["parameter"] for it in perfmodel.plot(sensitivity, "sensitivity").rows()
    ]


@pytest.mark.parametrize("text", ["{}", "[1]", '{"a": [{"parameter": "x"}]}', "", "{"])
def test_other_json_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"other\.json"):
        read_sensitivity(path)
