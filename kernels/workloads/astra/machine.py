"""ASTRA-sim's machine: the operations of all ranks in time, message by message.

Each rank begins its ready operations as in :mod:`perfmodel.kernels.workloads.trace.schedule`.
Collectives are no meetings here: every rank sends and receives its own part (`streams`), and
messages share links or not (`transport`). So members begin and end one by one, and communication of
different groups is in each other's way.

Of events at one time the one scheduled first goes first, in whole nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.events import WAITING, next_event, push, remove
from perfmodel.kernels.workloads.astra.machine_state import (
    LINK_BYTES,
    MESSAGE_PACKET,
    MESSAGE_PEER,
    MESSAGE_TAG,
    NEXT,
    NONE,
    PACKET_SIZE,
    PHASE,
    PHASE_QUEUE,
    RANK_LEFT,
    RANK_NODE,
    RANKS,
    REDUCTION,
    SENDER,
    TICK_FIRST,
    TICK_RANK,
    WHO,
    events_of,
    give_back,
    grown,
    is_short,
    new_state,
)
from perfmodel.kernels.workloads.astra.streams import (
    begin_collective,
    complete_step,
    leave_queue,
    next_phase,
    receive,
)
from perfmodel.kernels.workloads.astra.transport import (
    A_CHUNK,
    A_NODE,
    ARRIVAL,
    KINDS,
    KINDS_OF_WHO,
    LINK_FREE,
    TICK,
    deliver,
    expect,
    forget_tick,
    free_link,
    launch,
    passes_on,
    wait,
)
from perfmodel.kernels.workloads.trace.schedule import COLLECTIVE, INSTANT, SEND, TIMED, UNLIMITED

NOT_YET = -1


# Columns of what ranks do.
CHILD_FIRST, CHILD_END, PARENTS, RESOURCE, ROLE = 0, 1, 2, 3, 4  # static
WORK_STATIC, WORK_FIRST, IN_FLIGHT = 0, 1, 2  # rank
READY_FIRST, LENGTH, BUSY = 0, 1, 2  # heap
WHAT, PLACE, OWNER, WAITING_FOR, START, END, FRESH = 0, 1, 2, 3, 4, 5, 6  # node
NODE_COLUMNS = 7


class Work(NamedTuple):
    """What ranks do, and how far they are.

    Letters: static, operations of ranks with one graph; node, those of every rank; heap, one for
    each rank and resource.
    """

    # Children of an operation among `children`, how many it waits for, its resource and its role,
    # as `perfmodel.kernels.workloads.trace.schedule.run_traces` has them.
    static: np.ndarray  # int64[static, 5]
    children: np.ndarray  # int64[edge]: numbers within the rank
    # Where its graph and its nodes begin; operations under way. One row more.
    rank: np.ndarray  # int64[rank + 1, 3]
    # Time [ns], or where its call or message is among the facts; place of the rank among a
    # collective's members; rank; parents that have not ended; begin and end [ns], ``NOT_YET``;
    # what became ready while a rank was looked through.
    node: np.ndarray  # int64[node, 7]
    ready: np.ndarray  # int64[node]: heaps
    heap: np.ndarray  # int64[heap, 3]: where it begins, its length, whether its resource is busy
    order: np.ndarray  # int64[node + 1]: in which nodes ended; -1 behind; how many at last


@jit
def run_machine(
    static_first,
    first,
    static,
    children,
    resources,
    what,
    place,
    facts,
    network,
    links,
    queues,
    counters,
    cells,
    burst,
):
    """Run the operations of all ranks.

    Parameters
    ----------
    static_first : int64[rank]
    first : int64[rank + 1]
    static : int64[static, 5]
    children : int64[edge]
        As `Work` has them.
    resources : int
        Of a rank, ``UNLIMITED`` included.
    what, place : int64[node]
        As `Work` has them.
    facts : int64[:]
        Settings and records of `machine_state`.
    network : float64[dimension, NETWORK_COLUMNS]
        Of `phase`; used without shared links.
    links, queues, counters : int
        Of the network; of a rank; begun chunks of groups that are counted.
    cells : int
        Room to begin with.
    burst : int
        Most cells or events that one event can make.

    Returns
    -------
    start, end : int64[node]
        [ns]; ``NOT_YET`` where an operation never begins or ends.
    order : int64[node]
        Operations in the order in which they ended; -1 behind the last.
    link_bytes : int64[link]
        Carried by each link [B].
    events : int
        That happened.
    """
    state = new_state(facts, network, links, queues, counters, cells)
    work = _new_work(static_first, first, static, children, resources, what, place)
    for rank in range(facts[RANKS]):
        while is_short(state, burst):
            state = grown(state)
        _look_through(state, work, rank, 0, 0)
    while state.calendar[0, WAITING] > 0:
        while is_short(state, burst):
            state = grown(state)
        now, _, code = next_event(state.calendar)
        number = code // KINDS
        kind = code % KINDS
        if kind == LINK_FREE:
            free_link(state, now, number)
        elif kind == ARRIVAL:
            if not passes_on(state, now, number):
                # The sender first, whether anybody waits for the message or not.
                sender = state.cell[number, SENDER]
                who = deliver(state, number)
                if sender != NONE:
                    _end_node(state, work, sender, now)
                if who != NONE:
                    _received(state, work, who, now)
        elif kind == TICK:
            rank = state.cell[number, TICK_RANK]
            item = state.cell[number, TICK_FIRST]
            while item != NONE:
                while is_short(state, burst):
                    state = grown(state)
                _do_work(state, work, rank, item, now)
                after = state.cell[item, NEXT]
                give_back(state, item)
                item = after
            forget_tick(state, number)
        else:
            _received(state, work, number, now)
    return (
        work.node[:, START].copy(),
        work.node[:, END].copy(),
        work.order[:-1].copy(),
        state.link[:, LINK_BYTES].copy(),
        events_of(state),
    )


@jit_lean
def _received(state, work, who, now):
    """Let a chunk or an operation have the message that it waits for."""
    if who % KINDS_OF_WHO == A_CHUNK:
        receive(state, now, who // KINDS_OF_WHO)
    else:
        _end_node(state, work, who // KINDS_OF_WHO, now)


@jit_lean
def _do_work(state, work, rank, item, now):
    """Do a piece of a rank's work: a step of a chunk, or the end of a timed operation."""
    who = state.cell[item, WHO]
    if who % KINDS_OF_WHO == A_NODE:
        _end_node(state, work, who // KINDS_OF_WHO, now)
        return
    reduction = state.cell[item, REDUCTION]
    if reduction != NONE:
        # A reduction of 0 ns lands at the end of the list that is being walked.
        wait(state, now + reduction, rank, who, NONE)
        return
    chunk = who // KINDS_OF_WHO
    if not complete_step(state, now, chunk):
        return
    old = state.facts[state.cell[chunk, PHASE] + PHASE_QUEUE]
    new = next_phase(state, chunk)
    if new == NONE:
        give_back(state, chunk)
        state.rank[rank, RANK_LEFT] -= 1
        # What waits for the collective begins before the chunk has left its queue.
        if state.rank[rank, RANK_LEFT] == 0:
            _end_node(state, work, state.rank[rank, RANK_NODE], now)
    leave_queue(state, now, rank, old, new)


# Operations ------------------------------------------------------------------------


@jit
def _new_work(static_first, first, static, children, resources, what, place):
    """Operations before anything runs."""
    ranks = static_first.shape[0]
    nodes = first[ranks]
    rank = np.zeros((ranks + 1, 3), np.int64)
    node = np.empty((nodes, NODE_COLUMNS), np.int64)
    heap = np.zeros((ranks * resources, 3), np.int64)
    order = np.full(nodes + 1, -1)
    order[nodes] = 0
    work = Work(static, children, rank, node, np.empty(nodes, np.int64), heap, order)
    node[:, START] = NOT_YET
    node[:, END] = NOT_YET
    for one in range(nodes):
        node[one, WHAT] = what[one]
        node[one, PLACE] = place[one]
    rank[ranks, WORK_FIRST] = nodes
    for own in range(ranks):
        rank[own, WORK_STATIC] = static_first[own]
        rank[own, WORK_FIRST] = first[own]
        size = first[own + 1] - first[own]
        for number in range(size):
            resource = static[static_first[own] + number, RESOURCE]
            heap[own * resources + resource, READY_FIRST] += 1
        begin = first[own]
        for resource in range(resources):
            amount = heap[own * resources + resource, READY_FIRST]
            heap[own * resources + resource, READY_FIRST] = begin
            begin += amount
        for number in range(size):
            node[first[own] + number, OWNER] = own
            node[first[own] + number, WAITING_FOR] = static[static_first[own] + number, PARENTS]
            if static[static_first[own] + number, PARENTS] == 0:
                _push(work, own, number)
    return work


@jit_lean
def _push(work, rank, number):
    """Put an operation, by its number within the rank, to those that are ready."""
    heap = _heap_of(work, rank) + work.static[work.rank[rank, WORK_STATIC] + number, RESOURCE]
    push(work.ready[work.heap[heap, READY_FIRST] :], work.heap[heap, LENGTH], number)
    work.heap[heap, LENGTH] += 1


@jit_lean
def _heap_of(work, rank):
    """First heap of a rank."""
    return work.heap.shape[0] // (work.rank.shape[0] - 1) * rank


@jit_lean
def _end_node(state, work, what, now):
    """End an operation, and begin what its rank may begin then."""
    rank = work.node[what, OWNER]
    static = work.rank[rank, WORK_STATIC] + what - work.rank[rank, WORK_FIRST]
    work.rank[rank, IN_FLIGHT] -= 1
    work.heap[_heap_of(work, rank) + work.static[static, RESOURCE], BUSY] = 0
    _look_through(state, work, rank, now, _note_end(work, rank, what, now, 0))


@jit_lean
def _note_end(work, rank, what, now, new):
    """Note that an operation ended, and behind `new` others who waited for it alone; how many."""
    ended = work.order[work.order.shape[0] - 1]
    work.order[ended] = what
    work.order[work.order.shape[0] - 1] = ended + 1
    work.node[what, END] = now
    offset = work.rank[rank, WORK_FIRST]
    static = work.rank[rank, WORK_STATIC] + what - offset
    for edge in range(work.static[static, CHILD_FIRST], work.static[static, CHILD_END]):
        child = work.children[edge]
        work.node[offset + child, WAITING_FOR] -= 1
        if work.node[offset + child, WAITING_FOR] == 0:
            work.node[new, FRESH] = child
            new += 1
    return new


@jit_lean
def _look_through(state, work, rank, now, new):
    """Begin a rank's ready operations in ascending order where their resource is free.

    `new` operations have become ready.
    """
    while True:
        for turn in range(new):
            _push(work, rank, work.node[turn, FRESH])
        new = 0
        while True:
            heap = _next_heap(work, rank)
            if heap < 0:
                break
            number = work.ready[work.heap[heap, READY_FIRST]]
            remove(work.ready[work.heap[heap, READY_FIRST] :], work.heap[heap, LENGTH], 0)
            work.heap[heap, LENGTH] -= 1
            what = work.rank[rank, WORK_FIRST] + number
            role = work.static[work.rank[rank, WORK_STATIC] + number, ROLE]
            work.node[what, START] = now
            if role == INSTANT:  # what waits for it is looked at the next time
                new = _note_end(work, rank, what, now, new)
                continue
            work.rank[rank, IN_FLIGHT] += 1
            work.heap[heap, BUSY] = heap != _heap_of(work, rank) + UNLIMITED
            _begin(state, rank, what, role, work.node[what, WHAT], work.node[what, PLACE], now)
        # ASTRA-sim would never look again at a rank that has nothing in flight.
        if work.rank[rank, IN_FLIGHT] > 0:
            for turn in range(new):
                _push(work, rank, work.node[turn, FRESH])
            return
        if new == 0:
            return


@jit_lean
def _next_heap(work, rank):
    """Heap with a rank's smallest ready operation whose resource is free; NONE: there is none."""
    chosen = NONE
    best = NONE
    for heap in range(_heap_of(work, rank), _heap_of(work, rank + 1)):
        if work.heap[heap, LENGTH] > 0 and work.heap[heap, BUSY] == 0:
            number = work.ready[work.heap[heap, READY_FIRST]]
            if chosen == NONE or number < best:
                best = number
                chosen = heap
    return chosen


@jit_lean
def _begin(state, rank, what, role, record, place, now):
    """Begin an operation that takes time."""
    who = KINDS_OF_WHO * what + A_NODE
    if role == TIMED:
        wait(state, now + record, rank, who, NONE)
        return
    if role == COLLECTIVE:
        begin_collective(state, now, rank, what, record, place)
        return
    facts = state.facts
    peer = facts[record + MESSAGE_PEER]
    tag = facts[record + MESSAGE_TAG]
    packet = facts[record + MESSAGE_PACKET]
    if role == SEND:
        launch(state, now, rank, peer, packet, tag, what)
    else:
        pair = peer * facts[RANKS] + rank
        expect(state, now, tag, pair, facts[packet + PACKET_SIZE], who)
