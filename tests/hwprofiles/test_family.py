"""Families: who belongs to one, and what each device has of its own."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.constants import known
from perfmodel.hwprofiles.family import load_family
from perfmodel.hwprofiles.trust import FROM_CLASS, at_clock

OTHERS = (FROM_CLASS, "prior: no relative is measured")
"""How sources of constants begin that a chip takes from others than its family."""


def test_a_family_knows_its_systems_and_what_they_have_of_their_own() -> None:
    cdna3 = load_family("AMD_CDNA3")
    assert {"mi300x-server", "mi308x-server", "mi210-server"} <= set(cdna3.systems)
    assert ("gemm", "issue_efficiency") in cdna3.own["mi308x-server"]
    assert cdna3.own["mi300x-server"] == frozenset()
    assert load_family("dgx-h100").systems == ("dgx-h100",)


def test_an_unknown_family_is_answered_with_the_nearest() -> None:
    with pytest.raises(HardwareError, match=r"unknown family 'nvidia-hoper'; did you mean nvidia-"):
        load_family("nvidia-hoper")


def test_values_on_top_of_a_family_leave_the_loaded_one_alone() -> None:
    family = load_family("nvidia-hopper")
    changed = family.with_constants("gemm", {"launch_latency": 1e-6})
    assert changed.calibration["gemm"]["launch_latency"].value == 1e-6
    assert family.calibration["gemm"]["launch_latency"].value != 1e-6


@pytest.mark.parametrize(
    "name", ["nvidia-ampere", "nvidia-hopper", "nvidia-blackwell", "amd-cdna4"]
)
def test_what_a_system_has_not_of_its_own_is_the_family_s(name: str) -> None:
    family = load_family(name)
    for system in family.systems:
        hardware = load_hardware(system)
        for group, entries in hardware.calibration.items():
            for key, entry in entries.items():
                if (group, key) in family.own[system] or entry.source.startswith(OTHERS):
                    continue
                handed = family.calibration[group][key].value
                clock = hardware.device.boost_clock
                if entry.trust != "transferred":  # by relatives' own rule, or no latency
                    assert entry.value in (handed, pytest.approx(handed * family.clock / clock))
                else:
                    assert entry.value == at_clock(known(group)[key], handed, family.clock, clock)
