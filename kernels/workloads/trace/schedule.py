"""Operations of several ranks in time: who runs when, as events.

A rank has resources that do one thing at a time. Whenever one of its operations ends, all
its operations whose parents have ended are looked through in ascending order, and those
whose resource is free begin (ASTRA-sim, Workload.cc ``issue_dep_free_nodes``). Ready operations
stand in heaps, one for each rank and resource, the smallest number first.

Nodes of one rank are numbered in the order in which they are looked through. `static`
arrays hold what ranks with the same graph share, `dynamic` ones what each rank has by itself.

`peak_memory` is what the tensors of one rank need at most while its operations run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.events import COLUMNS, TIME, WAITING, next_event, push, remove, schedule
from perfmodel.kernels.workloads.astra.ranks import RING_DELAY, ring_ends
from perfmodel.kernels.workloads.trace.contention import (
    begin_flow,
    end_flows,
    new_sharing,
    set_speeds,
)

# What a node does once it begins.
INSTANT = 0  # ends at once; what waits for it is looked at when something else ends
TIMED = 1  # holds its resource for its time
COLLECTIVE = 2  # waits for the other members, then holds its resource for the instance's time
SEND = 3  # holds its resource until the message has arrived
RECEIVE = 4  # ends when the message has arrived

UNLIMITED = 0  # the resource of which there is enough
NOT_YET = -1.0


class Rings(NamedTuple):
    """Collectives round a ring, of which each member ends by itself.

    Attributes
    ----------
    of : int64[instances]
        Row of the next ones; -1: all members end with the slowest, or nothing is known of it.
    rows : int64[rings, RING_COLUMNS]
        See `perfmodel.kernels.workloads.astra.ranks.ring_rows`; whole units of time.
    first : int64[rings]
        Where its times begin.
    times : int64[members of all rings]
        Of a message from each member's predecessor.
    even : bool[instances]
        Members that begin at one moment end at one moment.
    place_first : int64[instances]
        Where its members begin in the next one; of rings.
    places : int64[members of all instances]
        Dynamic indices in the order of the ring; a rank may stand for several members.
    """

    of: np.ndarray
    rows: np.ndarray
    first: np.ndarray
    times: np.ndarray
    even: np.ndarray
    place_first: np.ndarray
    places: np.ndarray


@jit
def _set_start(
    static_first, first, parents, resource, resources, waiting, owner, ready, ready_first, length
):
    """Set what waits for what before anything runs; all counts are 0."""
    for rank in range(static_first.shape[0]):
        shared = static_first[rank]
        size = first[rank + 1] - first[rank]
        base = rank * resources
        for node in range(size):
            ready_first[base + resource[shared + node]] += 1
        place = first[rank]
        for kind in range(resources):
            amount = ready_first[base + kind]
            ready_first[base + kind] = place
            place += amount
        for node in range(size):
            waiting[first[rank] + node] = parents[shared + node]
            owner[first[rank] + node] = rank
            if parents[shared + node] == 0:
                slot = base + resource[shared + node]
                push(ready[ready_first[slot] :], length[slot], node)
                length[slot] += 1


@jit
def _see(seen_time, seen_made, seen_own, rank, now, made, own):
    """Note the event that concerns a rank; tell whether its order to the last one is arbitrary.

    `own`: the event concerns no other rank.
    """
    same = seen_time[rank] == now and seen_made[rank] == made
    tied = same and not (own and seen_own[rank])
    seen_own[rank] = own and (seen_own[rank] or not same)
    seen_time[rank] = now
    seen_made[rank] = made
    return tied


@jit
def _end_ring(rings, instance, start, now, calendar, ring_end):
    """Schedule the end of each member of a ring, all of which have begun.

    Tells whether members end apart for whom one rank stands.
    """
    ring = rings.of[instance]
    first = rings.first[ring]
    last = rings.first[ring + 1] if ring + 1 < rings.first.shape[0] else rings.times.shape[0]
    members = last - first
    place = rings.place_first[instance]
    arrival = np.empty(members, np.int64)
    for member in range(members):
        arrival[member] = int(start[rings.places[place + member]])
    end = np.empty(members, np.int64)
    ring_ends(arrival, rings.rows[ring], rings.times[first:last], end)
    apart = False
    for member in range(members):
        node = rings.places[place + member]
        if ring_end[node] == NOT_YET:
            ring_end[node] = float(end[member])
            made = max(now, float(end[member] - rings.rows[ring, RING_DELAY]))
            schedule(calendar, float(end[member]), made, node)
        elif ring_end[node] != float(end[member]):
            apart = True
    return apart


@jit
def run_traces(
    static_first,
    first,
    child_first,
    child_end,
    children,
    parents,
    resource,
    role,
    time,
    partner,
    instance_first,
    instance_nodes,
    instance_time,
    tail,
    rings,
    resources,
    together,
    flows,
):
    """Run the operations of all ranks.

    Parameters
    ----------
    static_first : int64[ranks]
        Where a rank's graph begins in the static arrays.
    first : int64[ranks + 1]
        Where a rank's nodes begin in the dynamic arrays.
    child_first, child_end : int64[static]
        Children of a node: ``children[child_first:child_end]``.
    children : int64[edges]
        Numbers of nodes within the rank.
    parents : int64[static]
        How many nodes a node waits for.
    resource, role : int64[static]
        ``UNLIMITED``, 1 …; ``INSTANT`` … ``RECEIVE``.
    time : float64[dynamic]
        Of timed nodes and of messages, in any unit.
    partner : int64[dynamic]
        Of a collective its instance; of a send or a receive the dynamic index of the other.
    instance_first : int64[instances + 1]
        Where an instance's nodes begin in `instance_nodes`.
    instance_nodes : int64[members of all instances]
        Dynamic indices.
    instance_time : float64[instances]
        From the moment the last member begins.
    tail : float64[instances]
        How long before its end a collective's last event is scheduled: order of ties only.
    rings : Rings
        Where members begin at different moments, or hops differ, these end one by one.
    resources : int
        Number of resources, ``UNLIMITED`` included.
    together : bool
        All that ends at one moment ends before anything begins, so that ranks that do the
        same see the same. Otherwise one event after another as in ASTRA-sim: of two with
        one moment, the one scheduled first, and of those, the one of the lower rank.
    flows : Flows
        Communication that shares ports: all instances, then messages; empty: nothing does.

    Returns
    -------
    start, end : float64[dynamic]
        ``NOT_YET`` where a node never begins or ends: ranks wait for each other.
    order : int64[dynamic]
        Dynamic indices in the order in which nodes ended; -1 behind the last.
    tied : bool
        Some rank saw two events of one moment, scheduled at one moment, in an order that
        follows from the numbers of other ranks.
    apart : bool
        Some collective's members begin or end at different moments, and it is no ring: here
        all of them end with the slowest, counted from the last to begin.
    """
    ranks = static_first.shape[0]
    nodes = first[ranks]
    start = np.full(nodes, NOT_YET)
    end = np.full(nodes, NOT_YET)
    order = np.full(nodes, -1, np.int64)
    ended = 0

    waiting = np.empty(nodes, np.int64)  # parents that have not ended
    owner = np.empty(nodes, np.int64)
    ready = np.empty(nodes, np.int64)  # heaps of ready nodes, per rank and resource
    ready_first = np.zeros(ranks * resources, np.int64)
    length = np.zeros(ranks * resources, np.int64)
    busy = np.zeros(ranks * resources, np.bool_)
    in_flight = np.zeros(ranks, np.int64)
    fresh = np.empty(max(nodes, 1), np.int64)  # became ready while the rank was looked through
    arrived = np.zeros(instance_time.shape[0], np.int64)
    began = np.full(instance_time.shape[0], NOT_YET)
    ring_end = np.full(nodes if rings.places.shape[0] > 0 else 0, NOT_YET)
    uneven = ~rings.even  # members begin, or would end, at different moments
    tied = False
    apart = False
    seen_time = np.full(ranks, NOT_YET)  # of the last event that concerned a rank
    seen_made = np.full(ranks, NOT_YET)
    seen_own = np.zeros(ranks, np.bool_)  # whether it concerned no other rank

    # What ends: a dynamic index, or -1 - instance. From `nodes` on: what flow begins.
    calendar = np.empty((nodes + 2, COLUMNS))
    calendar[0] = 0.0
    sharing = new_sharing(flows)
    contended = flows.transfer.shape[0] > 0
    scan = np.empty(nodes + ranks + 1, np.int64)  # ranks to look through

    _set_start(
        static_first,
        first,
        parents,
        resource,
        resources,
        waiting,
        owner,
        ready,
        ready_first,
        length,
    )
    to_scan = ranks
    for rank in range(ranks):
        scan[rank] = rank
    now = 0.0
    while True:
        for turn in range(to_scan):
            rank = scan[turn]
            base = rank * resources
            shared = static_first[rank]
            offset = first[rank]
            while True:
                new = 0
                while True:
                    # The smallest ready node of a free resource.
                    chosen = -1
                    best = nodes
                    for kind in range(resources):
                        slot = base + kind
                        if length[slot] > 0 and not busy[slot] and ready[ready_first[slot]] < best:
                            best = ready[ready_first[slot]]
                            chosen = slot
                    if chosen < 0:
                        break
                    remove(ready[ready_first[chosen] :], length[chosen], 0)
                    length[chosen] -= 1
                    what = offset + best
                    action = role[shared + best]
                    start[what] = now
                    if action == INSTANT:
                        end[what] = now
                        order[ended] = what
                        ended += 1
                        for edge in range(child_first[shared + best], child_end[shared + best]):
                            child = children[edge]
                            waiting[offset + child] -= 1
                            if waiting[offset + child] == 0:
                                fresh[new] = child
                                new += 1
                        continue
                    in_flight[rank] += 1
                    busy[chosen] = chosen != base + UNLIMITED
                    finish = NOT_YET
                    made = now
                    event = what
                    flow = -1
                    if action == COLLECTIVE:
                        instance = partner[what]
                        arrived[instance] += 1
                        begin = instance_first[instance]
                        members = instance_first[instance + 1] - begin
                        if arrived[instance] == 1:
                            began[instance] = now
                        uneven[instance] |= began[instance] != now
                        if arrived[instance] < members:
                            pass
                        elif uneven[instance] and rings.of[instance] >= 0:
                            apart |= _end_ring(rings, instance, start, now, calendar, ring_end)
                        else:
                            apart |= uneven[instance]
                            finish = now + instance_time[instance]
                            made = max(now, finish - tail[instance])
                            event = -1 - instance
                            if contended:
                                flow = instance
                    elif action == RECEIVE:
                        if end[partner[what]] >= 0.0:
                            finish = now
                    else:
                        finish = now + time[what]
                        if action == SEND and contended:
                            flow = flows.of_send[what]
                    if flow >= 0 and flows.transfer[flow] > 0.0:
                        sharing.finish[flow] = finish
                        flowing = max(now, finish - flows.transfer[flow])
                        schedule(calendar, flowing, made, nodes + flow)
                    elif finish >= 0.0:
                        schedule(calendar, finish, made, event)
                for item in range(new):
                    slot = base + resource[shared + fresh[item]]
                    push(ready[ready_first[slot] :], length[slot], fresh[item])
                    length[slot] += 1
                # ASTRA-sim would never look again at a rank that has nothing in flight.
                if new == 0 or in_flight[rank] > 0:
                    break

        if contended:  # handing over so many arrays costs as much as an event does
            set_speeds(flows, sharing, now)
            end_flows(flows, sharing, calendar, now)
        if calendar[0, WAITING] == 0:
            break
        to_scan = 0
        while True:
            now, made, event = next_event(calendar)
            if event >= nodes:
                begin_flow(sharing, event - nodes)
                begin = -1
                finishing = 0
                own = True
            elif event < 0:
                begin = instance_first[-1 - event]
                finishing = instance_first[-event] - begin
                own = finishing == 1
            else:
                begin = -1
                finishing = 1
                rank = owner[event]
                own = role[static_first[rank] + event - first[rank]] != SEND
                if not own:  # concerns the receiver, whether it waits already or not
                    rank = owner[partner[event]]
                    tied |= _see(seen_time, seen_made, seen_own, rank, now, made, own)
            done = 0
            while done < finishing:
                what = instance_nodes[begin + done] if begin >= 0 else event
                done += 1
                rank = owner[what]
                offset = first[rank]
                shared = static_first[rank]
                node = what - offset
                end[what] = now
                order[ended] = what
                ended += 1
                in_flight[rank] -= 1
                busy[rank * resources + resource[shared + node]] = False
                for edge in range(child_first[shared + node], child_end[shared + node]):
                    child = children[edge]
                    waiting[offset + child] -= 1
                    if waiting[offset + child] == 0:
                        slot = rank * resources + resource[shared + child]
                        push(ready[ready_first[slot] :], length[slot], child)
                        length[slot] += 1
                scan[to_scan] = rank
                to_scan += 1
                if role[shared + node] == RECEIVE and not own:
                    continue  # the other end of a send, which has been counted
                tied |= _see(seen_time, seen_made, seen_own, rank, now, made, own)
                if role[shared + node] == SEND:
                    other = partner[what]
                    if start[other] >= 0.0 and end[other] < 0.0:
                        event = other  # the receiver ends in the same event
                        begin = -1
                        finishing = 2
            if not together or calendar[0, WAITING] == 0 or calendar[1, TIME] != now:
                break
    return start, end, order, tied, apart


FOR_EVER = np.inf


@jit
def peak_memory(order, start, end, input_first, inputs, output_first, outputs, key, size, keys):
    """Return the most bytes that live at one time.

    Parameters
    ----------
    order : int64[nodes]
        Nodes in the order in which they ended.
    start, end : float64[nodes]
        In any unit.
    input_first, output_first : int64[nodes + 1]
        Where a node's tensors begin in `inputs` and `outputs`.
    inputs, outputs : int64[items]
        Rows of `key` and `size`.
    key : int64[tensors]
        Which name a tensor has.
    size : int64[tensors]
        [B].
    keys : int
        Number of names.

    Returns
    -------
    float
        [B].

    Notes
    -----
    LocalMemUsageTracker.cc: a tensor lives from the start of the node that writes it, or
    from 0 where a node reads it before any has written it, to the end of the node that
    reads it last; what is never read lives for ever. Every moment counts what is left
    after the tensors of that moment have come and gone. The first size of a name counts.
    """
    born = np.full(keys, -1.0)
    dead = np.full(keys, FOR_EVER)
    amount = np.zeros(keys)
    for node in order:
        for item in range(input_first[node], input_first[node + 1]):
            name = key[inputs[item]]
            if born[name] < 0.0:
                born[name] = 0.0
                amount[name] = size[inputs[item]]
            dead[name] = end[node]
        for item in range(output_first[node], output_first[node + 1]):
            name = key[outputs[item]]
            if born[name] < 0.0:
                born[name] = start[node]
                amount[name] = size[outputs[item]]
    seen = np.flatnonzero(born >= 0.0)
    births = seen[np.argsort(born[seen], kind="mergesort")]
    deaths = seen[np.argsort(dead[seen], kind="mergesort")]
    alive = 0.0
    peak = 0.0
    gone = 0
    item = 0
    while item < births.shape[0]:
        now = born[births[item]]
        while gone < deaths.shape[0] and dead[deaths[gone]] < now:
            alive -= amount[deaths[gone]]
            gone += 1
        while item < births.shape[0] and born[births[item]] == now:
            alive += amount[births[item]]
            item += 1
        while gone < deaths.shape[0] and dead[deaths[gone]] <= now:
            alive -= amount[deaths[gone]]
            gone += 1
        peak = max(peak, alive)
    return peak
