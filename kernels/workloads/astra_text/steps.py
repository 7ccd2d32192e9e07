"""Phases of collectives message by message, for times that are not whole nanoseconds.

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
from perfmodel.kernels.workloads.astra.phase import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    HALVING_DOUBLING,
    REDUCE_SCATTER,
    RING,
)
from perfmodel.kernels.workloads.astra_text.cost import message_time, reduction_time
from perfmodel.kernels.workloads.astra_text.state import (
    MESSAGE_END,
    PHASE_STEP,
    schedule,
)

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
