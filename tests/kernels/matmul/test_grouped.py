"""One launch over the tiles of all groups: limits, waves, monotonicity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.matmul.grouped import (
    BOUND_COMPUTE,
    BOUND_MEMORY,
    GroupedDevice,
    grouped_gemm_time,
    grouped_gemm_times,
)

TILES = np.array([[16.0, 64.0, 64.0], [64.0, 64.0, 64.0], [128.0, 128.0, 64.0]])
# Nothing but the main loop counts: 100 units of 1 TFLOP/s, everything else is free.
LOOP = GroupedDevice(
    units=100.0,
    unit_rate=1e12,
    tile_half=0.0,
    power_rate=1e14,
    heat_time=0.0,
    l2_bandwidth=1e20,
    unit_bandwidth=1e20,
    memory_bandwidth=1e20,
    cache_capacity=0.0,
    copies=0.0,
    resident=0.0,
    operand_bytes=2.0,
    weight_bytes=2.0,
    resident_bytes=1e5,
    resident_elements=32768.0,
    stages=3.0,
    instruction_rows=0.0,
    full_rate_rows=0.0,
    swept_tiles=8.0,
    launch_latency=0.0,
    tile_latency=0.0,
    memory_latency=0.0,
    cache_latency=0.0,
    overlap_loss=0.0,
)
REAL = LOOP._replace(
    tile_half=6.0,
    power_rate=7e13,
    heat_time=1e-3,
    l2_bandwidth=5e12,
    unit_bandwidth=1e11,
    memory_bandwidth=2e12,
    cache_capacity=4e7,
    launch_latency=2e-6,
    tile_latency=1e-6,
    memory_latency=1e-6,
    cache_latency=3e-7,
    overlap_loss=0.2,
)


def time(sizes, counts=None, n=1024.0, k=1024.0, device=LOOP, tiles=(0, 3), other=0.0):
    sizes = np.atleast_1d(np.asarray(sizes, np.float64))
    counts = np.ones(sizes.size) if counts is None else np.asarray(counts, np.float64)
    return grouped_gemm_time(sizes, counts, n, k, 2.0, other, device, TILES, *tiles)


def test_one_tile_per_unit_takes_the_time_of_one_tile():
    # 100 groups of 64 x 64 outputs on 100 units: 2 * 64 * 64 * 1024 / 1e12 by hand
    found = time([64.0], [100.0], n=64.0, tiles=(1, 2))
    assert found[0] == pytest.approx(2 * 64 * 64 * 1024 / 1e12)
    assert found[3] == BOUND_COMPUTE


def test_waves_are_counted_over_all_groups_together():
    one = time([64.0], [100.0], n=64.0, tiles=(1, 2))[0]
    assert time([64.0], [101.0], n=64.0, tiles=(1, 2))[0] == pytest.approx(2 * one)
    # 50 full tiles of one group and 50 of others are one wave
    mixed = time([64.0 * 50, 64.0], [1.0, 50.0], n=64.0, tiles=(1, 2))[0]
    assert mixed == pytest.approx(one)


def test_ragged_groups_pay_for_whole_tiles():
    full = time([64.0], [200.0], n=64.0, tiles=(1, 2))[0]
    assert time([1.0], [200.0], n=64.0, tiles=(1, 2))[0] == pytest.approx(full)
    assert time([65.0], [100.0], n=64.0, tiles=(1, 2))[0] == pytest.approx(full)


def test_few_rows_take_small_tiles():
    assert time([4.0], [400.0], device=REAL)[2] == 0
    assert time([1280.0], [400.0], device=REAL)[2] == 2


def test_no_more_steps_are_under_way_than_the_shared_memory_holds():
    # Tiles of 64 x 64, steps of 64 elements of 2 B: 16 KiB each, six of them in 1e5 B.
    waiting = LOOP._replace(unit_rate=1e20, power_rate=1e20, memory_latency=1e-6, stages=6.0)
    of = {"n": 64.0, "tiles": (1, 2)}
    six = time([64.0], device=waiting, **of)[0]
    assert six == pytest.approx(1024 / TILES[1, 2] * 1e-6 / 6)
    assert time([64.0], device=waiting._replace(stages=60.0), **of)[0] == six
    assert time([64.0], device=waiting._replace(resident_bytes=1e3), **of)[0] == 6 * six


def test_an_instruction_of_too_few_rows_has_half_the_rate():
    of = {"n": 64.0, "tiles": (1, 2)}
    full = time([64.0], device=LOOP._replace(full_rate_rows=64.0), **of)[0]
    assert full == time([64.0], **of)[0]
    small = LOOP._replace(full_rate_rows=128.0)
    assert time([64.0], device=small, **of)[0] == pytest.approx(2 * full)
    # Libraries that swap the operands have the weights' columns as rows.
    assert time([64.0], device=small._replace(instruction_rows=128.0), **of)[0] == full


def test_each_group_with_rows_reads_its_weights_once():
    device = LOOP._replace(memory_bandwidth=1e12)
    traffic = time([1.0, 0.0], [30.0, 70.0], device=device)[1]
    assert traffic == pytest.approx(30 * 1024 * 1024 * 2 + 30 * (1024 + 1024) * 2)
    assert time([1.0], [30.0], device=device)[3] == BOUND_MEMORY


def test_weights_that_a_replay_leaves_in_the_cache_are_not_read():
    device = REAL._replace(copies=1.0)
    cold = time([1.0], [8.0], device=REAL)
    warm = time([1.0], [8.0], device=device)
    assert warm[0] < cold[0]
    assert warm[1] < cold[1]
    assert warm[0] < time([1.0], [8.0], device=REAL._replace(copies=2.0))[0] < cold[0]
    # what else is used in between, or is too large, drives them out
    assert time([1.0], [8.0], device=device, other=4e7)[0] == pytest.approx(cold[0])
    big = time([1.0], [64.0], device=device)[0]
    assert big == pytest.approx(time([1.0], [64.0], device=REAL)[0])


def test_a_group_taller_than_a_sweep_reads_its_weights_again():
    device = LOOP._replace(memory_bandwidth=1e12, cache_capacity=1e6)
    short = time([8 * 64.0], n=4096.0, device=device, tiles=(1, 2))[1]
    tall = time([9 * 64.0], n=4096.0, device=device, tiles=(1, 2))[1]
    weights = 4096 * 1024 * 2.0
    assert tall - short > 0.8 * weights


def test_no_rows_cost_nothing():
    assert time([0.0], [64.0], device=REAL)[:2] == (0.0, 0.0)


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=12),
    st.integers(0, 11),
    st.integers(1, 500),
)
def test_more_rows_never_take_less(sizes, which, more):
    sizes = np.array(sizes, np.float64)
    before = time(sizes, device=REAL)[0]
    sizes[which % sizes.size] += more
    assert time(sizes, device=REAL)[0] >= before * (1 - 1e-12)


@given(st.integers(1, 400), st.integers(2, 64), st.data())
def test_whole_tiles_in_fewer_groups_never_take_less(tiles_each, groups, data):
    """Moving tiles from one group to another leaves the waves as they are; groups that
    run dry save their weights."""
    moved = data.draw(st.integers(0, tiles_each - 1))
    even = time([128.0 * tiles_each], [groups], device=REAL)[0]
    uneven = time(
        [128.0 * tiles_each, 128.0 * (tiles_each - moved), 128.0 * (tiles_each + moved)],
        [groups - 2, 1.0, 1.0],
        device=REAL,
    )[0]
    assert uneven >= even * (1 - 1e-9)


@given(st.integers(2, 64), st.integers(1, 63))
def test_partly_filled_tiles_never_make_imbalance_faster(groups, part):
    """Tiles only grow in number when rows leave whole tiles."""
    even = time([128.0], [groups], device=LOOP)[0]
    uneven = time([128.0, 128.0 - part, 128.0 + part], [groups - 2, 1, 1], device=LOOP)[0]
    assert uneven >= even * (1 - 1e-12)


def test_order_and_splitting_of_equal_sizes_do_not_matter():
    first = time([5.0, 70.0, 300.0], [3.0, 2.0, 1.0], device=REAL)[0]
    assert time([300.0, 70.0, 5.0, 5.0, 70.0, 5.0], device=REAL)[0] == pytest.approx(first)


def test_columns_share_loads():
    offsets, sizes = np.array([0, 1, 3]), np.array([64.0, 1.0, 128.0])
    counts, ones = np.array([8.0, 4.0, 2.0]), np.ones(3)
    found = grouped_gemm_times(
        np.array([1, 0, 1]), offsets, sizes, counts, 1024 * ones, 512 * ones, 2 * ones, 0 * ones,
        REAL, TILES, np.zeros(3, np.int64), np.full(3, 3),
    )  # fmt: skip
    assert found[0][0] == found[0][2] == time(sizes[1:], counts[1:], k=512.0, device=REAL)[0]
    assert found[0][1] == time(sizes[:1], counts[:1], k=512.0, device=REAL)[0]
