"""Quantisation passes: their bytes by hand, and their time on profiles."""

from __future__ import annotations

import pytest

from perfmodel.compute.stream import (
    quantise_times,
    stream_device,
)
from perfmodel.compute.stream_catalogue import (
    traffic,
)
from perfmodel.compute.stream_quantise import QUANTISATIONS, quantise, quantise_unfused
from perfmodel.hwprofiles import load_hardware

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
