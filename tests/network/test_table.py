"""A profile's network as the table of the kernels."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import load_hardware
from perfmodel.network.collectives import (
    collective_times,
)
from perfmodel.network.table import CONSTANTS, network_table


@pytest.fixture(scope="module")
def h100():
    return load_hardware("dgx-h100")


def test_swept_bandwidth_and_latency_reach_the_kernel(h100):
    slower = h100.with_values({"system.network.1.bandwidth": 25e9})
    base, slow = (collective_times(h, "all_gather", 1e10, 64)[0] for h in (h100, slower))
    assert slow == pytest.approx(2 * base, rel=0.02)
    halved = h100.with_values({"system.network.1.oversubscription": 2.0})
    assert collective_times(halved, "all_gather", 1e10, 64)[0] == slow
    later = h100.with_values({"system.network.0.latency": 5e-6})
    assert collective_times(later, "all_reduce", 1e3, 8) > collective_times(
        h100, "all_reduce", 1e3, 8
    )


def test_every_profile_has_a_network_table():
    from perfmodel.hwprofiles import list_hardware

    for entry in list_hardware():
        name = getattr(entry, "name", entry)
        table = network_table(load_hardware(name))
        for record in (*table.levels, table.facts):
            assert np.all(np.isfinite(record.tolist())), name
        assert np.all(table.levels["bandwidth"] > 0), name


def test_a_profile_without_constants_is_named(h100):
    from dataclasses import replace

    bare = replace(h100, calibration={})
    with pytest.raises(HardwareError, match="dgx-h100"):
        collective_times(bare, "all_reduce", 1e6, 8)
    network = dict(h100.calibration["network"])
    del network[CONSTANTS[0]]
    partial = replace(h100, calibration={"network": network})
    with pytest.raises(HardwareError, match=CONSTANTS[0]):
        network_table(partial)
