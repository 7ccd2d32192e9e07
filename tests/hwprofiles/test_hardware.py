"""Every profile that ships: complete, consistent, the same after a round trip."""

from __future__ import annotations

import json
import math

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import (
    Hardware,
    hardware_from_dict,
    known_paths,
    list_hardware,
    load_hardware,
)
from perfmodel.hwprofiles.schema import DEVICE, MEMORY
from tests.data import table_of


def test_override_changes_the_value_and_its_source() -> None:
    plain = load_hardware("dgx-h100")
    changed = load_hardware("dgx-h100", {"device.memory.bandwidth": 4.8e12})
    assert changed.device.memory.bandwidth == 4.8e12
    assert changed.overrides == {"device.memory.bandwidth": 4.8e12}
    assert changed.source["device.memory.bandwidth"].startswith("override")
    assert plain.source["device.memory.bandwidth"] in changed.source["device.memory.bandwidth"]
    assert plain.device.memory.bandwidth == 3.352e12  # NVIDIA H100 whitepaper; unchanged
    assert hash(changed) != hash(plain)


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("system.network.1.bandwidth", "1e11", 1e11),
        ("system.network.infiniband.bandwidth", 1e11, 1e11),
        ("system.devices_per_node", "4", 4),
        ("system.network.0.in_network_reduction", "false", False),
        ("system.network.0.topology", "ring", "ring"),
        ("calibration.host.launch_time", 2e-5, 2e-5),
        ("calibration.host.launch_time.value", 3e-6, 3e-6),
        ("device.peak_flops.fp8", 1e15, 1e15),
    ],
)
def test_override_by_dotted_path(path: str, text: object, value: object) -> None:
    hardware = load_hardware("dgx-h100", {path: text})
    assert hardware.value(path) == value
    assert list(hardware.overrides.values()) == [value]
    assert hardware_from_dict(hardware.to_dict()) == hardware


def test_overrides_accumulate() -> None:
    hardware = load_hardware("dgx-h100", {"device.tdp": 500})
    hardware = hardware.with_values({"device.boost_clock": 1.5e9})
    assert hardware.overrides == {"device.tdp": 500.0, "device.boost_clock": 1.5e9}
    assert hardware.with_values({}) is hardware


def test_every_path_reads_and_takes_back_its_own_value() -> None:
    hardware = load_hardware("dgx-h100")
    values = {path: hardware.value(path) for path in known_paths(hardware)}
    changed = hardware.with_values(values)
    assert changed.device == hardware.device
    assert changed.system == hardware.system
    assert {f"device.{key}" for key in DEVICE} | {f"device.memory.{key}" for key in MEMORY} < set(
        values
    )


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        *table_of(__file__, "wrong_override"),
        ("device.memory.bandwidth", float("nan"), r"not nan"),
    ],
)
def test_wrong_override(path: str, value: object, message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        load_hardware("dgx-h100", {path: value})


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
