"""Hash order: that of libstdc++'s unordered set, and of ASTRA-sim before April 2025.

What whole traces take in it is in `test_stage_simulation.py`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.hash_order import BUCKETS, HashSet
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND, TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.amount import cases

# Printed by a C++ program with GCC's std::unordered_set<uint64_t>: 37·i mod 101 added for i
# from 1 to 40, removed for i = 1, 4, … 40, added for i from 41 to 60.
PRINTED = (
    "52 42 5 32 96 59 22 86 49 12 76 39 2 29 93 19 83 9 73 100 99 40 89 30 62 3 90 94 79 20 25 "
    "84 69 10 15 74 13 50 23 60 33 70 43 80 53 63"
)


def test_order_is_that_of_the_cpp_library():
    numbers = HashSet()
    for i in range(1, 41):
        numbers.add(i * 37 % 101)
    for i in range(1, 41, 3):
        numbers.remove(i * 37 % 101)
    for i in range(41, 61):
        numbers.add(i * 37 % 101)
    assert list(numbers) == [int(word) for word in PRINTED.split()]


def test_numbers_of_buckets_are_prime_and_twice_the_last():
    for fewer, more in pairwise(BUCKETS):
        assert 2 * fewer < more < 2.4 * fewer
    assert all(n % divisor for n in BUCKETS for divisor in range(2, int(n**0.5) + 1))


@settings(max_examples=cases(50))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=150))
def test_a_hash_set_holds_what_a_set_holds(steps):
    ours, plain = HashSet(), set()
    for add, number in steps:
        if add:
            ours.add(number)
            plain.add(number)
        elif number in plain:
            ours.remove(number)
            plain.remove(number)
    found = list(ours)
    assert len(found) == len(plain)
    assert set(found) == plain


def costs(devices, **settings):
    """Devices on one ring; computation as recorded."""
    network = AstraNetwork(("Ring",), (devices,), (50.0,), (500.0,))
    return AstraCosts(network, uniform_system(["ring"], **settings))


def independent(identifiers, seconds=1e-6):
    """Return computations that nothing holds back."""
    builder = TraceBuilder()
    for number in identifiers:
        builder.add(f"n{number}", COMPUTE, identifier=number, duration=seconds)
    return builder.build()


def order_of(result):
    """Return names in the order in which they began."""
    figures = result.classes[0]
    return np.argsort(figures.start, kind="stable").tolist()


def test_ready_nodes_begin_last_bucket_first():
    """Put into the map of nodes, and from there, in its order, into the set of ready ones."""
    traces = TraceSet((independent([1, 2, 3, 4]),))
    assert order_of(simulate(traces, costs(2))) == [0, 1, 2, 3]
    assert order_of(simulate(traces, costs(2), issue_order="hash")) == [0, 1, 2, 3]
    ready = HashSet()
    for number in (1, 2, 3, 4):
        ready.add(number)
    assert list(ready) == [4, 3, 2, 1]


def test_children_begin_in_the_order_of_their_parents_set():
    """Children 2, 3, 4 of 1: their set is 4, 3, 2; added so to the ready set: 2, 3, 4."""
    builder = TraceBuilder()
    first = builder.add("first", COMPUTE, identifier=1, duration=1e-6)
    for number in (2, 3, 15):  # 15 is in the bucket of 2
        builder.add(f"n{number}", COMPUTE, identifier=number, duration=1e-6, data=[first])
    traces = TraceSet((builder.build(),))
    by_hash = order_of(simulate(traces, costs(2), issue_order="hash"))
    children, ready = HashSet(), HashSet()
    for number in (2, 3, 15):
        children.add(number)
    for number in children:
        ready.add(number)
    places = {2: 1, 3: 2, 15: 3}
    assert by_hash == [0, *(places[number] for number in ready)]
    assert by_hash != order_of(simulate(traces, costs(2)))


def test_ranks_that_begin_other_collectives_first_stand_still():
    """As ASTRA-sim did: messages carry how many collectives their rank has begun."""
    traces = []
    for waiting in (50, 14):  # 14 waits in the bucket of 1, so that 1 is behind 2
        builder = TraceBuilder()
        root = builder.add("root", COMPUTE, identifier=99, duration=1e-6)
        builder.add("other", COMPUTE, identifier=waiting, duration=1e-6)
        for number, size in ((1, 2**20), (2, 2**21)):
            builder.add(
                f"sum{size}",
                COLLECTIVE,
                identifier=number,
                collective=0,
                communication_size=size,
                data=[root],
            )
        traces.append(builder.build())
    for trace in traces:
        simulate(TraceSet((trace, trace)), costs(2), issue_order="hash")
    swapped = TraceSet(tuple(traces))
    simulate(swapped, costs(2))
    with pytest.raises(FormatError, match=r"in hash order 4 nodes never end: ranks begin other"):
        simulate(swapped, costs(2), issue_order="hash")


@settings(max_examples=cases(15))
@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(1, 12), max_size=3)), min_size=1,
             max_size=12),
    st.integers(1, 40),
)  # fmt: skip
def test_work_is_the_same_in_any_order(steps, spread):
    """Each computation once, none before its parents, never two at a time."""
    builder = TraceBuilder()
    made = []
    for place, (length, back) in enumerate(steps):
        parents = sorted({made[-step] for step in back if step <= len(made)})
        made.append(
            builder.add(
                str(place),
                COMPUTE,
                identifier=1 + place * spread,
                duration=length * 1e-6,
                data=parents,
            )
        )
    traces = TraceSet((builder.build(),))
    one, other = (simulate(traces, costs(2), issue_order=name) for name in ("identifier", "hash"))
    assert one.wall_time[0] == other.wall_time[0] == pytest.approx(sum(s for s, _ in steps) * 1e-6)
    figures = other.classes[0]
    position = {identifier: place for place, identifier in enumerate(made)}
    for place, parents in enumerate(traces.traces[0].data_parents.values[a:b].tolist()
                                    for a, b in _pieces(traces.traces[0])):  # fmt: skip
        assert all(figures.end[position[p]] <= figures.start[place] for p in parents)
    order = np.argsort(figures.start, kind="stable")
    assert (figures.end[order][:-1] <= figures.start[order][1:]).all()


def _pieces(trace):
    """Return where the parents of each node begin and end."""
    offsets = trace.data_parents.offsets.tolist()
    return pairwise(offsets)


def test_messages_arrive_in_either_order():
    """A receiver that waits already ends with the message; one that comes later at once."""
    for early in (True, False):
        sender, receiver = TraceBuilder(), TraceBuilder()
        parents = [] if early else [receiver.add("late", COMPUTE, duration=5e-3)]
        sender.add("give", SEND, destination=1, communication_size=2**20, tag=3)
        receiver.add("take", RECEIVE, source=0, communication_size=2**20, tag=3,
                     data=parents)  # fmt: skip
        traces = TraceSet((sender.build(), receiver.build()))
        found = [simulate(traces, costs(2), issue_order=name) for name in ("identifier", "hash")]
        np.testing.assert_array_equal(found[0].wall_time, found[1].wall_time)
        assert found[1].wall_time[1] == (5e-3 if not early else found[1].wall_time[0])


def test_symmetric_ranks_need_the_same_numbers():
    """Ranks whose identifiers differ are run one by one."""

    def summing(first):
        builder = TraceBuilder()
        builder.add("sum", COLLECTIVE, identifier=first, collective=0, communication_size=2**20)
        return builder.build()

    same = simulate(TraceSet((summing(1),) * 4), costs(4), issue_order="hash")
    assert len(same.classes) == 1
    other = simulate(TraceSet(tuple(map(summing, range(4)))), costs(4), issue_order="hash")
    assert len(other.classes) == 4
    np.testing.assert_array_equal(same.wall_time, other.wall_time)
    one = summing(1)
    copied = TraceSet((one, replace(one, identifiers=one.identifiers.copy())))
    assert len(simulate(copied, costs(2), issue_order="hash").classes) == 1


def test_an_order_of_neither_kind_is_refused():
    with pytest.raises(DataError, match="issue_order 'random'; it should be identifier or hash"):
        simulate(TraceSet((independent([1]),)), costs(2), issue_order="random")
