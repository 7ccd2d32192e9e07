"""A collective over first-in-first-out links, message by message, as ASTRA-sim runs it.

Three kinds of parts act on each other, all in whole nanoseconds:

links    A directed link carries one message at a time and is busy for its
         ``occupancy``; the message is at the far end after its ``flight``. A message
         crosses its route link by link, whole (store and forward).
ranks    A rank handles the steps of a stream in order. A step begins when a message
         has arrived (the first ones when the stream starts), takes the endpoint delay
         and, where the message is to be reduced, the local reduction, and then lets
         the rank send one message more and expect one more.
streams  Each rank starts its streams in order, so many at a time; when one is
         complete on this rank, the rank starts its next one.

Of events at the same time the one scheduled first goes first; work items of one rank
that fall on the same time are one event. These are ASTRA-sim's own rules, and results
over shared links depend on them: astra-sim/system Ring.cc, AllToAll.cc,
HalvingDoubling.cc, PacketBundle.cc, MemBus.cc, Sys.cc; astra-network-analytical,
congestion_aware/network Link.cpp, Chunk.cpp.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit
from perfmodel.kernels.astra.aware_state import (
    CREDIT,
    FLIGHT,
    FREE_ITEM,
    FREE_MESSAGE,
    FREE_TICK,
    HANDLED,
    ITEM_REDUCTION,
    ITEM_STREAM,
    LINK_BUSY,
    LINK_BYTES,
    LINK_FIRST,
    LINK_LAST,
    MESSAGE_LINK,
    MESSAGE_RANK,
    MESSAGE_STEP,
    MESSAGE_STREAM,
    NEXT,
    NONE,
    OCCUPANCY,
    OFFSET,
    RANK_FINISHED,
    RANK_STARTED,
    RANK_TICK,
    RANK_TIME,
    RECEIVED,
    REDUCTION,
    SENT,
    SIZE,
    SLOT,
    TICK_FIRST,
    TICK_LAST,
    TICK_TIME,
    give_back,
    new_state,
    take,
)
from perfmodel.kernels.events import WAITING, next_event, schedule

# An event code is KINDS * (number of the link, message, tick or receive) + kind.
LINK_FREE = 0
ARRIVAL = 1
TICK = 2
RECEIVE = 3
KINDS = 4


@jit
def simulate(plan, ranks, streams, active, slots):
    """Run one collective on an idle network.

    Parameters
    ----------
    plan : Plan
    ranks : int
    streams : int
        Chunks of the collective, >= 1.
    active : int
        Streams that a rank works on at once, >= 1.
    slots : int
        Neighbours that a rank receives from; above every slot of the steps.

    Returns
    -------
    finish_time : ndarray, shape (rank,)
        [ns]; NONE where the messages stopped before the rank was done.
    link_bytes : ndarray, shape (link,)
        Carried by each link [B].
    events : int
        Number of events.
    """
    state = new_state(ranks, plan.target.size, streams, plan.parallel, slots)
    for rank in range(ranks):
        for _ in range(min(active, streams)):
            _start_stream(state, plan, rank, 0)
    events = 0
    while state.calendar[0, WAITING] > 0:
        now, _, code = next_event(state.calendar)
        events += 1
        number = code // KINDS
        kind = code % KINDS
        if kind == LINK_FREE:
            _free_link(state, plan, number, now)
        elif kind == ARRIVAL:
            _arrive(state, plan, number, now)
        elif kind == TICK:
            _run_tick(state, plan, number % ranks, number // ranks, now)
        else:
            _receive(state, plan, number // ranks, number % ranks, now)
    return state.rank[:, RANK_TIME].copy(), state.link[:, LINK_BYTES].copy(), events


@jit
def _schedule(state, time, kind, number):
    schedule(state.calendar, time, 0, KINDS * number + kind)


# Links ---------------------------------------------------------------------------


@jit
def _enter_link(state, plan, node, message, now):
    """Put a message that stands at a node onto its next link."""
    link = plan.next_link[node, state.message[message, MESSAGE_RANK]]
    state.message[message, MESSAGE_LINK] = link
    if state.link[link, LINK_BUSY] == 0:
        _transmit(state, plan, link, message, now)
        return
    state.message[message, NEXT] = NONE
    if state.link[link, LINK_FIRST] == NONE:
        state.link[link, LINK_FIRST] = message
    else:
        state.message[state.link[link, LINK_LAST], NEXT] = message
    state.link[link, LINK_LAST] = message


@jit
def _transmit(state, plan, link, message, now):
    """Start a message on a free link; its arrival is scheduled before the link's end."""
    step = state.message[message, MESSAGE_STEP]
    state.link[link, LINK_BUSY] = 1
    state.link[link, LINK_BYTES] += plan.steps[step, SIZE]
    _schedule(state, now + plan.steps[step, FLIGHT], ARRIVAL, message)
    _schedule(state, now + plan.steps[step, OCCUPANCY], LINK_FREE, link)


@jit
def _free_link(state, plan, link, now):
    """End a link's transmission and start the message that waited longest."""
    state.link[link, LINK_BUSY] = 0
    message = state.link[link, LINK_FIRST]
    if message != NONE:
        state.link[link, LINK_FIRST] = state.message[message, NEXT]
        _transmit(state, plan, link, message, now)


@jit
def _arrive(state, plan, message, now):
    """Pass a message on, or hand it to its destination."""
    node = plan.target[state.message[message, MESSAGE_LINK]]
    rank = state.message[message, MESSAGE_RANK]
    if node != rank:
        _enter_link(state, plan, node, message, now)
        return
    stream = state.message[message, MESSAGE_STREAM]
    slot = plan.steps[state.message[message, MESSAGE_STEP], SLOT]
    give_back(state.cursor, FREE_MESSAGE, state.message, message)
    # A message that is not yet expected waits: only the balance remembers it.
    expected = state.balance[stream, rank, slot] > 0
    state.balance[stream, rank, slot] -= 1
    if expected:
        _receive(state, plan, stream, rank, now)


# Ranks ---------------------------------------------------------------------------


@jit
def _receive(state, plan, stream, rank, now):
    state.stream[stream, rank, RECEIVED] += 1
    _begin_step(state, plan, stream, rank, now)


@jit
def _begin_step(state, plan, stream, rank, now):
    step = state.stream[stream, rank, HANDLED]
    state.stream[stream, rank, HANDLED] = step + 1
    _wait(state, rank, now + plan.delay, stream, plan.steps[step, REDUCTION])


@jit
def _wait(state, rank, time, stream, reduction):
    """Let a work item of a rank wait; items of one rank and time share one event."""
    item = take(state.cursor, FREE_ITEM, state.item)
    state.item[item, ITEM_STREAM] = stream
    state.item[item, ITEM_REDUCTION] = reduction
    state.item[item, NEXT] = NONE
    tick = state.rank[rank, RANK_TICK]
    while tick != NONE and state.tick[tick, TICK_TIME] != time:
        tick = state.tick[tick, NEXT]
    if tick != NONE:
        state.item[state.tick[tick, TICK_LAST], NEXT] = item
        state.tick[tick, TICK_LAST] = item
        return
    tick = take(state.cursor, FREE_TICK, state.tick)
    state.tick[tick, TICK_TIME] = time
    state.tick[tick, TICK_FIRST] = item
    state.tick[tick, TICK_LAST] = item
    state.tick[tick, NEXT] = state.rank[rank, RANK_TICK]
    state.rank[rank, RANK_TICK] = tick
    _schedule(state, time, TICK, tick * state.rank.shape[0] + rank)


@jit
def _run_tick(state, plan, rank, tick, now):
    """Handle the work items of a rank that fall on one time."""
    item = state.tick[tick, TICK_FIRST]
    while item != NONE:
        stream = state.item[item, ITEM_STREAM]
        reduction = state.item[item, ITEM_REDUCTION]
        if reduction == NONE:
            _complete_step(state, plan, stream, rank, now)
        else:
            # A reduction of 0 ns lands at the end of the list that is being walked.
            _wait(state, rank, now + reduction, stream, NONE)
        after = state.item[item, NEXT]
        give_back(state.cursor, FREE_ITEM, state.item, item)
        item = after
    _forget_tick(state, rank, tick)


@jit
def _forget_tick(state, rank, tick):
    before = state.rank[rank, RANK_TICK]
    if before == tick:
        state.rank[rank, RANK_TICK] = state.tick[tick, NEXT]
    else:
        while state.tick[before, NEXT] != tick:
            before = state.tick[before, NEXT]
        state.tick[before, NEXT] = state.tick[tick, NEXT]
    give_back(state.cursor, FREE_TICK, state.tick, tick)


@jit
def _complete_step(state, plan, stream, rank, now):
    """Send what a completed step allows, and end the stream after the last one."""
    state.stream[stream, rank, CREDIT] += 1
    tries = 1
    if plan.barrier > 0 and plan.sends - state.stream[stream, rank, SENT] <= plan.barrier:
        if state.stream[stream, rank, RECEIVED] < plan.barrier:
            return
        tries = plan.parallel
    for _ in range(tries):
        if not _send(state, plan, stream, rank, now):
            break
    if (
        state.stream[stream, rank, SENT] == plan.sends
        and state.stream[stream, rank, CREDIT] == plan.parallel
    ):
        _finish_stream(state, plan, rank, now)


@jit
def _send(state, plan, stream, rank, now):
    """Send the next message of a stream if it may go, and expect one in turn."""
    step = state.stream[stream, rank, SENT]
    is_due = step < plan.sends and step < state.stream[stream, rank, HANDLED]
    if not is_due or state.stream[stream, rank, CREDIT] == 0:
        return False
    offset = plan.steps[step, OFFSET]
    ranks = state.rank.shape[0]
    message = take(state.cursor, FREE_MESSAGE, state.message)
    state.message[message, MESSAGE_STREAM] = stream
    state.message[message, MESSAGE_STEP] = step
    state.message[message, MESSAGE_RANK] = rank ^ offset if plan.paired else (rank + offset) % ranks
    _enter_link(state, plan, rank, message, now)
    slot = plan.steps[step, SLOT]
    # A message that came too early is received at once, after what is due now already.
    if state.balance[stream, rank, slot] < 0:
        _schedule(state, now, RECEIVE, stream * ranks + rank)
    state.balance[stream, rank, slot] += 1
    state.stream[stream, rank, SENT] = step + 1
    state.stream[stream, rank, CREDIT] -= 1
    return True


# Streams -------------------------------------------------------------------------


@jit
def _start_stream(state, plan, rank, now):
    stream = state.rank[rank, RANK_STARTED]
    state.rank[rank, RANK_STARTED] = stream + 1
    for _ in range(plan.parallel):
        _begin_step(state, plan, stream, rank, now)


@jit
def _finish_stream(state, plan, rank, now):
    streams = state.stream.shape[0]
    state.rank[rank, RANK_FINISHED] += 1
    if state.rank[rank, RANK_FINISHED] == streams:
        state.rank[rank, RANK_TIME] = now
    if state.rank[rank, RANK_STARTED] < streams:
        _start_stream(state, plan, rank, now)
