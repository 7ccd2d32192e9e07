"""Networks, systems and workloads that the tests of our own network model run."""

from __future__ import annotations

from perfmodel.workloads.formats.astra_text import parse_astra_text
from perfmodel.workloads.formats.astra_text_machine import (
    NativeNetwork,
    NativeSystem,
)
from tests.data import ASTRA

DATA = ASTRA / "text"


def network_of(*dimensions, latency=500.0, memory_scale=0.0):
    """Network of (topology, members, links, GiB/s) each."""
    kinds, members, links, bandwidth = zip(*dimensions, strict=True)
    same = (0.0,) * len(kinds)
    memory = ((500.0,) * len(kinds), (370.0,) * len(kinds), (memory_scale,) * len(kinds))
    return NativeNetwork(
        kinds, members, links, bandwidth, (latency,) * len(kinds), same, same, *memory
    )


def system_of(algorithms="ring", all_to_all=None, **settings):
    names = tuple(algorithms.split("_"))
    exchange = tuple(all_to_all.split("_")) if all_to_all else names
    return NativeSystem(names, names, names, exchange, **settings)


def ring(members=8, bandwidth=25.0, latency=500.0):
    return network_of(("Ring", members, 2, bandwidth), latency=latency)


TYPICAL = "1000 {f} 1048576  2000 {i} 1048576  3000 {w} 4194304 10"
CUBE = network_of(("Ring", 4, 2, 50.0), ("Switch", 2, 1, 12.5))
CUBE_SYSTEM = system_of("ring_halvingDoubling", "ring_direct", preferred_dataset_splits=4)
MIB = 2**20


def micro(collective, size, update=0):
    return parse_astra_text(f"MICRO 1 sum -1 5 NONE 0 5 NONE 0 5 {collective} {size} {update}")


def typed(policy, layers=4, forward="ALLREDUCE", gradient="ALLREDUCE", weight="ALLREDUCE"):
    row = TYPICAL.format(f=forward, i=gradient, w=weight)
    return parse_astra_text(
        f"{policy} {layers} " + " ".join(f"l{i} -1 {row}" for i in range(layers))
    )
