"""What of a device follows its clock and its number of units.

Its peaks are units x FLOP per clock and unit x clock: a datasheet states them at one clock and for
all units (``device.boost_clock``, ``device.compute_units``), and they go with both. Vector units
and special functions are of the same kind; the shared cache moves its bytes per clock whatever the
units. Latencies inside the chip take as many clocks, and an operation needs the energy of the
voltage at its clock (`perfmodel.hwprofiles.trust.clock_factor`). Memory, links and hosts have
clocks of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from perfmodel.hwprofiles.constants import known
from perfmodel.hwprofiles.schema import Calibrated
from perfmodel.hwprofiles.trust import CLOCKED, clock_factor, leaves

CLOCK, UNITS = "boost_clock", "compute_units"
OF_UNITS = ("peak_flops.", "vector_flops", "special_function_rate")
"""Rates of all units together: they follow `CLOCK` and `UNITS`."""
OF_CLOCK = ("memory.l2_bandwidth",)
"""Rates that the clock sets alone."""


def rates_following(
    device: Mapping[str, Any], changed: Mapping[str, Any], kept: Collection[str]
) -> dict[str, float]:
    """Return the rates of a device with another clock or another number of units.

    Parameters
    ----------
    device : mapping
        Facts as in ``[device]``, its rates those at its own clock.
    changed : mapping of str to value
        Facts that replace them, by dotted key.
    kept : collection of str
        Keys whose number somebody stated: they stay.

    Returns
    -------
    dict of str to float
        Dotted key -> rate [FLOP/s, 1/s, B/s]; none where neither changes.
    """
    facts = dict(leaves(device))
    clock, units = (ratio(facts, changed, key) for key in (CLOCK, UNITS))
    if clock == units == 1.0:
        return {}
    follow = {key: clock * units for key in facts if key.startswith(OF_UNITS)}
    follow |= {key: clock for key in facts if key in OF_CLOCK}
    return {
        key: facts[key] * by
        for key, by in follow.items()
        if key not in kept and by != 1.0 and isinstance(facts[key], int | float)
    }


def ratio(facts: Mapping[str, Any], changed: Mapping[str, Any], key: str) -> float:
    """Return a changed fact over the former one; 1 where one of them is no number above 0."""
    former, new = facts.get(key), changed.get(key)
    numbers = all(isinstance(it, int | float) and it > 0 for it in (former, new))
    return float(new or 1.0) / float(former or 1.0) if numbers else 1.0


def constants_following(
    calibration: Mapping[str, Mapping[str, Calibrated]], clock: float
) -> Iterator[tuple[str, float]]:
    """Yield path and value of every constant that follows the clock.

    Parameters
    ----------
    calibration : mapping of str to mapping of str to Calibrated
        At the former clock.
    clock : float
        New clock over the former one [1].
    """
    stated = calibration.get("gemm", {}).get("power_exponent")
    exponent = stated.value if stated else known("gemm")["power_exponent"].prior
    for group, entries in calibration.items() if clock != 1.0 else ():
        for key, entry in entries.items():
            transfer = known(group)[key].transfer
            if transfer in CLOCKED:
                value = entry.value * clock_factor(transfer, clock, exponent)
                yield f"calibration.{group}.{key}", value
