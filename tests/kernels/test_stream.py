"""Properties of the streaming kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.compute.attention import attention_times
from perfmodel.compute.gemm import gemm_times
from perfmodel.compute.moe import moe_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.stream import (
    CACHE_BOUND,
    COMPUTE_BOUND,
    LATENCY_BOUND,
    MEMORY_BOUND,
    StreamDevice,
    bytes_between,
    hit_share,
    stream_time,
    stream_times,
)
from tests.amount import cases

L40S = load_hardware("l40s-server")  # 96 MiB of cache that all units share


def test_copies_go_round_and_what_is_resident_counts_once() -> None:
    assert bytes_between(1e6, 1.0, 0.0) == 1e6
    assert bytes_between(1e6, 6.0, 0.0) == 6e6
    assert bytes_between(1e6, 0.0, 0.0) == math.inf
    assert bytes_between(1e6, 6.0, 5e7) == 5e7
    assert bytes_between(1e8, 0.0, 5e7) == 1e8  # no call is smaller than itself


def product(**reuse: float) -> float:
    return float(gemm_times(L40S, "bf16", 8, 4096, 2048, **reuse).time[0])


def attention(**reuse: float) -> float:
    call = (4, 1, 2048, 32, 8, 128, 128)
    return float(attention_times(L40S, "bf16", *call, **reuse).time[0])


def experts(**reuse: float) -> float:
    return float(moe_times(L40S, "bf16", 4, 2048, 256, 8, 2, **reuse).time[0])


@pytest.mark.parametrize("kernel", [product, attention, experts])
def test_every_kernel_takes_the_same_words(kernel) -> None:
    name = "weight_copies" if kernel is product else "copies"
    cold = kernel()
    resident = [kernel(resident=size) for size in (1.0, 6e7, 8e7, 1e12)]
    assert resident == sorted(resident)
    assert resident[0] < cold
    assert resident[-1] == cold
    copies = [kernel(**{name: count}) for count in (1.0, 2.0, 1e6)]
    assert copies == sorted(copies)
    assert copies[0] < copies[-1] == cold


@pytest.mark.parametrize(
    ("kernel", "what"),
    [(product, "a matrix product"), (attention, "attention"), (experts, "a MoE layer")],
)
def test_what_cannot_be_is_refused(kernel, what) -> None:
    from perfmodel.base.errors import DataError

    name = "weight_copies" if kernel is product else "copies"
    with pytest.raises(DataError, match=f"{name} of {what} is at least 1, or 0"):
        kernel(**{name: 0.5})
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(DataError, match=f"resident of {what} is a number of bytes"):
            kernel(resident=wrong)


DEVICE = StreamDevice(
    bandwidth=3e12,
    cache_bandwidth=5.5e12,
    cache_capacity=50e6,
    vector_rate=33e12,
    launch_latency=2e-6,
    round_trip_latency=0.0,
)

sizes = st.floats(0.0, 1e10)
shares = st.floats(0.0, 1.0)


def test_worked_example_of_each_bound():
    # 3 GB at 3 TB/s and 2 us
    assert stream_time(DEVICE, 2e9, 1e9, 0.0, 1.0, 1.0) == (pytest.approx(1.002e-3), MEMORY_BOUND)
    # 25 MB in a cache of 50 MB: 1 - 0.5^4 of the bytes hit
    expected = 2e-6 + 25e6 * (0.9375 / 5.5e12 + 0.0625 / 3e12)
    assert stream_time(DEVICE, 20e6, 5e6, 0.0, 1.0, 1.0) == (pytest.approx(expected), CACHE_BOUND)
    assert stream_time(DEVICE, 1e9, 0.0, 66e9, 1.0, 0.0) == (pytest.approx(2.002e-3), COMPUTE_BOUND)
    assert stream_time(DEVICE, 100.0, 100.0, 0.0, 3.0, 0.0) == (
        pytest.approx(6e-6, rel=1e-3),
        LATENCY_BOUND,
    )


def test_a_fused_operation_costs_nothing():
    assert stream_time(DEVICE, 1e9, 1e9, 1e9, 0.0, 0.0)[0] == 0.0


@given(sizes, sizes, shares, st.integers(1, 20))
@settings(max_examples=cases(300), deadline=None, derandomize=True)
def test_monotone_in_bytes_and_never_above_the_cache_rate(read, written, cached, launches):
    time = stream_time(DEVICE, read, written, 0.0, float(launches), cached)[0]
    more = stream_time(DEVICE, read * 1.01 + 1e4, written, 0.0, float(launches), cached)[0]
    assert more >= time
    assert time >= (read + written) / DEVICE.cache_bandwidth
    if (read + written) / launches >= DEVICE.cache_capacity:
        assert time >= (read + written) / DEVICE.bandwidth


@given(sizes, shares, st.floats(0.0, 1e12))
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_a_faster_device_is_never_slower(size, cached, flops):
    time = stream_time(DEVICE, size, 0.0, flops, 1.0, cached)[0]
    for change in ({"bandwidth": 5e12}, {"vector_rate": 5e13}, {"cache_capacity": 1e8}):
        faster = stream_time(DEVICE._replace(**change), size, 0.0, flops, 1.0, cached)[0]
        assert faster <= time * (1 + 1e-12)


@given(sizes, shares)
@settings(max_examples=cases(100), deadline=None, derandomize=True)
def test_a_warmer_cache_is_never_slower(size, cached):
    cold = stream_time(DEVICE, size, 0.0, 0.0, 1.0, 0.0)[0]
    assert stream_time(DEVICE, size, 0.0, 0.0, 1.0, cached)[0] <= cold * (1 + 1e-12)


@given(sizes, sizes, st.floats(0.0, 1e9))
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_second_reads_cost_at_most_memory_and_at_least_nothing(size, again, distance):
    once = stream_time(DEVICE, size, 0.0, 0.0, 1.0, 0.0)[0]
    twice = stream_time(DEVICE, size, 0.0, 0.0, 1.0, 0.0, again, distance)[0]
    assert once <= twice <= (once + again / DEVICE.bandwidth) * (1 + 1e-12)
    assert twice >= (size + again) / DEVICE.cache_bandwidth
    nearer = stream_time(DEVICE, size, 0.0, 0.0, 1.0, 0.0, again, distance / 2)[0]
    assert nearer <= twice * (1 + 1e-12)


def test_second_reads_within_the_cache_hide_behind_the_traffic_of_memory():
    # 3 GB from memory at 3 TB/s outlasts 5 GB through the cache at 5.5 TB/s
    time = stream_time(DEVICE, 2e9, 1e9, 0.0, 1.0, 0.0, 2e9, 1e6)[0]
    assert time == pytest.approx(2e-6 + 1e-3, rel=1e-4)
    # beyond the cache, memory gives them again
    time = stream_time(DEVICE, 2e9, 1e9, 0.0, 1.0, 0.0, 2e9, 60e6)[0]
    assert time == pytest.approx(2e-6 + 5e9 / 3e12)


def test_dependent_steps_overlap_with_the_traffic():
    assert stream_time(DEVICE, 3e6, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 5e-6)[0] == pytest.approx(7e-6)
    assert stream_time(DEVICE, 3e9, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 5e-6)[0] == pytest.approx(
        1.002e-3
    )


def test_no_kernel_is_shorter_than_a_load():
    device = DEVICE._replace(round_trip_latency=5e-7)
    assert stream_time(device, 10.0, 0.0, 0.0, 3.0, 0.0)[0] == pytest.approx(3 * 2.5e-6)
    assert stream_time(device, 3e9, 0.0, 0.0, 1.0, 0.0)[0] == pytest.approx(1.002e-3)


def test_hits_fall_from_all_to_none_at_the_capacity():
    shares = [hit_share(DEVICE, x) for x in (0.0, 25e6, 50e6, 1e9)]
    assert shares == pytest.approx([1.0, 1 - 0.5**4, 0.0, 0.0])
    assert hit_share(DEVICE._replace(cache_capacity=0.0), 0.0) == 0.0


def test_no_cache_means_memory_only():
    device = DEVICE._replace(cache_capacity=0.0)
    assert stream_time(device, 1e6, 0.0, 0.0, 1.0, 1.0)[0] == pytest.approx(2e-6 + 1e6 / 3e12)


def test_columns_equal_scalars():
    rng = np.random.default_rng(3)
    columns = [10.0 ** rng.uniform(2, 10, 200) for _ in range(3)]
    columns += [rng.integers(0, 4, 200).astype(float), rng.random(200)]
    columns += [10.0 ** rng.uniform(2, 10, 200), 10.0 ** rng.uniform(5, 9, 200)]
    columns += [10.0 ** rng.uniform(-7, -3, 200)]
    time, bound = stream_times(DEVICE, *columns)
    for row in range(200):
        alone = stream_time(DEVICE, *(column[row] for column in columns))
        assert alone == (time[row], bound[row])
