"""The picture of the kernels' errors: ratios, one colour per device in all panels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from perfmodel.measured.compare import statistics
from perfmodel.measured.rows import ComparedRow, Outcome, Skip


def rows(**devices: list[tuple[float, float]]) -> tuple[ComparedRow, ...]:
    found = [
        ComparedRow({"hardware": name}, 2, Outcome(measured, projected))
        for name, points in devices.items()
        for measured, projected in points
    ]
    return (*found, ComparedRow({"hardware": "B200"}, 3, Outcome.skipped(Skip("no size"))))


def test_a_device_has_one_colour_and_points_are_ratios(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = script.load("accuracy.kernels")
    figures = []
    saved = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure,
        "savefig",
        lambda self, *given, **named: (figures.append(self), saved(self, *given, **named)),
    )
    first = rows(A100_SXM=[(1e-5, 2e-5)], B200=[(1e-3, 5e-3)])  # ratios 2 and 5
    second = rows(B200=[(1e-4, 0.9e-4), (1e-2, 1e-2)])
    entries = [
        {"table": kernels.TABLES[i], "rows": given, "all": statistics(given)}
        for i, given in enumerate((first, second))
    ]
    kernels.draw(entries, tmp_path / "kernels.png")
    assert (tmp_path / "kernels.png").stat().st_size > 3000
    panels = figures[0].axes[:2]
    points = [panel.collections[-1] for panel in panels]
    ratios = [np.sort(np.asarray(item.get_offsets())[:, 1]) for item in points]
    assert ratios[0] == pytest.approx([2.0, 2.0])  # the second stands at the edge
    assert "1 beyond the edge" in panels[0].get_title()
    assert ratios[1] == pytest.approx([0.9, 1.0])
    legend = figures[0].axes[2].get_legend()
    colours = {
        text.get_text(): to_rgb(mark.get_color())
        for text, mark in zip(legend.get_texts(), legend.legend_handles, strict=True)
    }
    assert list(colours) == ["dgx-a100", "dgx-b200"]
    shown = points[1].get_facecolors()[:, :3]
    assert np.allclose(shown, colours["dgx-b200"])
    assert {tuple(row) for row in points[0].get_facecolors()[:, :3].round(6)} == {
        tuple(np.round(colour, 6)) for colour in colours.values()
    }


def test_every_kernel_that_we_measured_is_scored(script: Any) -> None:
    kernels = script.load("accuracy.kernels")
    entries = kernels.evaluate(kernels.OWN_FOLDER, kernels.OWN)
    assert len(entries) == len(kernels.OWN)
    assert all(entry["all"]["coverage"] == 1.0 for entry in entries)
    tables = {entry["table"].file: entry for entry in entries}
    median = {name: entry["all"]["median_absolute_error"] for name, entry in tables.items()}
    assert median["measured/gemm.csv"] < 0.07
    assert median["measured/attention.csv"] < 0.13
