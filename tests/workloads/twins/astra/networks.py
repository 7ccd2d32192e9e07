"""Networks of one and two dimensions."""

from __future__ import annotations

from perfmodel.workloads.twins.astra.collective import (
    AstraNetwork,
    simulate_collective,
    uniform_system,
)

MIB = 2**20


def one_dimension(topology="Ring", members=16, bandwidth=50.0, latency=500.0):
    return AstraNetwork((topology,), (members,), (bandwidth,), (latency,))


def two_dimensions(topologies=("Ring", "Switch"), members=(4, 8)):
    return AstraNetwork(topologies, members, (200.0, 25.0), (20.0, 1000.0))


def time_of(network, algorithms, collective, size, involved_dimensions=None, **settings):
    """Time of the slowest member [ns]; no group."""
    system = uniform_system(algorithms.split("|"), **settings)
    time = simulate_collective(network, system, collective, size, involved_dimensions)
    assert time.fastest_nanoseconds <= time.slowest_nanoseconds
    return time.slowest_nanoseconds
