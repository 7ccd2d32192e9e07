"""The event loop over traces, against a plain simulation that follows its rules literally."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.workloads.astra.ranks import RING_COLUMNS
from perfmodel.kernels.workloads.trace.schedule import (
    COLLECTIVE,
    INSTANT,
    RECEIVE,
    SEND,
    TIMED,
    Rings,
    peak_memory,
    run_traces,
)
from perfmodel.workloads.simulation.plan import no_flows
from tests.amount import cases

TAIL = 2.0  # a collective's last event is scheduled so long before its end


def literal_run(graphs, meetings, pairs, together=False):
    """Run ranks step by step; slow, and independent of the kernel.

    Every rank is a list of (role, resource, time, parents); `meetings` are lists of
    (rank, node) with a time, `pairs` lists of (rank, node) of a send and its receive.
    """
    start, end, events, number = {}, {}, [], 0
    members = {key: meeting for meeting in meetings for key in meeting[0]}
    partner = {a: b for pair in pairs for a, b in (pair, pair[::-1])}

    def look_through(rank, now):
        nonlocal number
        graph = graphs[rank]
        while True:
            ready = [
                node
                for node, (_, _, _, parents) in enumerate(graph)
                if (rank, node) not in start and all((rank, p) in end for p in parents)
            ]
            instant = 0
            for node in ready:
                key = (rank, node)
                role, resource, time, _ = graph[node]
                held = [
                    other
                    for other in range(len(graph))
                    if (rank, other) in start
                    and (rank, other) not in end
                    and graph[other][1] == resource
                ]
                if resource and held:
                    continue
                start[key] = now
                if role == INSTANT:
                    end[key] = now
                    instant += 1
                elif role == COLLECTIVE:
                    who, lasts = members[key]
                    if all(member in start for member in who):
                        events.append((now + lasts, now + max(lasts - TAIL, 0), number, who))
                        number += 1
                elif role == RECEIVE:
                    if partner[key] in end:
                        events.append((now, now, number, [key]))
                        number += 1
                else:
                    events.append((now + time, now, number, [key]))
                    number += 1
            in_flight = any(k[0] == rank and k not in end for k in start)
            if not instant or in_flight:
                return

    for rank in range(len(graphs)):
        look_through(rank, 0.0)
    while events:
        events.sort()
        now = events[0][0]
        done = []
        while events and events[0][0] == now:
            for key in events.pop(0)[3]:
                end[key] = now
                done.append(key[0])
                receive = partner.get(key)
                if graphs[key[0]][key[1]][0] == SEND and receive in start and receive not in end:
                    end[receive] = now
                    done.append(receive[0])
            if not together:
                break
        for rank in done:
            look_through(rank, now)
    return start, end


def kernel_run(graphs, meetings, pairs, together=False, rings=None):
    """Run the same with the kernel."""
    first = np.concatenate([[0], np.cumsum([len(graph) for graph in graphs])]).astype(np.int64)
    nodes = int(first[-1])
    children = [[] for _ in range(nodes)]
    parents, resource, role, time = (np.zeros(nodes, t) for t in (np.int64,) * 3 + (np.float64,))
    for rank, graph in enumerate(graphs):
        for node, (what, where, lasts, waits) in enumerate(graph):
            at = first[rank] + node
            role[at], resource[at], time[at], parents[at] = what, where, lasts, len(waits)
            for parent in waits:
                children[first[rank] + parent].append(node)
    partner = np.full(nodes, -1, np.int64)
    for number, (who, _) in enumerate(meetings):
        for rank, node in who:
            partner[first[rank] + node] = number
    for a, b in pairs:
        partner[first[a[0]] + a[1]] = first[b[0]] + b[1]
        partner[first[b[0]] + b[1]] = first[a[0]] + a[1]
    offsets = np.concatenate([[0], np.cumsum([len(c) for c in children])]).astype(np.int64)
    met = [first[rank] + node for who, _ in meetings for rank, node in who]
    return first, run_traces(
        first[:-1],
        first,
        offsets[:-1],
        offsets[1:],
        np.array([c for own in children for c in own], np.int64),
        parents,
        resource,
        role,
        time,
        partner,
        np.concatenate([[0], np.cumsum([len(who) for who, _ in meetings])]).astype(np.int64),
        np.array(met, np.int64),
        np.array([lasts for _, lasts in meetings], np.float64),
        np.full(len(meetings), TAIL),
        rings or no_rings(len(meetings)),
        4,
        together,
        no_flows(),
    )


def no_rings(instances):
    """Return that members of so many collectives end together."""
    nothing = np.zeros(0, np.int64)
    rows = np.zeros((0, RING_COLUMNS), np.int64)
    even, first = np.ones(instances, np.bool_), np.zeros(instances, np.int64)
    return Rings(np.full(instances, -1), rows, nothing, nothing, even, first, nothing)


@st.composite
def runs(draw):
    """Two or three ranks of random graphs with collectives of all and messages."""
    ranks = draw(st.integers(1, 3))
    graphs, meeting_nodes, ends = [], [], {}
    collectives = draw(st.integers(0, 4))
    for rank in range(ranks):
        nodes = draw(st.integers(collectives, collectives + 8))
        met = sorted(
            draw(
                st.lists(
                    st.integers(0, max(nodes - 1, 0)),
                    min_size=collectives,
                    max_size=collectives,
                    unique=True,
                )
            )
        )
        meeting_nodes.append(met)
        graph = []
        for node in range(nodes):
            waits = draw(
                st.lists(st.integers(0, node - 1), max_size=3, unique=True) if node else st.just([])
            )
            if node in met:
                graph.append((COLLECTIVE, 2, 0.0, waits))
                continue
            what = draw(st.sampled_from([TIMED, TIMED, TIMED, INSTANT, SEND, RECEIVE]))
            if what in (SEND, RECEIVE):
                ends.setdefault((what, rank), []).append((rank, node))
            lasts = float(draw(st.integers(0, 6)))
            where = {TIMED: draw(st.integers(1, 3)), RECEIVE: 0}.get(what, 2)
            graph.append((what, where, lasts, waits))
        graphs.append(graph)
    sends = [key for rank in range(ranks) for key in ends.get((SEND, rank), [])]
    receives = [key for rank in range(ranks) for key in ends.get((RECEIVE, rank), [])]
    matched = min(len(sends), len(receives))
    for key in sends[matched:] + receives[matched:]:  # nobody at the other end
        old = graphs[key[0]][key[1]]
        graphs[key[0]][key[1]] = (TIMED, 1, old[2], old[3])
    meetings = [
        ([(rank, meeting_nodes[rank][k]) for rank in range(ranks)], float(draw(st.integers(0, 5))))
        for k in range(collectives)
    ]
    return graphs, meetings, list(zip(sends[:matched], receives[:matched], strict=True))


@settings(max_examples=cases(150))
@given(runs(), st.booleans())
def test_kernel_does_what_the_rules_say(run, together):
    graphs, meetings, pairs = run
    start, end = literal_run(graphs, meetings, pairs, together)
    first, (began, ended, order, _, _) = kernel_run(graphs, meetings, pairs, together)
    for rank, graph in enumerate(graphs):
        for node in range(len(graph)):
            at = first[rank] + node
            assert began[at] == start.get((rank, node), -1.0)
            assert ended[at] == end.get((rank, node), -1.0)
    done = order[order >= 0]
    assert len(done) == (ended >= 0).sum() == len(set(done.tolist()))
    assert (np.diff(ended[done]) >= 0).all()


def test_of_two_ends_at_one_time_the_one_scheduled_first_is_seen_first():
    # A device operation and a collective end at 10. Node 3 waits for the collective and
    # has the smaller number, so it takes the device unless node 4 is seen before it is ready.
    def began(first, second):
        graph = [
            (TIMED, 1, first, []),
            (TIMED, 1, second, [0]),
            (COLLECTIVE, 2, 0.0, []),
            (TIMED, 1, 5.0, [2]),
            (TIMED, 1, 7.0, [1]),
        ]
        _, (start, *_) = kernel_run([graph], [([(0, 2)], 10.0)], [])
        return start[3:].tolist()

    assert began(1.0, 9.0) == [17.0, 10.0]  # the device's event is from time 1
    assert began(9.0, 1.0) == [10.0, 15.0]  # from time 9, that of the collective from 8


def literal_peak(order, start, end, reads, writes, sizes):
    """Peak by building the set of living tensors at every moment."""
    born, dead = {}, {}
    for node in order:
        for name in reads[node]:
            born.setdefault(name, 0.0)
            dead[name] = end[node]
        for name in writes[node]:
            born.setdefault(name, start[node])
    moments = sorted({*born.values(), *dead.values()})
    return max(
        (
            sum(
                sizes[name]
                for name in born
                if born[name] <= now and dead.get(name, float("inf")) > now
            )
            for now in moments
        ),
        default=0.0,
    )


@settings(max_examples=cases(100))
@given(st.data())
def test_peak_memory_is_the_largest_living_set(data):
    names = data.draw(st.integers(1, 6))
    nodes = data.draw(st.integers(1, 8))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=names, max_size=names))
    begin = np.cumsum(data.draw(st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes)))
    last = begin + np.array(data.draw(st.lists(st.integers(0, 4), min_size=nodes, max_size=nodes)))
    some = st.lists(st.integers(0, names - 1), max_size=3, unique=True)
    reads = data.draw(st.lists(some, min_size=nodes, max_size=nodes))
    writes = data.draw(st.lists(some, min_size=nodes, max_size=nodes))
    order = np.argsort(last, kind="stable")

    def columns(lists):
        offsets = np.concatenate([[0], np.cumsum([len(own) for own in lists])]).astype(np.int64)
        return offsets, np.array([item for own in lists for item in own], np.int64)

    found = peak_memory(
        order,
        begin.astype(np.float64),
        last.astype(np.float64),
        *columns(reads),
        *columns(writes),
        np.arange(names),
        np.array(sizes, np.int64),
        names,
    )
    assert found == literal_peak(order.tolist(), begin, last, reads, writes, sizes)
