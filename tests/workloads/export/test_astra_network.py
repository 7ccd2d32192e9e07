"""Networks and devices of hardware profiles as ASTRA-sim's, and what its model makes of them."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.base.units import GIB
from perfmodel.hwprofiles import list_hardware, load_hardware
from perfmodel.workloads.export.astra_network import (
    astra_network,
    astra_system,
    in_two_dimensions,
    peak_rate,
)
from perfmodel.workloads.formats.astra.records import AstraNetwork
from perfmodel.workloads.twins.astra.costs import AstraCosts, network_hardware

DGX = load_hardware("dgx-h100")


def machines():
    return [load_hardware(name) for name in list_hardware() if not name.startswith("chip-")]


def test_a_node_and_its_adapters():
    network = astra_network(DGX, 32)
    inner, outer = DGX.system.network
    assert network.topology == ("Switch", "Switch")
    assert network.npus_count == (8, 4)
    # Bandwidth per device and direction in GiB/s, half of the latency for each of two hops in ns.
    assert network.bandwidth_gib_per_second == pytest.approx((450e9 / 2**30, 50e9 / 2**30))
    assert network.latency_nanoseconds == pytest.approx(
        (inner.latency / 2 * 1e9, outer.latency / 2 * 1e9)
    )


@pytest.mark.parametrize(
    ("ranks", "counts"), [(4, (4,)), (12, (6, 2)), (11, (11,)), (30, (6, 5)), (2, (2,))]
)
def test_dimensions_multiply_to_the_ranks_where_nodes_are_not_full(ranks, counts):
    assert astra_network(DGX, ranks).npus_count == counts


def test_every_profile_has_a_network_for_all_its_devices_and_for_some():
    for hardware in machines():
        bounded = int(np.prod([level.size or 2 for level in hardware.system.network]))
        for ranks in {2, 4, hardware.system.network[0].size or 6, min(bounded, 4096)}:
            network = astra_network(hardware, ranks)
            assert network.devices == ranks, hardware.name
            assert set(network.topology) <= {"Ring", "FullyConnected", "Switch"}


def test_a_full_level_comes_back_as_the_profile_has_it():
    """`network_hardware` says what a device of ASTRA-sim's files has: links, hops and rates."""
    for hardware in machines():
        level = hardware.system.network[0]
        if not level.size or level.topology.startswith("torus"):
            continue
        network = astra_network(hardware, level.size)
        system = astra_system(hardware, network)
        back = network_hardware(network, system)
        found = back.system.network[0]
        assert found.topology == level.topology, hardware.name
        assert found.bandwidth == pytest.approx(level.bandwidth / level.oversubscription)
        assert found.latency == pytest.approx(level.latency)
        assert back.device.memory.bandwidth == pytest.approx(hardware.device.memory.bandwidth)
        assert system.peak_performance_teraflops * 1e12 == pytest.approx(peak_rate(hardware))


def test_a_torus_is_a_ring_for_each_axis():
    pod = load_hardware("tpu-v5p-pod")
    network = astra_network(pod, 64)
    assert network.topology == ("Ring",) * 3
    assert network.npus_count == (4, 4, 4)
    six_links = pod.system.network[0].bandwidth / 6 / GIB
    assert network.bandwidth_gib_per_second == pytest.approx((six_links,) * 3)
    # Of an axis of 16, two neighbours share one link, not both.
    assert astra_network(pod, 2).bandwidth_gib_per_second == pytest.approx((six_links,))


def test_links_of_a_full_connection_are_those_of_all_its_devices():
    hardware = load_hardware("mi300x-server")
    whole, half = astra_network(hardware, 8), astra_network(hardware, 4)
    assert half.bandwidth_gib_per_second == pytest.approx(whole.bandwidth_gib_per_second)
    assert astra_system(hardware, whole).all_reduce_implementation == ("direct",)


def test_uplinks_leave_their_share():
    narrow = DGX.with_values({"system.network.1.oversubscription": 2.0})
    assert astra_network(narrow, 16).bandwidth_gib_per_second[1] == pytest.approx(25e9 / GIB)


@pytest.mark.parametrize(
    ("change", "ranks", "words"),
    [
        ({}, 1, "at least two devices, not 1"),
        ({"system.network.1.size": 2}, 32, "32 ranks, but hardware profile 'dgx-h100' has 16"),
        ({"system.network.1.size": 2}, 9, "9 ranks do not come out on levels of at most 8 x 2"),
        ({"system.network.0.topology": "mesh-2d"}, 8, "level 'nvlink' is a mesh-2d; ASTRA-sim"),
    ],
)
def test_networks_that_astra_sim_cannot_have(change, ranks, words):
    with pytest.raises(HardwareError, match=words):
        astra_network(DGX.with_values(change), ranks)


@pytest.mark.parametrize("name", ["Switch", "FullyConnected"])
def test_messages_take_as_long_on_two_dimensions(name):
    one = AstraNetwork((name,), (12,), (50.0,), (333.0,))
    two = in_two_dimensions(one)
    assert two is not None
    assert two.npus_count == (4, 3)
    pairs = np.array(list(permutations(range(12), 2)))
    sizes = np.full(len(pairs), 12345)
    times = [
        AstraCosts(network, astra_system(DGX, network)).message_times(*pairs.T, sizes)
        for network in (one, two)
    ]
    assert times[0].tolist() == times[1].tolist()


def test_rings_and_prime_numbers_of_devices_stay():
    assert in_two_dimensions(AstraNetwork(("Ring",), (8,), (50.0,), (333.0,))) is None
    assert in_two_dimensions(AstraNetwork(("Switch",), (7,), (50.0,), (333.0,))) is None


def test_the_peak_is_that_of_a_precision():
    assert peak_rate(DGX) == DGX.device.peak("bf16")
    assert peak_rate(DGX, "fp8") == DGX.device.peak("fp8")
    old = load_hardware("dgx-1-v100")
    assert "bf16" not in old.device.peak_flops
    assert peak_rate(old) == old.device.peak("fp16")
    with pytest.raises(HardwareError, match="no matrix rate"):
        peak_rate(old, "fp8")
