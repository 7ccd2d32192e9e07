"""Who receives which message: by tag, pair and size, in order, early or not."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.events import WAITING, next_event
from perfmodel.kernels.workloads.astra import machine_state as cells
from perfmodel.kernels.workloads.astra import transport

SIZE, FLIGHT = 100, 7
PACKET = cells.SETTINGS  # the only record


def state_of(room=16):
    """Two ranks with a link of their own for each direction, busy for 3 ns per message."""
    facts = np.array([2, cells.FULL_LINKS, 0, 1, SIZE, 3, FLIGHT, 0])
    return cells.new_state(facts, np.zeros((0, 4)), 4, 1, 0, room)


def received(state):
    """Run all events; return (time, who) of all receives."""
    found = []
    while state.calendar[0, WAITING] > 0:
        now, _, code = next_event(state.calendar)
        number, kind = code // transport.KINDS, code % transport.KINDS
        if kind == transport.LINK_FREE:
            transport.free_link(state, now, number)
        elif kind == transport.RECEIVE:
            found.append((int(now), int(number)))
        elif not transport.passes_on(state, now, number):
            who = transport.deliver(state, number)
            if who != cells.NONE:
                found.append((int(now), int(who)))
    return found


def expect(state, now, who, tag=5, size=SIZE):
    transport.expect(state, now, tag, 0 * 2 + 1, size, who)


def test_receives_of_a_key_get_messages_in_order_and_others_none():
    state = state_of()
    expect(state, 0, 90, tag=6)
    expect(state, 0, 91, size=SIZE + 1)
    for who in (1, 2):
        expect(state, 0, who)
    for _ in range(2):
        transport.launch(state, 0, 0, 1, PACKET, 5, cells.NONE)
    assert received(state) == [(FLIGHT, 1), (FLIGHT + 3, 2)]
    assert state.link[1, cells.LINK_BYTES] == 2 * SIZE


def test_a_message_that_came_early_is_received_at_once():
    state = state_of()
    transport.launch(state, 0, 0, 1, PACKET, 5, cells.NONE)
    assert received(state) == []
    expect(state, 50, 1)
    expect(state, 50, 2)  # for which there is none
    assert received(state) == [(50, 1)]


def test_a_grown_state_has_what_the_small_one_had():
    state = state_of(4)
    spare = int(state.counts[cells.SPARE])
    for who in (1, 2, 3):
        expect(state, 0, who)
    assert cells.is_short(state, 2)
    state = cells.grown(cells.grown(state))
    assert state.counts[cells.SPARE] == 4 * spare - 3
    assert not cells.is_short(state, 2)
    for _ in range(3):
        transport.launch(state, 0, 0, 1, PACKET, 5, cells.NONE)
    assert [who for _, who in received(state)] == [1, 2, 3]
    assert state.counts[cells.SPARE] == 4 * spare  # all are free again
