"""Chunks of a collective in the queues of a network's dimensions, as in ASTRA-sim."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.workloads.astra.phase import ABORTED, ALL_GATHER, final_size, phase_time

# Columns of a plan, one row per phase in the order in which a chunk passes them.
KIND = 0
ALGORITHM = 1
MEMBERS = 2
STRIDE = 3
QUEUE = 4
PLAN_COLUMNS = 5

NO_CHUNK = -2  # fewer bytes than chunks: the simulator never ends


@jit
def chunk_size_and_count(kind, size, splits, devices):
    """Bytes of a chunk and number of chunks.

    Parameters
    ----------
    kind : int
        The collective.
    size : int
        Bytes of a member (all-gather: its shard) [B].
    splits : int
        Preferred number of chunks.
    devices : int
        Of the whole system, also those that take no part.

    Returns
    -------
    chunk : int
        [B]; 0 where an all-gather has fewer bytes than `splits`.
    count : int
        The remainder too becomes a chunk of full size.

    Notes
    -----
    Sys.cc:1215: except for all-gather, a chunk has at least one byte per device, and then
    there are `splits` of them.
    """
    chunk = size // splits
    if kind != ALL_GATHER and chunk < devices:
        return devices, splits
    if chunk == 0:
        return 0, 0
    return chunk, (size + chunk - 1) // chunk


@jit
def pipeline_time(duration, queue, chunks, active):
    """Time until the last of equal chunks has passed all phases.

    Parameters
    ----------
    duration : int64[phases]
        [ns].
    queue : int64[phases]
        Queue of each phase's dimension.
    chunks : int
        All wait before the first phase at the start.
    active : int
        Chunks that one queue works on at once, whatever their phases.

    Returns
    -------
    int
        [ns].

    Notes
    -----
    Sys.cc (``SchedulerUnit``, ``proceed_to_next_vnet_baseline``): first come, first served;
    a chunk that ends a phase joins the next queue before its old one starts another. Chunks
    are alike, so a queue needs to hold only which phase each one waits for, and those in
    one phase end in the order in which they started.
    """
    phases = duration.shape[0]
    if active >= chunks:
        return duration.sum()
    queues = queue.max() + 1
    # Rings of the chunks at work, per phase, and of the chunks that wait, per queue.
    end = np.empty((phases, active), np.int64)
    order = np.empty((phases, active), np.int64)
    first = np.zeros(phases, np.int64)
    running = np.zeros(phases, np.int64)
    waiting = np.empty((queues, chunks), np.int64)
    head = np.zeros(queues, np.int64)
    length = np.zeros(queues, np.int64)
    busy = np.zeros(queues, np.int64)

    waiting[queue[0], :] = 0
    length[queue[0]] = chunks
    started = 0
    now = 0
    left = chunks
    old = queue[0]
    new = queue[0]
    while True:
        for turn in range(2):
            place = old if turn == 0 else new
            while length[place] > 0 and busy[place] < active:
                phase = waiting[place, head[place]]
                head[place] = (head[place] + 1) % chunks
                length[place] -= 1
                busy[place] += 1
                slot = (first[phase] + running[phase]) % active
                end[phase, slot] = now + duration[phase]
                order[phase, slot] = started
                started += 1
                running[phase] += 1
        if left == 0:
            return now
        # The next to end; of several at one time the one that started first.
        phase = -1
        for candidate in range(phases):
            if running[candidate] == 0:
                continue
            if phase >= 0:
                ours = end[phase, first[phase]]
                theirs = end[candidate, first[candidate]]
                if theirs > ours or (
                    theirs == ours
                    and order[candidate, first[candidate]] > order[phase, first[phase]]
                ):
                    continue
            phase = candidate
        now = end[phase, first[phase]]
        first[phase] = (first[phase] + 1) % active
        running[phase] -= 1
        old = queue[phase]
        new = old
        busy[old] -= 1
        if phase + 1 < phases:
            new = queue[phase + 1]
            waiting[new, (head[new] + length[new]) % chunks] = phase + 1
            length[new] += 1
        else:
            left -= 1


@jit
def collective_times(kind, sizes, plan, splits, active, delay, memory_bandwidth, devices, network):
    """Times of one collective at many sizes.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE``, ``ALL_GATHER``, ``REDUCE_SCATTER`` or ``ALL_TO_ALL``.
    sizes : int64[rows]
        [B].
    plan : int64[phases, PLAN_COLUMNS]
    splits, active : int
        Preferred chunks, and those that a queue works on at once.
    delay : int
        D [ns].
    memory_bandwidth : float
        [GB/s].
    devices : int
        Of the whole system.
    network : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    int64[rows]
        [ns]; ``ABORTED`` or ``NO_CHUNK`` where the simulator gives none.
    """
    phases = plan.shape[0]
    queue = plan[:, QUEUE].copy()
    duration = np.empty(phases, np.int64)
    times = np.empty(sizes.shape[0], np.int64)
    for row in range(sizes.shape[0]):
        size, chunks = chunk_size_and_count(kind, sizes[row], splits, devices)
        if chunks == 0:
            times[row] = NO_CHUNK
            continue
        aborted = False
        for phase in range(phases):
            step = plan[phase]
            duration[phase] = phase_time(
                step[KIND],
                step[ALGORITHM],
                size,
                step[MEMBERS],
                step[STRIDE],
                delay,
                memory_bandwidth,
                network,
            )
            aborted |= duration[phase] == ABORTED
            size = final_size(step[KIND], size, step[MEMBERS])
        if aborted:
            times[row] = ABORTED
        elif phases == 1:
            times[row] = -(-chunks // active) * duration[0]
        else:
            times[row] = pipeline_time(duration, queue, chunks, active)
    return times
