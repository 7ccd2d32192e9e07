"""Matrix products of real devices: measured rows, transfer to unseen parts, bad input."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.base.precisions import OPERAND_BYTES
from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_device, gemm_times
from perfmodel.hwprofiles import load_hardware


def rate(profile, precision, m, n, k, **keywords):
    """FLOP/s of one product on a profile."""
    times = gemm_times(load_hardware(profile), precision, m, n, k, **keywords)
    return float(times.flops[0] / times.time[0])


@pytest.mark.in_sample("gemm-b200-bf16")
@pytest.mark.parametrize(
    ("profile", "m", "n", "k", "microseconds"),
    [
        ("dgx-b200", 8192, 8192, 2048, 171.73),  # aiconfigurator B200, 3 frameworks 170.9-174.6
        ("dgx-b200", 16384, 10240, 5120, 1087.1),  # aiconfigurator B200, 1054-1191
        ("dgx-b200", 32768, 16384, 12288, 9429.4),  # aiconfigurator B200, 8898-9493
    ],
)
def test_large_products_take_the_measured_time(profile, m, n, k, microseconds):
    times = gemm_times(load_hardware(profile), "bf16", m, n, k)
    assert times.time[0] * 1e6 == pytest.approx(microseconds, rel=0.10)


@pytest.mark.parametrize(
    ("profile", "precision", "shape", "teraflops"),
    [  # best measured shape of a chip: stas00/ml-engineering, MAMF tables
        ("dgx-a100", "bf16", (1024, 10240, 5120), 271.2),
        ("a100-80gb-pcie", "bf16", (2048, 5120, 6144), 252.9),
        ("dgx-h100", "bf16", (2048, 2048, 13312), 794.5),
        ("dgx-b200", "bf16", (1792, 16128, 3072), 1745.0),
        ("dgx-b300", "bf16", (12288, 18432, 1024), 1769.0),
        ("gb200-nvl72", "bf16", (4096, 9728, 2048), 1822.0),
        ("mi300x-server", "bf16", (10240, 15360, 8192), 668.4),
        ("mi325x-server", "bf16", (13312, 10240, 8192), 784.9),
        ("mi355x-server", "bf16", (12288, 8192, 8192), 1565.0),
        ("dgx-h100", "fp8", (1024, 9216, 14336), 1402.6),
        ("dgx-b200", "fp8", (15360, 4096, 3072), 3432.5),
    ],
)
def test_best_published_rates_within_15_percent(profile, precision, shape, teraflops):
    found = rate(profile, precision, *shape, library="training") / 1e12
    assert found == pytest.approx(teraflops, rel=0.15)


@pytest.mark.in_sample("gemm-a100-bf16", "gemm-h100-bf16", "gemm-b200-bf16")
@pytest.mark.parametrize(
    ("hardware", "profile", "median_limit"),
    [("A100_SXM", "dgx-a100", 0.06), ("H100_SXM", "dgx-h100", 0.04), ("B200", "dgx-b200", 0.05)],
)
def test_measured_bf16_table(development_table, hardware, profile, median_limit):
    with development_table("measured/gemm.csv").open(newline="") as file:
        rows = [
            [float(row[key]) for key in ("m", "n", "k", "time_us")]
            for row in csv.DictReader(file)
            if row["hardware"] == hardware and row["dtype"] == "bf16"
        ]
    m, n, k, measured = np.array(rows).T
    log = np.log(gemm_times(load_hardware(profile), "bf16", m, n, k).time / (measured * 1e-6))
    assert np.median(np.abs(np.expm1(log))) < median_limit
    assert abs(np.median(log[m >= 2048])) < 0.03  # large products are unbiased


def test_what_a_large_cache_keeps_between_calls():
    hardware = load_hardware("l40s-server")
    sizes = np.array([8, 64, 4096]), np.array([8192, 8192, 1024]), np.array([768, 4096, 1024])

    def times(weights, activations):
        copies = {"weight_copies": weights, "activation_copies": activations}
        return gemm_times(hardware, "bf16", *sizes, **copies)

    cold = times(0, 0)
    assert np.all(times(1e9, 1e9).time == cold.time)  # the same bytes come too late
    ladder = [times(copies, 1) for copies in (1, 2, 6, 8, 40)]
    for sooner, later in itertools.pairwise(ladder):
        assert np.all(sooner.time <= later.time)
        assert np.all(sooner.memory_traffic <= later.memory_traffic)
    assert np.all(ladder[-1].time <= cold.time)
    weights = 2.0 * sizes[1][0] * sizes[2][0]  # 12.6 MB, six of them in 96 MiB
    # From the table of L40S: 6.2 us for 12.6 MB of weights, which the memory takes 14.6 us for.
    assert cold.time[0] > weights / hardware.device.memory.bandwidth
    assert times(6, 1).time[0] < 0.7 * weights / hardware.device.memory.bandwidth
    partitioned = load_hardware("dgx-h100")
    shape = (partitioned, "bf16", 8, 8192, 768)
    assert gemm_times(*shape, weight_copies=1, activation_copies=1).time == gemm_times(*shape).time
    with pytest.raises(DataError, match="weight_copies of a matrix product is at least 1"):
        times(0.5, 1)


@pytest.mark.parametrize("profile", ["dgx-a100", "dgx-h100", "dgx-b200", "mi355x-server"])
def test_nothing_beats_the_datasheet(profile):
    hardware = load_hardware(profile)
    m, n, k = np.meshgrid([1, 100, 4096, 30000], [128, 5000, 60000], [64, 4096, 30000])
    m, n, k = m.ravel(), n.ravel(), k.ravel()
    times = gemm_times(hardware, "bf16", m, n, k)
    operands = 2.0 * (m * k + n * k + m * n)
    assert (times.memory_traffic >= operands).all()
    assert (times.time > times.flops / hardware.device.peak("bf16")).all()
    assert (times.time > times.memory_traffic / hardware.device.memory.bandwidth).all()


def test_a_power_starved_board_sustains_less_of_its_peak():
    size = (16384, 16384, 16384)
    fractions = [
        rate(name, "bf16", *size) / load_hardware(name).device.peak("bf16")
        for name in ("h100-pcie", "dgx-h100")
    ]
    assert fractions[0] < 0.9 * fractions[1]  # 350 W against 700 W


def test_steady_load_is_slower_than_a_short_run():
    hardware = load_hardware("dgx-b200")
    short = gemm_times(hardware, "bf16", 8192, 8192, 8192).time[0]
    steady = gemm_times(hardware, "bf16", 8192, 8192, 8192, steady=True).time[0]
    # SimuMax B200 training products of this size run at 1100-1150 TFLOP/s
    assert 2 * 8192**3 / steady / 1e12 == pytest.approx(1120, rel=0.05)
    assert short < steady


def test_a_product_alone_is_held_by_the_board_from_its_start():
    """What H100 kept up in a loop of 26 November 2026 (benchmarks/measured/gemm.csv) [TFLOP/s]."""
    size = (8192, 8192, 8192)
    hardware = load_hardware("dgx-h100")
    short, alone, in_step = (
        gemm_times(hardware, "bf16", *size, **load).time[0]
        for load in ({}, {"steady": True, "alone": True}, {"steady": True})
    )
    assert short < alone < in_step
    assert 2e-12 * 8192**3 / alone == pytest.approx(712, rel=0.06)


def test_more_power_and_bandwidth_are_never_slower():
    base = load_hardware("dgx-h100")
    m, n, k = np.meshgrid([1, 64, 4096, 16384], [512, 8192], [512, 8192])
    sizes = (m.ravel(), n.ravel(), k.ravel())
    reference = gemm_times(base, "bf16", *sizes).time
    for path, factor in (("device.tdp", 1.5), ("device.memory.bandwidth", 1.5)):
        better = base.with_values({path: factor * float(base.value(path))})
        assert (gemm_times(better, "bf16", *sizes).time <= reference * (1 + 1e-12)).all(), path


def test_tpu_takes_as_much_longer_for_larger_products_as_jax_guide_measured():
    # XLA on v5e (jax-ml/jax 1082251, docs/pallas/tpu/matmul.ipynb): dispatch is in both times.
    small, large = (gemm_times("tpu-v5e-pod", "bf16", n, n, n).time[0] for n in (4096, 8192))
    assert large - small == pytest.approx(6.047147869830951e-3 - 0.8272899803705514e-3, rel=2e-3)


def test_tpu_sustains_most_of_its_peak():
    peak = load_hardware("tpu-v5p-pod").device.peak("bf16")
    assert 0.85 < rate("tpu-v5p-pod", "bf16", 8192, 8192, 8192) / peak < 0.96


def test_arguments_broadcast_and_results_are_one_dimensional():
    hardware = load_hardware("dgx-h100")
    times = gemm_times(hardware, "bf16", [128, 256, 512], 4096, 4096, batch=2)
    assert times.time.shape == times.bound.shape == times.tile_m.shape == (3,)
    assert times.flops[1] == 2 * 256 * 4096 * 4096 * 2
    assert times.memory_traffic[0] >= 2 * 2 * (128 * 4096 + 4096 * 4096 + 128 * 4096)
    assert set(times.bound) <= set(range(len(GEMM_BOUNDS)))
    single = gemm_times(hardware, "bf16", 256, 4096, 4096, batch=2)
    assert single.time.shape == (1,)
    assert single.time[0] == times.time[1]


def test_no_rows_give_no_rows():
    assert gemm_times(load_hardware("dgx-h100"), "bf16", [], [], []).time.shape == (0,)


def test_narrower_elements_are_faster():
    times = [
        gemm_times(load_hardware("dgx-b200"), precision, 8192, 8192, 8192).time[0]
        for precision in ("tf32", "bf16", "fp8", "nvfp4")
    ]
    assert times == sorted(times, reverse=True)
    assert OPERAND_BYTES["nvfp4"] < OPERAND_BYTES["fp8"] < OPERAND_BYTES["mxfp8"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 64, 64), "matrix product 0: m is 0"),
        (([8, 8], [64, np.nan], 64), "matrix product 1: n is nan"),
        ((8, 64, np.inf), "k is inf"),
        ((8, -3, 64), "n is -3"),
        (([1, 2], [1, 2, 3], 64), "do not broadcast"),
        (("many", 64, 64), "m should be numbers"),
    ],
)
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(DataError, match=message):
        gemm_times(load_hardware("dgx-h100"), "bf16", *sizes)


def test_unknown_precisions_are_refused_by_name():
    with pytest.raises(HardwareError, match=r"unknown precision 'bf61'.*did you mean bf16"):
        gemm_device(load_hardware("dgx-h100"), "bf61")
    with pytest.raises(HardwareError, match="no matrix rate for precision 'fp8'"):
        gemm_device(load_hardware("dgx-a100"), "fp8")


def test_a_missing_constant_is_named():
    hardware = load_hardware("dgx-h100")
    entries = {k: v for k, v in hardware.calibration["gemm"].items() if k != "power_exponent"}
    partial = replace(hardware, calibration=hardware.calibration | {"gemm": entries})
    with pytest.raises(HardwareError, match=r"dgx-h100.*power_exponent.*\[calibration\.gemm\]"):
        gemm_device(partial, "bf16")


@pytest.mark.parametrize("precision", ["fp16", "fp8", "fp8_block", "mxfp8", "nvfp4", "int8"])
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-b200", "dgx-b300", "mi355x-server"])
def test_a_faster_bf16_takes_no_power_from_others(name, precision):
    hardware = load_hardware(name)
    faster = hardware.with_values({"device.peak_flops.bf16": 1.5 * hardware.device.peak("bf16")})
    try:
        before = gemm_device(hardware, precision, steady=True)
    except HardwareError:
        return
    after = gemm_device(faster, precision, steady=True)
    assert after.power_rate >= before.power_rate * (1 - 1e-3)
    assert gemm_device(faster, "bf16").power_rate > gemm_device(hardware, "bf16").power_rate
