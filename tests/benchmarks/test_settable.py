"""Every number that can be set acts, is bound by others that are named, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.amount import LONG


@pytest.mark.parametrize("place", range(10) if LONG else (0, 4, 8))
def test_numbers_of_a_profile_act_or_say_why_not(script: Any, place: int) -> None:
    settable = script.load("settable")
    profile = settable.PROFILES[place]
    request = [*settable.REQUESTS][place % len(settable.REQUESTS)]
    found = [*settable.drive(profile, request, every=150, seed=place)]
    assert len(found) >= 2
    assert {it.verdict for it in found} <= {"changed", "bound", "refused", "limit"}, found


def test_a_number_that_does_nothing_in_silence_is_a_finding(script: Any, monkeypatch: Any) -> None:
    settable = script.load("settable")
    monkeypatch.setattr("perfmodel.analysis.acting.idle_numbers", lambda *given: [])
    found = [*settable.drive("dgx-h100", "product", "device.peak_flops.fp64")]
    assert [it.verdict for it in found] == ["finding", "finding"]


def test_the_drive_prints_one_line_for_each_profile_and_request(script: Any) -> None:
    code, printed, _ = script("settable", "--hardware", "dgx-h100", "--request", "product",
                              "--path", "device.boost_clock")  # fmt: skip
    assert code == 0
    assert printed.splitlines()[-1] == "| dgx-h100 | product | 2 | 0 | 0 | 0 | 0 |"
