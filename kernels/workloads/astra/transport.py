"""Messages of ASTRA-sim's machine on their way, and who waits for them.

A directed link carries one message at a time and is busy for its occupancy; the message is at the
far end after its flight. A message crosses its route link by link, whole (store and forward).
Without shared links a message arrives after its own time, whatever else is under way.

Messages are one-sided: one arrives whether its receiver waits or not, and the k-th of a tag,
sender, receiver and size belongs to the k-th receive of these. A receive whose message has come
is an event of its own, at once.

astra-network-analytical, congestion_aware/network Link.cpp, Chunk.cpp; astra-sim,
network_frontend/analytical/common CommonNetworkApi.cc, ChunkIdGenerator.cc.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.events import schedule
from perfmodel.kernels.workloads.astra.links import far_end, next_link
from perfmodel.kernels.workloads.astra.machine_state import (
    EARLY,
    FROM,
    KEY_PAIR,
    KEY_SIZE,
    KEY_TAG,
    KEY_WHO,
    LINK,
    LINK_BUSY,
    LINK_BYTES,
    LINK_FIRST,
    LINK_LAST,
    NEXT,
    NONE,
    PACKET,
    PACKET_FLIGHT,
    PACKET_OCCUPANCY,
    PACKET_SIZE,
    RANKS,
    SENDER,
    TAG,
    TO,
    TOPOLOGY,
    UNSHARED,
    append,
    bucket_of,
    give_back,
    take,
)
from perfmodel.kernels.workloads.astra.phase import message_time
from perfmodel.kernels.workloads.astra.ranks import distance_offset

# An event's code is KINDS * (link, message, tick, or who receives) + kind.
LINK_FREE = 0
ARRIVAL = 1
TICK = 2
RECEIVE = 3
KINDS = 4


@jit_lean
def note(state, time, kind, number):
    """Schedule an event; those of one time go in the order in which they were."""
    schedule(state.calendar, time, 0, KINDS * number + kind)


@jit_lean
def launch(state, now, source, target, packet, tag, sender):
    """Send a message; `sender`: the node that ends when it arrives, or NONE."""
    message = take(state)
    state.cell[message, TO] = target
    state.cell[message, PACKET] = packet
    state.cell[message, TAG] = tag
    state.cell[message, FROM] = source
    state.cell[message, SENDER] = sender
    if state.facts[TOPOLOGY] == UNSHARED:
        state.cell[message, LINK] = NONE
        offset = distance_offset(source, target, state.network)
        size = state.facts[packet + PACKET_SIZE]
        note(state, now + message_time(size, offset, state.network), ARRIVAL, message)
    else:
        enter_link(state, now, source, message)


@jit_lean
def enter_link(state, now, node, message):
    """Put a message that stands at a node onto its next link."""
    link = next_link(state.facts, node, state.cell[message, TO])
    state.cell[message, LINK] = link
    if state.link[link, LINK_BUSY] == 0:
        _transmit(state, now, link, message)
        return
    state.cell[message, NEXT] = NONE
    if state.link[link, LINK_FIRST] == NONE:
        state.link[link, LINK_FIRST] = message
    else:
        state.cell[state.link[link, LINK_LAST], NEXT] = message
    state.link[link, LINK_LAST] = message


@jit_lean
def _transmit(state, now, link, message):
    """Start a message on a free link; its arrival is scheduled before the link's end."""
    packet = state.cell[message, PACKET]
    state.link[link, LINK_BUSY] = 1
    state.link[link, LINK_BYTES] += state.facts[packet + PACKET_SIZE]
    note(state, now + state.facts[packet + PACKET_FLIGHT], ARRIVAL, message)
    note(state, now + state.facts[packet + PACKET_OCCUPANCY], LINK_FREE, link)


@jit_lean
def free_link(state, now, link):
    """End a link's transmission and start the message that waited longest."""
    state.link[link, LINK_BUSY] = 0
    message = state.link[link, LINK_FIRST]
    if message != NONE:
        state.link[link, LINK_FIRST] = state.cell[message, NEXT]
        _transmit(state, now, link, message)


@jit_lean
def passes_on(state, now, message):
    """Whether a message that arrived has farther to go; it goes on."""
    link = state.cell[message, LINK]
    if link == NONE:
        return False
    node = far_end(state.facts, link)
    if node == state.cell[message, TO]:
        return False
    enter_link(state, now, node, message)
    return True


@jit_lean
def deliver(state, message):
    """Take a message off at its destination; return who receives it, or NONE: it waits."""
    tag = state.cell[message, TAG]
    pair = state.cell[message, FROM] * state.facts[RANKS] + state.cell[message, TO]
    size = state.facts[state.cell[message, PACKET] + PACKET_SIZE]
    give_back(state, message)
    bucket = bucket_of(state, tag, pair, size)
    first, before = _find(state, bucket, tag, pair, size)
    if first == NONE or state.cell[first, KEY_WHO] == EARLY:
        _keep(state, bucket, tag, pair, size, EARLY)
        return NONE
    who = state.cell[first, KEY_WHO]
    _remove(state, bucket, first, before)
    return who


@jit_lean
def expect(state, now, tag, pair, size, who):
    """Wait for a message, or receive one that came early as soon as what is due now is done."""
    bucket = bucket_of(state, tag, pair, size)
    first, before = _find(state, bucket, tag, pair, size)
    if first == NONE or state.cell[first, KEY_WHO] != EARLY:
        _keep(state, bucket, tag, pair, size, who)
        return
    _remove(state, bucket, first, before)
    note(state, now, RECEIVE, who)


@jit_lean
def _find(state, bucket, tag, pair, size):
    """First cell of a key, and the one before it in its bucket; NONE where there is none."""
    before = NONE
    cell = state.bucket[bucket]
    while cell != NONE and (
        state.cell[cell, KEY_PAIR] != pair
        or state.cell[cell, KEY_TAG] != tag
        or state.cell[cell, KEY_SIZE] != size
    ):
        before = cell
        cell = state.cell[cell, NEXT]
    return cell, before


@jit_lean
def _keep(state, bucket, tag, pair, size, who):
    cell = take(state)
    state.cell[cell, KEY_TAG] = tag
    state.cell[cell, KEY_PAIR] = pair
    state.cell[cell, KEY_SIZE] = size
    state.cell[cell, KEY_WHO] = who
    append(state, bucket, cell)


@jit_lean
def _remove(state, bucket, cell, before):
    after = state.cell[cell, NEXT]
    if before == NONE:
        state.bucket[bucket] = after
    else:
        state.cell[before, NEXT] = after
    give_back(state, cell)
