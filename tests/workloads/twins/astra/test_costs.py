"""Traces on ASTRA-sim's files by our own model."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.compute.collectives import collective_times
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COMPUTE, RECEIVE, SEND, TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.costs import NetworkCosts, network_hardware
from tests.workloads.simulation.made import ALL_REDUCE, MIB, of_kind


def test_ring_of_a_network_file_costs_its_bytes_and_hops():
    # One ring of 4, both ways round: 2 (n-1)/n S over two links, 6 steps of 500 ns.
    network = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))
    hardware = network_hardware(network, uniform_system(["ring"]))
    size = 64 * MIB
    time = collective_times(hardware, "all_reduce", size, 4, 1, "bidirectional_ring")[0]
    assert time == pytest.approx(1.5 * size / (100 * 2**30) + 6 * 500e-9, rel=1e-6)
    costs = NetworkCosts(network, uniform_system(["ring"]))
    result = simulate(TraceSet((of_kind(ALL_REDUCE, size),) * 4), costs)
    assert result.wall_time[0] <= time


@pytest.mark.parametrize(
    ("topology", "links", "hops"), [("Switch", 1, 2), ("FullyConnected", 3, 1), ("Ring", 2, 1)]
)
def test_links_of_a_device_by_topology(topology, links, hops):
    network = AstraNetwork((topology,), (4,), (50.0,), (500.0,))
    level = network_hardware(network, uniform_system(["ring"])).system.network[0]
    assert level.bandwidth == links * 50 * 2**30
    assert level.latency == pytest.approx(hops * 500e-9)


def test_messages_of_a_network_file():
    network = AstraNetwork(("Switch", "Switch"), (4, 2), (50.0, 25.0), (500.0, 700.0))
    give, get = TraceBuilder(), TraceBuilder()
    give.add("give", SEND, destination=4, communication_size=MIB)
    get.add("get", RECEIVE, source=0, communication_size=MIB)
    idle = TraceBuilder()
    idle.add("work", COMPUTE)
    ranks = [give, idle, idle, idle, get, idle, idle, idle]
    traces = TraceSet(tuple(builder.build() for builder in ranks))
    result = simulate(traces, NetworkCosts(network, uniform_system(["ring"] * 2)))
    assert result.wall_time[4] == pytest.approx(1400e-9 + MIB / (25 * 2**30), rel=1e-6)


def test_roofline_of_a_system_file():
    network = AstraNetwork(("Ring",), (2,), (50.0,), (500.0,))
    builder = TraceBuilder()
    builder.add("work", COMPUTE, num_ops=10**12, tensor_size=1, duration=5e-6)
    traces = TraceSet((builder.build(),) * 2)
    off = uniform_system(["ring"])
    on = uniform_system(["ring"], roofline_enabled=True, peak_performance_teraflops=100.0)
    assert simulate(traces, NetworkCosts(network, off)).gpu_time[0] == pytest.approx(5e-6)
    assert simulate(traces, NetworkCosts(network, on)).gpu_time[0] == pytest.approx(0.01)
    with pytest.raises(HardwareError, match="peak-perf"):
        NetworkCosts(network, uniform_system(["ring"], roofline_enabled=True))
    with pytest.raises(HardwareError, match="multiplies to 2"):
        simulate(TraceSet((builder.build(),) * 3), NetworkCosts(network, off))


def test_slices_of_a_network_file_are_those_of_its_dimensions():
    network = AstraNetwork(("Ring", "Ring"), (4, 2), (50.0, 25.0), (500.0, 700.0))
    costs = NetworkCosts(network, uniform_system(["ring"] * 2))
    assert costs.slices((False, True), 8).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert costs.slices((True, False), 8).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert costs.slices((True, True, True), 8).tolist() == [list(range(8))]
