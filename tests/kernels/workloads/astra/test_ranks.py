"""Members of a ring that begin one by one, against messages passed literally."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.workloads.astra.phase import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BYTES_PER_NANOSECOND,
    LATENCY,
    NETWORK_COLUMNS,
    REDUCE_SCATTER,
    RING_TOPOLOGY,
    SIZE,
    TOPOLOGY,
)
from perfmodel.kernels.workloads.astra.ranks import (
    RING_ACTIVE,
    RING_CHUNKS,
    RING_COLUMNS,
    RING_DELAY,
    RING_REDUCED,
    RING_REDUCTION,
    RING_STEPS,
    group_ring_times,
    ring_ends,
)
from tests.amount import cases


def literal_ends(arrival, times, steps, reduced, delay, reduction, chunks, active):
    """Pass every message of every chunk as an event: when each member is done with all."""
    members = len(arrival)
    events, ends = [], [0] * members
    running, begun = [0] * members, [0] * members
    sent, received = {}, {}
    early: dict[tuple[int, int], list[int]] = {}

    def begin(member, now):
        while running[member] < active and begun[member] < chunks:
            running[member] += 1
            heapq.heappush(events, (now + delay, "send", member, begun[member]))
            begun[member] += 1

    def receive(member, chunk, now):
        count = received.get((member, chunk), 0)
        received[member, chunk] = count + 1
        wait = delay + (reduction if count < reduced else 0)
        heapq.heappush(events, (now + wait, "send", member, chunk))

    for member, now in enumerate(arrival):
        heapq.heappush(events, (now, "begin", member, 0))
    while events:
        now, what, member, chunk = heapq.heappop(events)
        if what == "begin":
            begin(member, now)
        elif what == "arrive":
            if sent.get((member, chunk), 0) > received.get((member, chunk), 0):
                receive(member, chunk, now)
            else:
                early.setdefault((member, chunk), []).append(now)
        elif sent.get((member, chunk), 0) == steps:  # its last message is handled
            ends[member] = max(ends[member], now)
            running[member] -= 1
            begin(member, now)
        else:
            sent[member, chunk] = sent.get((member, chunk), 0) + 1
            after = (member + 1) % members
            heapq.heappush(events, (now + times[after], "arrive", after, chunk))
            if early.get((member, chunk)):
                early[member, chunk].pop()
                receive(member, chunk, now)
    return ends


@settings(max_examples=cases(100))
@given(st.data())
def test_a_ring_passes_messages_whether_or_not_their_receiver_has_begun(data):
    members = data.draw(st.integers(2, 6))
    whole = st.lists(st.integers(0, 400), min_size=members, max_size=members)
    arrival, times = data.draw(whole), [1 + time for time in data.draw(whole)]
    kind = data.draw(st.sampled_from([(1, 0), (1, 1), (2, 1)]))
    steps, reduced = kind[0] * (members - 1), kind[1] * (members - 1)
    delay, reduction, chunks, active = (data.draw(st.integers(1, n)) for n in (20, 50, 4, 3))
    row = np.zeros(RING_COLUMNS, np.int64)
    row[RING_STEPS], row[RING_REDUCED] = steps, reduced
    row[RING_DELAY], row[RING_REDUCTION] = delay, reduction
    row[RING_CHUNKS], row[RING_ACTIVE] = chunks, active
    end = np.empty(members, np.int64)
    ring_ends(np.array(arrival), row, np.array(times), end)
    assert end.tolist() == literal_ends(
        arrival, times, steps, reduced, delay, reduction, chunks, active
    )
    assert end.min() > max(arrival)  # all need what the last one has


@pytest.mark.parametrize("kind", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL])
def test_members_with_equal_hops_end_together(kind):
    network = np.zeros((1, NETWORK_COLUMNS))
    network[0, [TOPOLOGY, SIZE]] = RING_TOPOLOGY, 12
    network[0, [BYTES_PER_NANOSECOND, LATENCY]] = 50.0, 500.0
    sizes = np.array([2**20])
    even, uneven = (
        group_ring_times(kind, sizes, np.array(members), 1, 1, 1e3, 12, network)[0]
        for members in ([0, 4, 8], [0, 1, 2])
    )
    assert even[0] == even[1]
    assert uneven[0] >= uneven[1]
    assert (uneven[0] > uneven[1]) == (kind != ALL_TO_ALL), uneven
