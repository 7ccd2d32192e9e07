"""Facts of hardware profiles against datasheets and architecture papers."""

from __future__ import annotations

import re

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import (
    list_hardware,
    load_hardware,
    resolve_name,
)
from tests.data import table_of

GIB = 2**30

FACTS = [
    *table_of(__file__, "facts"),
    # NVIDIA DGX H100 datasheet: 2 TB; two processors with eight channels of DDR5-4800.
    ("dgx-h100", "system.host.memory_capacity", 2048e9 / 8),
    ("dgx-h100", "system.host.memory_bandwidth", 2 * 8 * 4800e6 * 8 / 8),
    ("dgx-a100", "system.host.memory_bandwidth", 2 * 8 * 3200e6 * 8 / 8),
    ("dgx-b200", "system.host.memory_bandwidth", 2 * 8 * 5600e6 * 8 / 8),
    ("dgx-1-v100", "system.host.memory_bandwidth", 2 * 4 * 2400e6 * 8 / 8),
    ("dgx-h100", "system.host_power", (10.2e3 - 8 * 700) / 8),  # NVIDIA DGX H100 datasheet
    ("dgx-a100", "system.host_power", (6.5e3 - 8 * 400) / 8),  # NVIDIA DGX A100 datasheet
    ("dgx-b200", "system.host_power", (14.3e3 - 8 * 1000) / 8),  # NVIDIA DGX B200 datasheet
    ("dgx-h100", "system.price", 55.04 / 8),  # AWS p5.48xlarge, US East
    ("trn1-32xl", "system.price", 21.50 / 16),  # AWS trn1.32xlarge, US East
    ("astra-sanity", "system.network.0.bandwidth", 450 * GIB),  # ASTRA-sim counts GiB/s
    ("astra-system-2", "system.network.2.bandwidth", 2000 * GIB),  # system_2, 2000 GiB/s
]


@pytest.mark.parametrize(("name", "path", "value"), FACTS)
def test_published_fact(name: str, path: str, value: float) -> None:
    assert load_hardware(name).value(path) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "flop_per_clock"),
    [
        *table_of(__file__, "peak_equals_units_times_clock_times_rate"),
        ("gaudi2-server", 2 * 256 * 256),  # matrix engines of 256 x 256
        ("gaudi3-server", 2 * 256 * 256),
        ("tpu-v4-pod", 2 * 4 * 128 * 128),  # four arrays of 128 x 128
    ],
)
def test_peak_equals_units_times_clock_times_rate(name: str, flop_per_clock: int) -> None:
    device = load_hardware(name).device
    derived = device.compute_units * device.boost_clock * flop_per_clock
    assert derived == pytest.approx(device.peak("bf16"), rel=0.015)


@pytest.mark.parametrize(
    ("name", "per_clock"),
    [
        ("dgx-a100", 16),  # CUDA C++ programming guide, arithmetic throughput, 8.0
        ("dgx-h100", 16),  # same table, 9.0
        ("dgx-b200", 16),  # same table, 10.0
        ("dgx-b300", 32),  # NVIDIA blog 'Inside NVIDIA Blackwell Ultra': doubled
        ("mi300x-server", 16),  # CDNA3 ISA guide: quarter rate of 64 lanes
        ("mi355x-server", 32),  # AMD CDNA4 whitepaper: doubled
    ],
)
def test_special_function_rate(name: str, per_clock: int) -> None:
    device = load_hardware(name).device
    derived = device.compute_units * device.boost_clock * per_clock
    assert device.special_function_rate == pytest.approx(derived, rel=1e-3)


def test_capacity_is_what_a_process_sees_not_the_label() -> None:
    nominal = {"dgx-a100": 80, "dgx-h100": 80, "dgx-h200": 141, "mi300x-server": 192}
    for name, label in nominal.items():
        capacity = load_hardware(name).device.memory.capacity
        assert 0.97 * label * 1e9 < capacity < label * GIB


def test_the_dies_of_a_package_are_devices_joined_by_its_links() -> None:
    package, node = load_hardware("mi250x-server").system.network[:2]
    assert (package.size, package.bandwidth) == (2, 200e9)  # Frontier user guide
    assert package.size * node.size == load_hardware("mi250x-server").system.devices_per_node


@pytest.mark.parametrize("name", ["MI250", "A10G"])
def test_boards_that_only_sound_alike_are_refused(name: str) -> None:
    with pytest.raises(HardwareError, match=f"unknown hardware '{name}'"):
        load_hardware(name)


def test_in_network_reduction_exists_from_hopper_on() -> None:
    def reduces(name: str) -> bool:
        return load_hardware(name).system.network[0].in_network_reduction

    assert reduces("dgx-h100")
    assert reduces("gb200-nvl72")
    assert not reduces("dgx-a100")  # NVLink SHARP came with the third NVSwitch
    assert not reduces("mi300x-server")


NAMES = table_of(__file__, "names")


@pytest.mark.parametrize(("name", "profile"), NAMES.items())
def test_name_as_written_in_published_tables(name: str, profile: str) -> None:
    assert resolve_name(name)[0] == profile
    assert resolve_name(name.upper())[0] == profile
    assert load_hardware(name).name == profile


def test_prices_say_whose_and_of_which_day() -> None:
    priced = [hw for hw in map(load_hardware, list_hardware()) if hw.system.price]
    assert len(priced) >= 14
    for hardware in priced:
        source = hardware.source["system.price"]
        assert re.search(r"\b20\d\d-\d\d-\d\d\b", source), (hardware.name, source)
        assert re.search(r"on.demand", source), (hardware.name, source)
