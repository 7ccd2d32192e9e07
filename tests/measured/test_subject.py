"""Whose constants are fitted: which rows count, and what their devices get."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.family import load_family
from perfmodel.measured.rows import MeasuredRow
from perfmodel.measured.subject import MeasuredTable, OneProfile, WholeFamily


def row(hardware: str) -> MeasuredRow:
    return MeasuredRow({"hardware": hardware}, "table.csv", 2)


@pytest.mark.parametrize("name", ["dgx-h100", "H100_SXM", "NVIDIA H100 SXM", "H100_SXM|H200"])
def test_rows_of_a_profile_s_device_are_priced_as_the_profile(name: str, profile: Path) -> None:
    subject = OneProfile(load_hardware(profile), str(profile))
    chosen = subject.chosen(row(name))
    assert chosen is not None
    assert chosen.text("hardware") == str(profile)


def test_other_devices_count_on_demand_with_their_own_facts(profile: Path) -> None:
    mine, a100 = load_hardware(profile), load_hardware("dgx-a100")
    assert OneProfile(mine, str(profile)).chosen(row("A100_SXM")) is None
    every = OneProfile(mine, str(profile), all_rows=True)
    assert every.chosen(row("A100_SXM")) == row("A100_SXM")
    applied = every.applied(a100, "gemm")
    assert applied.device == a100.device
    assert applied.calibration["gemm"] == mine.calibration["gemm"]
    assert applied.calibration["moe"] == a100.calibration["moe"]


def test_a_family_takes_the_rows_of_its_systems() -> None:
    subject = WholeFamily(load_family("nvidia-hopper"))
    for name in ("H100_SXM", "H200", "hgx-h800"):
        assert subject.chosen(row(name)) == row(name)
    for name in ("A100_SXM", "nobody's card", ""):
        assert subject.chosen(row(name)) is None


def test_a_device_gets_the_family_s_values_but_keeps_its_own() -> None:
    family = load_family("amd-cdna3").with_constants("gemm", {"launch_latency": 5e-6})
    family = family.with_constants("gemm", {"issue_efficiency": 0.4})
    subject = WholeFamily(family)
    mi308x = load_hardware("mi308x-server")
    applied = subject.applied(mi308x, "gemm")
    assert applied.calibrated("gemm", "launch_latency") == 5e-6
    own = mi308x.calibrated("gemm", "issue_efficiency")
    assert applied.calibrated("gemm", "issue_efficiency") == own
    assert "issue_efficiency" in subject.own(mi308x, "gemm")
    mi300x = subject.applied(load_hardware("mi300x-server"), "gemm")
    assert mi300x.calibrated("gemm", "issue_efficiency") == 0.4


def test_heads_say_what_was_calibrated_and_to_what(profile: Path) -> None:
    table = MeasuredTable("a.csv", "gemm", "m > 1")
    one = OneProfile(load_hardware(profile), str(profile)).head([table])
    assert one == {
        "kind": "gemm",
        "profile": "my-h100",
        "file": "a.csv",
        "where": "m > 1",
        "all_rows": False,
    }
    family = replace(load_family("nvidia-hopper"), systems=("dgx-h100",))
    assert WholeFamily(family).head([table, table]) == {
        "family": "nvidia-hopper",
        "systems": ["dgx-h100"],
        "tables": [{"file": "a.csv", "kind": "gemm", "where": "m > 1"}] * 2,
    }
