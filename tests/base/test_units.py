"""Readable units."""

from __future__ import annotations

import math

import pytest

import perfmodel
from perfmodel.base.errors import DataError, PerfModelError, StrategyError, did_you_mean
from perfmodel.base.units import (
    GIB,
    counted,
    facts_html,
    format_gib,
    format_range,
    format_si,
    format_size,
    format_time,
    parse_clock,
    parse_size,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.5e11, "B/s", "450 GB/s"),
        (989.4e12, "FLOP/s", "989 TFLOP/s"),
        (1e3, "B", "1 kB"),
        (999.9, "B", "1 kB"),  # rounds up into the next prefix
        (999.0, "B", "999 B"),
        (1.5, "", "1.5"),
        (-2e6, "B", "-2 MB"),
        (0.0, "B", "0 B"),
        (3.2e18, "FLOP", "3.2e+03 PFLOP"),
        (math.nan, "s", "nan s"),
        (math.inf, "", "inf"),
    ],
)
def test_si_prefixes(value, unit, text):
    assert format_si(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.3456, "12.35 s"),
        (1.0, "1.000 s"),
        (10e-3, "10.00 ms"),
        (9.9999e-3, "10.00 ms"),
        (86_400.0, "86,400 s"),
        (0.0123, "12.30 ms"),
        (4.2e-6, "4.200 µs"),
        (3e-9, "0.00300 µs"),
        (0.0, "0 s"),
        (math.nan, "nan"),
    ],
)
def test_times(seconds, text):
    assert format_time(seconds) == text


def test_gib_is_binary():
    assert GIB == 1073741824  # 2**30, IEC 80000-13
    assert format_gib(80e9) == "74.5 GiB"


def test_hints_name_the_nearest_or_the_few_known():
    known = ["tensor_parallel", "pipeline_parallel", "recompute"]
    assert did_you_mean("tensor_paralel", known).startswith("; did you mean tensor_parallel")
    assert did_you_mean("zzz", known) == "; known: pipeline_parallel, recompute, tensor_parallel"
    assert did_you_mean("zzz", map(str, range(100))) == ""
    assert did_you_mean("RECOMPUTE", known) == "; did you mean recompute?"
    assert issubclass(StrategyError, PerfModelError)


@pytest.mark.parametrize(
    ("low", "high", "like", "text"),
    [
        (0.93, 1.1, 1.01, "0.930–1.10 s"),
        (12.94, 59.0, 20.0, "12.9–59.0 s"),
        (950.0, 1234.4, 1000.0, "950–1234 s"),
        (0.009, 0.0101, 0.0095, "9.00–10.1 ms"),
        (0.9, 1.1, 0.99, "900–1100 ms"),  # in the unit of the middle
        (2e-7, 3e-7, 2.5e-7, "0.200–0.300 µs"),
        (1.0, 1.0, 1.0, ""),
        (math.nan, math.nan, math.nan, ""),
    ],
)
def test_ranges_share_the_unit_of_their_middle(low, high, like, text):
    assert format_range(low, high, like) == text
    assert format_range(low, high, like, unit=False) == text.partition(" ")[0]


@pytest.mark.parametrize(
    ("size", "text"),
    [(65536, "64 KiB"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (10**9, "1 GB"), (10**15, "1 PB")],
)
def test_sizes_are_written_in_the_unit_that_is_exact(size, text):
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("512B", 512),
        ("1KB", 1000),
        ("1kb", 1000),
        ("1KiB", 1024),
        ("64 MiB", 64 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("0.5KiB", 512),
        ("1e6", 1_000_000),
        ("2TiB", 2 * 2**40),
    ],
)
def test_sizes_take_both_kinds_of_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "should be a size in bytes"),
        ("big", "should be a size in bytes"),
        ("-1KB", "should be a size in bytes"),
        ("nan", "should be a size in bytes"),
        ("1e999", "should be a size in bytes"),
        ("1.2.3MB", "should be a size in bytes"),
        ("1K", r"unknown unit of bytes 'K'; write KB \(1000\) or KiB \(1024\)"),
        ("1m", r"write MB \(1000\) or MiB \(1024\)"),
        ("1KBi", "unknown unit of bytes 'KBi'; did you mean"),
        ("1e308GB", "is more than 1024 PiB"),
        ("1.5", "not a whole number of bytes"),
    ],
)
def test_sizes_that_are_none_are_explained(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_size(text)


def test_sizes_are_written_as_they_read_best() -> None:
    sizes = [512, 1024, 1536, 65536, 10**6, 2**30, 2**30 + 1]
    texts = ["512 B", "1 KiB", "1.5 KiB", "64 KiB", "1 MB", "1 GiB", "1.07 GB"]
    assert [format_size(size) for size in sizes] == texts
    for size, text in zip(sizes[:6], texts, strict=False):
        assert parse_size(text) == size


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.7e12, "2.70 TB/s"), (1.66e14, "166 TB/s"), (9.999e11, "1.00 TB/s"), (0.0, "0 B/s")],
)
def test_even_numbers_have_as_many_digits(value, text):
    assert format_si(value, "B/s", even=True) == text


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 rank"), (0, "0 ranks"), (2, "2 ranks"), (16384, "16,384 ranks")]
)
def test_one_is_singular(count, text):
    assert counted(count, "rank") == text


OBJECTS = {
    "model": lambda: perfmodel.load_model("deepseek-v3"),
    "hardware": lambda: perfmodel.load_hardware("dgx-h100"),
    "framework": lambda: perfmodel.load_framework("megatron"),
    "grid": lambda: perfmodel.strategy_grid(
        "llama-3.1-8b", 16, sequence_length=4096, global_batch_size=64
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_one_line_and_one_table(name: str) -> None:
    shown = OBJECTS[name]()
    assert len(repr(shown)) < 120
    assert "\n" not in repr(shown)
    html = shown._repr_html_()
    assert html.count("<tr>") == html.count("</tr>") > 3
    assert len(html) < 20_000


def test_what_is_shown_is_text() -> None:
    assert "<b>" not in facts_html("<b>", [("<b>", "<b>")])


def test_kernels_take_names() -> None:
    named = perfmodel.gemm_times("dgx-h100", "bf16", 4096, 4096, 4096)
    given = perfmodel.gemm_times(perfmodel.load_hardware("h100"), "bf16", 4096, 4096, 4096)
    assert named.time == given.time
    assert perfmodel.stream_times("dgx-h100", 1e6, 1e6).time > 0
    assert perfmodel.collective_times("dgx-h100", "all_reduce", 2**20, 8) > 0
    assert perfmodel.HardwareCosts("dgx-h100").hardware.name == "dgx-h100"


@pytest.mark.parametrize(
    ("text", "clock"),
    [("1.2GHz", 1.2e9), ("1200 mhz", 1.2e9), ("1.83e9", 1.83e9), ("2.1 GHz", 2.1e9)],
)
def test_clock(text: str, clock: float) -> None:
    assert parse_clock(text) == clock


@pytest.mark.parametrize("text", ["1.2", "1200", "fast", "", "1.2TB", "1.2.3GHz", "0GHz", "nan"])
def test_no_clock(text: str) -> None:
    with pytest.raises(DataError, match="should be a clock from 1MHz to 100GHz"):
        parse_clock(text)
