"""The state of a device, as its tools print it."""

from __future__ import annotations

from typing import Any


def test_states_of_devices_are_read_where_they_are_numbers(script: Any) -> None:
    state = script("state")
    cells = ["1755", " 2619", " 612.34", " [N/A]"]
    assert state.parse_numbers(cells, state.STATE) == {
        "sm_clock_mhz": 1755.0,
        "memory_clock_mhz": 2619.0,
        "power_w": 612.34,
    }
    assert state.parse_numbers(["", "x"], state.STATE) is None
    # Columns of rocm-smi 6 on an MI300X.
    text = (
        "device,Temperature (Sensor edge) (C),Temperature (Sensor junction) (C),"
        "mclk clock speed:,mclk clock level:,sclk clock speed:,sclk clock level:,"
        "Current Socket Graphics Package Power (W)\n"
        "card0,N/A,51.0,(1300Mhz),1,(2100Mhz),1,612.0\n"
    )
    assert state.parse_rocm(text) == {
        "temperature_c": 51.0,
        "memory_clock_mhz": 1300.0,
        "sm_clock_mhz": 2100.0,
        "power_w": 612.0,
    }
    assert state.parse_rocm("") is None
