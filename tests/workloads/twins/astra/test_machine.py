"""Whole traces message by message: worked by hand, against the other engine, against real runs."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import DataError, FormatError, HardwareError
from perfmodel.workloads.formats.astra_files import read_network, read_system
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.formats.chakra.files import read_traces
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, RECEIVE, SEND, TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.astra.machine import Machine
from tests.data import ASTRA, needed
from tests.workloads.simulation.made import ALL_GATHER, ALL_REDUCE, MIB, micros, reduce_of
from tests.workloads.twins.astra.test_congestion_aware import (
    DELAY,
    flight,
    network,
    occupancy,
    system,
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
RUNS = [
    ("d4_gpt2", "ring_4.yml", "r1.json", (31304359, 31115841, 31105564, 30923686)),
    ("d4_gpt2", "fc_4.yml", "r1.json", (32878475, 32878475, 32867344, 32867344)),
    ("d4_gpt2", "sw_4.yml", "r1a2.json", (24967550, 24967550, 24954879, 24954879)),
    (
        "d8_tp2pp2dp2",
        "ring_8.yml",
        "r1.json",
        (33545106, 33544606, 33533991, 33534491, 26897548, 26897048, 26886433, 26886933),
    ),
    (
        "d8_pp4gpipe",
        "sw_8.yml",
        "r1a2.json",
        (30263313, 30263313, 28185926, 28185926, 27020151, 27020151, 26343466, 26343466),
    ),
]


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
