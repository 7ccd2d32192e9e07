"""Collectives of layers: cut into chunks with their phases, issued, ended.

Source: astra-sim 07d5d19, ``system/Sys.cc`` (``generate_collective``, ``get_priority``),
``workload/Layer.cc``.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.astra.phase import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    final_size,
)
from perfmodel.kernels.astra_text.cost import LARGEST_INT
from perfmodel.kernels.astra_text.queue import enter, start_waiting
from perfmodel.kernels.astra_text.state import (
    BLOCKING,
    CHUNK_PRIORITY,
    COLLECTIVE_COUNT,
    COMMUNICATION,
    CREATED,
    CURRENT,
    EMPTY,
    ENDED,
    EXPOSED,
    FREE_CHUNK,
    FREE_SET,
    FULL,
    INJECTED,
    LEFT,
    NEXT,
    NO_CHUNK,
    NONE,
    OUTSTANDING,
    PANIC,
    PHASE_ALGORITHM,
    PHASE_DIMENSION,
    PHASE_FINAL,
    PHASE_KIND,
    PHASE_QUEUE,
    PHASE_SIZE,
    PHASES,
    PRIORITY,
    ROUND_ROBIN,
    RUNNING,
    SET,
    SET_FINISH,
    SET_LAYER,
    SET_PHASE,
    STATUS,
    THEMIS,
    TOO_LARGE,
    TOTAL,
    TURN,
    UNSUPPORTED,
    WAITING_SINCE,
    stop,
    tick,
)
from perfmodel.kernels.astra_text.themis import forget_loads, themis_order

SYSTEM_ORDER, FIRST_IN_ORDER, LAST_IN_ORDER, HIGHEST = 0, 1, 2, 3
HIGHEST_PRIORITY = 100_000_000


@jit
def next_priority(state, system, order):
    """Priority of a collective; larger ones go first."""
    if order == HIGHEST:
        return HIGHEST_PRIORITY
    last_in_first = system.last_in_first
    if order != SYSTEM_ORDER:
        last_in_first = order == LAST_IN_ORDER
    priority = state.cursor[PRIORITY]
    state.cursor[PRIORITY] += 1 if last_in_first else -1
    return priority


@jit
def dimension_order(state, system, kind, involved, remaining, chunk, order):
    """Find the order of dimensions of the next chunk; return the chunk's size."""
    dims = order.shape[0]
    if system.inter >= THEMIS and kind != ALL_TO_ALL:
        return themis_order(state, system, kind, involved, remaining, chunk, order)
    first = 0
    if system.inter == ROUND_ROBIN:
        first = state.cursor[TURN]
        state.cursor[TURN] = (first + 1) % dims
    for place in range(dims):
        dimension = (place + first) % dims
        order[place] = dims - 1 - dimension if kind == ALL_GATHER else dimension
    return min(chunk, remaining)


@jit
def add_phase(state, system, chunk, kind, algorithms, dimension, size):
    """Add a phase to a chunk; return the bytes after it."""
    own = state.chunk[chunk]
    step = state.phase[chunk, own[PHASES]]
    step[PHASE_KIND] = kind
    step[PHASE_ALGORITHM] = algorithms[dimension]
    step[PHASE_DIMENSION] = dimension
    step[PHASE_QUEUE] = dimension * system.queues + state.next_queue[dimension]
    state.next_queue[dimension] = (state.next_queue[dimension] + 1) % system.queues
    step[PHASE_SIZE] = size
    step[PHASE_FINAL] = final_size(kind, size, system.members[dimension])
    own[PHASES] += 1
    return step[PHASE_FINAL]


@jit
def add_phases(state, system, chunk, kind, involved, order, size):
    """Give a chunk its phases, in the order of its dimensions.

    An all-reduce scatters on the way out and gathers on the way back; unless Themis
    schedules it, it reduces whole on the last dimension.
    """
    algorithms = system.algorithm[kind]
    last = NONE
    for dimension in order:
        if involved[dimension] and system.members[dimension] > 1:
            last = dimension
    there_and_back = kind == ALL_REDUCE and not system.whole_all_reduce
    turns = there_and_back and system.inter < THEMIS
    for dimension in order:
        if not (involved[dimension] and system.members[dimension] > 1):
            continue
        step = kind
        if there_and_back:
            step = ALL_REDUCE if turns and dimension == last else REDUCE_SCATTER
        size = add_phase(state, system, chunk, step, algorithms, dimension, size)
    if not there_and_back:
        return
    for dimension in order[::-1]:
        if not (involved[dimension] and system.members[dimension] > 1):
            continue
        if not (turns and dimension == last):
            size = add_phase(state, system, chunk, ALL_GATHER, algorithms, dimension, size)


@jit
def issue(state, system, layers, phase, layer, order, blocking):
    """Issue a layer's collective; return whether there is one to wait for.

    Parameters
    ----------
    phase, layer : int
    order : int
        ``SYSTEM_ORDER``, ``FIRST_IN_ORDER``, ``LAST_IN_ORDER`` or ``HIGHEST``.
    blocking : bool
        Whether the whole of it counts as exposed.

    Notes
    -----
    One without a dimension is not sent, but has taken a priority and a turn.
    """
    cursor = state.cursor
    kind = layers.kind[phase, layer]
    if kind == NONE:
        return False
    if kind == UNSUPPORTED:
        stop(state, PANIC, layer, phase)
        return False
    involved = layers.involved[phase, layer]
    size = layers.size[phase, layer]
    chunk_size = size // system.splits
    priority = next_priority(state, system, order)
    if system.inter >= THEMIS:
        forget_loads(state)
    dims = system.members.shape[0]
    dimensions = np.empty(dims, np.int64)
    if size == 0:
        stop(state, EMPTY, layer, phase)
        return False
    if not (involved & (system.members > 1)).any():
        dimension_order(state, system, kind, involved, size, chunk_size, dimensions)
        return False
    if chunk_size == 0 or chunk_size > LARGEST_INT:
        stop(state, NO_CHUNK if chunk_size == 0 else TOO_LARGE, layer, phase)
        return False
    own = cursor[FREE_SET]
    if own == NONE:
        stop(state, FULL, layer, phase)
        return False
    record = state.sets[own]
    cursor[FREE_SET] = record[NEXT]
    record[TOTAL] = 0
    record[CREATED] = tick(state)
    record[SET_LAYER] = layer
    record[SET_PHASE] = phase
    while size > 0 and cursor[STATUS] == RUNNING:
        part = dimension_order(state, system, kind, involved, size, chunk_size, dimensions)
        size -= part
        chunk = cursor[FREE_CHUNK]
        if chunk == NONE or part > LARGEST_INT:
            stop(state, FULL if chunk == NONE else TOO_LARGE, layer, phase)
            return False
        cursor[FREE_CHUNK] = state.chunk[chunk, NEXT]
        state.chunk[chunk, SET] = own
        state.chunk[chunk, CHUNK_PRIORITY] = priority
        state.chunk[chunk, PHASES] = 0
        state.chunk[chunk, CURRENT] = 0
        add_phases(state, system, chunk, kind, involved, dimensions, part)
        record[TOTAL] += 1
        record[LEFT] = record[TOTAL]  # none ends before all are issued
        start_waiting(state, system, enter(state, system, chunk))
    cursor[INJECTED] += record[TOTAL]
    state.result[layer, COLLECTIVE_COUNT] += 1
    state.collective[phase, layer, OUTSTANDING] += 1
    state.collective[phase, layer, BLOCKING] = blocking
    return True


@jit
def finished_or_wait(state, phase, layer):
    """Whether a layer's collectives of a phase have ended; if not, note since when one waits."""
    own = state.collective[phase, layer]
    if own[OUTSTANDING] == 0:
        return True
    if own[WAITING_SINCE] == NONE:
        own[WAITING_SINCE] = tick(state)
    return False


@jit
def end_collective(state, layers, own):
    """Count a collective that has ended, its update included.

    Returns
    -------
    wakes : bool
        Whether the training loop was waiting for it.
    chunks : int
    """
    record = state.sets[own]
    layer, phase = record[SET_LAYER], record[SET_PHASE]
    finish = record[SET_FINISH] + layers.update[layer]
    state.result[layer, COMMUNICATION + phase] += finish - record[CREATED]
    collective = state.collective[phase, layer]
    wakes = True
    if collective[OUTSTANDING] == 1 and collective[BLOCKING] == 1:
        state.result[layer, EXPOSED + phase] += finish - record[CREATED]
    elif collective[WAITING_SINCE] != NONE:
        state.result[layer, EXPOSED + phase] += finish - collective[WAITING_SINCE]
        collective[WAITING_SINCE] = NONE
    else:
        wakes = False
    collective[OUTSTANDING] -= 1
    record[NEXT] = state.cursor[FREE_SET]
    state.cursor[FREE_SET] = own
    return wakes, record[TOTAL]


@jit
def count_ended(state, chunks):
    """Count the chunks of a collective whose end everybody knows of."""
    state.cursor[ENDED] += chunks
