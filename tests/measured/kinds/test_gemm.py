"""Measured matrix products: reading rows, what is left out and why, errors on real tables."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.base.regimes import LIMITS, REGIMES, regime, regime_name
from perfmodel.compute.gemm import gemm_device, gemm_times, quantised_gemm_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.compare import compare_file, statistics

HEADER = "hardware,dtype,m,n,k,time_us"


def compared(tmp_path, *rows, header=HEADER, **options):
    """Compare a table of the given rows."""
    path = tmp_path / "gemm.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return compare_file("gemm", path, **options)


def microseconds(precision, *sizes, quantise=False):
    """Time of one product on an H100 [us]."""
    hardware = load_hardware("dgx-h100")
    if not quantise:
        return gemm_times(hardware, precision, *sizes).time[0] * 1e6
    found, passes = quantised_gemm_times(hardware, precision, *sizes)
    return (found.time[0] + passes[0]) * 1e6


def test_rows_that_the_model_made_have_no_error(tmp_path):
    wide = microseconds("bf16", 512, 4096, 4096)
    narrow = microseconds("fp8", 512, 4096, 4096, quantise=True)
    found = compared(
        tmp_path,
        f"H100_SXM,bf16,512,4096,4096,{wide:.9f}",
        f"H100_SXM,fp8,512,4096,4096,{narrow:.9f}",
    )
    assert [row.error for row in found.rows] == pytest.approx([0.0, 0.0], abs=1e-8)
    details = found.rows[1].outcome.details
    assert details["quantise_time"] > 1e-6
    assert found.rows[0].outcome.details["quantise_time"] == 0.0
    assert found.by == ("hardware", "dtype", "regime")
    assert found.rows[0].cells["regime"] == "middle"


def test_tables_say_how_many_copies_they_cycle_through(tmp_path):
    hardware = load_hardware("l40s-server")
    cold, warm, cycled = (
        gemm_times(hardware, "bf16", 8, 8192, 768, weight_copies=w, activation_copies=a).time[0]
        for w, a in ((0, 0), (1, 1), (6, 1))
    )
    shape = "L40S,bf16,8,8192,768"
    found = compared(
        tmp_path,
        f"{shape},{cold * 1e6:.9f},,,,,",
        f"{shape},{warm * 1e6:.9f},1,,,,",
        f"{shape},{cycled * 1e6:.9f},,6,1,,",
        f"{shape},{cycled * 1e6:.9f},,,,3,6.1",  # a summary of frameworks, as they are timed
        header=f"{HEADER},copies,weight_copies,activation_copies,n_fw,t_min_us",
    )
    assert warm < cycled < cold
    assert [row.error for row in found.rows] == pytest.approx([0.0] * 4, abs=1e-8)


def test_an_input_that_came_in_quantised_costs_no_pass(tmp_path):
    product = microseconds("fp8", 512, 4096, 4096)
    found = compared(
        tmp_path,
        f"H100_SXM,fp8,512,4096,4096,{product:.9f},yes",
        header=f"{HEADER},quantised_input",
    )
    assert found.rows[0].error == pytest.approx(0.0, abs=1e-8)


def test_amd_tables_hold_the_kernel_alone(tmp_path):
    found = compared(tmp_path, "MI300X|MI325X,fp8_block,4096,4096,4096,200")
    (row,) = found.rows
    assert row.scored
    assert row.outcome.details["quantise_time"] == 0.0
    assert row.outcome.notes == ("'MI300X|MI325X' taken as MI300X",)


def test_a_layout_with_accumulation_means_a_steady_load(tmp_path):
    kernel = "layout=NT;accumulate=True;out=fp32"
    header = f"{HEADER},kernel,steady"
    rows = [f"B200,bf16,8192,8192,8192,1000,{kernel},{steady}" for steady in ("", "yes", "no")]
    found = compared(tmp_path, *rows, header=header)
    default, steady, short = (row.outcome.projected for row in found.rows)
    assert default == steady > short


def test_a_table_says_under_which_load_it_was_timed(tmp_path):
    header, size = f"{HEADER},steady", "8192,8192,8192,1545"
    rows = compared(
        tmp_path,
        *(f"H100_SXM,bf16,{size},{load}" for load in ("no", "alone", "yes")),
        header=header,
    ).rows
    times = [row.outcome.projected for row in rows]
    assert times == sorted(set(times))
    assert abs(rows[1].error) < 0.08  # benchmarks/measured/gemm.csv: in a loop
    with pytest.raises(DataError, match="'often' should be yes, no or alone"):
        compared(tmp_path, f"H100_SXM,bf16,{size},often", header=header)


def test_columns_of_published_tables_are_understood(tmp_path):
    found = compared(
        tmp_path,
        "MI355X,4096,4096,4096,bf16_r,f32_r,1,120",
        header="hardware,M,N,K,a_type,d_type,beta,measured_us",
    )
    assert found.rows[0].scored
    assert found.rows[0].cells["dtype"] == "bf16_r"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("H100_SXM,bf16,512,4096,4096,inf", "the kernel failed (time is infinite)"),
        ("H100_SXM,bf16,512,4096,4096,", "no usable measurement"),
        ("H100_SXM,bf16,8192,8192,8192,0.01", "faster than the device can be"),
        ("Z80,bf16,512,4096,4096,10", "no hardware profile"),
        ("A100_SXM,fp8,512,4096,4096,10", "the device has no such kernel"),
        ("H100_SXM,,512,4096,4096,10", "dtype not stated"),
        ("H100_SXM,bf16,512,,4096,10", "shape not stated"),
    ],
)
def test_rows_that_cannot_be_scored_are_counted_by_reason(tmp_path, row, reason):
    assert compared(tmp_path, row).skipped() == {reason: 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("H100_SXM,bf16,512,4096,x,10", r"line 2, column 'k': 'x' should be"),
        ("H100_SXM,bf16,5.5,4096,64,10", r"line 2, column 'm': '5.5' should be a whole number"),
        ("H100_SXM,bf16,512,4096,64,-1", r"line 2, column 'time_us': '-1' should be"),
        ("H100_SXM,bf16,512,4096,64,nope", r"line 2, column 'time_us': 'nope' should be"),
    ],
)
def test_broken_cells_are_refused_with_file_and_line(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        compared(tmp_path, row)


def test_a_quantised_product_is_its_product_and_a_pass():
    hardware = load_hardware("dgx-b200")
    m = np.array([1.0, 64.0, 4096.0])
    for precision in ("fp8", "fp8_block", "nvfp4", "mxfp8"):
        found, passes = quantised_gemm_times(hardware, precision, m, 4096, 4096)
        assert (found.time == gemm_times(hardware, precision, m, 4096, 4096).time).all()
        assert (passes > 1e-6).all()
        assert (np.diff(passes) >= 0.0).all()


def test_libraries_have_their_own_constants_and_only_where_operands_are_narrow():
    hardware = load_hardware("dgx-h100")
    wide = [gemm_device(hardware, "bf16", library=name) for name in ("serving", "training")]
    assert wide[0] == wide[1]
    narrow = [gemm_device(hardware, "fp8", library=name) for name in ("serving", "training")]
    assert narrow[0].largest_split == 1.0
    assert narrow[1].largest_split > 1.0
    assert gemm_device(hardware, "fp8", steady=True).largest_split == narrow[1].largest_split
    with pytest.raises(DataError, match="unknown library 'cutlass'"):
        gemm_device(hardware, "fp8", library="cutlass")


def test_regimes_are_ordered_and_named():
    for name, (_, middle, large) in LIMITS.items():
        values = [middle / 2, middle, (middle + large) / 2, large, 2 * large]
        assert [REGIMES[i] for i in regime(name, values)] == [
            *("small", "middle", "middle", "large", "large")
        ]
    assert regime_name("gemm", 64) == "small"
    assert regime_name("gemm", 2048) == "large"


# Targets of our own: medians and means that the shipped constants reach on the tables
# that they were fitted to (benchmarks/fit/families.toml), with a little room.
@pytest.mark.in_sample(
    "gemm-a100-bf16",
    "gemm-h100-bf16",
    "gemm-h100-fp8",
    "gemm-h100-fp8-block",
    "gemm-b200-bf16",
    "gemm-b200-fp8",
    "gemm-b200-fp8-block",
    "gemm-b200-nvfp4",
    "gemm-mi300x-fp8-block",
)
@pytest.mark.parametrize(
    ("hardware", "dtype", "median", "mean"),
    [
        ("A100_SXM", "bf16", 0.062, 0.082),
        ("H100_SXM", "bf16", 0.038, 0.060),
        ("H100_SXM", "fp8", 0.084, 0.112),
        ("H100_SXM", "fp8_block", 0.068, 0.104),
        ("B200", "bf16", 0.052, 0.075),
        ("B200", "fp8", 0.072, 0.106),
        ("B200", "fp8_block", 0.077, 0.102),
        ("B200", "nvfp4", 0.054, 0.080),
        ("MI300X|MI325X", "fp8_block", 0.043, 0.068),
    ],
)
def test_measured_products(development_table, hardware, dtype, median, mean):
    path = development_table("measured/gemm.csv")
    where = f"hardware == '{hardware}' and dtype == '{dtype}'"
    found = statistics(compare_file("gemm", path, where).rows)
    assert found["count"] > 1000
    assert found["coverage"] == 1.0
    assert found["median_absolute_error"] < median
    assert found["mean_absolute_error"] < mean
    assert abs(found["bias"]) < 0.06


def test_unknown_hardware_of_the_whole_table_is_refused(tmp_path):
    with pytest.raises(HardwareError, match="unknown hardware"):
        compared(tmp_path, "H100_SXM,bf16,512,64,64,10", hardware="nope")
