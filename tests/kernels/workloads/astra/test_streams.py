"""All-reduces over double binary trees message by message, against chunks in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.twins.astra.machine import Machine
from perfmodel.workloads.twins.astra.versions import VERSIONS
from tests.workloads.twins.astra.networks import simulate_collective


def machine(topology, devices, latency=500.0, shared=False, **settings):
    links = AstraNetwork((topology,), (devices,), (50.0,), (latency,))
    return Machine(links, uniform_system(["doubleBinaryTree"], **settings), shared=shared)


@pytest.mark.parametrize(
    ("devices", "size", "slowest", "fastest"),
    [(4, 2**20, 82_504, 70_231), (8, 2**26, 7_212_850, 6_209_410), (16, 2**20, 184_600, 159_565)],
)
def test_runs_of_astra_sim_without_congestion(devices, size, slowest, fastest):
    """Switch of 50 GiB/s and 500 ns, 4 chunks: runs of ASTRA-sim af2492b."""
    end = machine("Switch", devices, preferred_dataset_splits=4).run_collective("all_reduce", size)
    assert (end.end.max(), end.end.min()) == (slowest, fastest)


@pytest.mark.parametrize("topology", ["Ring", "FullyConnected", "Switch"])
@pytest.mark.parametrize("devices", [2, 4, 8, 16])
def test_messages_one_by_one_take_what_trees_take(topology, devices):
    random = np.random.default_rng(devices)
    for _ in range(5):
        settings = {
            "preferred_dataset_splits": int(random.integers(1, 6)),
            "active_chunks_per_dimension": int(random.integers(1, 4)),
            "endpoint_delay_nanoseconds": int(random.integers(1, 50)),
            "local_memory_bandwidth_gb_per_second": float(random.choice([10, 100, 1600])),
        }
        size = int(random.integers(devices, 2**20))
        one = machine(topology, devices, **settings)
        end = one.run_collective("all_reduce", size).end
        other = simulate_collective(one.network, one.system, "all_reduce", size)
        assert (end.max(), end.min()) == (other.slowest_nanoseconds, other.fastest_nanoseconds)


def test_each_chunk_goes_whole_over_every_edge_of_its_tree_both_ways():
    run = machine("FullyConnected", 8, shared=True, preferred_dataset_splits=3).run_collective(
        "all_reduce", 3 * 4096
    )
    assert run.end.min() > 0
    assert run.link_bytes.sum() == 3 * 2 * 7 * 4096


def test_a_group_has_no_tree():
    links = AstraNetwork(("Ring",), (8,), (50.0,), (500.0,))
    own = Machine(links, uniform_system(["doubleBinaryTree"]), VERSIONS["main"])
    with pytest.raises(HardwareError, match="in a group that leaves devices out"):
        own.collective("all_reduce", 2**20, members=(0, 2))
