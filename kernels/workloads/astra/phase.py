"""Phases of a collective on one dimension, and chunks in the queues of a network's dimensions.

One phase of a collective on one dimension, as ASTRA-sim's analytical backend times it.

Whole nanoseconds with the simulator's own truncations. There is no queueing in the
network: a message takes its latency and its transfer, whatever else is under way.

Letters
    S   bytes of a member when the phase starts [B]
    n   members of the dimension
    m   bytes of a message [B]
    D   endpoint delay: from a message's arrival to the next one's start [ns]
    t   time of a message [ns]
    p   time to reduce a message into local memory [ns]

Every member does the same at the same time, because a message's time depends only on
how far apart sender and receiver are in the numbering of the devices.

Chunks of a collective in the queues of a network's dimensions, as in ASTRA-sim.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit

# Collectives; numbered for this mode alone, like all that follows.
ALL_REDUCE = 0
ALL_GATHER = 1
REDUCE_SCATTER = 2
ALL_TO_ALL = 3

RING_TOPOLOGY = 0
FULLY_CONNECTED = 1
SWITCH = 2

RING = 0
DIRECT = 1
HALVING_DOUBLING = 2

# Columns of a network table, one row per dimension, innermost first.
TOPOLOGY = 0
SIZE = 1
BYTES_PER_NANOSECOND = 2
LATENCY = 3
NETWORK_COLUMNS = 4

ABORTED = -1  # the simulator stops: it refuses messages of 0 bytes


@jit
def hops(topology, size, distance):
    """Links between two devices of one dimension, `distance` apart (1 … size - 1).

    Notes
    -----
    astra-network-analytical, congestion_unaware/basic-topology: Ring.cpp (both ways
    round), FullyConnected.cpp (1), Switch.cpp (2, up and down).
    """
    if topology == RING_TOPOLOGY:
        return min(distance, size - distance)
    if topology == SWITCH:
        return 2
    return 1


@jit
def message_time(size, offset, network):
    """Time of one message between devices whose ids differ by `offset`.

    Parameters
    ----------
    size : int
        m [B].
    offset : int
        Sum of the distances along each dimension times the dimension's stride; > 0.
    network : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    int
        ``floor(hops * latency + m / bandwidth)`` [ns]; ``ABORTED`` for an empty message.

    Notes
    -----
    BasicTopology.cpp:53: latency per hop, transfer once. MultiDimTopology.cpp:30: a
    message pays for the first dimension in which sender and receiver differ, and for no
    other.
    """
    if size <= 0:
        return ABORTED
    dimension = 0
    rest = offset
    while rest % int(network[dimension, SIZE]) == 0:
        rest //= int(network[dimension, SIZE])
        dimension += 1
    row = network[dimension]
    count = hops(int(row[TOPOLOGY]), int(row[SIZE]), rest % int(row[SIZE]))
    return int(count * row[LATENCY] + size / row[BYTES_PER_NANOSECOND])


@jit
def reduction_time(size, memory_bandwidth):
    """Time to add a received message to local memory: two reads and a write.

    Parameters
    ----------
    size : int
        m [B].
    memory_bandwidth : float
        [GB/s], 1e9.

    Returns
    -------
    int
        [ns]; each of the three is truncated on its own (PacketBundle.cc:57).
    """
    return 3 * int(size / (memory_bandwidth * 1e9) * 1e9)


@jit
def final_size(kind, size, members):
    """Bytes of a member after the phase: S, S // n or S n (Ring.cc:71)."""
    if kind == REDUCE_SCATTER:
        return size // members
    if kind == ALL_GATHER:
        return size * members
    return size


@jit
def ring_time(kind, size, members, stride, delay, memory_bandwidth, network):
    """Time of the ring algorithm.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE``, ``ALL_GATHER``, ``REDUCE_SCATTER`` or ``ALL_TO_ALL``.
    size, members, delay : int
        S, n, D.
    stride : int
        Difference of neighbours' ids.
    memory_bandwidth : float
        [GB/s].
    network : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    int
        [ns] or ``ABORTED``.

    Notes
    -----
    With m = S // n (all-gather: S, the shard)::

        all-reduce      D + 2 (n-1) (t + D) + (n-1) p
        reduce-scatter  D + (n-1) (t + D + p)
        all-gather      D + (n-1) (t + D)
        all-to-all      D + n (n-1) / 2 (t + D)

    Ring.cc:44: an all-to-all passes n (n-1) / 2 messages of S / n one after another.
    """
    message = size if kind == ALL_GATHER else size // members
    time = message_time(message, stride, network)
    if time == ABORTED:
        return ABORTED
    steps = members - 1
    if kind == ALL_REDUCE:
        steps = 2 * (members - 1)
    if kind == ALL_TO_ALL:
        steps = members * (members - 1) // 2
    total = delay + steps * (time + delay)
    if kind in (ALL_REDUCE, REDUCE_SCATTER):
        total += (members - 1) * reduction_time(message, memory_bandwidth)
    return total


@jit
def halving_doubling_time(kind, size, members, stride, delay, memory_bandwidth, network):
    """Time of recursive halving and doubling; parameters as :func:`ring_time`.

    `members` is a power of two and `kind` is not ``ALL_TO_ALL``.

    Notes
    -----
    Halving sends S/2, S/4, … to the partners at ring offsets 1, 2, 4, …; doubling is its
    mirror image. Each message takes t + D; the reduction of an arrival is timed by the
    size of the message sent next (HalvingDoubling.cc:90), so there are log2(n) - 1 of
    them. An all-reduce halves once more before it turns round and doubles what is left,
    so the sizes of its way back have lost a bit: ``(S >> (log2(n) + 1)) << k``.
    """
    total = delay
    message = size if kind == ALL_GATHER else size // 2
    offset = members // 2 if kind == ALL_GATHER else 1
    if kind != ALL_GATHER:
        while offset < members:
            time = message_time(message, offset * stride, network)
            if time == ABORTED:
                return ABORTED
            total += time + delay
            if offset > 1:
                total += reduction_time(message, memory_bandwidth)
            message //= 2
            offset *= 2
        if kind == REDUCE_SCATTER:
            return total
        message *= 2
        offset //= 2
    while offset >= 1:
        time = message_time(message, offset * stride, network)
        if time == ABORTED:
            return ABORTED
        total += time + delay
        message *= 2
        offset //= 2
    return total


@jit
def direct_time(kind, size, members, stride, delay, memory_bandwidth, network):
    """Time of the direct algorithm, all n - 1 peers at once; as :func:`ring_time`.

    Notes
    -----
    With t_k the time to the peer at offset k and T the longest of them (AllToAll.cc)::

        all-gather, all-to-all  D + T + D
        reduce-scatter          D + T + D + p
        all-reduce              max_k( max(g_k, g) + t_k ) + D

    where g_1 <= g_2 <= … are the times D + t_k + D + p at which a peer's part is reduced,
    in ascending order, and g the first of them at which all parts have arrived: parts are
    passed on in the order of their arrival, the k-th to the peer at offset k.
    """
    message = size if kind == ALL_GATHER else size // members
    times = np.empty(members - 1, np.int64)
    for k in range(1, members):
        times[k - 1] = message_time(message, k * stride, network)
        if times[k - 1] == ABORTED:
            return ABORTED
    longest = times.max()
    if kind in (ALL_GATHER, ALL_TO_ALL):
        return delay + longest + delay
    reduction = reduction_time(message, memory_bandwidth)
    if kind == REDUCE_SCATTER:
        return delay + longest + delay + reduction
    reduced = np.sort(times) + delay + delay + reduction
    arrived = delay + longest
    first = reduced[np.searchsorted(reduced, arrived)]
    total = 0
    for k in range(members - 1):
        total = max(total, max(reduced[k], first) + times[k])
    return total + delay


@jit
def phase_time(kind, algorithm, size, members, stride, delay, memory_bandwidth, network):
    """Time of one phase.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE``, ``ALL_GATHER``, ``REDUCE_SCATTER`` or ``ALL_TO_ALL``.
    algorithm : int
        ``RING``, ``DIRECT`` or ``HALVING_DOUBLING``.
    size, members, delay : int
        S [B], n >= 2, D [ns].
    stride : int
        Difference of neighbours' ids.
    memory_bandwidth : float
        [GB/s].
    network : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    int
        [ns]; ``ABORTED`` where a message would be empty.
    """
    if algorithm == RING:
        return ring_time(kind, size, members, stride, delay, memory_bandwidth, network)
    if algorithm == HALVING_DOUBLING:
        return halving_doubling_time(kind, size, members, stride, delay, memory_bandwidth, network)
    return direct_time(kind, size, members, stride, delay, memory_bandwidth, network)


# Columns of a plan, one row per phase in the order in which a chunk passes them.
KIND = 0
ALGORITHM = 1
MEMBERS = 2
STRIDE = 3
QUEUE = 4

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
