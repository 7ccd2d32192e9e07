"""Models closed on mappings: by hand, and whatever the mapping."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.hwprofiles import load_mesh
from perfmodel.kernels.wafer import close
from perfmodel.kernels.wafer.columns import CLOSED_ROWS, DECODE, PREFILL
from perfmodel.model.presets import load_model
from perfmodel.wafer.chips import mesh_device
from perfmodel.wafer.layers import wafer_parts
from perfmodel.wafer.mappings import wafer_grid
from perfmodel.wafer.project import close_grid
from perfmodel.wafer.search import PRODUCT_ROUTES

MODEL = load_model("llama-3-8b")
DEVICE = mesh_device(load_mesh("wse-2"))


def closed(phase, head=True, model=MODEL, device=DEVICE, **axes):
    found, status = close_grid(wafer_parts(model, phase), wafer_grid(**axes), device, phase, head)
    return dict(zip(CLOSED_ROWS, found, strict=True)), status


def test_decode_of_a_core_alone_is_its_own_work():
    """One core: no messages, multiply-adds at the peak, an issue per input, elementwise work."""
    found, _ = closed(DECODE, head=False, grid=1, context=10)
    macs = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 10 * 4096)
    issues = 32 * (4 * 4096 + 4096 + 10 + 2 * 4096 + 14336)
    assert found["network_time"][0] == 0.0
    assert found["compute_time"][0] * DEVICE.clock == pytest.approx(macs / DEVICE.peak)
    # Two norms, queries and keys turned, values, attention and both ways out cleared; a gate.
    passes = 32 * (4096 * (2 * 5 + 4 + 1 + 1 + 1) + 1024 * (4 + 1) + 14336 * (1 + 9) + 10 * 10)
    cycles = issues * DEVICE.vector_issue + passes * DEVICE.element_cycles
    assert found["issue_time"][0] * DEVICE.clock == pytest.approx(cycles)
    useful = macs / (DEVICE.peak * DEVICE.clock * found["latency"][0])
    assert found["utilization"][0] == pytest.approx(useful)


def test_more_context_and_sequences_never_take_less():
    for phase in (DECODE, PREFILL):
        for axis in ("context", "batch"):
            found, _ = closed(phase, grid=300, **{axis: [1, 2, 50, 999, 4096]})
            names = ["cache_bytes", "activation_bytes", "sram_used"]
            # Of prompts, tiles that fill the lanes are faster than smaller ones that do not.
            for name in [*names, "latency"] if phase == DECODE else names:
                assert (np.diff(found[name]) >= 0.0).all()


def test_regions_pay_transfers_and_save_memory():
    found, status = closed(DECODE, grid=300, regions=[1, 2, 4, 8, 9, 10])
    assert (np.diff(found["transfer_time"][:5]) > 0.0).all()
    # With nine regions too few cores are left for the tables of tokens.
    assert (np.diff(found["weight_bytes"][:4]) < 0.0).all()
    assert (np.diff(found["network_time"][:5]) == 0.0).all()
    assert status.tolist() == [3, 3, 0, 0, 0, 2]  # 10 x 90,000 cores are more than 850,000


def test_fewer_meshes_never_hold_more():
    found, status = closed(DECODE, model=load_model("llama-3-70b"), grid=[300, 400, 700])
    assert (status == 3).all()
    assert (found["meshes_needed"] >= 4).all()  # 138 GB of weights on 40 GB


def test_windows_bound_what_a_layer_sees_and_keeps():
    model = load_model("gpt-oss-20b")
    near, _ = closed(DECODE, model=model, grid=200, context=128)
    far, _ = closed(DECODE, model=model, grid=200, context=128_000)
    full = model.num_layers / 2  # every other layer has a window of 128 tokens
    per_token = (far["cache_bytes"] - near["cache_bytes"]) / (640 - 1)
    assert near["latency"][0] < far["latency"][0]
    layers = np.ceil(full / near["region_count"][0])
    assert per_token[0] == pytest.approx(2 * 2 * np.ceil(512 / 200) * layers, rel=0.5)


def test_a_mapping_that_ignores_distance_is_slower():
    for phase, times in ((DECODE, 3.0), (PREFILL, 2.0)):
        near, _ = closed(phase, grid=[420, 660])
        blind, _ = closed(phase, grid=[420, 660], product="distance_blind")
        ratio = blind["latency"] / near["latency"]
        assert (ratio > times).all()


def test_rectangles_lie_between_their_squares():
    for phase in (DECODE, PREFILL):
        found, _ = closed(phase, grid=[(300, 300), (300, 600), (600, 600)])
        assert found["compute_time"][0] >= found["compute_time"][1] >= found["compute_time"][2]


def test_parts_add_up_in_one_row_or_many():
    parts = wafer_parts(load_model("deepseek-v3"), PREFILL)
    columns = wafer_grid(grid=400, context=500).kernel_columns()
    for layer in range(len(parts.layer_names)):
        each, whole = np.zeros((len(parts.names), 7)), np.zeros((1, 7))
        for found in (each, whole):
            close.time_layer(parts.columns, layer, columns, 0, PREFILL, DEVICE, found)
        np.testing.assert_allclose(each.sum(axis=0), whole[0], rtol=1e-12)


@pytest.mark.parametrize("phase", [DECODE, PREFILL])
@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b"])
def test_no_grid_is_faster_than_the_bound_of_its_box(name: str, phase: int) -> None:
    spec = load_model(name)
    parts, device = wafer_parts(spec, phase), mesh_device(load_mesh("wse-2"))
    random = np.random.default_rng(3)
    products = list(PRODUCT_ROUTES) if phase == PREFILL else ["mesh_gemm"]
    for low, width in ((1, 3), (2, 30), (200, 1), (300, 240)):
        high = low + width
        batch = int(random.integers(1, 5))
        bound = close.latency_bound(
            parts.columns, parts.counts, True, low, high, high, 900.0, float(batch), phase, device
        )
        sides = {low, high, int(random.integers(low, high + 1))}
        grids = list(itertools.product(sides, repeat=2))
        mappings = wafer_grid(
            grid=grids,
            context=900,
            batch=batch,
            regions=1,
            collective=["chain", "ring", "star", "three_level"],
            product=products,
            cache_layout="all" if phase == DECODE else "shifted",
        )
        found, _ = close_grid(parts, mappings, device, phase, True)
        assert (found[close.LATENCY] >= bound).all()
        if width == 1:  # nor is it idle
            assert found[close.LATENCY].min() < 10 * bound


def test_sums_take_no_less_than_their_way() -> None:
    device = mesh_device(load_mesh("wse-2"))
    assert close.sum_bound(1.0, device) == 0.0
    step = 2 * device.ramp + 1 + device.stage
    assert close.sum_bound(11.0, device) == 10 * device.hop + 2 * step
