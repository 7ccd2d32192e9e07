"""Collectives as ASTRA-sim's congestion-unaware backend times them.

Figures marked RUN come from runs of ASTRA-sim af2492b (reference tables of its
collectives); file names and lines are those of its sources.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.errors import HardwareError
from perfmodel.kernels.workloads.astra import phase as astra_phase
from perfmodel.kernels.workloads.astra.phase import chunk_size_and_count, pipeline_time
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.twins.astra.collective import ENGINES, simulate_collectives
from tests.workloads.twins.astra.networks import (
    MIB,
    CollectiveTime,
    one_dimension,
    simulate_collective,
    time_of,
    two_dimensions,
)


def message(size, hops=1, bandwidth=50.0, latency=500.0):
    """floor(hops latency + m / (bandwidth 2**30 / 1e9)), BasicTopology.cpp:53."""
    return math.floor(hops * latency + size / (bandwidth * 2**30 / 1e9))


def reduction(size, memory_bandwidth=1600.0):
    """Two reads and a write, each truncated, PacketBundle.cc:57."""
    return 3 * math.floor(size / (memory_bandwidth * 1e9) * 1e9)


@pytest.mark.parametrize(
    ("network", "algorithm", "size", "splits", "expected"),
    [
        # RUN: all-reduce, 50 GiB/s, 500 ns, endpoint delay 10 ns, memory 1600 GB/s.
        (one_dimension(), "ring", 1024, 1, 15_340),
        (one_dimension(), "ring", MIB, 1, 53_710),
        (one_dimension(), "ring", 16 * MIB, 1, 630_715),
        (one_dimension("Switch", 4), "doubleBinaryTree", MIB, 4, 82_504),
        (one_dimension("Switch", 16), "doubleBinaryTree", MIB, 4, 184_600),
    ],
)
def test_runs_of_astra_sim(network, algorithm, size, splits, expected):
    found = time_of(network, algorithm, "all_reduce", size, preferred_dataset_splits=splits)
    assert found == expected


def test_fastest_member_of_a_tree_is_done_first():
    system = uniform_system(["doubleBinaryTree"], preferred_dataset_splits=4)
    time = simulate_collective(one_dimension("Switch", 4), system, "all_reduce", MIB)
    assert time == CollectiveTime(82_504, 70_231)  # RUN


def test_ring_by_hand():
    """AR D + 2(n-1)(t+D) + (n-1)p; RS D + (n-1)(t+D+p); AG D + (n-1)(t+D); A2A n(n-1)/2 steps."""
    network, size, delay = one_dimension(members=8), 12_345_678, 7
    part = size // 8
    t, p = message(part), reduction(part)
    expected = {
        "all_reduce": delay + 14 * (t + delay) + 7 * p,
        "reduce_scatter": delay + 7 * (t + delay + p),
        "all_gather": delay + 7 * (message(size) + delay),
        "all_to_all": delay + 28 * (t + delay),
    }
    for collective, time in expected.items():
        found = time_of(network, "ring", collective, size, endpoint_delay_nanoseconds=delay)
        assert found == time, collective


def test_direct_by_hand_on_equal_hops():
    """AG, A2A D + T + D; RS adds p; AR 3D + 2T + p."""
    network, size = one_dimension("Switch", 8), 1_000_003
    t, p = message(size // 8, hops=2), reduction(size // 8)
    assert time_of(network, "direct", "all_gather", size) == 20 + message(size, hops=2)
    assert time_of(network, "direct", "all_to_all", size) == 20 + t
    assert time_of(network, "direct", "reduce_scatter", size) == 20 + t + p
    assert time_of(network, "direct", "all_reduce", size) == 30 + 2 * t + p


def test_direct_all_reduce_by_hand_on_a_ring_of_four():
    """Hops 1, 2, 1: parts are reduced at 510+10, 510+10, 1010+10; all are there at 1010."""
    network = one_dimension(members=4)  # 4 B messages: t = 500, 1000, 500; p = 0
    # g = 520, 520, 1020; the first of them not before 1010 is 1020, then t_2 = 1000, D.
    assert time_of(network, "direct", "all_reduce", 16) == 1020 + 1000 + 10


def test_halving_doubling_by_hand():
    """Sizes S/2, S/4, S/8 at offsets 1, 2, 4; an all-reduce comes back with a bit less."""
    network, size = one_dimension(members=8, latency=0.0), 8 * 1001
    halves = [message(size >> k, h, latency=0.0) + 10 for k, h in ((1, 1), (2, 2), (3, 4))]
    reductions = reduction(size >> 2) + reduction(size >> 3)
    scatter = 10 + sum(halves) + reductions
    assert time_of(network, "halvingDoubling", "reduce_scatter", size) == scatter
    back = sum(message((size >> 4) << k, latency=0.0) + 10 for k in (1, 2, 3))
    assert time_of(network, "halvingDoubling", "all_reduce", size) == scatter + back
    gather = 10 + sum(message(size << k, latency=0.0) + 10 for k in range(3))
    assert time_of(network, "halvingDoubling", "all_gather", size) == gather


@pytest.mark.parametrize("members", [2, 4, 8, 64])
def test_one_chunk_of_a_double_tree_by_hand(members):
    """2D at the leaves, 2 log2(n) hops of the whole buffer, and 2 log2(n) - 1 times D + p."""
    levels, size = int(math.log2(members)), 100_000
    expected = 20 + 2 * levels * message(size) + (2 * levels - 1) * (10 + reduction(size))
    network = one_dimension("FullyConnected", members)
    assert time_of(network, "doubleBinaryTree", "all_reduce", size) == expected


def test_local_reduction_needs_memory_bandwidth():
    fast = time_of(one_dimension(), "ring", "all_reduce", 16 * MIB)
    slow = time_of(
        one_dimension(),
        "ring",
        "all_reduce",
        16 * MIB,
        local_memory_bandwidth_gb_per_second=50.0,
    )
    assert slow - fast == 15 * (reduction(MIB, 50.0) - reduction(MIB))


def test_chunks_are_all_whole():
    """1000 B in 3 chunks are 4 of 333 B (Sys.cc:798); at least 1 B per device (Sys.cc:1215)."""
    assert chunk_size_and_count(astra_phase.ALL_REDUCE, 1000, 3, 16) == (333, 4)
    assert chunk_size_and_count(astra_phase.ALL_REDUCE, 100, 10, 16) == (16, 10)
    assert chunk_size_and_count(astra_phase.ALL_GATHER, 100, 10, 16) == (10, 10)
    assert chunk_size_and_count(astra_phase.ALL_GATHER, 9, 10, 16)[0] == 0


def test_active_chunks_multiply_the_bandwidth():
    """Links are not shared: 10 chunks, 4 at a time, take 0.30 of the time, astra.md 2.9 (a)."""
    one = time_of(one_dimension(), "ring", "all_reduce", 10 * MIB, preferred_dataset_splits=10)
    four = time_of(
        one_dimension(),
        "ring",
        "all_reduce",
        10 * MIB,
        preferred_dataset_splits=10,
        active_chunks_per_dimension=4,
    )
    assert four * 10 == one * 3


def event_loop(durations, queues, chunks, active):
    """The same pipeline with every chunk by its number, and a heap of ends."""
    waiting = {queue: deque() for queue in queues}
    busy = dict.fromkeys(queues, 0)
    ends, started, now = [], 0, 0
    waiting[queues[0]].extend((chunk, 0) for chunk in range(chunks))
    touched = [queues[0]]
    while True:
        for queue in touched:
            while waiting[queue] and busy[queue] < active:
                chunk, phase = waiting[queue].popleft()
                busy[queue] += 1
                heapq.heappush(ends, (now + durations[phase], started, chunk, phase))
                started += 1
        if not ends:
            return now
        now, _, chunk, phase = heapq.heappop(ends)
        busy[queues[phase]] -= 1
        touched = [queues[phase]]
        if phase + 1 < len(durations):
            waiting[queues[phase + 1]].append((chunk, phase + 1))
            touched.append(queues[phase + 1])


@given(
    durations=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    chunks=st.integers(1, 12),
    active=st.integers(1, 6),
    baseline=st.booleans(),
)
def test_pipeline_equals_an_event_loop(durations, chunks, active, baseline):
    if baseline:
        queues = list(range(len(durations)))
    else:  # out and back, as an all-reduce
        half = (len(durations) + 1) // 2
        queues = [min(i, len(durations) - 1 - i) for i in range(len(durations))]
        assert max(queues) == half - 1
    found = pipeline_time(np.array(durations), np.array(queues), chunks, active)
    assert found == event_loop(durations, queues, chunks, active)
    load = {queue: 0 for queue in queues}
    for duration, queue in zip(durations, queues, strict=True):
        load[queue] += duration
    assert found >= max(sum(durations), max(load.values()) * chunks / active)


@given(
    topology=st.sampled_from(["Ring", "FullyConnected", "Switch"]),
    algorithm=st.sampled_from(["ring", "direct", "halvingDoubling", "oneRing"]),
    collective=st.sampled_from(SIMULATED),
    splits=st.integers(1, 5),
    active=st.integers(1, 3),
)
def test_time_grows_with_size_and_falls_with_bandwidth(
    topology, algorithm, collective, splits, active
):
    if (algorithm, collective) == ("halvingDoubling", "all_to_all"):
        return
    network = AstraNetwork((topology, "Switch"), (8, 4), (50.0, 20.0), (500.0, 700.0))
    system = uniform_system(
        [algorithm, algorithm],
        preferred_dataset_splits=splits,
        active_chunks_per_dimension=active,
    )
    # Multiples of everything, so that no truncation makes a chunk more.
    sizes = 2 ** np.arange(12, 30) * splits
    times = simulate_collectives(network, system, collective, sizes)
    assert (np.diff(times[:, 0]) >= 0).all()
    faster = replace(network, bandwidth_gib_per_second=(100.0, 40.0))
    assert (simulate_collectives(faster, system, collective, sizes) <= times).all()


@given(size=st.integers(64, 2**34), members=st.integers(2, 40))
def test_ring_all_reduce_is_reduce_scatter_then_all_gather(size, members):
    """Both begin with D, the whole with one of them."""
    network = one_dimension(members=members)
    scatter = time_of(network, "ring", "reduce_scatter", size)
    gather = time_of(network, "ring", "all_gather", max(size, members) // members)
    assert time_of(network, "ring", "all_reduce", size) == scatter + gather - 10


def test_many_sizes_equal_one_by_one():
    system = uniform_system(["ring", "halvingDoubling"], preferred_dataset_splits=7)
    sizes = [4096, 65_537, 1_000_003, 2**31]
    together = simulate_collectives(two_dimensions(), system, "all_reduce", sizes)
    alone = [
        simulate_collective(two_dimensions(), system, "all_reduce", size).slowest_nanoseconds
        for size in sizes
    ]
    assert together[:, 0].tolist() == alone
    assert simulate_collectives(two_dimensions(), system, "all_reduce", np.empty(0, int)).size == 0


def test_whole_system_as_one_ring():
    """A oneRing over 4 × 4 equal rings is a ring of 16 (RUN: 630715 in both cases)."""
    square = AstraNetwork(("Ring", "Ring"), (4, 4), (50.0, 50.0), (500.0, 500.0))
    for collective in SIMULATED:
        expected = time_of(one_dimension(), "ring", collective, 16 * MIB)
        assert time_of(square, "oneRing", collective, 16 * MIB) == expected


def test_only_the_first_differing_dimension_counts():
    """With oneDirect on 4 × 4, offsets 4, 8 and 12 use outer links, all others inner ones."""
    slow_outside = AstraNetwork(("FullyConnected", "FullyConnected"), (4, 4), (50.0, 1.0), (0, 0))
    time = time_of(slow_outside, "oneDirect", "all_gather", MIB)
    assert time == 20 + message(MIB, bandwidth=1.0, latency=0.0)
    ring = time_of(slow_outside, "oneRing", "all_gather", MIB)
    assert ring == 10 + 15 * (message(MIB, latency=0.0) + 10)


def group_time(network, members, collective, size, **settings):
    system = uniform_system(["direct"] * network.dimensions, **settings)
    return simulate_collective(network, system, collective, size, members=members)


@pytest.mark.parametrize("collective", SIMULATED)
def test_a_group_is_one_ring_with_a_delay_of_ten(collective):
    """CommunicatorGroup.cc:57: neither the algorithm nor the endpoint delay counts."""
    network = AstraNetwork(("FullyConnected", "Switch"), (8, 4), (50.0, 25.0), (500.0, 900.0))
    expected = time_of(one_dimension("FullyConnected", 8), "ring", collective, MIB)
    settings = {"endpoint_delay_nanoseconds": 1000}
    found = group_time(network, list(range(8, 16)), collective, MIB, **settings)
    assert found == CollectiveTime(expected, expected)


def test_a_group_across_a_dimension_uses_its_links():
    network = two_dimensions(("FullyConnected", "FullyConnected"), (4, 8))
    outer = one_dimension("FullyConnected", 8, 25.0, 1000.0)
    expected = time_of(outer, "ring", "all_reduce", MIB)
    assert group_time(network, range(0, 32, 4), "all_reduce", MIB).slowest_nanoseconds == expected


def test_order_of_a_group_matters_on_a_ring():
    near = group_time(one_dimension(), [0, 1, 2, 3], "all_gather", MIB)
    far = group_time(one_dimension(), [0, 2, 1, 3], "all_gather", MIB)
    # Hops 1, 1, 1, 3 and 2, 1, 2, 3: three messages in a row, the last one the longest chain.
    assert near.slowest_nanoseconds == 10 + 3 * (message(MIB) + 10) + 2 * 500
    assert far.slowest_nanoseconds == 10 + 3 * (message(MIB) + 10) + (2 + 3 + 2 - 3) * 500


def test_chunks_of_a_group_queue():
    network, group = one_dimension("FullyConnected"), [3, 4, 5]
    alone = group_time(network, group, "all_reduce", 3 * MIB).slowest_nanoseconds
    settings = {"preferred_dataset_splits": 4}
    one_by_one = group_time(network, group, "all_reduce", 12 * MIB, **settings)
    assert one_by_one == CollectiveTime(4 * alone, 4 * alone)
    settings["active_chunks_per_dimension"] = 3
    in_threes = group_time(network, group, "all_reduce", 12 * MIB, **settings)
    assert in_threes == CollectiveTime(2 * alone, 2 * alone)


def test_a_group_of_all_devices_is_no_group():
    network = two_dimensions()
    found = group_time(network, list(range(32)), "all_reduce", MIB)
    assert found.slowest_nanoseconds == time_of(network, "direct|direct", "all_reduce", MIB)


@pytest.mark.parametrize(
    ("algorithms", "collective", "size", "words"),
    [
        ("halvingDoubling", "all_to_all", MIB, "halvingDoubling cannot do all_to_all"),
        ("doubleBinaryTree", "all_gather", MIB, "doubleBinaryTree cannot do all_gather"),
        ("ring|ring", "all_reduce", MIB, "there should be one per dimension"),
        ("ring", "all_reduces", MIB, "unknown collective 'all_reduces'; did you mean all_reduce"),
        ("ring", "all_reduce", 0, "size is 0 B"),
        ("ring", "all_reduce", 1.5, "one list of whole numbers of bytes"),
        ("halvingDoubling", "all_reduce", 20, "a message would be empty"),
    ],
)
def test_impossible_collectives_are_refused(algorithms, collective, size, words):
    with pytest.raises(HardwareError, match=words):
        time_of(one_dimension(), algorithms, collective, size)


def test_other_impossible_runs_are_refused():
    six, system = one_dimension(members=6), uniform_system(["halvingDoubling"])
    with pytest.raises(HardwareError, match="halvingDoubling on 6 devices; it needs a power"):
        simulate_collective(six, system, "all_reduce", MIB)
    many = uniform_system(["ring"], preferred_dataset_splits=10)
    with pytest.raises(HardwareError, match="fewer bytes than preferred_dataset_splits 10"):
        simulate_collective(six, many, "all_gather", 9)
    with pytest.raises(HardwareError, match=r"Mesh2D .* not known to the congestion-unaware"):
        simulate_collective(one_dimension("Mesh2D"), many, "all_gather", MIB)
    with pytest.raises(HardwareError, match="member 6; ids should be 0 to 5"):
        simulate_collective(six, many, "all_gather", MIB, members=[0, 6])
    with pytest.raises(HardwareError, match="two different members"):
        simulate_collective(six, many, "all_gather", MIB, members=[1, 1])
    with pytest.raises(HardwareError, match="no dimension takes part"):
        simulate_collective(six, many, "all_gather", MIB, involved_dimensions=[False])
    with pytest.raises(HardwareError, match="involved_dimensions has 2 entries"):
        simulate_collective(six, many, "all_gather", MIB, involved_dimensions=[True, True])
    with pytest.raises(HardwareError, match="unknown engine 'aware'"):
        simulate_collective(six, many, "all_gather", MIB, engine="aware")
    with pytest.raises(HardwareError, match="size is 1125899906842625 B; it should be 1 B to"):
        simulate_collective(six, many, "all_reduce", 2**50 + 1)
    with pytest.raises(HardwareError, match="whole would have 27021597764222976 B"):
        simulate_collective(
            AstraNetwork(("Switch",), (24,), (1.0,), (0.0,)), many, "all_gather", 2**50
        )
    with pytest.raises(HardwareError, match="1000000 chunks at most"):
        simulate_collective(
            six, uniform_system(["ring"], preferred_dataset_splits=10**6 + 1), "all_reduce", MIB
        )
    with pytest.raises(HardwareError, match="2097152 devices; 1048576 at most"):
        simulate_collective(one_dimension(members=2**21), many, "all_reduce", MIB)
    shared_bus = replace(many, other={"model-shared-bus": 1})
    with pytest.raises(HardwareError, match="model-shared-bus"):
        simulate_collective(six, shared_bus, "all_gather", MIB)


@pytest.mark.parametrize("engine", ENGINES)
def test_limited_messages_in_flight_are_refused_only_where_they_are_used(engine):
    """directW: no run of ASTRA-sim is known to check its times against."""
    system = replace(uniform_system(["ring"]), all_to_all_implementation=("direct4",))
    words = r"^direct4 limits the messages in flight, which is not covered: .* should be direct$"
    with pytest.raises(HardwareError, match=words):
        simulate_collective(one_dimension(), system, "all_to_all", MIB, engine=engine)
    ring = simulate_collective(one_dimension(), uniform_system(["ring"]), "all_gather", MIB)
    assert simulate_collective(one_dimension(), system, "all_gather", MIB) == ring


@pytest.mark.parametrize("engine", ["congestion-unaware", "congestion-aware"])
@pytest.mark.parametrize(
    ("bandwidth", "latency", "memory"),
    [(1e-300, 1.0, 1600.0), (50.0, 1e15, 1600.0), (50.0, 500.0, 1e-300)],
)
def test_times_beyond_64_bits_are_refused(engine, bandwidth, latency, memory):
    network = AstraNetwork(("Ring",), (1024,), (bandwidth,), (latency,))
    system = uniform_system(["ring"], local_memory_bandwidth_gb_per_second=memory)
    with pytest.raises(HardwareError, match="cannot be counted"):
        simulate_collective(network, system, "all_reduce", 2**40, engine=engine)


def test_large_systems_are_within_range():
    # n (n - 1) / 2 messages of 10 + 500 + 2**40 / 2**20 / (50 * 2**30 / 1e9) ns each.
    network = AstraNetwork(("Ring",), (2**20,), (50.0,), (500.0,))
    time = simulate_collective(network, uniform_system(["ring"]), "all_to_all", 2**40)
    each = 10 + int(500 + 2**20 / (50 * 2**30 / 1e9))
    assert time.slowest_nanoseconds == 10 + 2**19 * (2**20 - 1) * each
