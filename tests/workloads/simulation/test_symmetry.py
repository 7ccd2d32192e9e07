"""One rank stands for others only where all of them would do the same at the same times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.hwprofiles import load_hardware
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.costs import Ring
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.meetings import Group
from perfmodel.workloads.simulation.result import BY_COLLECTIVE, FIGURES
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.simulation.symmetry import ring_pattern
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND, TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts, NetworkCosts
from tests.amount import cases
from tests.workloads.twins.astra.networks import simulate_collective


def group(times, members=None, order=None):
    """Return a group of one size of collective with some hops, in the order of its ring."""
    count = len(times)
    hops = np.array([times])
    even = (hops == hops[:, :1]).all(axis=1)
    own = np.arange(count) if members is None else np.array(members)
    ring = Ring(even, np.zeros((1, 6), np.int64), hops, np.array(order or range(count)))
    return Group("g", own, None, np.zeros(count, np.int64), ring=ring)


@pytest.mark.parametrize(
    ("colours", "times", "places"),
    [
        ([0, 0, 0, 0], [5, 5, 5, 5], [0, 0, 0, 0]),
        ([0, 1, 0, 1], [5, 5, 5, 5], [0, 1, 0, 1]),
        ([0, 0, 1, 1], [5, 5, 5, 5], [0, 1, 2, 3]),
        ([0, 0, 0, 0], [5, 7, 5, 7], [0, 1, 0, 1]),
        ([0, 0, 0, 0], [9, 5, 5, 5], [0, 1, 2, 3]),
        ([0, 1, 0], [5, 5, 5], [0, 1, 2]),
    ],
)
def test_the_shortest_part_that_repeats_tells_members_apart(colours, times, places):
    _, found = ring_pattern(group(times), np.array(colours))
    assert found.tolist() == places


def test_places_are_those_of_the_members_whatever_the_order_of_the_ring():
    _, found = ring_pattern(group([9, 5, 5], order=[2, 0, 1]), np.zeros(3, np.int64))
    assert found.tolist() == [1, 2, 0]


def test_patterns_are_equal_where_all_that_is_seen_is():
    colours = np.array([0, 1, 0, 1, 0, 0, 0, 0])
    one, _ = ring_pattern(group([5, 5], [0, 1]), colours)
    same, _ = ring_pattern(group([5, 5], [2, 3]), colours)
    others, _ = ring_pattern(group([5, 5], [4, 5]), colours)
    longer, _ = ring_pattern(group([5, 7], [0, 1]), colours)
    assert one == same
    assert len({one, others, longer}) == 3


MIB = 2**20
RANKS = 8
ALL_REDUCE = 0


def network_of(name):
    """Uniform, and two on which groups of other strides take other times."""
    if name == "connected":
        return AstraNetwork(("FullyConnected",), (RANKS,), (50.0,), (500.0,))
    if name == "ring":
        return AstraNetwork(("Ring",), (RANKS,), (50.0,), (500.0,))
    return AstraNetwork(("Ring", "Switch"), (4, 2), (50.0, 5.0), (500.0, 7000.0))


def costs_of(name, streams="one"):
    """Return a cost model of eight ranks."""
    if name == "h100":
        # Four devices in a node, so that eight ranks meet both levels.
        four = load_hardware("dgx-h100").with_values({"system.network.0.size": 4})
        return HardwareCosts(four, communication_streams=streams)
    model, _, kind = name.partition(" ")
    network = network_of(kind)
    system = uniform_system(["direct" if kind == "connected" else "ring"] * network.dimensions)
    if model == "astra":
        return AstraCosts(network, system)
    return NetworkCosts(network, system, streams)


MODELS = ("astra connected", "astra ring", "astra levels", "ours ring", "ours levels", "h100")


def assert_same(full, few):
    """All figures and times of all ranks are equal."""
    for name in (figure.name for figure in FIGURES):
        np.testing.assert_array_equal(getattr(full, name), getattr(few, name), err_msg=name)
    for name in (figure.name for figure in BY_COLLECTIVE):
        np.testing.assert_array_equal(full.to_dataset()[name], few.to_dataset()[name])
    for rank in range(len(full.class_of_rank)):
        np.testing.assert_array_equal(full.starts(rank), few.starts(rank))
        np.testing.assert_array_equal(full.ends(rank), few.ends(rank))


@st.composite
def workloads(draw):
    """The same steps on every rank, in groups of any stride and in rings of messages."""
    steps = draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("compute"), st.integers(0, 3)),
                st.tuples(
                    st.just("group"), st.sampled_from([(2, 1), (2, 2), (2, 4), (4, 1), (4, 2)])
                ),
                st.tuples(st.just("ring"), st.sampled_from([1, 2, 4, 7])),
                st.tuples(st.just("halves"), st.just(0)),  # neighbours, or four apart
            ),
            min_size=1,
            max_size=7,
        )
    )
    waits = [
        draw(st.lists(st.integers(0, place - 1), max_size=2, unique=True)) if place else []
        for place in range(len(steps))
    ]
    groups = {}
    for size, stride in ((2, 1), (2, 2), (2, 4), (4, 1), (4, 2)):
        for first in range(RANKS):
            if first // stride % size == 0:
                groups[f"{size}.{stride}.{first}"] = tuple(first + stride * i for i in range(size))
    groups |= {f"near{i}": (2 * i, 2 * i + 1) for i in range(2)}
    groups |= {f"far{i}": (4 + i, 6 + i) for i in range(2)}
    traces = []
    for rank in range(RANKS):
        builder, last = TraceBuilder(), []
        for place, ((what, detail), parents) in enumerate(zip(steps, waits, strict=True)):
            ends = [last[parent] for parent in parents]
            if what == "compute":
                node = builder.add("work", COMPUTE, duration=detail * 1e-6, data=ends)
            elif what == "ring":
                aim, source = (rank + detail) % RANKS, (rank - detail) % RANKS
                said = {"communication_size": MIB, "tag": place, "data": ends}
                builder.add("give", SEND, destination=aim, **said)
                node = builder.add("get", RECEIVE, source=source, **said)
            else:
                if what == "group":
                    size, stride = detail
                    first = rank - rank // stride % size * stride
                    group = f"{size}.{stride}.{first}"
                else:
                    group = f"near{rank // 2}" if rank < 4 else f"far{rank % 2}"
                node = builder.add(
                    "sum", COLLECTIVE, collective=ALL_REDUCE, communication_size=MIB, group=group,
                    data=ends,
                )  # fmt: skip
            last.append(node)
        traces.append(builder.build())
    return TraceSet(tuple(traces), groups)


@settings(max_examples=cases(60))
@given(workloads(), st.sampled_from(MODELS), st.sampled_from(["one", "per-group"]))
def test_symmetry_changes_nothing_on_any_network(traces, model, streams):
    costs = costs_of(model, streams)
    runs, refusals = [], []
    for symmetry in (False, True):
        try:
            runs.append(simulate(traces, costs, symmetry=symmetry))
        except FormatError as error:  # ranks that begin other collectives first
            refusals.append(str(error))
    if refusals:
        assert "wait for each other" in refusals[0]
        assert refusals[0] == refusals[-1]
        assert not runs
    else:
        assert_same(*runs)


def sums(groups_of_rank):
    """Every rank sums up once in its group."""
    traces = []
    for group in groups_of_rank:
        builder = TraceBuilder()
        builder.add("sum", COLLECTIVE, collective=ALL_REDUCE, communication_size=MIB, group=group)
        traces.append(builder.build())
    return tuple(traces)


def test_ranks_that_look_alike_are_told_apart_by_the_stride_of_their_groups():
    groups = {"a": (0, 1), "b": (2, 3), "c": (4, 6), "d": (5, 7)}
    traces = TraceSet(sums(["a", "a", "b", "b", "c", "d", "c", "d"]), groups)
    costs = costs_of("astra ring")
    result = simulate(traces, costs)
    near, far = (
        simulate_collective(
            costs.network, costs.system, "all_reduce", MIB, members=members
        ).slowest_nanoseconds
        for members in ((0, 1), (4, 6))
    )
    assert far > near
    assert result.ticks("wall_time") == (near,) * 4 + (far,) * 4
    assert result.representative.tolist() == [0, 0, 0, 0, 4, 4, 4, 4]


def test_ranks_that_look_alike_are_told_apart_by_the_level_that_groups_cross():
    groups = {"inside": (0, 1), "across": (2, 6)}
    traces = list(sums(["inside", "inside", "across", "", "", "", "across", ""]))
    idle = TraceBuilder()
    idle.add("work", COMPUTE)
    for rank in (3, 4, 5, 7):
        traces[rank] = idle.build()
    for model in ("astra levels", "ours levels", "h100"):
        result = simulate(TraceSet(tuple(traces), groups), costs_of(model))
        assert result.wall_time[2] > result.wall_time[0] > 0
        assert result.representative.tolist() == [0, 0, 2, 3, 3, 3, 2, 3]


def test_messages_over_other_distances_tell_ranks_apart():
    # 0 → 1 and 2 → 3 are neighbours, 4 → 6 and 5 → 7 two hops apart.
    pairs = {0: 1, 2: 3, 4: 6, 5: 7}
    traces = []
    for rank in range(RANKS):
        builder = TraceBuilder()
        if rank in pairs:
            builder.add("give", SEND, destination=pairs[rank], communication_size=MIB)
        else:
            source = next(key for key, value in pairs.items() if value == rank)
            builder.add("get", RECEIVE, source=source, communication_size=MIB)
        traces.append(builder.build())
    result = simulate(TraceSet(tuple(traces)), costs_of("astra ring"))
    assert len(result.classes) == 4
    wall = result.ticks("wall_time")
    assert wall[4] - wall[0] == wall[7] - wall[3] == 500  # one hop more of 500 ns


def ring_before_sum(ranks=4):
    """Two hops round a ring beside a sum that every rank could begin between them."""
    traces = []
    for rank in range(ranks):
        builder = TraceBuilder()
        work = builder.add("work", COMPUTE, duration=1e-3)
        got = work
        for hop in range(2):
            said = {"communication_size": MIB, "tag": hop}
            aim, source = (rank + 1) % ranks, (rank - 1) % ranks
            builder.add("give", SEND, destination=aim, data=[got], **said)
            got = builder.add("get", RECEIVE, source=source, data=[work], **said)
        builder.add(
            "sum", COLLECTIVE, collective=ALL_REDUCE, communication_size=16 * MIB, data=[work]
        )
        traces.append(builder.build())
    return TraceSet(tuple(traces))


def test_what_ends_at_one_moment_is_seen_together_on_hardware(h100):
    # A rank's first message leaves as the one from its neighbour arrives, so every rank
    # passes it on before it sums up.
    for streams in ("one", "per-group"):
        costs = HardwareCosts(h100, communication_streams=streams)
        full = simulate(ring_before_sum(), costs, symmetry=False)
        assert len(set(full.wall_time.tolist())) == 1
        few = simulate(ring_before_sum(), costs)
        assert len(few.classes) == 1
        assert_same(full, few)


def test_where_astra_sim_goes_by_the_number_of_a_rank_every_rank_is_run():
    # The event of 0 → 1 comes first: rank 0 has nothing to pass on yet when its message has
    # left and begins the sum, while the others have their message already.
    network = AstraNetwork(("FullyConnected",), (4,), (50.0,), (500.0,))
    costs = AstraCosts(network, uniform_system(["direct"]))
    few, full = (simulate(ring_before_sum(), costs, symmetry=s) for s in (True, False))
    assert_same(full, few)
    assert len(few.classes) == 4
    begins = [np.rint(few.starts(rank) * 1e9).astype(int).tolist() for rank in range(4)]
    first_hop = 1_000_000 + 500 + 19531  # floor(500 + 2**20 B / (50 GiB/s))
    assert [begin[5] == first_hop for begin in begins] == [True, False, False, False]
    # Without the sum nobody is told apart, and one rank stands for all.
    traces = [_pass_on(rank).build() for rank in range(4)]
    assert len(set(simulate(TraceSet(tuple(traces)), costs).ticks("wall_time"))) == 1


def _pass_on(rank):
    builder = TraceBuilder()
    said = {"communication_size": MIB}
    builder.add("give", SEND, destination=(rank + 1) % 4, **said)
    builder.add("get", RECEIVE, source=(rank - 1) % 4, **said)
    return builder


@pytest.mark.parametrize("model", ["astra ring", "h100"])
def test_ranks_of_equal_columns_share_what_is_made_of_them(model):
    """Copies of a trace, other names of groups: one graph; another duration: two."""

    def trace(group, micro):
        builder = TraceBuilder()
        work = builder.add("work", COMPUTE, duration=micro * 1e-6)
        builder.add(
            "sum", COLLECTIVE, collective=ALL_REDUCE, communication_size=MIB, group=group,
            data=[work],
        )  # fmt: skip
        return builder.build()

    groups = {"a": (0, 2, 4, 6), "b": (1, 3, 5, 7)}
    alike = [trace("ab"[rank % 2], 5) for rank in range(RANKS)]
    result = simulate(TraceSet(tuple(alike), groups), costs_of(model))
    assert len(result.classes) == 1
    late = [*alike[:7], trace("b", 9)]
    apart = simulate(TraceSet(tuple(late), groups), costs_of(model))
    if model == "astra ring":  # each ends by itself: the delay travels with the data
        assert apart.representative.tolist() == [0, 1, 0, 3, 0, 5, 0, 7]
        delays = np.rint((apart.wall_time - result.wall_time[0]) * 1e9)
        assert delays.tolist() == [0, 0, 0, 4000, 0, 0, 0, 0]
        return
    assert apart.representative.tolist() == [0, 1, 0, 1, 0, 1, 0, 7]
    assert (
        apart.wall_time[1]
        == apart.wall_time[7]
        == pytest.approx(result.wall_time[0] + 4e-6, abs=1e-9)
    )
