"""Parts priced on a device: the slowest of many, and what of a profile decides on operations."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.hwprofiles import load_hardware
from perfmodel.operations.operations import LAYER_KEY_FIELDS, LayerKeys, machine_of
from perfmodel.operations.parts import model_parts
from perfmodel.software.framework import load_framework
from perfmodel.strategy.grid import columns_from_rows
from perfmodel.training.part_table import price_parts, slowest_of


# Expected maximum of n standard normal deviates (Harter 1961, Biometrika 48, table 1).
@pytest.mark.parametrize(
    ("devices", "deviations"),
    [(2, 0.56419), (5, 1.16296), (10, 1.53875), (50, 2.24907), (100, 2.50759)],
)
def test_the_slowest_device_by_harter_1961(devices, deviations):
    # Blom's formula is an approximation, 2 % near for two and better for more.
    assert slowest_of(devices, 0.01) == pytest.approx(1 + 0.01 * deviations, abs=3e-4)


def test_a_single_device_waits_for_nobody_and_more_wait_longer():
    assert slowest_of(1, 0.05) == 1.0
    assert slowest_of(1000, 0.0) == 1.0
    times = [slowest_of(devices, 0.02) for devices in (1, 2, 8, 1024, 10**6)]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_a_machine_has_the_domain_and_the_layouts_of_its_profile():
    h100, b200 = load_hardware("dgx-h100"), load_hardware("dgx-b200")
    assert machine_of(h100).domain == 8
    assert machine_of(load_hardware("gb200-nvl72")).domain == 72
    assert machine_of(h100).fp8_transposed_copies  # only K-major fp8 operands before Blackwell
    assert not machine_of(b200).fp8_transposed_copies


def test_every_part_is_priced_and_more_devices_slow_computation(small_moe, h100):
    columns = columns_from_rows([{"sequence_length": 2048}])
    keys = LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})
    framework = load_framework("megatron")
    few = price_parts(small_moe, keys, h100, framework, 1)
    many = price_parts(small_moe, keys, h100, framework, 1024)
    assert [part for part, _ in few] == list(model_parts(small_moe))
    factor = slowest_of(1024, h100.calibrated("host", "speed_spread"))
    for (_, one), (_, other) in zip(few, many, strict=True):
        assert one
        total, slower = (sum(np.sum(item.time) for item in items) for items in (one, other))
        assert slower == pytest.approx(factor * total, rel=1e-9)  # a single rank sends nothing
