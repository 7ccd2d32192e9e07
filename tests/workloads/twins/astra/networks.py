"""Networks of one and two dimensions."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.twins.astra.collective import simulate_collectives
from perfmodel.workloads.twins.astra.machine import Machine

MIB = 2**20


def one_dimension(topology="Ring", members=16, bandwidth=50.0, latency=500.0):
    return AstraNetwork((topology,), (members,), (bandwidth,), (latency,))


def two_dimensions(topologies=("Ring", "Switch"), members=(4, 8)):
    return AstraNetwork(topologies, members, (200.0, 25.0), (20.0, 1000.0))


class CollectiveTime(NamedTuple):
    slowest_nanoseconds: int
    fastest_nanoseconds: int


def simulate_collective(network, system, collective, size, *involved, **options):
    """Times of the slowest and the fastest member at one size."""
    times = simulate_collectives(network, system, collective, [size], *involved, **options)
    return CollectiveTime(*times[0].tolist())


def congestion_aware_run(network, system, collective, size):
    """One collective over shared links; of these, those that are there."""
    run = Machine(network, system).run_collective(collective, size)
    there = run.link_target >= 0
    links = ("link_bytes", "link_source", "link_target")
    return replace(run, **{name: getattr(run, name)[there] for name in links})


def congestion_aware_time(network, system, collective, size):
    """Times at which the slowest and the fastest rank are done."""
    end = congestion_aware_run(network, system, collective, size).end
    return int(end.max()), int(end.min())


def time_of(network, algorithms, collective, size, involved_dimensions=None, **settings):
    """Time of the slowest member [ns]; no group."""
    system = uniform_system(algorithms.split("|"), **settings)
    time = simulate_collective(network, system, collective, size, involved_dimensions)
    assert time.fastest_nanoseconds <= time.slowest_nanoseconds
    return time.slowest_nanoseconds
