"""Rates, latencies and energies of a device at another clock, and with other units."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.compute.gemm import gemm_device
from perfmodel.hwprofiles import list_hardware, load_hardware
from perfmodel.hwprofiles.clocks import rates_following
from perfmodel.hwprofiles.constants import known

CLOCK, UNITS = "device.boost_clock", "device.compute_units"


@pytest.mark.parametrize("name", list_hardware())
def test_every_rate_of_every_profile_is_units_times_clock_times_its_work_per_clock(name):
    before = load_hardware(name)
    units, clock = 2 * before.device.compute_units, before.device.boost_clock / 2
    device = before.with_values({CLOCK: clock, UNITS: units}).device
    assert device.peak_flops == before.device.peak_flops  # twice the units, half the clock
    assert device.vector_flops == before.device.vector_flops
    assert device.special_function_rate == before.device.special_function_rate
    assert device.memory.l2_bandwidth == before.device.memory.l2_bandwidth / 2
    assert device.memory.bandwidth == before.device.memory.bandwidth
    slow = before.with_values({CLOCK: clock}).device
    assert slow.peak_flops == {key: it / 2 for key, it in before.device.peak_flops.items()}


@pytest.mark.parametrize("name", list_hardware())
def test_at_its_own_clock_nothing_changes(name):
    before = load_hardware(name)
    same = before.with_values({CLOCK: before.device.boost_clock})
    assert (same.device, same.system) == (before.device, before.system)
    assert all(
        entry.value == before.calibrated(group, key)
        for group, entries in same.calibration.items()
        for key, entry in entries.items()
    )


def test_a_rate_that_the_user_states_stays_whatever_the_order():
    h100 = load_hardware("dgx-h100")
    clock, peak = {CLOCK: 1.2e9}, {"device.peak_flops.bf16": 8e14}
    once = h100.with_values({**peak, **clock})
    assert once.device.peak("bf16") == 8e14
    assert once.device.peak("fp16") == pytest.approx(989.4e12 * 1.2 / 1.83)
    assert once.device == h100.with_values(peak).with_values(clock).device
    assert once.device == h100.with_values(clock).with_values(peak).device
    assert once.overrides == {**peak, **clock}
    assert once.source["device.peak_flops.fp16"].startswith("follows the clock")


def test_latencies_take_as_many_clocks_and_energies_go_with_the_voltage():
    before = load_hardware("dgx-h100")
    after = before.with_values({CLOCK: before.device.boost_clock / 2})
    for group, entries in before.calibration.items():
        for key, entry in entries.items():
            factor = {"clocks": 2.0, "energy": 0.5 ** (1 / 0.55 - 1)}
            by = factor.get(known(group)[key].transfer, 1.0)
            assert after.calibrated(group, key) == pytest.approx(entry.value * by), (group, key)


@pytest.mark.parametrize("clock", [1.5e9, 2.2e9, 3.6e9])
def test_a_clock_above_what_power_allows_sustains_no_more(clock):
    before = load_hardware("dgx-h100")
    rates = [
        gemm_device(hardware, "bf16", steady=True)
        for hardware in (before, before.with_values({CLOCK: clock}))
    ]
    assert rates[1].power_rate == pytest.approx(rates[0].power_rate, rel=1e-9)
    assert rates[1].unit_rate == pytest.approx(rates[0].unit_rate * clock / 1.83e9)


def test_a_profile_of_ones_own_at_another_clock_takes_its_rates_along(tmp_path: Path):
    path = tmp_path / "slow.toml"
    path.write_text('extends = "dgx-h100"\n[device]\nboost_clock = 0.915e9\n')
    slow, stated = load_hardware(path), load_hardware("dgx-h100")
    assert slow.device == stated.with_values({CLOCK: 0.915e9}).device
    assert slow.source["device.peak_flops.bf16"].startswith("by clock and units of slow")
    path.write_text(
        'extends = "dgx-h100"\ninherited = ["device.peak_flops.bf16"]\n'
        "[device]\nboost_clock = 0.915e9\nvector_flops = 5e13\n"
    )
    meant = load_hardware(path).device
    assert (meant.peak("bf16"), meant.vector_flops) == (989.4e12, 5e13)


@pytest.mark.parametrize("facts", [{}, {"boost_clock": "fast"}, {"boost_clock": 0.0}])
def test_without_a_clock_nothing_follows(facts):
    device = {"vector_flops": 1.0, **facts}
    assert rates_following(device, {"boost_clock": 2e9}, ()) == {}
