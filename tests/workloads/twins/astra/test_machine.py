"""Whole traces message by message: worked by hand, against the other engine, against real runs."""

from __future__ import annotations

import csv
import itertools
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.collectives import SIMULATED, TRACED
from perfmodel.base.errors import DataError, FormatError, HardwareError
from perfmodel.workloads.formats.astra_files import read_network, read_system
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem, uniform_system
from perfmodel.workloads.formats.chakra.files import read_traces
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, RECEIVE, SEND, TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.astra.machine import Machine
from tests.amount import cases
from tests.data import ASTRA, needed, table_of
from tests.workloads.simulation.made import ALL_GATHER, ALL_REDUCE, micros, reduce_of
from tests.workloads.twins.astra.networks import (
    MIB,
    congestion_aware_run,
    congestion_aware_time,
    simulate_collective,
)

AWARE = "congestion-aware"
GROUP_DELAY = 10  # [ns]: MemBus.cc:54


def costs(topology="Switch", devices=4, algorithm="ring", splits=1, active=1, **others):
    return AstraCosts(
        network(topology, devices), system(algorithm, splits, active), AWARE, **others
    )


def ranks(*nodes, groups=None):
    """Traces of ranks, each a list of functions that add a node."""
    traces = []
    for own in nodes:
        builder = TraceBuilder()
        for add in own:
            add(builder)
        traces.append(builder.build())
    return TraceSet(tuple(traces), groups=groups or {})


def send(source, destination, size=MIB, tag=0, after=()):
    return lambda builder: builder.add(
        "send",
        SEND,
        source=source,
        destination=destination,
        communication_size=size,
        tag=tag,
        data=after,
    )


def receive(source, destination, size=MIB, tag=0, after=()):
    return lambda builder: builder.add(
        "receive",
        RECEIVE,
        source=source,
        destination=destination,
        communication_size=size,
        tag=tag,
        data=after,
    )


def work(microseconds):
    return lambda builder: micros(builder, "work", microseconds)


def collective(kind=ALL_REDUCE, size=MIB, after=(), **settings):
    return lambda builder: reduce_of(builder, "all", size, kind, data=after, **settings)


def ends(result, rank):
    """When the nodes of a rank ended [ns]."""
    return np.rint(result.ends(rank) * 1e9).astype(int).tolist()


# Worked by hand -------------------------------------------------------------------


def test_messages_to_one_rank_queue_at_its_downlink():
    traces = ranks([send(0, 2)], [send(1, 2)], [receive(0, 2), receive(1, 2)], [])
    result = simulate(traces, costs())
    first = 2 * flight(MIB)
    assert ends(result, 0) == [first]
    assert ends(result, 1) == [first + occupancy(MIB)]  # of two at one time the one sent first
    assert ends(result, 2) == [first, first + occupancy(MIB)]


def test_a_send_ends_when_its_message_is_there_whoever_waits():
    late = 1000  # [us]
    traces = ranks([send(0, 1)], [work(late), receive(0, 1, after=[0])], [], [])
    result = simulate(traces, costs())
    assert ends(result, 0) == [2 * flight(MIB)]
    assert ends(result, 1) == [1000 * late, 1000 * late]  # it has been there for long


def test_a_late_member_ends_first_as_its_message_waits_for_it():
    """All-gather of two: the late one finds what the early one sent; that one still waits."""
    late = 1000  # [us]
    traces = ranks([collective(ALL_GATHER)], [work(late), collective(ALL_GATHER, after=[0])])
    result = simulate(traces, costs("Ring", 2))
    begin = 1000 * late
    assert ends(result, 1) == [begin, begin + 2 * DELAY]
    assert ends(result, 0) == [begin + DELAY + flight(MIB) + DELAY]


def test_a_group_goes_round_its_own_ring_over_shared_links():
    """0 and 2 of a ring of four are two links apart, both ways round clockwise."""
    groups = {"1": (0, 2)}
    nodes = [collective(ALL_GATHER, group="1")]
    result = simulate(ranks(nodes, [], nodes, [], groups=groups), costs("Ring", 4))
    expected = GROUP_DELAY + 2 * flight(MIB) + GROUP_DELAY
    assert ends(result, 0) == ends(result, 2) == [expected]


def test_collectives_of_groups_are_in_each_others_way():
    """With no latency 0's message stands before the link 1-2 as 1's has just left it."""
    groups = {"1": (0, 2), "2": (1, 3)}
    one, two = ([collective(ALL_GATHER, 4 * MIB, group=name)] for name in groups)
    settings = system("ring", 4, 4)
    links = network("Ring", 4)
    alone = simulate(ranks(one, [], one, [], groups=groups), AstraCosts(links, settings, AWARE))
    both = simulate(ranks(one, two, one, two, groups=groups), AstraCosts(links, settings, AWARE))
    assert alone.wall_time[0] < both.wall_time[0]
    apart = simulate(
        ranks(one, two, one, two, groups={"1": (0, 2), "2": (1, 3)}),
        AstraCosts(network("FullyConnected", 4), settings, AWARE),
    )
    together = simulate(
        ranks(one, [], one, [], groups=groups),
        AstraCosts(network("FullyConnected", 4), settings, AWARE),
    )
    assert apart.wall_time[0] == together.wall_time[0]


def test_a_collective_of_no_bytes_sends_a_byte_per_device_and_chunk():
    """Sys.cc `determine_chunk_size`: as one of so many bytes."""
    nothing = simulate(ranks(*[[collective(size=0)]] * 4), costs(splits=4))
    something = simulate(ranks(*[[collective(size=16)]] * 4), costs(splits=4))
    assert nothing.ticks("wall_time") == something.ticks("wall_time")
    assert min(nothing.ticks("wall_time")) > 0


def test_a_group_of_one_needs_no_time():
    nodes = [collective(group="1"), work(1)]
    result = simulate(ranks(nodes, [], [], [], groups={"1": (0,)}), costs())
    assert ends(result, 0) == [0, 1000]


def test_work_runs_beside_communication_and_what_waits_runs_after_it():
    alone = simulate(ranks(*[[collective()]] * 4), costs()).ticks("wall_time")[0]
    nodes = [collective(), work(5), collective(after=[0])]
    assert ends(simulate(ranks(*[nodes] * 4), costs()), 3) == [alone, 5000, 2 * alone]


# Against the other engine ---------------------------------------------------------


def mixture(seed, members=6):
    """Traces of ranks: work of random length, rings of three groups, messages, in one order."""
    random = np.random.default_rng(seed)
    builders = [TraceBuilder() for _ in range(members)]
    last = [[] for _ in range(members)]
    groups = {"1": (0, 2, 4), "2": (1, 3), "3": (5, 3, 1, 0)}
    for step in range(8):
        for rank, builder in enumerate(builders):
            last[rank] = [
                micros(builder, "work", int(random.integers(1, 60)), data=tuple(last[rank]))
            ]
        name = ("", "1", "2", "3")[step % 4]
        size = int(random.integers(1, 40)) * 10_007
        kind = TRACED.index(("all_reduce", "all_gather", "reduce_scatter", "all_to_all")[step // 2])
        for rank in groups.get(name, range(members)):
            last[rank].append(
                builders[rank].add(
                    "all",
                    COLLECTIVE,
                    collective=kind,
                    communication_size=size,
                    group=name,
                    data=tuple(last[rank]),
                )
            )
        source, destination = random.permutation(members)[:2].tolist()
        pair = {"source": source, "destination": destination, "tag": step}
        for rank, kind in ((source, SEND), (destination, RECEIVE)):
            node = builders[rank].add(
                "message", kind, communication_size=size, data=last[rank][:1], **pair
            )
            last[rank].append(node)
    return TraceSet(tuple(builder.build() for builder in builders), groups=groups)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("topology", ["Ring", "FullyConnected", "Switch"])
def test_without_congestion_rings_end_as_the_other_simulation_says(topology, seed):
    """Two implementations: meetings whose members end one by one, and single messages."""
    traces = mixture(seed)
    settings = system("ring", 3, 2)
    meetings = AstraCosts(network(topology, 6), settings, version="astra-sim@af2492b")
    messages = AstraCosts(network(topology, 6), settings, version="astra-sim@af2492b")
    messages.machine = Machine(messages.network, settings, messages.version, shared=False)
    one, other = simulate(traces, meetings), simulate(traces, messages)
    for rank in range(6):
        assert ends(one, rank) == ends(other, rank)


@pytest.mark.parametrize("most", [20_000_000, 0])
def test_without_congestion_members_that_begin_apart_are_run_message_by_message(monkeypatch, most):
    """Direct all-gather of two, one of them late; as meetings where it would take too long."""
    monkeypatch.setattr("perfmodel.workloads.twins.astra.costs.MOST_CROSSINGS_APART", most)
    traces = ranks([collective(ALL_GATHER)], [work(1000), collective(ALL_GATHER, after=[0])])
    result = simulate(traces, AstraCosts(network("FullyConnected", 2), system("direct")))
    slowest = 1_000_000 + DELAY + flight(MIB) + DELAY
    late = 1_000_000 + 2 * DELAY if most else slowest
    assert (ends(result, 0), ends(result, 1)[1]) == ([slowest], late)
    assert result.together == (not most)


@pytest.mark.parametrize("algorithms", ["ring|direct", "halvingDoubling|ring"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_several_dimensions_without_congestion(algorithms, kind):
    links = AstraNetwork(("Switch", "Ring"), (4, 3), (200.0, 25.0), (20.0, 1000.0))
    settings = uniform_system(
        algorithms.split("|"), preferred_dataset_splits=5, active_chunks_per_dimension=2
    )
    traces = ranks(*[[collective(TRACED.index(kind))]] * 12)
    one = simulate(traces, AstraCosts(links, settings))
    messages = AstraCosts(links, settings)
    messages.machine = Machine(links, settings, shared=False)
    assert one.ticks("wall_time") == simulate(traces, messages).ticks("wall_time")


def test_a_link_of_ones_own_and_one_message_at_a_time_is_no_congestion():
    traces = ranks(
        [send(0, 1), receive(2, 0, after=[0]), work(3)],
        [receive(0, 1), send(1, 2, after=[0])],
        [receive(1, 2), send(2, 0, after=[0])],
    )
    settings = system("ring")
    links = network("FullyConnected", 3)
    one = simulate(traces, AstraCosts(links, settings, AWARE))
    other = simulate(traces, AstraCosts(links, settings))
    assert [ends(one, rank) for rank in range(3)] == [ends(other, rank) for rank in range(3)]


def test_more_messages_at_once_than_there_was_room_for():
    """The table of the kernel grows; receives of one key keep their order."""
    count = 3000
    sends = [send(0, 1, size=1000 + number % 3) for number in range(count)]
    receives = [receive(0, 1, size=1000 + number % 3) for number in range(count)]
    result = simulate(ranks(sends, receives, [], []), costs())
    assert ends(result, 0) == ends(result, 1)
    assert ends(result, 0) == sorted(ends(result, 0))


# Real runs ------------------------------------------------------------------------


# Runs of ASTRA-sim af2492b, congestion-aware (real_runs.csv): wall [ns] of each rank.
RUNS = table_of(__file__, "runs")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Folder of the traces that the real simulator ran."""
    path = tmp_path_factory.mktemp("real")
    with tarfile.open(needed(ASTRA / "real/traces.tar.xz")) as archive:
        archive.extractall(path, filter="data")
    return path


@pytest.mark.parametrize(("case", "links", "settings", "walls"), RUNS)
def test_real_runs_of_whole_traces(real, case, links, settings, walls):
    own = AstraCosts(
        read_network(real / "config" / links),
        read_system(real / "config" / settings),
        AWARE,
        "astra-sim@af2492b",
    )
    result = simulate(read_traces(real / "without_duration_seconds" / case / "t"), own)
    assert result.ticks("wall_time") == walls


# Bad input ------------------------------------------------------------------------


def test_several_dimensions_are_refused_with_congestion():
    links = AstraNetwork(("Ring", "Switch"), (2, 4), (50.0, 50.0), (500.0, 500.0))
    with pytest.raises(HardwareError, match="one dimension; this one has 2"):
        AstraCosts(links, uniform_system(["ring", "ring"]), AWARE)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (collective(ALL_GATHER, 0), "all_gather of the group of all ranks: size 0 B"),
        (collective(size=3), "would send an empty message"),
    ],
)
def test_collectives_that_the_simulator_does_not_end(node, reason):
    splits = 4 if "size 0" in reason else 1
    algorithm = "ring" if "size 0" in reason else "halvingDoubling"
    traces = ranks(*[[node]] * 4)
    with pytest.raises(FormatError, match=f"^rank 0, node 0 .*{reason}") as caught:
        simulate(traces, costs(splits=splits, algorithm=algorithm))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "destination", "size", "reason"),
    [(0, 1, 0, "sends a message that is empty"), (1, 1, 5, "goes to its own sender")],
)
def test_messages_at_which_the_simulator_stops(source, destination, size, reason):
    nodes = [[] for _ in range(4)]
    nodes[source].append(send(source, destination, size))
    nodes[destination].append(receive(source, destination, size))
    with pytest.raises(FormatError, match=f"^rank {source}, node 0 .*{reason}"):
        simulate(ranks(*nodes), costs())


def test_more_messages_than_are_run_are_refused():
    traces = ranks(*[[collective(TRACED.index("all_to_all"), 2**30)]] * 64)
    settings = costs("Ring", 64, "direct", splits=10_000)
    with pytest.raises(FormatError, match="at most 500,000,000 and") as caught:
        simulate(traces, settings)
    assert "\n" not in str(caught.value)


def test_hash_order_and_congestion_exclude_each_other():
    with pytest.raises(DataError, match="'hash' knows no contention"):
        simulate(ranks(*[[collective()]] * 4), costs(), issue_order="hash")


def test_a_standstill_names_who_waits():
    """On main chunks of all ranks are numbered with all others that a rank began.

    Sys.cc `generate_collective`: `num_streams++` whether there is a group or not.
    """
    pair, everybody = collective(group="1"), collective(after=[])
    nodes = [[pair, everybody], [pair, everybody], [everybody], [everybody]]
    traces = ranks(*nodes, groups={"1": (0, 1)})
    with pytest.raises(FormatError, match=r"never end, .*waits for messages of") as caught:
        simulate(traces, costs(version="astra-sim@main"))
    assert "\n" not in str(caught.value)
    simulate(traces, costs(version="astra-sim@af2492b"))  # all ranks are one more group there


BANDWIDTH, LATENCY, DELAY = 50.0, 500.0, 10  # GiB/s, ns, ns
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
    finish = congestion_aware_run(network("Mesh2D", 3), system("direct"), "all_gather", MIB).end
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
    ratio = run.end.max() / unshared
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
@settings(max_examples=cases(60))
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
    assert run.end.min() > 0
    assert run.end.max() >= messages - rounding
    larger = congestion_aware_run(links, choices, collective, 2 * size)
    assert larger.end.max() >= run.end.max()


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
    finish = congestion_aware_run(network("Mesh2D", 16), system("direct"), "all_gather", MIB).end
    corners, inner = finish[[0, 3, 12, 15]], finish[[5, 6, 9, 10]]
    assert np.ptp(finish) > 0
    assert inner.max() < corners.max()
