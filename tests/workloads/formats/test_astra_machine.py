"""Records of ASTRA-sim's networks and systems: what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError, HardwareError
from perfmodel.base.units import GIB
from perfmodel.hwprofiles import load_hardware
from perfmodel.workloads.formats.astra_files import read_network, write_network
from perfmodel.workloads.formats.astra_machine import (
    KIND_OF,
    TOPOLOGIES,
    AstraNetwork,
    AstraSystem,
    astra_of_topology,
    mesh_shape,
    topology_of_astra,
    uniform_system,
)
from perfmodel.workloads.links.topology import Dimension, Topology
from tests.workloads.links.drawn import RAILS
from tests.workloads.twins.astra.networks import MIB, one_dimension, time_of, two_dimensions


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topology": ("Rign",)}, "unknown topology of dimension 0 'Rign'; did you mean Ring"),
        ({"npus_count": (1,)}, "npus_count of dimension 0 is 1; it should be a whole number >= 2"),
        ({"npus_count": (4, 4)}, "npus_count has 2 entries, but topology has 1"),
        ({"bandwidth_gib_per_second": (math.nan,)}, "bandwidth of dimension 0 is nan"),
        ({"bandwidth_gib_per_second": (0.0,)}, "should be a finite number > 0"),
        ({"latency_nanoseconds": (-1.0,)}, "latency of dimension 0 is -1.0"),
        ({"latency_nanoseconds": (math.inf,)}, "latency of dimension 0 is inf"),
        ({"topology": ()}, "at least one dimension"),
    ],
)
def test_wrong_networks_are_refused(change, words):
    with pytest.raises(HardwareError, match=words.replace("(", r"\(")):
        replace(one_dimension(), **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"all_reduce_implementation": ("rings",)}, "unknown collective implementation 'rings'"),
        ({"all_to_all_implementation": ("direct0",)}, "'direct0'"),
        ({"preferred_dataset_splits": 0}, "preferred_dataset_splits is 0"),
        ({"active_chunks_per_dimension": 1.5}, "active_chunks_per_dimension is 1.5"),
        ({"endpoint_delay_nanoseconds": -1}, "endpoint_delay is -1"),
        ({"endpoint_delay_nanoseconds": 2**31}, "at most 2147483647"),
        ({"peak_performance_teraflops": 10**400}, "peak_performance is 1000"),
        ({"scheduling_policy": "lifo"}, "unknown scheduling_policy 'lifo'; did you mean LIFO"),
        ({"collective_optimization": "none"}, "unknown collective_optimization"),
        ({"local_memory_bandwidth_gb_per_second": 0}, "local_memory_bandwidth is 0"),
    ],
)
def test_wrong_systems_are_refused(change, words):
    with pytest.raises(HardwareError, match=words):
        replace(uniform_system(["ring"]), **change)


def test_endpoint_delay_zero_aborts_as_the_simulator_does():
    with pytest.raises(HardwareError, match="endpoint_delay is 0: ASTRA-sim aborts"):
        time_of(one_dimension(), "ring", "all_reduce", MIB, endpoint_delay_nanoseconds=0)


def test_small_parts_of_the_records():
    assert [mesh_shape(n) for n in (4, 6, 16, 32, 7)] == [(2, 2), (3, 2), (4, 4), (8, 4), (7, 1)]
    assert two_dimensions().devices == 32
    assert isinstance(uniform_system(["ring"]), AstraSystem)


astra_networks = st.lists(
    st.tuples(
        st.sampled_from(TOPOLOGIES),
        st.integers(2, 9),
        st.sampled_from([12.5, 25.0, 50.0, 400.0, 1 / 3]),
        st.sampled_from([0.0, 50.0, 500.0, 123.25]),
    ),
    min_size=1,
    max_size=4,
).map(lambda rows: AstraNetwork(*map(tuple, zip(*rows, strict=True))))


@given(astra_networks)
def test_networks_of_astra_sim_come_back_as_they_were(network):
    topology = topology_of_astra(network)
    assert topology.device_count == network.devices
    back = astra_of_topology(topology)
    assert back.topology == network.topology
    assert back.npus_count == network.npus_count
    assert back.bandwidth_gib_per_second == pytest.approx(network.bandwidth_gib_per_second)
    assert back.latency_nanoseconds == pytest.approx(network.latency_nanoseconds)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("size", [2, 4, 6])
def test_bandwidth_of_astra_sim_is_that_of_every_link(name, size):
    topology = topology_of_astra(AstraNetwork((name,), (size,), (50.0,), (500.0,)))
    assert topology.dimensions[0].kind == KIND_OF[name]
    assert topology.link_bandwidth == pytest.approx(np.full(topology.link_count, 50 * GIB))
    assert topology.link_latency == pytest.approx(np.full(topology.link_count, 500e-9))


def test_hops_are_those_of_the_analytical_backend():
    # Ring min(d, n-d), FullyConnected 1, Switch 2, Mesh2D |dx| + |dy| with rows of width 2.
    def hops(name):
        network = AstraNetwork((name,), (6,), (50.0,), (500.0,))
        return topology_of_astra(network).hops(0, np.arange(6)).tolist()

    assert hops("Ring") == [0, 1, 2, 3, 2, 1]
    assert hops("FullyConnected") == [0, 1, 1, 1, 1, 1]
    assert hops("Switch") == [0, 2, 2, 2, 2, 2]
    assert hops("Mesh2D") == [0, 1, 2, 1, 2, 3]


def test_a_torus_is_written_as_one_ring_per_axis():
    torus = Topology((Dimension("torus", (4, 2, 3), 6 * GIB, 1e-6),))
    network = astra_of_topology(torus)
    assert network == AstraNetwork(
        ("Ring",) * 3, (4, 2, 3), (1.0, 2.0, 1.0), (1000.0, 1000.0, 1000.0)
    )
    again = topology_of_astra(network)
    assert np.array_equal(again.link_source, torus.link_source)
    assert np.array_equal(again.link_target, torus.link_target)
    assert again.link_bandwidth == pytest.approx(torus.link_bandwidth)


def test_a_topology_file_is_written_and_read(tmp_path):
    path = tmp_path / "network.yml"
    write_network(astra_of_topology(RAILS), path)
    read = topology_of_astra(read_network(path))
    assert read.link_bandwidth == pytest.approx(RAILS.link_bandwidth)
    assert [item.kind for item in read.dimensions] == ["switch", "switch"]


def test_a_fat_tree_is_written_as_rails_only_where_asked():
    topology = Topology.from_hardware(load_hardware("dgx-h100"), 32)
    with pytest.raises(FormatError, match=r"dimension 1 \('infiniband'\) is a fat-tree"):
        astra_of_topology(topology)
    network = astra_of_topology(topology, rails=True)
    assert network.topology == ("Switch", "Switch")
    assert network.npus_count == (8, 4)
    # Two hops between neighbours in place of four: the same 2.7 µs.
    assert network.latency_nanoseconds == (206.5, 1350.0)


@pytest.mark.parametrize(
    ("dimension", "message"),
    [
        (Dimension("fat-tree", (4,), 1.0, 0.0, 2.0), "fat-tree of oversubscription 2"),
        (Dimension("mesh", (8, 2), 1.0, 0.0), "mesh of 8x2.*its Mesh2D of 16 is 4x4"),
        (Dimension("mesh", (4,), 1.0, 0.0), "Mesh2D of 4 is 2x2"),
        (Dimension("mesh", (2, 2, 2), 1.0, 0.0), "mesh of 2x2x2"),
        (Dimension("ring", (1,), 1.0, 0.0), "one device"),
    ],
)
def test_what_astra_sim_lacks_is_refused(dimension, message):
    with pytest.raises(FormatError, match=message):
        astra_of_topology(Topology((dimension,)), rails=True)
