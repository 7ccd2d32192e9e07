"""Collectives of ASTRA-sim in which members do not keep step: each one's time by itself.

Letters as in :mod:`perfmodel.kernels.astra.phase`. A member works on `active` chunks at
once and takes up the next one when one of them ends there, whatever the others do.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.astra.phase import (
    ABORTED,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    SIZE,
    message_time,
    reduction_time,
)
from perfmodel.kernels.astra.queue import NO_CHUNK, chunk_size_and_count

GROUP_DELAY = 10  # [ns], whatever the endpoint delay is: MemBus.cc:54, Transmition::Fast


@jit
def distance_offset(source, target, network):
    """Turn a pair of devices into an offset that :func:`message_time` prices alike.

    Notes
    -----
    MultiDimTopology.cpp:30: only the first dimension in which they differ counts.
    """
    stride = 1
    for dimension in range(network.shape[0]):
        size = int(network[dimension, SIZE])
        apart = abs(source % size - target % size)
        if apart > 0:
            return apart * stride
        source //= size
        target //= size
        stride *= size
    return 0


@jit
def tree_chunk(start, end, last_is_root, stride, size, delay, memory_bandwidth, network):
    """Pass one chunk up and down a binary tree.

    Parameters
    ----------
    start : int64[members]
        When each member takes the chunk up [ns]; members a power of two.
    end : int64[members]
        Result: when it is done with it.
    last_is_root : bool
        Whether the last or the first member is the root.
    stride : int
        Difference of neighbours' ids.
    size, delay : int
        The whole chunk [B]; D.
    memory_bandwidth : float
        [GB/s].
    network : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    bool
        Whether the simulator gets there; it refuses empty messages.

    Notes
    -----
    BinaryTree.cc numbers the nodes in order, so node x = 1 … n - 1 stands as many levels
    above the leaves as x has trailing zero bits, its children are x ± half its lowest bit,
    and node n is the root, with the one child n / 2: parent and child are always half the
    parent's lowest bit apart. DoubleBinaryTreeAllReduce.cc: a leaf sends after D, an inner
    node D + p after the later of its children's parts; on the way down an inner node takes
    D + p again and a leaf D. Root and inner nodes are done when they send down. A part that
    comes early waits until its receiver is ready for it.
    """
    members = start.shape[0]
    step = delay + reduction_time(size, memory_bandwidth)
    first = 0 if last_is_root else 1  # member that is node 1; the nodes go round from there
    sent = np.empty(members + 1, np.int64)
    for x in range(1, members, 2):
        sent[x] = start[(x - 1 + first) % members] + delay
    low = 2
    while low <= members:
        time = message_time(size, low // 2 * stride, network)
        if time == ABORTED:
            return False
        for x in range(low, members + 1, 2 * low):
            arrived = max(start[(x - 1 + first) % members], sent[x - low // 2] + time)
            if x < members:
                arrived = max(arrived, sent[x + low // 2] + time)
            sent[x] = arrived + step
        low *= 2
    end[(members - 1 + first) % members] = sent[members]
    low = members // 2
    while low >= 1:
        time = message_time(size, low * stride, network)
        for x in range(low, members, 2 * low):
            parent = (x ^ low) | (2 * low)
            sent[x] = max(sent[parent] + time, sent[x]) + (step if low > 1 else delay)
            end[(x - 1 + first) % members] = sent[x]
        low //= 2
    return True


@jit
def ring_chunk(kind, start, end, hop_offset, size, memory_bandwidth, network):
    """Pass one chunk round a ring of any members, whose hops may differ.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE`` … ``ALL_TO_ALL``.
    start, end : int64[members]
        As for :func:`tree_chunk`.
    hop_offset : int64[members]
        Offset from each member's predecessor, as :func:`distance_offset` gives it.
    size : int
        The whole chunk (all-gather: the shard) [B].
    memory_bandwidth : float
        [GB/s].
    network : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    bool
        As for :func:`tree_chunk`.

    Notes
    -----
    As :func:`perfmodel.kernels.astra.phase.ring_time`, member by member (Ring.cc): a member
    sends its next message D (and p, where it reduces) after its last one came in, and is
    ready for the next one of its predecessor from then on.
    """
    members = start.shape[0]
    message = size if kind == ALL_GATHER else size // members
    if message <= 0:
        return False
    reduction = reduction_time(message, memory_bandwidth)
    steps = members - 1
    if kind == ALL_REDUCE:
        steps = 2 * (members - 1)
    if kind == ALL_TO_ALL:
        steps = members * (members - 1) // 2
    reduced = members - 1 if kind in (ALL_REDUCE, REDUCE_SCATTER) else 0
    time = np.empty(members, np.int64)
    for member in range(members):
        time[member] = message_time(message, hop_offset[member], network)
    sent = start + GROUP_DELAY
    for step in range(steps):
        wait = GROUP_DELAY + (reduction if step < reduced else 0)
        before = sent[members - 1]
        for member in range(members):
            arrived = max(before + time[member], sent[member])
            before = sent[member]
            sent[member] = arrived + wait
    end[:] = sent
    return True


@jit
def take_slots(slots, start):
    """Give each member's next chunk the slot that is free first; return which ones.

    Parameters
    ----------
    slots : int64[members, active]
        When each chunk at work ends [ns].
    start : int64[members]
        Result [ns].

    Returns
    -------
    int64[members]
    """
    taken = np.empty(slots.shape[0], np.int64)
    for member in range(slots.shape[0]):
        taken[member] = slots[member].argmin()
        start[member] = slots[member, taken[member]]
    return taken


@jit
def double_tree_times(
    sizes, members, stride, splits, active, delay, memory_bandwidth, devices, network
):
    """Times of all-reduces over the double binary tree.

    Parameters
    ----------
    sizes : int64[rows]
        [B].
    members, stride : int
        A power of two; difference of neighbours' ids.
    splits, active : int
        Preferred chunks, and those that a member works on at once.
    delay : int
        D [ns].
    memory_bandwidth : float
        [GB/s].
    devices : int
        Of the whole system.
    network : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    int64[rows, 2]
        Slowest and fastest member [ns]; ``ABORTED`` where the simulator gives no time.

    Notes
    -----
    Chunks take the tree whose root is the last member and that whose root is the first in
    turn (DoubleBinaryTreeTopology.cc), each chunk whole.
    """
    result = np.empty((sizes.shape[0], 2), np.int64)
    start = np.empty(members, np.int64)
    end = np.empty(members, np.int64)
    for row in range(sizes.shape[0]):
        size, chunks = chunk_size_and_count(ALL_REDUCE, sizes[row], splits, devices)
        slots = np.zeros((members, min(active, chunks)), np.int64)
        possible = True
        for chunk in range(chunks):
            taken = take_slots(slots, start)
            possible &= tree_chunk(
                start, end, chunk % 2 == 0, stride, size, delay, memory_bandwidth, network
            )
            for member in range(members):
                slots[member, taken[member]] = end[member]
        _store(result[row], slots, possible)
    return result


@jit
def group_ring_times(kind, sizes, member_ids, splits, active, memory_bandwidth, devices, network):
    """Times of collectives of a communicator group that leaves devices out.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE`` … ``ALL_TO_ALL``.
    sizes : int64[rows]
        [B].
    member_ids : int64[members]
        In the order of the ring.
    splits, active, memory_bandwidth, devices, network
        As for :func:`double_tree_times`.

    Returns
    -------
    int64[rows, 2]
        As for :func:`double_tree_times`; ``NO_CHUNK`` for fewer bytes than chunks.

    Notes
    -----
    CommunicatorGroup.cc:57: one flat ring, whatever algorithms the system asks for.
    """
    members = member_ids.shape[0]
    result = np.empty((sizes.shape[0], 2), np.int64)
    start = np.empty(members, np.int64)
    end = np.empty(members, np.int64)
    hop_offset = np.empty(members, np.int64)
    for member in range(members):
        hop_offset[member] = distance_offset(member_ids[member - 1], member_ids[member], network)
    for row in range(sizes.shape[0]):
        size, chunks = chunk_size_and_count(kind, sizes[row], splits, devices)
        if chunks == 0:
            result[row, :] = NO_CHUNK
            continue
        slots = np.zeros((members, min(active, chunks)), np.int64)
        possible = True
        for _ in range(chunks):
            taken = take_slots(slots, start)
            possible &= ring_chunk(kind, start, end, hop_offset, size, memory_bandwidth, network)
            for member in range(members):
                slots[member, taken[member]] = end[member]
        _store(result[row], slots, possible)
    return result


@jit
def _store(result, slots, possible):
    """Store when the slowest and the fastest member end their last chunk."""
    if not possible:
        result[:] = ABORTED
        return
    result[0] = slots.max()
    result[1] = result[0]
    for member in range(slots.shape[0]):
        result[1] = min(result[1], slots[member].max())
