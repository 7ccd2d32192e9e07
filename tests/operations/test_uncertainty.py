"""The band of the step time: from half-widths of kernel classes to 10th and 90th percentile."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.analysis.explain import operation_costs
from perfmodel.base.errors import HardwareError
from perfmodel.base.regimes import LIMITS, REGIMES, regime
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.rows import kernel_widths, novelties, step_width, width_table
from perfmodel.kernels.step.overlap import hidden_width, hide, width_of
from perfmodel.kernels.step.tables import PART, WIDTHS
from perfmodel.kernels.variables import VARIABLES
from perfmodel.operations.operations import (
    LAYER_KEY_FIELDS,
    Attention,
    Communication,
    Gemm,
    LayerKeys,
    Role,
    Stream,
)
from perfmodel.operations.uncertainty import CLASSES, class_widths, kernel_class, relative_width
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategies_from_rows, strategy_grid
from perfmodel.sweeps.several import sweep
from perfmodel.training.part_table import price_parts

# Many ways to spend a step: experts, sharded parameters, pipelines, context rings.
FIELDS = {
    "one device": {},
    "tensor": {"tensor_parallel": 4, "recompute": "full"},
    "pipeline": {"pipeline_parallel": 4, "data_parallel": 2, "zero_stage": 1},
    "interleaved": {"pipeline_parallel": 2, "virtual_pipeline": 2},
    "context": {"context_parallel": 4},
    "experts": {"tensor_parallel": 2, "data_parallel": 4, "expert_parallel": 4},
    "sharded": {"data_parallel": 8, "zero_stage": 3},
    "two nodes": {"data_parallel": 16, "zero_stage": 2},
}


def with_uncertainty(hardware, change):
    """Return a profile whose uncertainties are ``change(key, value)``."""
    group = {
        key: replace(entry, value=change(key, entry.value))
        for key, entry in hardware.calibration["uncertainty"].items()
    }
    return replace(hardware, calibration={**hardware.calibration, "uncertainty": group})


def only(hardware, **widths):
    """Return a profile where only these keys, or all regimes of these classes, are uncertain."""

    def change(key, _):
        kind, _, size = key.rpartition("_")
        return widths.get(key, widths.get(kind, 0.0) if size in REGIMES else 0.0)

    return with_uncertainty(hardware, change)


def relative(found):
    """Half-width of the band in the logarithm."""
    return math.log(found["step_time_high"] / found["step_time"])


@pytest.fixture(params=FIELDS, ids=str)
def fields(request):
    return FIELDS[request.param]


@pytest.fixture
def model(fields, small_moe, small_dense):
    return small_moe if fields.get("expert_parallel", 1) > 1 else small_dense


def test_every_class_has_its_column():
    assert tuple(f"{name}_width" for name in CLASSES) == PART.names[-len(CLASSES) :]
    assert set(CLASSES) <= set(LIMITS)


def test_every_operation_of_a_step_has_its_class(small_moe, grid_of, h100):
    grid = grid_of(small_moe, data_parallel=4, expert_parallel=4, tensor_parallel=2)
    keys = LayerKeys({name: grid[name] for name in LAYER_KEY_FIELDS})
    parts = price_parts(small_moe, keys, h100, load_framework("megatron"), 8)
    found = {
        (item.operation.name, kernel_class(item.operation)) for _, items in parts for item in items
    }
    assert {name for _, name in found} == set(CLASSES) - {"recurrence", "sparse"}
    assert ("mlp.experts_up", "moe") in found
    assert ("mlp.shared_up", "gemm") in found or ("mlp.up", "gemm") in found
    assert ("mlp.router", "gemm") in found


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (Gemm("mlp.up", "forward", 64.0, 8192.0, 8192.0), "gemm_small"),
        (Gemm("mlp.up", "forward", 65.0, 8192.0, 8192.0), "gemm_middle"),
        (Gemm("mlp.up", "forward", 2048.0, 64.0, 64.0), "gemm_large"),
        (
            Gemm(
                "mlp.experts_up", "forward", 100.0, 64.0, 64.0, batch=32.0, role=Role.EXPERT_PRODUCT
            ),
            "moe_large",
        ),
        (
            Gemm(
                "mlp.experts_up", "forward", 100.0, 64.0, 64.0, count=4.0, role=Role.EXPERT_PRODUCT
            ),
            "moe_middle",
        ),
        (Stream("norm", "forward", 4e5, 4e5), "stream_small"),
        (Stream("norm", "forward", 5e7, 5e7), "stream_large"),
        (
            Communication("mlp", "forward", "tensor", "all_reduce", 2.0**20, 8.0, 1.0),
            "collective_middle",
        ),
    ],
)
def test_an_operation_takes_the_width_of_its_regime(h100, operation, expected):
    names = [f"{name}_{size}" for name in CLASSES for size in REGIMES]
    told_apart = with_uncertainty(
        h100, lambda key, _: (names.index(key) + 1) / 100 if key in names else 0.0
    )
    found = relative_width(class_widths([told_apart]), operation, np.ones((1, 1)))
    assert names[round(float(found[0, 0]) * 100) - 1] == expected


def test_backward_attention_counts_the_products_of_forward(h100):
    """Backward runs five products where forward runs two, over the same pairs."""
    told_apart = with_uncertainty(h100, lambda key, _: 0.5 if key.endswith("_middle") else 0.0)
    sizes = (1.0, 128.0, 128.0, 8.0, 8.0, 128.0, 128.0, True)
    forward = Attention("core", "forward", *sizes)
    backward = Attention("core", "backward_input", *sizes, backward=True)
    flops = np.array([0.99e10, 1.01e10])
    for operation, scale in ((forward, 1.0), (backward, 2.5)):
        found = relative_width(class_widths([told_apart]), operation, scale * flops[None])
        np.testing.assert_array_equal(found, [[0.0, 0.5]])


@given(quantity=st.floats(0, 1e12), name=st.sampled_from(CLASSES))
def test_the_pass_finds_the_regime_of_the_labelled_layer(quantity, name):
    hardware = load_hardware("dgx-h100")
    expected = width_table(hardware, name)[regime(name, quantity)]
    widths = np.rec.array([kernel_widths(hardware, name)], dtype=WIDTHS)[0]
    assert width_of(quantity, widths) == expected
    for limit in LIMITS[name][1:]:
        expected = width_table(hardware, name)[regime(name, limit)]
        assert width_of(limit, widths) == expected


@given(
    total=st.floats(1e-6, 1.0),
    window=st.floats(0.0, 1.0),
    tail=st.floats(0.0, 1.0),
    tax=st.floats(0.0, 0.3),
    width=st.floats(0.0, 2.0),
)
def test_hidden_communication_is_no_more_uncertain_than_it_is_long(total, window, tail, tax, width):
    found = hidden_width(total, window, tail * total, tax, width)
    assert 0.0 <= found <= 0.5 * (1.0 + width - max(0.0, 1.0 - width)) * total + 1e-12
    assert hidden_width(total, window, tail * total, tax, 0.0) == 0.0
    if window == 0.0:
        assert hide(total, window, tail * total, tax) == total
        assert found == pytest.approx(0.5 * (1.0 + width - max(0.0, 1.0 - width)) * total)


def test_room_beside_compute_swallows_the_error():
    assert hidden_width(1.0, 2.0, 0.0, 0.0, 0.1) == 0.0
    assert hidden_width(1.0, 2.0, 0.0, 0.2, 0.1) == pytest.approx(0.02)  # the tax remains
    assert hidden_width(1.0, 0.5, 0.0, 0.0, 0.1) == pytest.approx(0.1)  # no room: all of it


@pytest.mark.parametrize("hardware", ["dgx-h100", "mi300x-server", "tpu-v5p-pod"])
def test_the_step_lies_in_the_middle_of_its_band(project, model, fields, hardware):
    found = project(model, hardware, **fields)
    assert 0 < found["step_time_low"] < found["step_time"] < found["step_time_high"]
    middle = math.sqrt(found["step_time_low"] * found["step_time_high"])
    assert middle == pytest.approx(found["step_time"], rel=1e-12)


def test_no_band_goes_beyond_the_datasheet_s_rate(project, small_dense, h100):
    """With any width: the fastest run is that of matrix FLOP at their peak."""
    found = project(small_dense, only(h100, step=2.0))
    limit = found["hardware_flops_utilization"] * found["step_time"]
    assert limit > found["step_time"] * math.exp(-2.0)
    assert found["step_time_low"] == pytest.approx(limit, rel=1e-12)
    assert found["step_time_high"] == pytest.approx(found["step_time"] * math.exp(2.0))


def test_certain_kernels_leave_no_band(project, model, fields, h100):
    found = project(model, only(h100), **fields)
    assert found["step_time_low"] == found["step_time"] == found["step_time_high"]


def test_ideal_machines_are_certain(project, small_dense):
    found = project(small_dense, "astra-sanity", precision="bf16")
    assert found["step_time_low"] == found["step_time"] == found["step_time_high"]


def test_uncertainty_changes_nothing_else(project, model, fields, h100):
    sure, unsure = project(model, only(h100), **fields), project(model, h100, **fields)
    for name in set(sure) - {"step_time_low", "step_time_high", "memory_high"}:
        assert sure[name] == unsure[name], name


def test_widths_are_linear_where_nothing_hides(project, model, fields, h100):
    """Where communication runs beside compute, it is the hidden part that bends the line."""
    once = with_uncertainty(h100, lambda _, value: 0.3 * value)
    twice = with_uncertainty(h100, lambda _, value: 0.6 * value)
    narrow, wide = (
        relative(project(model, item, "megatron-2021", **fields)) for item in (once, twice)
    )
    assert wide == pytest.approx(2.0 * narrow, rel=1e-9)


@pytest.mark.parametrize("name", [*CLASSES, "step", "step_moe"])
def test_a_wider_profile_gives_a_wider_band(project, model, fields, h100, name):
    wider = with_uncertainty(h100, lambda key, value: value + 0.2 * key.startswith(name))
    before, after = project(model, h100, **fields), project(model, wider, **fields)
    assert after["step_time_low"] <= before["step_time_low"]
    assert after["step_time_high"] >= before["step_time_high"]
    if name in ("gemm", "attention", "stream"):
        assert after["step_time_high"] > before["step_time_high"]


def test_one_class_widens_by_its_share_of_the_step(project, small_dense, grid_of, h100):
    """10 % more on every matrix product is 10 % of their share more on the step."""
    costs = operation_costs(small_dense, grid_of(small_dense), h100)
    for name, kinds in (("gemm", ["gemm"]), ("attention", ["attention"]), ("stream", ["stream"])):
        found = project(small_dense, only(h100, **{name: 0.1}))
        share = sum(
            cost.exposed
            for cost in costs
            if cost.kind in kinds and (name != "attention" or cost.phase == "forward")
        )
        share += found["optimizer_time"] if name == "stream" else 0.0
        assert relative(found) == pytest.approx(0.1 * share / found["step_time"], rel=1e-9)


def test_classes_add_up_in_quadrature(project, model, fields, h100):
    names = ("gemm", "attention", "attention_backward", "stream", "collective", "moe")
    step = {"step": 0.1, "step_moe": 0.1}
    alone = [relative(project(model, only(h100, **{name: 0.2}), **fields)) for name in names]
    alone.append(relative(project(model, only(h100, **step), **fields)))
    together = relative(project(model, only(h100, **dict.fromkeys(names, 0.2), **step), **fields))
    expected = math.sqrt(sum(width**2 for width in alone))
    # Classes of compute meet within each stage; stages of unlike mixtures then add up.
    several = fields.get("pipeline_parallel", 1) > 1
    assert expected * (1 - 1e-9) <= together
    assert together == pytest.approx(expected, rel=0.01 if several else 1e-9)


def test_regimes_of_a_class_add_up(project, model, fields, h100):
    parts = [
        relative(project(model, only(h100, **{f"stream_{name}": 0.2}), **fields))
        for name in REGIMES
    ]
    whole = relative(project(model, only(h100, stream=0.2), **fields))
    assert whole == pytest.approx(sum(parts), rel=1e-9)


def test_what_no_kernel_explains_is_relative_to_the_whole_step(project, small_dense, h100):
    found = project(small_dense, only(h100, step=0.25))
    assert found["step_time_high"] == pytest.approx(found["step_time"] * math.exp(0.25))
    assert found["step_time_low"] == pytest.approx(found["step_time"] * math.exp(-0.25))


def test_models_with_experts_have_a_step_width_of_their_own(project, small_dense, small_moe, h100):
    profile = only(h100, step=0.1, step_moe=0.4)
    assert relative(project(small_dense, profile)) == pytest.approx(0.1)
    assert relative(project(small_moe, profile)) == pytest.approx(0.4)
    table = dict(profile.calibration["uncertainty"])
    del table["step_moe"]
    plain = replace(profile, calibration={**profile.calibration, "uncertainty": table})
    assert step_width(plain, experts=True) == step_width(plain, experts=False) == 0.1


def test_a_profile_without_uncertainty_has_none(project, small_dense, h100):
    calibration = {name: group for name, group in h100.calibration.items() if name != "uncertainty"}
    found = project(small_dense, replace(h100, calibration=calibration))
    assert found["step_time_low"] == found["step_time"] == found["step_time_high"]


def test_uncalibrated_families_are_less_certain(project, small_dense):
    widths = {
        name: relative(project(small_dense, name))
        for name in ("dgx-h100", "mi300x-server", "tpu-v5p-pod")
    }
    assert widths["dgx-h100"] < widths["mi300x-server"]
    assert widths["dgx-h100"] < widths["tpu-v5p-pod"]


def test_a_set_value_changes_the_band_and_nonsense_is_refused(project, small_dense, h100):
    certain = h100.with_values({"calibration.uncertainty.step": 0.0})
    before, after = project(small_dense, h100), project(small_dense, certain)
    assert relative(after) < relative(before)
    for value in (-0.1, float("nan"), float("inf")):
        with pytest.raises(HardwareError, match="uncertainty"):
            h100.with_values({"calibration.uncertainty.step": value})


def test_operations_tell_their_part_of_the_band(small_moe, grid_of, h100):
    grid = grid_of(small_moe, data_parallel=4, expert_parallel=4, tensor_parallel=2)
    for cost in operation_costs(small_moe, grid, h100):
        assert 0.0 <= cost.half_width <= 0.5 * cost.calls * cost.time
        if cost.kind in ("gemm", "attention", "stream"):
            assert cost.half_width > 0


def test_datasets_carry_the_band_with_units_and_formula(small_moe, h100):
    grid = strategy_grid(small_moe, 16, sequence_length=2048, global_batch_size=64)
    double = sweep(small_moe, grid, ["dgx-h100", "mi300x-server"], dtype="float64")
    single = sweep(small_moe, grid, ["dgx-h100", "mi300x-server"])
    for name in ("step_time_low", "step_time_high"):
        assert double[name].attrs["units"] == "s"
        assert double[name].attrs["long_name"] == VARIABLES[name].long_name
        assert "exp(" in double[name].attrs["formula"]
        assert single[name].dtype == np.float32
        np.testing.assert_allclose(single[name], double[name], rtol=1e-6)
    for found in (double, single):
        low, step, high = (found[f"step_time{end}"].values for end in ("_low", "", "_high"))
        assert np.all(low <= step)
        assert np.all(step <= high)


def test_impossible_strategies_and_missing_precisions_have_no_band(small_dense):
    row = {"sequence_length": 2048, "global_batch_size": 8}
    rows = [row, {**row, "tensor_parallel": 3}, {**row, "precision": "fp8"}]
    found = sweep(
        small_dense, strategies_from_rows(small_dense, 8, rows), "dgx-a100", dtype="float64"
    )
    for name in ("step_time", "step_time_low", "step_time_high"):
        np.testing.assert_array_equal(np.isnan(found[name].values[:, 0]), [False, True, True])


def test_bands_are_wider_where_software_or_machine_is_new(h100):
    tpu = load_hardware("tpu-v5p-pod")
    assert not novelties(h100, "megatron")
    assert list(novelties(h100, "plain-megatron")) == ["software unknown"]
    assert list(novelties(tpu, "maxtext")) == ["machine never measured"]
    widths = step_width(h100, False), *novelties(h100, "plain").values()
    assert step_width(h100, False, "plain") == pytest.approx(np.hypot(*widths))
    assert not novelties(load_hardware("astra-system-1"), "plain")
