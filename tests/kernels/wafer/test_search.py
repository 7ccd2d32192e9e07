"""Bounds of boxes of grids against the times of grids in them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.hwprofiles import load_mesh
from perfmodel.kernels.wafer import search
from perfmodel.kernels.wafer.columns import DECODE, PREFILL
from perfmodel.model.presets import load_model
from perfmodel.wafer.chips import mesh_device
from perfmodel.wafer.layers import wafer_parts
from perfmodel.wafer.mappings import wafer_grid
from perfmodel.wafer.project import close_grid
from perfmodel.wafer.search.space import PRODUCT_ROUTES


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
        bound = search.latency_bound(
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
        assert (found[search.LATENCY] >= bound).all()
        if width == 1:  # nor is it idle
            assert found[search.LATENCY].min() < 10 * bound


def test_sums_take_no_less_than_their_way() -> None:
    device = mesh_device(load_mesh("wse-2"))
    assert search.sum_bound(1.0, device) == 0.0
    step = 2 * device.ramp + 1 + device.stage
    assert search.sum_bound(11.0, device) == 10 * device.hop + 2 * step
