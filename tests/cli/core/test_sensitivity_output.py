"""How ``perfmodel sensitivity`` prints what it found."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from perfmodel.cli.core.sensitivity_output import quantity
from tests.cli.core.diff_pairs import RUN
from tests.cli.running import run

BANDWIDTH = "system.network.0.bandwidth"


def asked(*more: Any) -> list[Any]:
    return ["sensitivity", *shlex.split(RUN), *more]


def test_what_changes_nothing_is_shown_with_all() -> None:
    few = run(*asked("--kind", "hardware")).stdout
    assert "device.peak_flops.fp64" not in few
    assert "change nothing or cannot be (--all)" in few
    text = run(*asked("--parameter", "device.peak_flops.fp64")).stdout
    line = next(line for line in text.splitlines() if "device.peak_flops.fp64" in line)
    assert line.split()[3:] == ["0", "0", "0"]


def test_bandwidths_at_which_communication_hides_are_shown() -> None:
    text = run(*asked("--hiding", "--parameter", BANDWIDTH)).stdout
    assert "hides from" in text
    assert "0 nvlink" in text
    assert "tensor parallel" in text


def test_none_in_the_range_is_printed() -> None:
    same = run("sensitivity", "-", "tp=4", *shlex.split(RUN), "--parameter", "device.tdp",
               "--range", "699:700").stdout  # fmt: skip
    assert "no break-even from 699 W to 700 W" in same
    assert "throughout" in same


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (450e9, "B/s", "450 GB/s"),
        (0.0, "B/s", "0 B/s"),
        (2.7e-6, "s", "2.700 µs"),
        (80 * 2**30, "B", "80.0 GiB"),
        (2.5, "USD/h", "2.5 USD/h"),
        (7.76e-7, "USD", "0.776 µUSD"),
        (132, "1", "132"),
        (float("nan"), "1", "–"),
    ],
)
def test_values_are_written_with_their_units(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text
