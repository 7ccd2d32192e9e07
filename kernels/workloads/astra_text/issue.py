"""Collectives of layers: cut into chunks with their phases, issued, ended.

Source: astra-sim 07d5d19, ``system/Sys.cc`` (``generate_collective``, ``get_priority``),
``workload/Layer.cc``.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.workloads.astra.phase import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    final_size,
)
from perfmodel.kernels.workloads.astra_text.cost import LARGEST_INT
from perfmodel.kernels.workloads.astra_text.queue import enter, start_waiting
from perfmodel.kernels.workloads.astra_text.state import (
    EMPTY,
    FULL,
    NO_CHUNK,
    NONE,
    PANIC,
    ROUND_ROBIN,
    RUNNING,
    THEMIS,
    TOO_LARGE,
    UNSUPPORTED,
    stop,
    tick,
)
from perfmodel.kernels.workloads.astra_text.themis import forget_loads, themis_order

SYSTEM_ORDER, FIRST_IN_ORDER, LAST_IN_ORDER, HIGHEST = 0, 1, 2, 3
HIGHEST_PRIORITY = 100_000_000


@jit_lean
def next_priority(state, facts, order):
    """Priority of a collective; larger ones go first."""
    if order == HIGHEST:
        return HIGHEST_PRIORITY
    last_in_first = facts.of.last_in_first
    if order != SYSTEM_ORDER:
        last_in_first = order == LAST_IN_ORDER
    priority = state.cursor.priority
    state.cursor.priority += 1 if last_in_first else -1
    return priority


@jit_lean
def dimension_order(state, facts, kind, involved, remaining, chunk):
    """Find the order of dimensions of the next chunk; return the chunk's size."""
    dims = state.dims.shape[0]
    if facts.of.inter >= THEMIS and kind != ALL_TO_ALL:
        return themis_order(state, facts, kind, involved, remaining, chunk)
    first = 0
    if facts.of.inter == ROUND_ROBIN:
        first = state.cursor.turn
        state.cursor.turn = (first + 1) % dims
    for place in range(dims):
        dimension = (place + first) % dims
        state.dims[place].order = dims - 1 - dimension if kind == ALL_GATHER else dimension
    return chunk if chunk < remaining else remaining


@jit_lean
def add_phase(state, facts, chunk, kind, algorithm, dimension, size):
    """Add a phase to a chunk; return the bytes after it."""
    own = state.chunk[chunk]
    step = state.phase[chunk][own.phases]
    step.kind = kind
    step.algorithm = algorithm
    step.dimension = dimension
    step.queue = dimension * facts.of.queues + state.dims[dimension].next_queue
    state.dims[dimension].next_queue = (state.dims[dimension].next_queue + 1) % facts.of.queues
    step.before = size
    step.after = final_size(kind, size, facts.dims[dimension].members)
    own.phases += 1
    return step.after


@jit_lean
def add_phases(state, facts, chunk, kind, involved, size):
    """Give a chunk its phases, in the order of its dimensions.

    An all-reduce scatters on the way out and gathers on the way back; unless Themis
    schedules it, it reduces whole on the last dimension.
    """
    dims = state.dims.shape[0]
    last = NONE
    for place in range(dims):
        dimension = state.dims[place].order
        if involved[dimension] and facts.dims[dimension].members > 1:
            last = dimension
    there_and_back = kind == ALL_REDUCE and not facts.of.whole_all_reduce
    turns = there_and_back and facts.of.inter < THEMIS
    for place in range(dims):
        dimension = state.dims[place].order
        if not (involved[dimension] and facts.dims[dimension].members > 1):
            continue
        step = kind
        if there_and_back:
            step = ALL_REDUCE if turns and dimension == last else REDUCE_SCATTER
        algorithm = facts.dims[dimension].algorithm[kind]
        size = add_phase(state, facts, chunk, step, algorithm, dimension, size)
    if not there_and_back:
        return
    for place in range(dims - 1, -1, -1):
        dimension = state.dims[place].order
        if not (involved[dimension] and facts.dims[dimension].members > 1):
            continue
        if not (turns and dimension == last):
            algorithm = facts.dims[dimension].algorithm[kind]
            size = add_phase(state, facts, chunk, ALL_GATHER, algorithm, dimension, size)


@jit_lean
def issue(state, facts, phase, layer, order, blocking):
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
    call = facts.calls[phase][layer]
    kind = call.kind
    if kind == NONE:
        return False
    if kind == UNSUPPORTED:
        stop(state.cursor, PANIC, layer, phase)
        return False
    involved = facts.involved[phase, layer]
    size = call.message
    chunk_size = size // facts.of.splits
    priority = next_priority(state, facts, order)
    if facts.of.inter >= THEMIS:
        forget_loads(state)
    if size == 0:
        stop(state.cursor, EMPTY, layer, phase)
        return False
    sends = False
    for dimension in range(state.dims.shape[0]):
        sends |= involved[dimension] and facts.dims[dimension].members > 1
    if not sends:
        dimension_order(state, facts, kind, involved, size, chunk_size)
        return False
    if chunk_size == 0 or chunk_size > LARGEST_INT:
        stop(state.cursor, NO_CHUNK if chunk_size == 0 else TOO_LARGE, layer, phase)
        return False
    own = cursor.free_set
    if own == NONE:
        stop(state.cursor, FULL, layer, phase)
        return False
    record = state.sets[own]
    cursor.free_set = record.next
    record.total = 0
    record.created = tick(state.calendar)
    record.layer = layer
    record.phase = phase
    while size > 0 and cursor.status == RUNNING:
        part = dimension_order(state, facts, kind, involved, size, chunk_size)
        size -= part
        chunk = cursor.free_chunk
        if chunk == NONE or part > LARGEST_INT:
            stop(state.cursor, FULL if chunk == NONE else TOO_LARGE, layer, phase)
            return False
        piece = state.chunk[chunk]
        cursor.free_chunk = piece.next
        piece.owner = own
        piece.priority = priority
        piece.phases = 0
        piece.current = 0
        add_phases(state, facts, chunk, kind, involved, part)
        record.total += 1
        record.left = record.total  # none ends before all are issued
        start_waiting(state, facts, enter(state, facts, chunk))
    cursor.injected += record.total
    collective = state.collective[phase][layer]
    collective.issued += 1
    collective.outstanding += 1
    collective.blocking = blocking
    return True


@jit_lean
def finished_or_wait(state, phase, layer):
    """Whether a layer's collectives of a phase have ended; if not, note since when one waits."""
    own = state.collective[phase][layer]
    if own.outstanding == 0:
        return True
    if own.waiting_since == NONE:
        own.waiting_since = tick(state.calendar)
    return False


@jit_lean
def end_collective(state, facts, own):
    """Count a collective that has ended, its update included.

    Returns
    -------
    wakes : bool
        Whether the training loop was waiting for it.
    chunks : int
        Whose end everybody knows of from now on.
    """
    record = state.sets[own]
    layer, phase = record.layer, record.phase
    finish = record.finish + facts.rows[layer].update
    collective = state.collective[phase][layer]
    collective.communication += finish - record.created
    wakes = True
    if collective.outstanding == 1 and collective.blocking == 1:
        collective.exposed += finish - record.created
    elif collective.waiting_since != NONE:
        collective.exposed += finish - collective.waiting_since
        collective.waiting_since = NONE
    else:
        wakes = False
    collective.outstanding -= 1
    record.next = state.cursor.free_set
    state.cursor.free_set = own
    return wakes, record.total
