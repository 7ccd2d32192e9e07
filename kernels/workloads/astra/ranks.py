"""Collectives of ASTRA-sim in which members do not keep step: each one's time by itself.

Letters as in :mod:`perfmodel.kernels.workloads.astra.phase`. A member works on `active` chunks at
once and takes up the next one when one of them ends there, whatever the others do.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.workloads.astra.phase import (
    ABORTED,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BYTES_PER_NANOSECOND,
    DIRECT,
    LATENCY,
    NO_CHUNK,
    REDUCE_SCATTER,
    SIZE,
    TOPOLOGY,
    chunk_size_and_count,
    hops,
    message_time,
    phase_time,
    reduction_time,
)

GROUP_DELAY = 10  # [ns], whatever the endpoint delay is: MemBus.cc:54, Transmition::Fast

# Columns of what a collective round a ring consists of.
RING_STEPS = 0
RING_REDUCED = 1
RING_DELAY = 2
RING_REDUCTION = 3
RING_CHUNKS = 4
RING_ACTIVE = 5
RING_COLUMNS = 6


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
def ring_counts(kind, size, members):
    """Return what a chunk's way round a ring consists of.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE`` … ``ALL_TO_ALL``.
    size : int
        The whole chunk (all-gather: the shard) [B].
    members : int

    Returns
    -------
    message : int
        [B].
    steps : int
        Messages that a member sends, one after another.
    reduced : int
        Of those that it receives, the first ones, which are added to what it has.
    """
    message = size if kind == ALL_GATHER else size // members
    steps = members - 1
    if kind == ALL_REDUCE:
        steps = 2 * (members - 1)
    if kind == ALL_TO_ALL:
        steps = members * (members - 1) // 2
    reduced = members - 1 if kind in (ALL_REDUCE, REDUCE_SCATTER) else 0
    return message, steps, reduced


@jit
def ring_chunk(start, end, time, steps, reduced, delay, reduction):
    """Pass one chunk round a ring of any members, whose hops may differ.

    Parameters
    ----------
    start, end : int64[members]
        As for :func:`tree_chunk`.
    time : int64[members]
        Of a message from each member's predecessor [ns].
    steps, reduced : int
        As of :func:`ring_counts`.
    delay, reduction : int
        D, p [ns].

    Notes
    -----
    As :func:`perfmodel.kernels.workloads.astra.phase.ring_time`, member by member (Ring.cc): a
    member sends its next message D (and p, where it reduces) after its last one came in, and is
    ready for the next one of its predecessor from then on. A message is sent whether or not its
    receiver has begun, and waits there.
    """
    members = start.shape[0]
    end[:] = start
    for member in range(members):
        end[member] += delay
    for step in range(steps):
        wait = delay + (reduction if step < reduced else 0)
        before = end[members - 1]
        for member in range(members):
            arrived = max(before + time[member], end[member])
            before = end[member]
            end[member] = arrived + wait


@jit
def ring_ends(arrival, row, time, end):
    """Set when each member of a ring ends a collective.

    Parameters
    ----------
    arrival : int64[members]
        When each begins it [ns], in the order of the ring.
    row : int64[RING_COLUMNS]
        See :func:`ring_rows`.
    time : int64[members]
        As for :func:`ring_chunk`.
    end : int64[members]
        Result [ns].
    """
    members = arrival.shape[0]
    chunks = row[RING_CHUNKS]
    slots = np.empty((members, min(row[RING_ACTIVE], chunks)), np.int64)
    for member in range(members):
        slots[member, :] = arrival[member]
    start = np.empty(members, np.int64)
    for _ in range(chunks):
        taken = take_slots(slots, start)
        ring_chunk(
            start,
            end,
            time,
            row[RING_STEPS],
            row[RING_REDUCED],
            row[RING_DELAY],
            row[RING_REDUCTION],
        )
        for member in range(members):
            slots[member, taken[member]] = end[member]
    for member in range(members):
        end[member] = slots[member].max()


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
def ring_rows(
    kind, sizes, member_ids, splits, active, delay, memory_bandwidth, devices, network, rows, times
):
    """Set what collectives round a ring of any devices consist of.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE`` … ``ALL_TO_ALL``.
    sizes : int64[sizes]
        [B].
    member_ids : int64[members]
        In the order of the ring.
    splits, active, delay, memory_bandwidth, devices, network
        As for :func:`double_tree_times`.
    rows : int64[sizes, RING_COLUMNS]
        Result. ``RING_CHUNKS`` is ``ABORTED`` or ``NO_CHUNK`` where the simulator gives no time.
    times : int64[sizes, members]
        Result: of a message from each member's predecessor [ns].
    """
    members = member_ids.shape[0]
    for i in range(sizes.shape[0]):
        size, chunks = chunk_size_and_count(kind, sizes[i], splits, devices)
        message, steps, reduced = ring_counts(kind, size, members)
        if chunks == 0:
            rows[i, RING_CHUNKS] = NO_CHUNK
            continue
        rows[i, RING_CHUNKS] = chunks if message > 0 else ABORTED
        rows[i, RING_STEPS] = steps
        rows[i, RING_REDUCED] = reduced
        rows[i, RING_DELAY] = delay
        rows[i, RING_REDUCTION] = reduction_time(message, memory_bandwidth)
        rows[i, RING_ACTIVE] = active
        for member in range(members):
            offset = distance_offset(member_ids[member - 1], member_ids[member], network)
            times[i, member] = message_time(message, offset, network)


@jit
def group_ring_times(kind, sizes, member_ids, splits, active, memory_bandwidth, devices, network):
    """Times of collectives of a communicator group that leaves devices out.

    Parameters
    ----------
    kind, sizes, member_ids
        As for :func:`ring_rows`.
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
    rows = np.empty((sizes.shape[0], RING_COLUMNS), np.int64)
    times = np.empty((sizes.shape[0], members), np.int64)
    ring_rows(
        kind,
        sizes,
        member_ids,
        splits,
        active,
        GROUP_DELAY,
        memory_bandwidth,
        devices,
        network,
        rows,
        times,
    )
    result = np.empty((sizes.shape[0], 2), np.int64)
    arrival = np.zeros(members, np.int64)
    end = np.empty(members, np.int64)
    for i in range(sizes.shape[0]):
        if rows[i, RING_CHUNKS] < 0:
            result[i, :] = rows[i, RING_CHUNKS]
            continue
        ring_ends(arrival, rows[i], times[i], end)
        result[i, 0] = end.max()
        result[i, 1] = end.min()
    return result


@jit
def group_phase_times(
    kind, algorithm, sizes, members, splits, active, memory_bandwidth, devices, network
):
    """Times of collectives of a communicator group that does not go round a ring.

    Parameters
    ----------
    kind, algorithm : int
        ``DIRECT`` or ``HALVING_DOUBLING``.
    sizes : int64[rows]
        [B].
    members : int
    splits, active, memory_bandwidth, devices
        As for :func:`double_tree_times`.
    network : float64[1, NETWORK_COLUMNS]
        In which all members are one hop apart.

    Returns
    -------
    int64[rows]
        [ns]; ``ABORTED`` or ``NO_CHUNK`` where the simulator gives none.

    Notes
    -----
    A group's dimension is a local one, of which a direct all-reduce reduces what it receives
    in its second half, too, unless there is a single peer (AllToAll.cc,
    ``get_non_zero_latency_packets``).
    """
    times = np.empty(sizes.shape[0], np.int64)
    for row in range(sizes.shape[0]):
        size, chunks = chunk_size_and_count(kind, sizes[row], splits, devices)
        if chunks == 0:
            times[row] = NO_CHUNK
            continue
        phase = phase_time(
            kind, algorithm, size, members, 1, GROUP_DELAY, memory_bandwidth, network
        )
        if phase == ABORTED:
            times[row] = ABORTED
            continue
        if algorithm == DIRECT and kind == ALL_REDUCE and members > 2:
            phase += reduction_time(size // members, memory_bandwidth)
        times[row] = -(-chunks // active) * phase
    return times


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


@jit
def message_times(sources, destinations, sizes, network):
    """Times of messages, each on idle links.

    Parameters
    ----------
    sources, destinations : int64[rows]
        Device ids.
    sizes : int64[rows]
        [B].
    network : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    int64[rows]
        [ns]; 0 for a message to oneself, ``ABORTED`` (-1) for an empty one.
    """
    times = np.zeros(sizes.shape[0], np.int64)
    for row in range(sizes.shape[0]):
        if sources[row] != destinations[row]:
            offset = distance_offset(sources[row], destinations[row], network)
            times[row] = message_time(sizes[row], offset, network)
    return times


@jit
def pair_links(members, network, latency, bandwidth):
    """Set what a message from each member to each other one pays for.

    Parameters
    ----------
    members : int64[members]
        Device ids.
    network : float64[dimensions, NETWORK_COLUMNS]
    latency, bandwidth : float64[members * (members - 1)]
        Result [ns], [B/ns]: of the first dimension in which the two differ, as
        :func:`perfmodel.kernels.workloads.astra.phase.message_time` has it.
    """
    pair = 0
    for source in members:
        for target in members:
            if source == target:
                continue
            stride = 1
            for dimension in range(network.shape[0]):
                row = network[dimension]
                size = int(row[SIZE])
                apart = abs(source // stride % size - target // stride % size)
                if apart > 0:
                    latency[pair] = hops(int(row[TOPOLOGY]), size, apart) * row[LATENCY]
                    bandwidth[pair] = row[BYTES_PER_NANOSECOND]
                    break
                stride *= size
            pair += 1
