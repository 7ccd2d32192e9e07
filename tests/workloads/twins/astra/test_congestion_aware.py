"""Collectives over shared links against ASTRA-sim's congestion-aware backend, to the nanosecond.

Reference times are runs of ASTRA-sim (commit af2492b, analytical backend 599a047).
"""

from __future__ import annotations

import csv
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.errors import HardwareError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem, uniform_system
from perfmodel.workloads.twins.astra.collective import simulate_collective
from perfmodel.workloads.twins.astra.congestion_aware import (
    congestion_aware_run,
    congestion_aware_time,
)

BANDWIDTH, LATENCY, DELAY = 50.0, 500.0, 10  # GiB/s, ns, ns
MIB = 2**20
SHORT = {
    "AR": "all_reduce",
    "AG": "all_gather",
    "RS": "reduce_scatter",
    "A2A": "all_to_all",
}


def network(topology: str, devices: int, latency: float = LATENCY) -> AstraNetwork:
    return AstraNetwork((topology,), (devices,), (BANDWIDTH,), (latency,))


def system(algorithm: str, splits: int = 1, active: int = 1, **settings) -> AstraSystem:
    return uniform_system(
        [algorithm],
        preferred_dataset_splits=splits,
        active_chunks_per_dimension=active,
        endpoint_delay_nanoseconds=DELAY,
        **settings,
    )


def occupancy(size: int) -> int:
    """How long a message keeps a link busy [ns]."""
    return int(size / (BANDWIDTH * 2**30 / 1e9))


def flight(size: int) -> int:
    """From the start of a message on a link to its arrival [ns]."""
    return int(LATENCY + size / (BANDWIDTH * 2**30 / 1e9))


def reduction(size: int) -> int:
    """Local reduction of a received message at 1600 GB/s [ns]."""
    return 3 * int(size / 1600e9 * 1e9)


# Hand-worked times -----------------------------------------------------------------


@pytest.mark.parametrize("devices", [2, 3, 4, 16])
@pytest.mark.parametrize(("topology", "links_per_hop"), [("Ring", 1), ("Switch", 2)])
def test_ring_all_reduce_passes_every_link_of_a_hop_whole(topology, links_per_hop, devices):
    message = 64 * MIB // devices
    step = links_per_hop * flight(message) + DELAY
    expected = DELAY + 2 * (devices - 1) * step + (devices - 1) * reduction(message)
    times = congestion_aware_time(
        network(topology, devices), system("ring"), "all_reduce", 64 * MIB
    )
    assert times == (expected, expected)


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_direct_on_a_switch_queues_at_the_uplink(devices):
    """n-1 messages leave one after the other; the last one then passes a free downlink."""
    last_start = (devices - 2) * occupancy(MIB)
    expected = DELAY + last_start + 2 * flight(MIB) + DELAY
    times = congestion_aware_time(network("Switch", devices), system("direct"), "all_gather", MIB)
    assert times == (expected, expected)


def test_two_chunks_at_once_share_the_link():
    """The second chunk of two devices starts when the link is free, not at once."""
    size = 2 * MIB
    alone = congestion_aware_time(network("Ring", 2), system("ring"), "all_gather", MIB)[0]
    both = congestion_aware_time(
        network("Ring", 2), system("ring", splits=2, active=2), "all_gather", size
    )[0]
    in_turn = congestion_aware_time(
        network("Ring", 2), system("ring", splits=2, active=1), "all_gather", size
    )[0]
    assert alone == 2 * DELAY + flight(MIB)
    assert both == alone + occupancy(MIB)
    assert in_turn == 2 * alone


def test_a_message_waits_for_one_that_is_on_its_way_through():
    """Direct all-gather on a line of three, 0-1-2 (a 1 x 3 mesh).

    Device 1 sends to 2 at once; what 0 sent to 2 stands before the same link at `flight`,
    behind nothing; 0 sends to 1 first, so its message to 2 arrives at 1 after
    occupancy + flight.
    """
    finish = congestion_aware_run(
        network("Mesh2D", 3), system("direct"), "all_gather", MIB
    ).finish_nanoseconds
    relayed = DELAY + occupancy(MIB) + 2 * flight(MIB) + DELAY  # second of its link
    first = DELAY + 2 * flight(MIB) + DELAY  # device 2 sends to 0 first, then to 1
    middle = DELAY + occupancy(MIB) + flight(MIB) + DELAY
    assert finish.tolist() == [first, middle, relayed]


@pytest.mark.parametrize("devices", [4, 8, 16])
def test_direct_on_a_ring_loads_links_by_the_distances_they_serve(devices):
    """Clockwise links carry distances 1..n/2 (ties too), the others 1..n/2-1."""
    message = 64 * MIB // devices
    run = congestion_aware_run(network("Ring", devices), system("direct"), "all_to_all", 64 * MIB)
    half = devices // 2
    clockwise = (run.link_target - run.link_source) % devices == 1
    assert set(run.link_bytes[clockwise]) == {message * half * (half + 1) // 2}
    assert set(run.link_bytes[~clockwise]) == {message * half * (half - 1) // 2}
    unshared = DELAY + flight(message) + DELAY
    ratio = run.finish_nanoseconds.max() / unshared
    assert ratio == pytest.approx(half * (half + 1) / 2, rel=0.02)


def test_halving_doubling_rounds_each_half_down():
    """35 B on 4 devices: 17 B, 8 B, then twice half of 8 B, then twice that."""
    run = congestion_aware_run(
        network("FullyConnected", 4), system("halvingDoubling"), "all_reduce", 35
    )
    assert run.link_bytes.sum() == 4 * (17 + 8 + 8 + 16)


# Runs of ASTRA-sim -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "algorithm", "collective", "size", "splits", "active", "slowest", "fastest"),
    [
        (16, "ring", "all_reduce", 64 * MIB, 1, 1, 4_678_505, None),
        (16, "direct", "all_to_all", 64 * MIB, 1, 1, 1_565_020, None),
        (16, "halvingDoubling", "all_reduce", 64 * MIB, 1, 1, 3_186_134, None),
        (16, "ring", "all_gather", 64 * MIB, 1, 1, 36_264_660, None),
        (6, "ring", "all_reduce", 1024, 1, 1, 9_164, 8_158),
        (32, "direct", "all_reduce", 64 * MIB, 1, 1, 5_242_268, 4_973_774),
        (16, "ring", "all_reduce", 64 * MIB, 10, 4, 2_620_040, 2_578_480),
        (16, "direct", "reduce_scatter", 64 * MIB, 10, 4, 1_409_466, 1_376_218),
        (16, "halvingDoubling", "all_reduce", 64 * MIB, 10, 4, 2_162_630, 2_129_638),
    ],
)
def test_mesh_runs(devices, algorithm, collective, size, splits, active, slowest, fastest):
    settings = system(algorithm, splits, active)
    times = congestion_aware_time(network("Mesh2D", devices), settings, collective, size)
    assert times[0] == slowest
    assert fastest is None or times[1] == fastest


@pytest.mark.parametrize(
    ("topology", "algorithm", "collective", "slowest", "fastest"),
    [
        ("Ring", "direct", "all_reduce", 3_437_800, 3_437_800),
        ("Ring", "halvingDoubling", "all_reduce", 3_567_559, 3_459_199),
        ("Ring", "halvingDoubling", "all_gather", 14_000_963, 13_626_476),
    ],
)
def test_eight_devices_with_four_of_ten_chunks_active(
    topology, algorithm, collective, slowest, fastest
):
    settings = system(algorithm, splits=10, active=4)
    times = congestion_aware_time(network(topology, 8), settings, collective, 64 * MIB)
    assert times == (slowest, fastest)


def test_every_run_of_the_table(development_table):
    with development_table("astra/collectives_aware.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = []
    for row in rows:
        settings = uniform_system(
            [row["algos"]],
            preferred_dataset_splits=int(row["splits"]),
            active_chunks_per_dimension=int(row["active"]),
            endpoint_delay_nanoseconds=int(row["endpoint_ns"]),
            local_memory_bandwidth_gb_per_second=float(row["local_mem_bw"]),
            collective_optimization=row["opt"],
        )
        links = AstraNetwork(
            (row["topology"],),
            (int(row["npus"]),),
            (float(row["bw_GiBps"]),),
            (float(row["lat_ns"]),),
        )
        times = congestion_aware_time(links, settings, SHORT[row["coll"]], int(row["size_B"]))
        if times != (int(row["sim_ns"]), int(row["sim_min_rank_ns"])):
            wrong.append((row, times))
    assert len(rows) >= 453
    assert wrong == []


# Properties ------------------------------------------------------------------------


DEFINED = [
    (devices, algorithm, collective)
    for devices, algorithm, collective in itertools.product(
        (2, 4, 5, 8), ("ring", "direct", "halvingDoubling"), SIMULATED
    )
    if algorithm != "halvingDoubling" or (devices != 5 and collective != "all_to_all")
]


@pytest.mark.parametrize(("devices", "algorithm", "collective"), DEFINED)
def test_without_shared_links_both_engines_agree(devices, algorithm, collective):
    """Every pair of FullyConnected has its own link, and one message on it at a time."""
    for size, splits in itertools.product((1000, 12_345, MIB + 1), (1, 3)):
        case = (network("FullyConnected", devices), system(algorithm, splits), collective, size)
        aware = simulate_collective(*case, engine="congestion-aware")
        assert aware == simulate_collective(*case, engine="congestion-unaware")


def hops(topology: str, devices: int, source: int, target: int) -> int:
    if topology == "FullyConnected":
        return int(source != target)
    if topology == "Switch":
        return 2
    if topology == "Ring":
        return min((source - target) % devices, (target - source) % devices)
    width = {4: 2, 8: 4, 16: 4}[devices]
    along = abs(source % width - target % width)
    return along + abs(source // width - target // width)


@pytest.mark.parametrize("topology", ["Ring", "FullyConnected", "Switch", "Mesh2D"])
@pytest.mark.parametrize("devices", [4, 8, 16])
def test_links_carry_every_message_over_all_its_hops(topology, devices):
    pairs = [pair for pair in itertools.product(range(devices), repeat=2) if pair[0] != pair[1]]
    direct = sum(hops(topology, devices, *pair) for pair in pairs)
    ring = sum(hops(topology, devices, i, (i + 1) % devices) for i in range(devices))
    rounds = devices.bit_length() - 1
    halving = sum(
        hops(topology, devices, i, i ^ 2**level) * 2 ** (rounds - level - 1)
        for i in range(devices)
        for level in range(rounds)
    )
    for algorithm, collective, chunks, expected in [
        ("direct", "all_to_all", 3, direct),
        ("direct", "all_reduce", 1, 2 * direct),
        ("ring", "reduce_scatter", 3, (devices - 1) * ring),
        ("ring", "all_to_all", 1, devices * (devices - 1) // 2 * ring),
        ("halvingDoubling", "reduce_scatter", 2, halving),
        ("halvingDoubling", "all_reduce", 1, 2 * halving),
    ]:
        part = 4096  # a multiple of what is halved
        run = congestion_aware_run(
            network(topology, devices),
            system(algorithm, chunks, 2),
            collective,
            chunks * devices * part,
        )
        assert run.link_bytes.sum() == chunks * part * expected, (algorithm, collective)


@given(
    topology=st.sampled_from(["Ring", "FullyConnected", "Switch", "Mesh2D"]),
    devices=st.integers(2, 12),
    algorithm=st.sampled_from(["ring", "direct"]),
    collective=st.sampled_from(SIMULATED),
    part=st.integers(12, 4 * MIB),
    splits=st.integers(1, 5),
    active=st.integers(1, 5),
    latency=st.sampled_from([0.0, 1.0, 500.0]),
)
@settings(max_examples=60)
def test_no_faster_than_the_busiest_link_and_slower_with_size(
    topology, devices, algorithm, collective, part, splits, active, latency
):
    # Whole chunks only: of a size that leaves a rest, ASTRA-sim makes one chunk more.
    size = part * splits
    links = network(topology, devices, latency)
    choices = system(algorithm, splits, active)
    run = congestion_aware_run(links, choices, collective, size)
    messages = run.link_bytes.max() / (BANDWIDTH * 2**30 / 1e9)
    rounding = run.messages  # a message occupies its link for whole nanoseconds, rounded down
    assert run.finish_nanoseconds.min() > 0
    assert run.finish_nanoseconds.max() >= messages - rounding
    larger = congestion_aware_run(links, choices, collective, 2 * size)
    assert larger.finish_nanoseconds.max() >= run.finish_nanoseconds.max()


def test_one_ring_over_one_dimension_is_that_ring():
    times = [
        congestion_aware_time(network("Ring", 8), system(name), "all_reduce", MIB)
        for name in ("ring", "oneRing")
    ]
    assert times[0] == times[1]


def test_links_of_a_mesh_are_its_edges():
    run = congestion_aware_run(network("Mesh2D", 6), system("direct"), "all_to_all", MIB)
    edges = {tuple(sorted(edge)) for edge in zip(run.link_source, run.link_target, strict=True)}
    assert edges == {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}  # 3 wide, 2 high
    assert len(run.link_source) == 2 * len(edges)


# Bad input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "algorithm", "collective", "size", "splits", "message"),
    [
        (6, "halvingDoubling", "all_reduce", MIB, 1, "power of two"),
        (8, "halvingDoubling", "all_to_all", MIB, 1, "cannot do all_to_all"),
        (8, "doubleBinaryTree", "all_gather", MIB, 1, "cannot do all_gather"),
        (6, "doubleBinaryTree", "all_reduce", MIB, 1, "power of two"),
        (8, "ring", "broadcast", MIB, 1, "unknown collective"),
        (8, "ring", "all_gather", 3, 4, "fewer bytes than preferred_dataset_splits 4"),
        (8, "halvingDoubling", "all_reduce", 8, 1, "empty message"),
        (4096, "direct", "all_to_all", 64 * MIB, 10, "messages"),
        (8, "ring", "all_reduce", -1, 1, "whole number of bytes >= 0"),
        (8, "ring", "all_reduce", 1.5, 1, "whole number of bytes >= 0"),
        (8, "ring", "all_reduce", 2**62, 1, "at most"),
    ],
)
def test_what_cannot_be_simulated(devices, algorithm, collective, size, splits, message):
    with pytest.raises(HardwareError, match=message) as caught:
        congestion_aware_time(network("Ring", devices), system(algorithm, splits), collective, size)
    assert "\n" not in str(caught.value)


def test_more_devices_than_routes_can_be_stored_for_are_refused():
    network = AstraNetwork(("Switch",), (16384,), (50.0,), (500.0,))
    with pytest.raises(HardwareError, match="covers 8192 at most"):
        congestion_aware_time(network, uniform_system(["halvingDoubling"]), "all_reduce", 2**30)


def test_several_dimensions_are_refused():
    links = AstraNetwork(("Ring", "Switch"), (2, 4), (50.0, 50.0), (500.0, 500.0))
    with pytest.raises(HardwareError, match="one dimension; this one has 2"):
        congestion_aware_time(links, uniform_system(["ring", "ring"]), "all_reduce", MIB)


def test_one_algorithm_is_needed():
    with pytest.raises(HardwareError, match="2 implementations of all_reduce"):
        congestion_aware_time(
            network("Ring", 4), uniform_system(["ring", "ring"]), "all_reduce", MIB
        )


def test_times_that_cannot_be_counted_are_refused():
    links = AstraNetwork(("Ring",), (4,), (1e-300,), (0.0,))
    with pytest.raises(HardwareError, match="out of range"):
        congestion_aware_time(links, system("ring"), "all_reduce", MIB)


def test_ranks_finish_apart_where_the_network_is_not_symmetric():
    finish = congestion_aware_run(
        network("Mesh2D", 16), system("direct"), "all_gather", MIB
    ).finish_nanoseconds
    corners, inner = finish[[0, 3, 12, 15]], finish[[5, 6, 9, 10]]
    assert np.ptp(finish) > 0
    assert inner.max() < corners.max()
