"""``perfmodel wafer collective``."""

from __future__ import annotations

from tests.cli.running import assert_one_line, document, run

ROW = ("wafer", "collective", "all_reduce", "--hardware", "wse-2", "--grid", "1x8", "--size", "32")


def test_every_algorithm_is_shown() -> None:
    text = run(*ROW, "--simulate").stdout
    assert "simulated" in text
    assert all(name in text for name in ("chain", "ring", "star", "two_level"))
    plain = ("--set", "constants.stage_latency=0", "--simulate", "--algorithm", "two_level")
    (one,) = document(*ROW, *plain)["collectives"]
    assert one["cycles"] == one["simulated_cycles"]


def test_wrong_input_is_one_line() -> None:
    assert_one_line(run(*ROW[:3], "--hardware", "dgx-h100", *ROW[5:]), "no mesh of cores")
    assert_one_line(run(*ROW, "--algorithm", "twolevel"), "did you mean two_level")
    assert_one_line(run(*ROW[:6], "x8", *ROW[7:]), "grid: 'x8'")
