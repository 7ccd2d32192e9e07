"""Chunks of collectives in the queues of dimensions, as in ASTRA-sim 1.0.

Source: astra-sim 07d5d19, ``system/Sys.cc`` (``insert_stream``, ``SchedulerUnit``,
``proceed_to_next_vnet_baseline``).
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.astra.phase import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from perfmodel.kernels.astra_text.cost import TOO_LONG, phase
from perfmodel.kernels.astra_text.state import (
    ALTERNATING,
    BUSY,
    CHUNK_PRIORITY,
    CURRENT,
    FIRST_IN,
    FRACTIONS,
    FREE_CHUNK,
    LEFT,
    LENGTH,
    MEMBERS,
    NEXT,
    NONE,
    PHASE_ALGORITHM,
    PHASE_COUNT,
    PHASE_DIMENSION,
    PHASE_END,
    PHASE_FINAL,
    PHASE_KIND,
    PHASE_QUEUE,
    PHASE_SIZE,
    PHASE_TIME,
    PHASES,
    PHYSICAL,
    SENT,
    SET,
    SET_END,
    SET_FINISH,
    SET_LAYER,
    SET_PHASE,
    SINCE,
    SMALLEST_FIRST,
    STARTED,
    STEPS_TAKEN,
    STRIDE,
    TOO_LONG_STATUS,
    UNEQUAL_STATUS,
    UPDATE,
    schedule,
    stop,
    tick,
)
from perfmodel.kernels.astra_text.steps import goes_in_equal_steps, take_step
from perfmodel.kernels.events import CLOCK


@jit_lean
def place_in_line(state, facts, chunk, queue):
    """Place of a chunk that enters a queue: behind all those under way, then by the rule."""
    length = state.queue[queue, LENGTH]
    line = state.line[queue]
    own = state.chunk[chunk]
    kind = state.phase[chunk, own[CURRENT], PHASE_KIND]
    if (
        facts.of.intra == FIRST_IN
    ):  # the whole line is in order: begin at its end, usually the place
        place = length
        while place > 0 and not (
            state.chunk[line[place - 1], STARTED] == 1
            or state.chunk[line[place - 1], CHUNK_PRIORITY] >= own[CHUNK_PRIORITY]
        ):
            place -= 1
        return place
    place = 0
    if kind in (ALL_REDUCE, ALL_TO_ALL):
        while place < length and (
            state.chunk[line[place], STARTED] == 1
            or state.chunk[line[place], CHUNK_PRIORITY] >= own[CHUNK_PRIORITY]
        ):
            place += 1
        return place
    if facts.of.intra == ALTERNATING:
        return _alternating_place(state, line, length, own[CHUNK_PRIORITY])
    left = own[PHASES] - 1 - own[CURRENT]
    if facts.of.intra == SMALLEST_FIRST:
        if left == 1:
            return length
        size = _extent(state, chunk)
        while place < length and (
            state.chunk[line[place], STARTED] == 1 or _extent(state, line[place]) < size
        ):
            place += 1
        return place
    while place < length:  # FEWEST_LEFT
        other = state.chunk[line[place]]
        if other[STARTED] == 0 and other[PHASES] - 1 - other[CURRENT] >= left:
            break
        place += 1
    return place


@jit_lean
def _alternating_place(state, line, length, priority):
    """Place behind the last alternation of reduce-scatter and all-gather."""
    before = NONE
    last = NONE
    place = 0
    while place < length:
        other = line[place]
        before = last
        last = state.phase[other, state.chunk[other, CURRENT], PHASE_KIND]
        if state.chunk[other, STARTED] == 1:
            place += 1
            if place < length and state.chunk[line[place], STARTED] == 0:
                other = line[place]
                before = last
                last = state.phase[other, state.chunk[other, CURRENT], PHASE_KIND]
                place += 1
        elif (
            state.chunk[other, CHUNK_PRIORITY] > priority
            or (last == REDUCE_SCATTER and before == ALL_GATHER)
            or (last == ALL_GATHER and before == REDUCE_SCATTER)
        ):
            place += 1
        else:
            break
    return place


@jit_lean
def _extent(state, chunk):
    """Bytes before or after the chunk's phase, whichever are more."""
    own = state.phase[chunk, state.chunk[chunk, CURRENT]]
    return max(own[PHASE_SIZE], own[PHASE_FINAL])


@jit_lean
def start(state, facts, chunk):
    """Start a chunk on its current phase."""
    own = state.chunk[chunk]
    step = state.phase[chunk, own[CURRENT]]
    own_set = state.sets[own[SET]]
    dimension = step[PHASE_DIMENSION]
    own[STARTED] = 1
    own[SINCE] = tick(state)
    if facts.fixed.shape[1] > 0:
        time = facts.fixed[own_set[SET_PHASE], own_set[SET_LAYER]]
        schedule(state, state.calendar[0, CLOCK] + time, time, PHASE_END, chunk)
        return
    physical = facts.dims[dimension, PHYSICAL]
    end, last, sent = phase(
        state.calendar[0, CLOCK],
        step[PHASE_KIND],
        step[PHASE_ALGORITHM],
        step[PHASE_SIZE],
        facts.dims[dimension, MEMBERS],
        facts.dims[dimension, STRIDE],
        facts.of.delay,
        facts.network[physical],
    )
    if end < 0:
        status = TOO_LONG_STATUS if end == TOO_LONG else UNEQUAL_STATUS
        stop(state, status, own_set[SET_LAYER], own_set[SET_PHASE])
        return
    state.dims[dimension, SENT] += sent
    if state.cursor[FRACTIONS] == 1 and goes_in_equal_steps(
        facts, dimension, step[PHASE_ALGORITHM]
    ):
        own[STEPS_TAKEN] = 0
        take_step(state, facts, chunk)
        return
    schedule(state, end, last, PHASE_END, chunk)


@jit_lean
def start_waiting(state, facts, queue):
    """Start chunks of a queue as long as fewer than `active` are under way."""
    while (
        state.queue[queue, BUSY] < facts.of.active
        and state.queue[queue, BUSY] < state.queue[queue, LENGTH]
    ):
        chunk = state.line[queue, state.queue[queue, BUSY]]
        state.queue[queue, BUSY] += 1
        start(state, facts, chunk)


@jit_lean
def enter(state, facts, chunk):
    """Let a chunk into the queue of its current phase."""
    own = state.chunk[chunk]
    own[STARTED] = 0
    queue = state.phase[chunk, own[CURRENT], PHASE_QUEUE]
    place = place_in_line(state, facts, chunk, queue)
    line = state.line[queue]
    for behind in range(state.queue[queue, LENGTH], place, -1):
        line[behind] = line[behind - 1]
    line[place] = chunk
    state.queue[queue, LENGTH] += 1
    return queue


@jit_lean
def end_phase(state, facts, chunk):
    """Take a chunk out of its queue at the end of a phase, and let it into the next one.

    Parameters
    ----------
    chunk : int
    """
    own = state.chunk[chunk]
    step = state.phase[chunk, own[CURRENT]]
    queue = step[PHASE_QUEUE]
    dimension = step[PHASE_DIMENSION]
    finished = own[CURRENT] == own[PHASES] - 1
    if finished:
        own_set = state.sets[own[SET]]
        own_set[LEFT] -= 1
        if own_set[LEFT] == 0:
            own_set[SET_FINISH] = tick(state)
            delay = float(facts.rows[own_set[SET_LAYER], UPDATE])
            schedule(state, state.calendar[0, CLOCK] + delay, delay, SET_END, own[SET])
    line = state.line[queue]
    place = 0
    while line[place] != chunk:
        place += 1
    for behind in range(place, state.queue[queue, LENGTH] - 1):
        line[behind] = line[behind + 1]
    state.queue[queue, LENGTH] -= 1
    state.queue[queue, BUSY] -= 1
    state.dims[dimension, PHASE_TIME] += tick(state) - own[SINCE]
    state.dims[dimension, PHASE_COUNT] += 1
    if finished:
        own[NEXT] = state.cursor[FREE_CHUNK]
        state.cursor[FREE_CHUNK] = chunk
        start_waiting(state, facts, queue)
        return
    own[CURRENT] += 1
    entered = enter(state, facts, chunk)
    start_waiting(state, facts, queue)
    start_waiting(state, facts, entered)
