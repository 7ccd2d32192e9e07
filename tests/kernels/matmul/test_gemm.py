"""The tile-by-tile time of a matrix product: properties that must hold for any device."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.matmul import candidates, gemm
from perfmodel.kernels.matmul.tiles import PANELS, SPLITS, TILES
from tests.amount import cases

# Round numbers of the size of an H100: 132 units, 989 TFLOP/s, 3.35 TB/s.
GPU = gemm.GemmDevice(
    units=132.0,
    unit_rate=7.2e12,
    power_rate=8.0e14,
    heat_time=1e-3,
    l2_bandwidth=1.4e13,
    unit_bandwidth=1.6e11,
    memory_bandwidth=3.0e12,
    cache_capacity=5e7,
    operand_bytes=2.0,
    max_tile_area=32768.0,
    tile_half=1.0,
    k_step=64.0,
    cluster=2.0,
    fine_tiles=1.0,
    array_side=0.0,
    launch_latency=2e-6,
    tile_latency=3e-7,
    split_latency=2.8e-6,
    load_latency=6e-7,
    scratchpad=233472.0,
    pipeline_stages=8.0,
    matrix_side=64.0,
    narrow_side=0.0,
    largest_split=32.0,
    overlap_loss=0.12,
    store_loss=0.25,
)
TPU = GPU._replace(
    units=2.0,
    unit_rate=2.2e14,
    power_rate=4.4e14,
    heat_time=0.0,
    max_tile_area=2.0**22,
    tile_half=0.0,
    k_step=128.0,
    cluster=1.0,
    array_side=128.0,
    load_latency=0.0,
    matrix_side=0.0,
)
IDEAL = TPU._replace(
    units=1.0,
    unit_rate=4e14,
    power_rate=4e14,
    l2_bandwidth=1e15,
    unit_bandwidth=1e18,
    cache_capacity=0.0,
    max_tile_area=2.0**41,
    k_step=1.0,
    array_side=1.0,
    launch_latency=0.0,
    tile_latency=0.0,
    split_latency=0.0,
    overlap_loss=0.0,
    store_loss=0.0,
)
DEVICES = {"gpu": (GPU, TILES), "tpu": (TPU, PANELS)}
sizes = st.one_of(st.integers(1, 600), st.integers(1, 40000))
device_names = st.sampled_from(sorted(DEVICES))


def seconds(m, n, k, batch=1.0, output_bytes=2.0, accumulate=False, device=GPU, tiles=TILES):
    """Time of one product [s]."""
    return product(m, n, k, batch, output_bytes, accumulate, device, tiles)[0]


def product(
    m, n, k, batch=1.0, output_bytes=2.0, accumulate=False, device=GPU, tiles=TILES, splits=SPLITS
):
    """Time [s], traffic [B], tile, split and bound of one product."""
    table, usable, parts = candidates.tile_table(device, tiles, splits)
    sizes = (float(m), float(n), float(k), float(batch))
    return gemm.gemm_time(*sizes, output_bytes, accumulate, device, table, usable, parts)


@settings(max_examples=cases(150), deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 32), device_names)
def test_never_faster_than_the_roofline(m, n, k, batch, name):
    device, tiles = DEVICES[name]
    compute = 2.0 * m * n * k * batch / (device.units * device.unit_rate)
    memory = 2.0 * batch * (m * k + n * k + m * n) / device.memory_bandwidth
    limit = device.launch_latency + max(compute, memory)
    assert seconds(m, n, k, batch, device=device, tiles=tiles) >= limit * (1 - 1e-12)


@settings(max_examples=cases(300), deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 64), st.integers(1, 4000), device_names)
def test_never_falls_when_a_size_grows(m, n, k, batch, more, name):
    device, tiles = DEVICES[name]
    base = seconds(m, n, k, batch, device=device, tiles=tiles) * (1 - 1e-12)
    assert seconds(m + more, n, k, batch, device=device, tiles=tiles) >= base
    assert seconds(m, n + more, k, batch, device=device, tiles=tiles) >= base
    assert seconds(m, n, k + more, batch, device=device, tiles=tiles) >= base
    assert seconds(m, n, k, batch + more % 64, device=device, tiles=tiles) >= base


@settings(max_examples=cases(100), deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 16))
def test_never_slower_on_a_better_device(m, n, k, batch):
    base = seconds(m, n, k, batch) * (1 + 1e-12)
    for field in ("power_rate", "l2_bandwidth", "unit_bandwidth", "memory_bandwidth", "scratchpad"):
        better = GPU._replace(**{field: 1.3 * getattr(GPU, field)})
        assert seconds(m, n, k, batch, device=better) <= base, field
    assert seconds(m, n, k, batch, device=GPU._replace(cache_capacity=1e9)) <= base
    faster = GPU._replace(unit_rate=1.3 * GPU.unit_rate, power_rate=1.3 * GPU.power_rate)
    assert seconds(m, n, k, batch, device=faster) <= base


@settings(max_examples=cases(50), deadline=None)
@given(sizes, sizes, sizes)
def test_rows_and_columns_of_the_output_are_alike(m, n, k):
    assert seconds(m, n, k) == pytest.approx(seconds(n, m, k), rel=1e-12)


def test_a_batch_costs_no_more_than_its_products_one_by_one():
    for m, n, k in [(1, 4096, 4096), (128, 512, 1024), (2048, 2048, 64)]:
        single = seconds(m, n, k)
        for batch in (2, 8, 64):
            assert single < seconds(m, n, k, batch) < batch * single


def test_a_batch_that_fills_the_device_scales_linearly():
    one, two = seconds(512, 512, 512, 6600), seconds(512, 512, 512, 13200)
    assert (two - GPU.launch_latency) / (one - GPU.launch_latency) == pytest.approx(2.0, rel=0.03)


def test_one_row_more_than_a_wave_costs_another_row_of_tiles():
    coarse = GPU._replace(fine_tiles=0.0)
    # 1408 x 3072 is one full wave: 11 x 12 tiles of 128 x 256 on 132 units.
    wave = seconds(1408, 3072, 8192, device=coarse)
    assert seconds(1409, 3072, 8192, device=coarse) > 1.2 * wave
    assert seconds(1400, 3000, 8192, device=coarse) == pytest.approx(wave, rel=0.01)


def test_splitting_k_helps_a_deep_narrow_product():
    whole = product(128, 128, 65536, splits=SPLITS[:1])
    split = product(128, 128, 65536)
    assert split[3] > 8
    assert split[0] < 0.25 * whole[0]


def test_a_library_that_does_not_split_k_is_no_faster():
    unsplit = GPU._replace(largest_split=1.0)
    assert product(128, 128, 65536, device=unsplit)[3] == 1
    for m, n, k in [(128, 128, 65536), (16, 4096, 4096), (4096, 4096, 4096)]:
        assert seconds(m, n, k, device=unsplit) >= seconds(m, n, k)


def test_tiles_are_no_narrower_than_the_library_makes_them():
    narrow = GPU._replace(narrow_side=128.0)
    for m, n in [(2048, 256), (256, 2048), (300, 300)]:
        tile = TILES[product(m, n, 512, device=narrow)[2]]
        assert tile.min() >= 128.0, (m, n)
    assert TILES[product(8, 4096, 4096, device=narrow)[2]][1] >= 64.0


def test_accumulating_in_fp32_moves_four_times_the_output_bytes():
    plain = product(4096, 4096, 4096)
    summed = product(4096, 4096, 4096, output_bytes=4.0, accumulate=True)
    assert summed[1] - plain[1] == pytest.approx((8.0 - 2.0) * 4096**2)
    assert summed[0] > plain[0]


@pytest.mark.parametrize(
    ("m", "n", "k", "l2_bandwidth", "bound"),
    [
        (8192.0, 8192.0, 8192.0, 1.4e13, "compute"),
        (8192.0, 8192.0, 8192.0, 3.0e12, "l2"),
        (8.0, 65536.0, 8192.0, 1.4e13, "memory"),
        (1.0, 64.0, 64.0, 1.4e13, "latency"),
    ],
)
def test_bounds_name_what_limits(m, n, k, l2_bandwidth, bound):
    device = GPU._replace(l2_bandwidth=l2_bandwidth)
    code = product(m, n, k, device=device)[4]
    assert candidates.BOUNDS[code] == bound


def test_a_long_product_runs_at_the_power_limit_and_a_short_one_at_full_clock():
    full = GPU.units * GPU.unit_rate
    assert candidates.power_limited_time(1e9, GPU) == pytest.approx(1e9 / full, rel=1e-3)
    assert candidates.power_limited_time(1e18, GPU) == pytest.approx(
        1e18 / GPU.power_rate, rel=1e-3
    )
    steady = GPU._replace(heat_time=0.0)
    assert candidates.power_limited_time(1e9, steady) == pytest.approx(1e9 / GPU.power_rate)


def test_an_ideal_device_is_its_roofline():
    for m, n, k in [(1, 1000, 3000), (777, 555, 333), (8192, 8192, 8192)]:
        roofline = max(2.0 * m * n * k / 4e14, 2.0 * (m * n + m * k + n * k) / 3e12)
        assert seconds(m, n, k, device=IDEAL, tiles=PANELS) == pytest.approx(roofline, rel=1e-9)


def test_a_systolic_core_pads_to_its_array_only():
    compute = TPU._replace(launch_latency=0.0, tile_latency=0.0, memory_bandwidth=1e18)
    compute = compute._replace(l2_bandwidth=1e18, unit_bandwidth=1e18, overlap_loss=0.0)
    padded = 2.0 * 8192 * 8192 * 8192 / 4.4e14
    assert seconds(8100, 8192, 8150, device=compute, tiles=PANELS) == pytest.approx(padded)


def test_columns_equal_scalars():
    rng = np.random.default_rng(7)
    m, n, k = rng.integers(1, 9000, (3, 64)).astype(float)
    batch = rng.integers(1, 9, 64).astype(float)
    output_bytes = rng.choice([2.0, 4.0], 64)
    accumulate = rng.choice([True, False], 64)
    columns = gemm.gemm_times(m, n, k, batch, output_bytes, accumulate, GPU, TILES, SPLITS)
    for row in range(64):
        scalar = product(m[row], n[row], k[row], batch[row], output_bytes[row], accumulate[row])
        assert scalar == tuple(column[row] for column in columns)


def test_nan_stays_nan():
    assert math.isnan(seconds(math.nan, 64, 64))
    assert math.isnan(seconds(64, 64, math.nan))
