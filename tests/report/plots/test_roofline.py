"""Points lie below their roofs, and are what operations achieve."""

from __future__ import annotations

import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.report.plots.marks import Line, Points
from perfmodel.store.results import best


def test_no_kernel_is_above_the_roof_of_its_format(kernels):
    plot = perfmodel.plot(kernels, "roofline")
    (panel,) = plot.panels
    device = perfmodel.load_hardware("dgx-h100").device
    groups = {mark.label: mark for mark in panel.marks if isinstance(mark, Points)}
    assert set(groups) == {"bf16", "fp8"}
    for name, points in groups.items():
        for x, y in zip(points.x, points.y, strict=True):
            assert y < device.peak_flops[name]
            assert y < 1.001 * x * device.memory.bandwidth
    time = kernels["time"].values.ravel()
    flops = kernels["flops"].values.ravel()
    rates = [y for points in groups.values() for y in points.y]
    assert sorted(rates) == pytest.approx(sorted(flops / time))


def test_roofs_meet_where_bandwidth_gives_the_peak(kernels):
    (panel,) = perfmodel.plot(kernels, "roofline").panels
    device = perfmodel.load_hardware("dgx-h100").device
    roofs = {mark.label: mark for mark in panel.marks if isinstance(mark, Line)}
    slope = roofs["memory roof"]
    assert slope.y[1] / slope.x[1] == pytest.approx(device.memory.bandwidth)
    for name in ("bf16", "fp8"):
        assert roofs[f"{name} roof"].x[0] == pytest.approx(
            device.peak_flops[name] / device.memory.bandwidth
        )


def test_operations_of_a_strategy_are_those_that_explain_names(training):
    plot = perfmodel.plot(training, "roofline", where="hardware == 'dgx-h100'")
    (row,) = best(training, 1, where="hardware == 'dgx-h100'")
    costs = perfmodel.explain(
        "llama-3.1-8b",
        "dgx-h100",
        16,
        **{it: row[it] for it in ("sequence_length", "global_batch_size", "tensor_parallel")},
        **{it: row[it] for it in ("pipeline_parallel", "micro_batch_size", "zero_stage")},
        recompute=row["recompute"],
    )
    working = [cost for cost in costs if cost.flops > 0]
    points = [mark for mark in plot.panels[0].marks if isinstance(mark, Points)]
    found = sorted(y for mark in points for y in mark.y)
    assert found == pytest.approx(sorted(cost.flops / cost.time for cost in working))


def test_hardware_that_is_not_there_is_refused(kernels):
    with pytest.raises(DataError, match="no hardware 'dgx-b200' here; there are dgx-h100"):
        perfmodel.plot(kernels, "roofline", hardware="dgx-b200")


def test_kernels_without_matrix_work_are_refused():
    from perfmodel.sweeps.grids import kernel_grid

    axes = {"operation": ["copy"], "rows": [8], "columns": [8]}
    table = kernel_grid("stream", [perfmodel.load_hardware("dgx-h100")], axes)
    with pytest.raises(DataError, match="no operation of these does matrix work"):
        perfmodel.plot(table, "roofline")
