"""Streaming on hardware profiles: measured rows, limits, and input that is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.compute.stream import (
    QUANTISATIONS,
    STREAM_BOUNDS,
    quantise,
    quantise_times,
    quantise_unfused,
    stream_device,
    stream_times,
    work_times,
)
from perfmodel.compute.stream_catalogue import (
    elementwise,
    norm,
    softmax,
    traffic,
)
from perfmodel.hwprofiles import list_hardware, load_hardware

# SGLang quantises per token ahead of its fp8 products. With 64 columns, a product costs
# little more than the quantisation and one read of the quantised rows (aiconfigurator
# 095f58a, gemm fp8, m x k, n = 64).
QUANTISED_PRODUCTS = [
    ("dgx-h100", 32768, 65536, 4443.5e-6),
    ("dgx-b200", 32768, 65536, 2063.7e-6),
    ("dgx-h100", 8192, 51200, 890.33e-6),
    ("dgx-b200", 8192, 51200, 418.02e-6),
]


@pytest.mark.parametrize("row", QUANTISED_PRODUCTS)
def test_quantisation_per_token_is_most_of_a_narrow_fp8_product(row):
    profile, rows, columns, seconds = row
    hardware = load_hardware(profile)
    pass_time = quantise_times(hardware, "fp8", rows, columns, cached=0.0).time[0]
    read = rows * columns / stream_device(hardware).bandwidth
    assert pass_time + read == pytest.approx(seconds, rel=0.1)


def test_every_scheme_costs_its_bytes_or_more_and_scales():
    hardware = load_hardware("dgx-b200")
    bandwidth = hardware.device.memory.bandwidth
    for scheme in QUANTISATIONS:
        work = quantise(scheme, [64.0, 32768.0], 8192.0)
        times = quantise_times(hardware, scheme, [64, 32768], 8192, cached=0.0).time
        assert (times * bandwidth >= work.bytes_read + work.bytes_written).all(), scheme
        assert times[1] > times[0]


# 64 rows of 1024 bf16 elements: 131072 bytes read
@pytest.mark.parametrize(
    ("scheme", "again", "written", "launches"),
    [
        ("fp8_static", 0, 65536, 1),
        ("fp8_tensor", 131072, 65536 + 4, 2),
        ("fp8_token", 131072, 65536 + 64 * 4, 1),
        ("int8_token", 131072, 65536 + 64 * 4, 1),
        ("fp8_block", 0, 65536 + 512 * 4, 1),  # 8 groups of 128 per row
        ("mxfp8", 0, 65536 + 2048, 1),  # 32 groups of 32 per row
        ("nvfp4", 0, 32768 + 4096, 1),  # 64 groups of 16 per row
        ("mxfp4", 0, 32768 + 2048, 1),
    ],
)
def test_quantisation_bytes(scheme, again, written, launches):
    work = quantise(scheme, 64, 1024)
    assert float(work.bytes_read) == 131072
    assert float(work.bytes_reread) == again
    assert float(work.bytes_written) == written
    assert work.launches == launches


def test_every_quantisation_is_in_the_table_of_its_docstring():
    for scheme in QUANTISATIONS:
        assert f"{scheme} " in (quantise.__doc__ or "")


def test_unfused_quantisation_moves_seven_times_the_bytes():
    # 2 + 4, 4 + 4, 4 + 1, 1 + 1 bytes an element
    assert [sum(traffic(work)) for work in quantise_unfused(1000)] == [6000, 8000, 5000, 2000]


# profile, bytes read, bytes written, cached, seconds, tolerance
STREAMS = [
    (
        "dgx-h100",
        4096 * 51200 * 2,
        4096 * 51200,
        0.0,
        213.09e-6,
        0.05,
    ),  # aiconfigurator 095f58a vllm
    (
        "dgx-b200",
        4096 * 51200 * 2,
        4096 * 51200,
        0.0,
        98.31e-6,
        0.05,
    ),  # aiconfigurator 095f58a vllm
    (
        "v100-pcie",
        786432 * 2048 * 8,
        786432 * 2048 * 4,
        0.0,
        23.273e-3,
        0.05,
    ),  # NeuSight 6945927 add
    (
        "mi210-server",
        16101 * 3843 * 8,
        16101 * 3843 * 4,
        0.0,
        585.12e-6,
        0.1,
    ),  # NeuSight 6945927 add; one efficiency serves one and two inputs, 0.88 and 0.79
]


@pytest.mark.in_sample("stream-h100", "stream-b200", "stream-v100", "stream-mi210")
@pytest.mark.parametrize("row", STREAMS)
def test_streams_near_measured_large_tensors(row):
    profile, read, written, cached, seconds, tolerance = row
    times = stream_times(load_hardware(profile), read, written, cached=cached)
    assert times.time[0] == pytest.approx(seconds, rel=tolerance)
    assert STREAM_BOUNDS[times.bound[0]] == "memory"


def test_a_long_row_is_walked_by_one_block():
    # one row of 64 Ki: 128 KiB in 16 trips of 8 KiB, twice; most of it waits for memory
    hardware = load_hardware("dgx-h100")
    trip = hardware.calibrated("stream", "round_trip_latency")
    short, long = quantise_times(hardware, "fp8", 1, [4096, 65536]).time
    assert long - short == pytest.approx(30 * trip, rel=0.05)
    # a block of 128 has its own maximum, and no row to walk
    assert quantise_times(hardware, "fp8_block", 1, 65536).time[0] < short + 2e-7


def test_second_reads_hit_while_the_rows_in_flight_fit_the_cache():
    # PyTorch softmax of V100 (NeuSight 6945927): 65536 rows of 4096 take 3.127 ms, of
    # 8192 10.653 ms, 3.4 times as long for twice the bytes
    hardware = load_hardware("v100-pcie")
    times = work_times(hardware, softmax(65536, [4096.0, 8192.0], 4.0), 1.0, "eager").time
    assert times == pytest.approx([3.1274e-3, 10.653e-3], rel=0.2)


def test_eager_operations_wait_for_the_host():
    hardware = load_hardware("dgx-a100")
    work = elementwise("gelu", [1e3, 1e9])
    graph, eager, compiled = (
        work_times(hardware, work, 0.0, how).time for how in ("graph", "eager", "compiled")
    )
    for times, key in ((eager, "eager_latency"), (compiled, "compiled_latency")):
        assert times - graph == pytest.approx([hardware.calibrated("stream", key)] * 2)
    with pytest.raises(DataError, match="unknown dispatch 'egaer'"):
        work_times(hardware, work, 0.0, "egaer")


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.sampled_from(["v100-pcie", "dgx-b200"]))
def test_row_kernels_grow_with_rows_and_never_beat_memory(rows, columns, profile):
    hardware = load_hardware(profile)
    for kernel in (norm, softmax):
        work = kernel([rows, rows + rows // 3 + 1], columns)
        times = work_times(hardware, work, 0.0).time
        assert times[1] >= times[0]
        bytes_moved = work.bytes_read + work.bytes_written
        assert (times * hardware.device.memory.bandwidth >= bytes_moved).all()


@given(st.floats(1.0, 1e10), st.sampled_from(["dgx-h100", "dgx-a100", "mi210-server"]))
def test_cached_operations_are_never_slower_than_cold_ones(elements, profile):
    work = elementwise("add", elements)
    hardware = load_hardware(profile)
    cold, warm = (work_times(hardware, work, cached).time[0] for cached in (0.0, 1.0))
    assert warm <= cold


def test_columns_do_not_depend_on_company():
    hardware = load_hardware("dgx-h100")
    rows = np.array([1.0, 300.0, 4096.0, 1e6])
    together = work_times(hardware, norm(rows, 5120.0)).time
    alone = [work_times(hardware, norm(r, 5120.0)).time[0] for r in rows]
    assert together.tolist() == alone


def test_every_profile_prices_streams():
    for name in list_hardware():
        hardware = load_hardware(name)
        assert (stream_times(hardware, [1e3, 1e9], [0.0, 1e9]).time >= 0).all(), name
        assert (quantise_times(hardware, "fp8", [1, 8192], 8192).time >= 0).all(), name


def test_devices_sustain_less_than_the_datasheet():
    hardware = load_hardware("dgx-h100")
    assert stream_device(hardware).bandwidth < hardware.device.memory.bandwidth


def test_a_profile_without_a_constant_is_refused():
    hardware = load_hardware("dgx-h100")
    del hardware.calibration["stream"]["block_start"]
    with pytest.raises(HardwareError, match="no 'block_start'"):
        work_times(hardware, norm(1, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes_read": -1.0}, "bytes_read"),
        ({"bytes_written": float("nan")}, "bytes_written"),
        ({"flops": float("inf")}, "flops"),
        ({"launches": -1}, "launches"),
        ({"cached": 1.5}, "0 to 1"),
        ({"bytes_read": [1.0, 2.0], "flops": [1.0, 2.0, 3.0]}, "do not broadcast"),
        ({"bytes_read": "much"}, "should be numbers"),
    ],
)
def test_streams_refuse_bad_columns(change, message):
    call = {"bytes_read": 1e6, "bytes_written": 1e6}
    with pytest.raises(DataError, match=message):
        stream_times(load_hardware("dgx-h100"), **(call | change))
