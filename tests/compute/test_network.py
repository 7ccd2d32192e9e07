"""A profile's network as the table of the kernels."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.compute.collectives import (
    collective_times,
)
from perfmodel.compute.network import CONSTANTS, network_table
from perfmodel.hwprofiles import load_hardware


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
            assert np.all(np.isfinite(np.hstack(record.tolist()))), name
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


@pytest.mark.parametrize(
    ("path", "rate"),
    # NCCL src/graph/topo.h: 24 GB/s of PCIe 4.0 x16, 6/5 of it taken through an Intel processor
    [("switch", 24e9), ("host-bridge", 20e9), ("memory", 24e9)],
)
def test_a_bus_carries_what_its_path_leaves_to_data(path, rate):
    hardware = load_hardware("l40s-server").with_values({"system.network.0.peer_path": path})
    level = network_table(hardware).levels[0]
    assert level.bandwidth == pytest.approx(rate) == level.tuned_bandwidth
    time = collective_times(hardware, "all_reduce", 1e10, 8)[0]
    assert 2 * 7 / 8 * 1e10 / time == pytest.approx(rate, rel=0.05)


def test_through_the_host_s_memory_a_hop_is_a_write_and_a_read():
    bridge = load_hardware("l40s-server")
    memory = bridge.with_values({"system.network.0.peer_path": "memory"})
    hops = [network_table(hardware).levels[0].low_latency_hop for hardware in (bridge, memory)]
    assert hops[1] - hops[0] == pytest.approx(bridge.system.network[0].latency)


def test_two_devices_on_a_bus_as_measured_where_nothing_was_fitted():
    # L40S, aiconfigurator 095f58a, out of sample: all-gather of 128 MiB, all-reduce of 512 MiB
    hardware = load_hardware("l40s-server")
    assert collective_times(hardware, "all_gather", 2**27, 2)[0] == pytest.approx(3476e-6, rel=0.05)
    assert collective_times(hardware, "all_reduce", 2**29, 2)[0] == pytest.approx(26.7e-3, rel=0.05)
