"""A mesh cycle by cycle: what closed forms are held against, on small grids.

Every core has a router. Each cycle a link moves one wavelet, a core takes one wavelet from its
ramp and sends one; routers copy the wavelets of a flow with several targets. A flow waits for
flows into its source, wavelet by wavelet (a sum that is sent on as it arrives) or until they have
arrived as a whole. A core takes flows turn by turn, as a program does whose instructions name
what they receive. Routers have a queue of a few wavelets for each flow (a colour of the WSE):
where one is full, the flow waits on the way, and others pass.

Letters
    F   flows
    T   targets of all flows
    D   dependences of all flows
    Q   queues: four links of every core, then the arrivals of every flow at each of its targets
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.wafer.routes import DOWN, UP, next_hop

LINKS = 5  # ways out of a router: to four neighbours, and to its core
TO_CORE = 4
DEPTH = 4  # wavelets that wait in a queue beside those on their way into it


@jit_lean
def push(queue, flow, ready, starts, tails, flows, times):
    """Add a wavelet to a queue, behind those that are ready no later."""
    first = starts[queue]
    at = first + tails[queue]
    while at > first and flows[at - 1] >= 0 and times[at - 1] > ready:
        flows[at] = flows[at - 1]
        times[at] = times[at - 1]
        at -= 1
    flows[at] = flow
    times[at] = ready
    tails[queue] += 1


@jit_lean
def take(at, queue, starts, heads, flows, times):
    """Take a wavelet out of a queue, from wherever it is."""
    first = starts[queue] + heads[queue]
    while at > first:
        flows[at] = flows[at - 1]
        times[at] = times[at - 1]
        at -= 1
    flows[first] = -1
    heads[queue] += 1


@jit_lean
def has_room(core, flow, late, ramp_cycles, branches, arrivals, heads, tails, waiting):
    """Whether all queues that a flow leaves a router by can take a wavelet.

    ``late`` cycles pass until it is in the router, for so many more there is room.
    """
    for way in range(UP):
        if branches[flow, core] >> way & 1 and waiting[flow, core * UP + way] >= late + DEPTH:
            return False
    if branches[flow, core] >> TO_CORE & 1:
        queue = arrivals[flow, core]
        return tails[queue] - heads[queue] < late + ramp_cycles + DEPTH
    return True


@jit_lean
def fan_out(
    core, flow, arrival, ramp_cycles, branches, arrivals, starts, tails, flows, times, waiting
):
    """Copy a wavelet that reaches a router to all queues that its flow leaves by."""
    for way in range(UP):
        if branches[flow, core] >> way & 1:
            push(core * UP + way, flow, arrival, starts, tails, flows, times)
            waiting[flow, core * UP + way] += 1
    if branches[flow, core] >> TO_CORE & 1:
        queue = arrivals[flow, core]
        push(queue, flow, arrival + ramp_cycles, starts, tails, flows, times)


@jit
def branches_of(cores, columns, sources, target_offsets, targets):
    """Ways by which each flow leaves every router: uint8[F, cores], a bit for each."""
    branches = np.zeros((sources.size, cores), dtype=np.uint8)
    for flow in range(sources.size):
        for at in range(target_offsets[flow], target_offsets[flow + 1]):
            current = sources[flow]
            while True:
                way, after = next_hop(columns, current, targets[at])
                bit = 1 << (TO_CORE if way == DOWN else way)
                branches[flow, current] |= np.uint8(bit)
                if way == DOWN:
                    break
                current = after
    return branches


@jit
def offsets_of(cores_of, cores):
    """Running counts of how often each core stands in a column: int64[cores + 1]."""
    counts = np.zeros(cores + 1, dtype=np.int64)
    for core in cores_of:
        counts[core + 1] += 1
    return np.cumsum(counts)


@jit
def simulate_flows(
    rows,
    columns,
    sources,
    target_offsets,
    targets,
    wavelets,
    need_offsets,
    needs,
    streams,
    turns,
    hop_cycles,
    ramp_cycles,
    stage_cycles,
):
    """Run flows on a mesh, cycle by cycle.

    Parameters
    ----------
    rows, columns : int
    sources : int64[F]
        Core that sends each flow; a core's flows are sent in their order, but one that waits lets
        later ones pass.
    target_offsets : int64[F + 1]
    targets : int64[T]
        Flow f goes to ``targets[target_offsets[f]:target_offsets[f + 1]]``, none its own source.
    wavelets : int64[F]
    need_offsets : int64[F + 1]
    needs : int64[D]
        Flows into the source that flow f waits for.
    streams : bool[D]
        Whether it waits wavelet by wavelet.
    turns : int64[F]
        A core takes a flow after all of earlier turns, and those of one turn as they come.
    hop_cycles, ramp_cycles, stage_cycles : int
        From router to router, at least 1; between core and router; before a core sends what it
        has taken.

    Returns
    -------
    int64[F]
        Cycles until each flow has arrived at its last target; -1 for flows that wait for ever.
    """
    cores = rows * columns
    count = sources.size
    branches = branches_of(cores, columns, sources, target_offsets, targets)
    arrivals = np.full((count, cores), -1)
    starts = np.zeros(cores * UP + targets.size + 1, dtype=np.int64)
    left = 0
    for flow in range(count):
        for core in range(cores):
            for way in range(UP):
                if branches[flow, core] >> way & 1:
                    starts[core * UP + way + 1] += wavelets[flow]
        for at in range(target_offsets[flow], target_offsets[flow + 1]):
            arrivals[flow, targets[at]] = cores * UP + at
            starts[cores * UP + at + 1] = wavelets[flow]
            left += wavelets[flow]
    starts = np.cumsum(starts)
    flows = np.full(starts[-1] + 1, -1)
    times = np.zeros(starts[-1] + 1, dtype=np.int64)
    heads = np.zeros(starts.size - 1, dtype=np.int64)
    tails = np.zeros(starts.size - 1, dtype=np.int64)

    # What each core sends, in order; what it takes, by turn.
    to_send = np.argsort(sources, kind="mergesort")
    first_sent = offsets_of(sources, cores)
    owners = np.empty(targets.size, dtype=np.int64)  # flow of each target
    keys = np.empty(targets.size, dtype=np.int64)
    for flow in range(count):
        for at in range(target_offsets[flow], target_offsets[flow + 1]):
            owners[at] = flow
            keys[at] = turns[flow]
    by_turn = np.argsort(keys, kind="mergesort")
    to_take = by_turn[np.argsort(targets[by_turn], kind="mergesort")]
    first_taken = offsets_of(targets, cores)

    waiting = np.zeros((count, cores * UP), dtype=np.int32)  # wavelets in each link's queue
    sending = 1 + ramp_cycles + stage_cycles
    complete = np.full((count, cores), -1)  # cycle in which the last wavelet was taken
    sent = np.zeros(count, dtype=np.int64)
    finish = np.zeros(count, dtype=np.int64)
    now = 0
    idle = 0
    while left > 0 and idle <= 2 * (hop_cycles + ramp_cycles + stage_cycles) + 2:
        moved = False
        for core in range(cores):
            turn = -1
            while first_taken[core] < first_taken[core + 1]:  # what has been taken, first
                at = to_take[first_taken[core]]
                if heads[cores * UP + at] < wavelets[owners[at]]:
                    turn = keys[at]
                    break
                first_taken[core] += 1
            for place in range(first_taken[core], first_taken[core + 1]):
                at = to_take[place]
                if keys[at] != turn:
                    break
                queue = cores * UP + at
                if heads[queue] < tails[queue] and times[starts[queue] + heads[queue]] <= now:
                    flow = owners[at]
                    heads[queue] += 1
                    left -= 1
                    moved = True
                    if heads[queue] == wavelets[flow]:
                        complete[flow, core] = now
                        finish[flow] = max(finish[flow], now + 1)
                    break
            for place in range(first_sent[core], first_sent[core + 1]):
                flow = to_send[place]
                if sent[flow] >= wavelets[flow]:
                    continue
                ready = True
                for at in range(need_offsets[flow], need_offsets[flow + 1]):
                    need = needs[at]
                    taken = heads[arrivals[need, core]]
                    if streams[at]:
                        ready = ready and taken > sent[flow]
                    else:
                        ready = ready and taken == wavelets[need] and complete[need, core] < now
                if ready and has_room(
                    core, flow, sending, ramp_cycles, branches, arrivals, heads, tails, waiting
                ):
                    sent[flow] += 1
                    moved = True
                    fan_out(
                        core,
                        flow,
                        now + sending,
                        ramp_cycles,
                        branches,
                        arrivals,
                        starts,
                        tails,
                        flows,
                        times,
                        waiting,
                    )
                    break
        for core in range(cores):
            for way in range(UP):
                queue = core * UP + way
                after = core + (1, -1, columns, -columns)[way]
                for at in range(starts[queue] + heads[queue], starts[queue] + tails[queue]):
                    if times[at] > now:
                        break
                    flow = flows[at]
                    if has_room(
                        after,
                        flow,
                        hop_cycles,
                        ramp_cycles,
                        branches,
                        arrivals,
                        heads,
                        tails,
                        waiting,
                    ):
                        take(at, queue, starts, heads, flows, times)
                        waiting[flow, queue] -= 1
                        moved = True
                        fan_out(
                            after,
                            flow,
                            now + hop_cycles,
                            ramp_cycles,
                            branches,
                            arrivals,
                            starts,
                            tails,
                            flows,
                            times,
                            waiting,
                        )
                        break
        idle = 0 if moved else idle + 1
        now += 1
    for flow in range(count):
        for at in range(target_offsets[flow], target_offsets[flow + 1]):
            if heads[cores * UP + at] < wavelets[flow]:
                finish[flow] = -1
    return finish
