"""Who receives which message: by tag, pair and size, in order, early or not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.kernels.events import WAITING, next_event
from perfmodel.kernels.workloads.astra import machine_state as cells
from perfmodel.kernels.workloads.astra import transport
from perfmodel.workloads.formats.astra_machine import AstraNetwork, mesh_shape, uniform_system
from perfmodel.workloads.twins.astra.machine import SHARED, Machine


def facts_of(topology, ranks):
    width, _ = mesh_shape(ranks)
    return np.array([ranks, SHARED.index(topology), width, 1])


def distance(topology, ranks, source, target):
    if topology == "Ring":
        return min((source - target) % ranks, (target - source) % ranks)
    if topology == "Mesh2D":
        width, _ = mesh_shape(ranks)
        along = abs(source % width - target % width)
        return along + abs(source // width - target // width)
    return 2 if topology == "Switch" else 1


@pytest.mark.parametrize("topology", SHARED)
@pytest.mark.parametrize("ranks", [2, 3, 6, 8])
def test_every_way_leads_there_over_links_that_are_there(topology, ranks):
    from perfmodel.kernels.workloads.astra.transport import far_end, link_ends, next_link

    facts = facts_of(topology, ranks)
    machine = Machine(AstraNetwork((topology,), (ranks,), (1.0,), (1.0,)), uniform_system(["ring"]))
    source_of, target_of = link_ends(facts, machine.links)
    for source, target in itertools.permutations(range(ranks), 2):
        node, steps = source, 0
        while node != target:
            link = next_link(facts, node, target)
            assert (source_of[link], target_of[link]) == (node, far_end(facts, link))
            node = far_end(facts, link)
            steps += 1
        assert steps == distance(topology, ranks, source, target)


@pytest.mark.parametrize(
    ("topology", "ranks", "links"),
    [
        ("Ring", 2, 2),
        ("Ring", 5, 10),
        ("FullyConnected", 5, 20),
        ("Switch", 5, 10),
        ("Mesh2D", 6, 14),
        ("Mesh2D", 3, 4),
    ],
)
def test_links_are_there_once(topology, ranks, links):
    from perfmodel.kernels.workloads.astra.transport import link_ends

    machine = Machine(AstraNetwork((topology,), (ranks,), (1.0,), (1.0,)), uniform_system(["ring"]))
    source, target = link_ends(facts_of(topology, ranks), machine.links)
    pairs = set(zip(source[source >= 0].tolist(), target[target >= 0].tolist(), strict=True))
    assert len(pairs) == links == int((source >= 0).sum())


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
