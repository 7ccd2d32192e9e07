"""Chunks of collectives in the queues of dimensions, as in ASTRA-sim 1.0.

Source: astra-sim 07d5d19, ``system/Sys.cc`` (``insert_stream``, ``SchedulerUnit``,
``proceed_to_next_vnet_baseline``).
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.events import CLOCK
from perfmodel.kernels.workloads.astra.phase import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
)
from perfmodel.kernels.workloads.astra_text.cost import TOO_LONG, phase
from perfmodel.kernels.workloads.astra_text.state import (
    ALTERNATING,
    FIRST_IN,
    NONE,
    PHASE_END,
    SET_END,
    SMALLEST_FIRST,
    TOO_LONG_STATUS,
    UNEQUAL_STATUS,
    schedule,
    stop,
    tick,
)
from perfmodel.kernels.workloads.astra_text.steps import goes_in_equal_steps, take_step


@jit_lean
def place_in_line(state, facts, chunk, queue):
    """Place of a chunk that enters a queue: behind all those under way, then by the rule."""
    length = state.queue[queue].length
    line = state.line[queue]
    chunks = state.chunk
    own = chunks[chunk]
    kind = state.phase[chunk][own.current].kind
    if facts.of.intra == FIRST_IN:  # all the line is in order: begin at its end, usually the place
        place = length
        while place > 0:
            other = chunks[line[place - 1]]
            if other.started == 1 or other.priority >= own.priority:
                break
            place -= 1
        return place
    first_come = kind in (ALL_REDUCE, ALL_TO_ALL)
    if facts.of.intra == ALTERNATING and not first_come:
        return _alternating_place(chunks, state.phase, line, length, own.priority)
    left = own.phases - 1 - own.current
    smallest = facts.of.intra == SMALLEST_FIRST
    if smallest and left == 1 and not first_come:
        return length
    size = _extent(chunks, state.phase, chunk)
    for place in range(length):
        other = chunks[line[place]]
        if other.started == 1:
            continue
        if first_come:
            stays = other.priority >= own.priority
        elif smallest:
            stays = _extent(chunks, state.phase, line[place]) < size
        else:  # FEWEST_LEFT
            stays = other.phases - 1 - other.current < left
        if not stays:
            return place
    return length


@jit_lean
def _alternating_place(chunks, phases, line, length, priority):
    """Place behind the last alternation of reduce-scatter and all-gather."""
    before = NONE
    last = NONE
    place = 0
    while place < length:
        other = chunks[line[place]]
        before = last
        last = phases[line[place]][other.current].kind
        if other.started == 1:
            place += 1
            if place < length and chunks[line[place]].started == 0:
                before = last
                last = phases[line[place]][chunks[line[place]].current].kind
                place += 1
        elif (
            other.priority > priority
            or (last == REDUCE_SCATTER and before == ALL_GATHER)
            or (last == ALL_GATHER and before == REDUCE_SCATTER)
        ):
            place += 1
        else:
            break
    return place


@jit_lean
def _extent(chunks, phases, chunk):
    """Bytes before or after the chunk's phase, whichever are more."""
    own = phases[chunk][chunks[chunk].current]
    return max(own.before, own.after)


@jit_lean
def start(state, facts, chunk):
    """Start a chunk on its current phase."""
    own = state.chunk[chunk]
    step = state.phase[chunk][own.current]
    own_set = state.sets[own.owner]
    dimension = step.dimension
    own.started = 1
    own.since = tick(state.calendar)
    if facts.fixed.shape[1] > 0:
        time = facts.fixed[own_set.phase, own_set.layer]
        schedule(
            state.cursor, state.calendar, state.calendar[0, CLOCK] + time, time, PHASE_END, chunk
        )
        return
    physical = facts.dims[dimension].physical
    end, last, sent = phase(
        state.calendar[0, CLOCK],
        step.kind,
        step.algorithm,
        step.before,
        facts.dims[dimension].members,
        facts.dims[dimension].stride,
        facts.of.delay,
        facts.network[physical],
    )
    if end < 0:
        status = TOO_LONG_STATUS if end == TOO_LONG else UNEQUAL_STATUS
        stop(state.cursor, status, own_set.layer, own_set.phase)
        return
    state.dims[dimension].sent += sent
    if state.cursor.fractions == 1 and goes_in_equal_steps(facts, dimension, step.algorithm):
        own.steps_taken = 0
        take_step(state, facts, chunk)
        return
    schedule(state.cursor, state.calendar, end, last, PHASE_END, chunk)


@jit_lean
def start_waiting(state, facts, queue):
    """Start chunks of a queue as long as fewer than `active` are under way."""
    own = state.queue[queue]
    while own.busy < facts.of.active and own.busy < own.length:
        own.busy += 1
        start(state, facts, state.line[queue][own.busy - 1])


@jit_lean
def enter(state, facts, chunk):
    """Let a chunk into the queue of its current phase."""
    own = state.chunk[chunk]
    own.started = 0
    queue = state.phase[chunk][own.current].queue
    place = place_in_line(state, facts, chunk, queue)
    line = state.line[queue]
    for behind in range(state.queue[queue].length, place, -1):
        line[behind] = line[behind - 1]
    line[place] = chunk
    state.queue[queue].length += 1
    return queue


@jit_lean
def end_phase(state, facts, chunk):
    """Take a chunk out of its queue at the end of a phase, and let it into the next one.

    Parameters
    ----------
    chunk : int
    """
    own = state.chunk[chunk]
    step = state.phase[chunk][own.current]
    queue = step.queue
    dimension = step.dimension
    finished = own.current == own.phases - 1
    if finished:
        own_set = state.sets[own.owner]
        own_set.left -= 1
        if own_set.left == 0:
            own_set.finish = tick(state.calendar)
            delay = float(facts.rows[own_set.layer].update)
            schedule(
                state.cursor,
                state.calendar,
                state.calendar[0, CLOCK] + delay,
                delay,
                SET_END,
                own.owner,
            )
    line = state.line[queue]
    place = 0
    while line[place] != chunk:
        place += 1
    for behind in range(place, state.queue[queue].length - 1):
        line[behind] = line[behind + 1]
    state.queue[queue].length -= 1
    state.queue[queue].busy -= 1
    state.dims[dimension].phase_time += tick(state.calendar) - own.since
    state.dims[dimension].phase_count += 1
    if finished:
        own.next = state.cursor.free_chunk
        state.cursor.free_chunk = chunk
        start_waiting(state, facts, queue)
        return
    own.current += 1
    entered = enter(state, facts, chunk)
    start_waiting(state, facts, queue)
    start_waiting(state, facts, entered)
