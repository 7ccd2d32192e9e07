"""Messages of ASTRA-sim's machine: links, ways, who waits, and work that falls on one time.

Links of the congestion-aware network: which one is next on the way, and where it ends.

astra-network-analytical, congestion_aware/basic-topology: Ring.cpp (the shorter way, ties
clockwise), FullyConnected.cpp, Switch.cpp (the switch is the node behind all ranks). Mesh2D goes
along the rows, which are its longer side, first.

Messages of ASTRA-sim's machine on their way, and who waits for them.

A directed link carries one message at a time and is busy for its occupancy; the message is at the
far end after its flight. A message crosses its route link by link, whole (store and forward).
Without shared links a message arrives after its own time, whatever else is under way.

Messages are one-sided: one arrives whether its receiver waits or not, and the k-th of a tag,
sender, receiver and size belongs to the k-th receive of these. A receive whose message has come
is an event of its own, at once.

astra-network-analytical, congestion_aware/network Link.cpp, Chunk.cpp; astra-sim,
network_frontend/analytical/common CommonNetworkApi.cc, ChunkIdGenerator.cc.

Work of ranks in ASTRA-sim's machine: what falls on one time of a rank is one event.

It is made when the first of that work was: astra-sim/system Sys.cc, ``try_register_event``.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.events import schedule
from perfmodel.kernels.workloads.astra.machine_state import (
    EARLY,
    FROM,
    FULL_LINKS,
    KEY_PAIR,
    KEY_SIZE,
    KEY_TAG,
    KEY_WHO,
    LINK,
    LINK_BUSY,
    LINK_BYTES,
    LINK_FIRST,
    LINK_LAST,
    MESH_LINKS,
    NEXT,
    NONE,
    PACKET,
    PACKET_FLIGHT,
    PACKET_OCCUPANCY,
    PACKET_SIZE,
    RANK_TICK,
    RANKS,
    REDUCTION,
    RING_LINKS,
    SENDER,
    SWITCH_LINKS,
    TAG,
    TICK_FIRST,
    TICK_LAST,
    TICK_RANK,
    TICK_TIME,
    TO,
    TOPOLOGY,
    UNSHARED,
    WHO,
    WIDTH,
    append,
    bucket_of,
    give_back,
    take,
)
from perfmodel.kernels.workloads.astra.phase import message_time
from perfmodel.kernels.workloads.astra.ranks import distance_offset


@jit_lean
def next_link(facts, node, rank):
    """Directed link on the way from a node to a rank, which is another one.

    Ring: clockwise links, then the others. FullyConnected: by source and target. Switch: up, then
    down. Mesh2D: up the row, down the row, up the column, down the column.
    """
    ranks = facts[RANKS]
    topology = facts[TOPOLOGY]
    if topology == SWITCH_LINKS:
        return node if node < ranks else ranks + rank
    if topology == FULL_LINKS:
        return node * ranks + rank
    if topology == RING_LINKS:
        clockwise = (rank - node) % ranks
        return node if clockwise <= ranks - clockwise else ranks + node
    width = facts[WIDTH]
    along = rank % width - node % width
    if along != 0:
        return node if along > 0 else ranks + node
    return 2 * ranks + node if rank > node else 3 * ranks + node


@jit_lean
def far_end(facts, link):
    """Node at the end of a link: a rank, or the switch."""
    ranks = facts[RANKS]
    topology = facts[TOPOLOGY]
    if topology == SWITCH_LINKS:
        return ranks if link < ranks else link - ranks
    if topology == FULL_LINKS:
        return link % ranks
    if topology == RING_LINKS:
        return (link + 1) % ranks if link < ranks else (link - 1) % ranks
    node = link % ranks
    way = link // ranks
    if way < 2:
        return node + 1 if way == 0 else node - 1
    return node + facts[WIDTH] if way == 2 else node - facts[WIDTH]


@jit
def link_ends(facts, links):
    """Nodes at both ends of every link; ``NONE`` where there is no such link.

    Returns
    -------
    source, target : int64[link]
    """
    ranks = facts[RANKS]
    topology = facts[TOPOLOGY]
    source = np.empty(links, np.int64)
    target = np.empty(links, np.int64)
    for link in range(links):
        node = link // ranks if topology == FULL_LINKS else link % ranks
        end = far_end(facts, link)
        if topology == SWITCH_LINKS and link >= ranks:
            node = ranks
        missing = end == node
        if topology == RING_LINKS:
            missing = ranks == 2 and link >= ranks  # both ways round are one link
        if topology == MESH_LINKS:
            beyond = end < 0 or end >= ranks
            missing = beyond or (link < 2 * ranks and end // facts[WIDTH] != node // facts[WIDTH])
        source[link] = NONE if missing else node
        target[link] = NONE if missing else end
    return source, target


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


# Who waits: a chunk, or a node of the workload.
KINDS_OF_WHO = 2
A_CHUNK, A_NODE = 0, 1


@jit_lean
def wait(state, time, rank, who, reduction):
    """Let work of a rank wait; what falls on one time shares one event."""
    item = take(state)
    state.cell[item, WHO] = who
    state.cell[item, REDUCTION] = reduction
    state.cell[item, NEXT] = NONE
    tick = state.rank[rank, RANK_TICK]
    while tick != NONE and state.cell[tick, TICK_TIME] != time:
        tick = state.cell[tick, NEXT]
    if tick != NONE:
        state.cell[state.cell[tick, TICK_LAST], NEXT] = item
        state.cell[tick, TICK_LAST] = item
        return
    tick = take(state)
    state.cell[tick, TICK_TIME] = time
    state.cell[tick, TICK_FIRST] = item
    state.cell[tick, TICK_LAST] = item
    state.cell[tick, TICK_RANK] = rank
    state.cell[tick, NEXT] = state.rank[rank, RANK_TICK]
    state.rank[rank, RANK_TICK] = tick
    note(state, time, TICK, tick)


@jit_lean
def forget_tick(state, tick):
    """Forget a time at which a rank had work, which is done."""
    rank = state.cell[tick, TICK_RANK]
    before = state.rank[rank, RANK_TICK]
    if before == tick:
        state.rank[rank, RANK_TICK] = state.cell[tick, NEXT]
    else:
        while state.cell[before, NEXT] != tick:
            before = state.cell[before, NEXT]
        state.cell[before, NEXT] = state.cell[tick, NEXT]
    give_back(state, tick)
