"""Every profile that ships: complete, consistent, the same after a round trip."""

from __future__ import annotations

import json
import math

import pytest

from perfmodel.hwprofiles import (
    Hardware,
    hardware_from_dict,
    known_paths,
    list_hardware,
    load_hardware,
)

SYSTEMS = list_hardware()
EVERYTHING = list_hardware(all=True)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_loads_with_a_source_for_every_number(name: str) -> None:
    hardware = load_hardware(name)
    numbers = [path for path in known_paths(hardware) if not is_text(hardware, path)]
    assert len(numbers) > 25
    for path in numbers:
        assert hardware.source[path].strip(), path
        assert not hardware.source[path].startswith("not stated"), path
        assert math.isfinite(float(hardware.value(path))), path


def is_text(hardware: Hardware, path: str) -> bool:
    return isinstance(hardware.value(path), str)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_survives_the_round_trip_through_json(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware_from_dict(json.loads(json.dumps(hardware.to_dict()))) == hardware


@pytest.mark.parametrize("name", SYSTEMS)
def test_matrix_rates_ordered_by_width_and_above_vector_rate(name: str) -> None:
    device = load_hardware(name).device
    for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")):
        if wide in device.peak_flops and narrow in device.peak_flops:
            assert device.peak(wide) <= device.peak(narrow)
    assert device.vector_flops <= max(device.peak_flops.values())


def test_the_families_of_the_contract_exist() -> None:
    families = {
        *("nvidia-ampere", "nvidia-hopper", "nvidia-blackwell", "nvidia-ada"),
        *("amd-cdna3", "amd-cdna4", "google-tpu", "aws-trainium"),
    }
    assert families < set(EVERYTHING)


def test_ideal_systems_lose_nothing_to_the_host() -> None:
    hardware = load_hardware("astra-sanity")
    assert hardware.calibrated("host", "launch_time") == 0.0
    assert [level.size for level in hardware.system.network] == [2, 4, 2]


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_host_times(name: str) -> None:
    hardware = load_hardware(name)
    for key in ("launch_time", "graph_launch_time", "step_overhead"):
        assert hardware.calibrated("host", key) >= 0.0
    assert hardware.calibrated("host", "graph_launch_time") <= hardware.calibrated(
        "host", "launch_time"
    )
