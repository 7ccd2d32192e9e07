"""One phase of a collective on one dimension of ASTRA-sim 1.0: by formula, and message by message.

One phase of a collective on one dimension, as ASTRA-sim 1.0's analytical backend times it.

The formulas are those of 2.x (:mod:`perfmodel.kernels.workloads.astra.phase`, which says where they
come from), with other messages: bandwidth counts all links of a device, every term of a
message's time is cut to whole nanoseconds, and a dimension may be half of a ring, whose
first and last member are not neighbours. There is no queueing in the network.

Letters as there: S, n, m, D, t, p.

Phases of collectives message by message, for times that are not whole nanoseconds.

The system layer of ASTRA-sim 1.0 keeps its own events (computation, delays of an endpoint,
reductions) by whole nanoseconds, and all events of one nanosecond happen when the first of
them was due (``system/Sys.cc``, ``try_register_event``). Where memory limits messages, these
end within a nanosecond, and whose events share one depends on every single message. With
whole times that changes nothing, and the formulas of `perfmodel.kernels.workloads.astra_text.cost`
do.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.events import CLOCK
from perfmodel.kernels.records import record_types
from perfmodel.kernels.workloads.astra.phase import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    HALVING_DOUBLING,
    REDUCE_SCATTER,
    RING,
    SWITCH,
    hops,
)
from perfmodel.kernels.workloads.astra_text.state import (
    MESSAGE_END,
    PHASE_STEP,
    schedule,
)

# A physical dimension.
NETWORK = record_types(__file__)["NETWORK"]

REDUCTION_BLOCK = 500_000  # [B] that local memory takes per nanosecond, hard-coded in 1.0

# Instead of an end.
UNEQUAL = -1.0  # members would not keep step, and 1.0's own checks stop it
TOO_LONG = -2.0  # a message's time does not fit the simulator's 32-bit int
LARGEST_INT = 2**31 - 1


@jit_lean
def whole(value):
    """Cut a number of 0 or more to a whole one."""
    return value if value > LARGEST_INT else float(int(value))


@jit_lean
def message_time(size, distance, row):
    """Time of one message between devices `distance` apart on a dimension.

    Parameters
    ----------
    size : int
        m [B].
    distance : int
        Difference of the positions on the physical dimension, > 0.
    row : record of NETWORK

    Returns
    -------
    float
        [ns]; not whole where memory, at the receiver, is what limits it. ``TOO_LONG``.

    Notes
    -----
    analytical d27635b: ``int c``, cut after hops * latency, + m / bandwidth, + 2 nic and,
    behind a switch, + router; then max(c, (memory latency + m / memory bandwidth) * scale).
    """
    count = hops(row.topology, row.devices, distance)
    time = whole(count * row.latency)
    time = whole(time + size / row.bytes_per_nanosecond)
    time = whole(time + 2 * row.nic)
    if row.topology == SWITCH:
        time = whole(time + row.router)
    if time >= LARGEST_INT + 1.0:
        return TOO_LONG
    memory = (row.memory_latency + size / row.memory_bandwidth) * row.memory_scale
    return time if time > memory else memory


@jit_lean
def reduction_time(size):
    """Time p to reduce a message into local memory: two reads and a write [ns]."""
    return 3 * (size // REDUCTION_BLOCK)


@jit_lean
def ring_phase(start, kind, size, members, stride, delay, row):
    """End and bytes of the ring algorithm; as :func:`phase`.

    Notes
    -----
    On half of a ring, the way from the last member back to the first has members - 1 hops.
    Each message of the longest chain crosses that way once per round, so it costs the
    difference every `members` steps. A member whose predecessor is that much slower gets
    its next message but one while the last one is under way, and the backend stops
    ("Same key entry already exist").
    """
    message = size if kind == ALL_GATHER else size // members
    steps = members - 1
    if kind == ALL_REDUCE:
        steps = 2 * (members - 1)
    if kind == ALL_TO_ALL:
        steps = members * (members - 1) // 2
    time = message_time(message, stride, row)
    wrap = message_time(message, (members - 1) * stride, row) if members > 2 else time
    if time == TOO_LONG or wrap == TOO_LONG:
        return TOO_LONG, 0.0, 0
    reduction = reduction_time(message)
    end = start + delay + steps * (time + delay)
    if kind in (ALL_REDUCE, REDUCE_SCATTER):
        end += (members - 1) * reduction
    if wrap > time:
        if wrap > 2 * time + delay:
            return UNEQUAL, 0.0, 0
        end += -(-steps // members) * (wrap - time)
    last = reduction if kind == REDUCE_SCATTER else delay
    return end, float(last), steps * message


@jit_lean
def halving_doubling_phase(start, kind, size, members, stride, delay, row):
    """End and bytes of recursive halving and doubling; as :func:`phase`."""
    end = start + delay
    sent = 0
    message = size if kind == ALL_GATHER else size // 2
    offset = members // 2 if kind == ALL_GATHER else 1
    if kind != ALL_GATHER:
        while offset < members:
            time = message_time(message, offset * stride, row)
            if time == TOO_LONG:
                return TOO_LONG, 0.0, 0
            end += time + delay
            sent += message
            if offset > 1:
                end += reduction_time(message)
            message //= 2
            offset *= 2
        message *= 2
        offset //= 2
    if kind != REDUCE_SCATTER:
        while offset >= 1:
            time = message_time(message, offset * stride, row)
            if time == TOO_LONG:
                return TOO_LONG, 0.0, 0
            end += time + delay
            sent += message
            message *= 2
            offset //= 2
    return end, float(delay), sent


@jit_lean
def direct_phase(start, kind, size, members, stride, delay, row):
    """End and bytes of the direct algorithm, all n - 1 peers at once; as :func:`phase`.

    Notes
    -----
    On a whole dimension as many peers are so far one way round as the other, and none that is
    farther gets its message sooner: sorted, times are those of the distances 1, 1, 2, 2, ...
    """
    message = size if kind == ALL_GATHER else size // members
    shortest = longest = message_time(message, stride, row)
    for k in range(1, members):
        time = message_time(message, k * stride, row)
        if time < 0:
            return TOO_LONG, 0.0, 0
        shortest = time if time < shortest else shortest
        longest = time if time > longest else longest
    # Distances from every member are the same only on a whole dimension.
    if shortest < longest and members * stride != row.devices:
        return UNEQUAL, 0.0, 0
    arrived = start + delay + longest
    sent = (members - 1) * message
    reduction = reduction_time(message)
    if kind == REDUCE_SCATTER:
        return arrived + delay + reduction, float(reduction), sent
    if kind != ALL_REDUCE:
        return arrived + delay, float(delay), sent
    first = 0.0  # block that is reduced after all have arrived
    for k in range(members - 1):
        first = start + delay + message_time(message, (k // 2 + 1) * stride, row)
        first += delay + reduction
        if first >= arrived:
            break
    end = start
    for k in range(members - 1):
        reduced = start + delay + message_time(message, (k // 2 + 1) * stride, row)
        reduced += delay + reduction
        own = reduced if reduced > first else first
        own += message_time(message, (k + 1) * stride, row)
        end = own if own > end else end
    return end + delay, float(delay), 2 * sent


@jit_lean
def phase(start, kind, algorithm, size, members, stride, delay, row):
    """End and bytes of one phase.

    Parameters
    ----------
    start : float
        [ns].
    kind : int
        ``ALL_REDUCE``, ``ALL_GATHER``, ``REDUCE_SCATTER`` or ``ALL_TO_ALL``.
    algorithm : int
        ``RING``, ``DIRECT`` or ``HALVING_DOUBLING``.
    size, members, delay : int
        S [B], n >= 2, D [ns].
    stride : int
        Difference of neighbours' positions on the physical dimension.
    row : record of NETWORK
        The physical dimension.

    Returns
    -------
    end : float
        [ns], or ``UNEQUAL`` or ``TOO_LONG``.
    last : float
        How long before its end the simulator put that end into its calendar [ns].
    sent : int
        By one device [B].
    """
    if algorithm == RING:
        return ring_phase(start, kind, size, members, stride, delay, row)
    if algorithm == HALVING_DOUBLING:
        return halving_doubling_phase(start, kind, size, members, stride, delay, row)
    return direct_phase(start, kind, size, members, stride, delay, row)


RING_TOPOLOGY = 0
NEXT_HOP, AT_ENDPOINT, REDUCING = 0, 1, 2  # what follows one another for every message


@jit_lean
def goes_in_equal_steps(facts, dimension, algorithm):
    """Whether all devices send at the same times, so that messages can be followed singly."""
    row = facts.network[facts.dims[dimension].physical]
    if row.topology != RING_TOPOLOGY or algorithm == HALVING_DOUBLING:
        return True
    whole = facts.dims[dimension].members * facts.dims[dimension].stride == row.devices
    return algorithm == RING and whole


@jit_lean
def levels(members):
    """Number of halvings, the logarithm of the members."""
    count = 0
    while 1 << (count + 1) <= members:
        count += 1
    return count


@jit_lean
def message_count(kind, algorithm, members):
    """Messages that a device sends one after another."""
    if algorithm == RING:
        if kind == ALL_TO_ALL:
            return members * (members - 1) // 2
        return (2 if kind == ALL_REDUCE else 1) * (members - 1)
    if algorithm == HALVING_DOUBLING:
        return (2 if kind == ALL_REDUCE else 1) * levels(members)
    return 2 if kind == ALL_REDUCE else 1


@jit_lean
def message_of(kind, algorithm, size, members, number):
    """Bytes and distance, in members, of a message."""
    if algorithm != HALVING_DOUBLING:
        return (size if kind == ALL_GATHER else size // members), 1
    halvings = 0 if kind == ALL_GATHER else levels(members)
    if number < halvings:
        return (size // 2) >> number, 1 << number
    first = size if kind == ALL_GATHER else ((size // 2) >> halvings) * 2
    doublings = number - halvings
    return first << doublings, (members // 2) >> doublings


@jit_lean
def reduction_after(kind, algorithm, size, members, number):
    """Time to reduce what a message brought [ns]; 0 where it is only kept."""
    if kind != ALL_REDUCE and kind != REDUCE_SCATTER:
        return 0
    if algorithm == HALVING_DOUBLING:
        if number + 1 >= levels(members):
            return 0
        return reduction_time(message_of(kind, algorithm, size, members, number + 1)[0])
    scattering = members - 1 if algorithm == RING else 1
    if kind == ALL_REDUCE and number >= scattering:
        return 0
    return reduction_time(size // members)


@jit_lean
def take_step(state, facts, chunk):
    """Go on with a chunk's phase; return whether it has ended.

    The endpoint's delay comes first; then, for each message, its way, the delay and perhaps
    a reduction.
    """
    own = state.chunk[chunk]
    phase = state.phase[chunk][own.current]
    dimension = phase.dimension
    kind, algorithm, size = phase.kind, phase.algorithm, phase.before
    members = facts.dims[dimension].members
    now = state.calendar[0, CLOCK]
    while True:
        taken = own.steps_taken
        own.steps_taken += 1
        number, part = (taken - 1) // 3, (taken - 1) % 3
        if taken > 0 and number == message_count(kind, algorithm, members):
            return True
        if taken > 0 and part == NEXT_HOP:
            message, distance = message_of(kind, algorithm, size, members, number)
            row = facts.network[facts.dims[dimension].physical]
            time = message_time(message, distance * facts.dims[dimension].stride, row)
            schedule(state.cursor, state.calendar, now + time, time, MESSAGE_END, chunk)
            return False
        wait = facts.of.delay
        if taken > 0 and part == REDUCING:
            wait = reduction_after(kind, algorithm, size, members, number)
        if wait > 0:
            schedule(state.cursor, state.calendar, now + wait, float(wait), PHASE_STEP, chunk)
            return False
