"""The training loop of ASTRA-sim 1.0 on one device, and the collectives of its layers.

Collectives of layers: cut into chunks with their phases, issued, ended.

Source: astra-sim 07d5d19, ``system/Sys.cc`` (``generate_collective``, ``get_priority``),
``workload/Layer.cc``.

The training loop of ASTRA-sim 1.0 on one device; all others do the same.

Source: astra-sim 07d5d19, ``workload/Workload.cc`` (the ``iterate_...`` functions).
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.events import CLOCK, SCHEDULED, WAITING
from perfmodel.kernels.workloads.astra.phase import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    final_size,
)
from perfmodel.kernels.workloads.astra_text.cost import LARGEST_INT, take_step
from perfmodel.kernels.workloads.astra_text.queue import (
    end_phase,
    enter,
    forget_loads,
    start_waiting,
    themis_order,
)
from perfmodel.kernels.workloads.astra_text.state import (
    EMPTY,
    FINISHED,
    FORWARD,
    FULL,
    INPUT_GRADIENT,
    MESSAGE_END,
    NO_CHECKPOINT,
    NO_CHUNK,
    NONE,
    PANIC,
    PAST_THE_END,
    PHASE_END,
    PHASE_STEP,
    ROUND_ROBIN,
    RUNNING,
    SET_END,
    STEP,
    STUCK,
    THEMIS,
    TOO_LARGE,
    TOO_MANY_EVENTS,
    UNSUPPORTED,
    WEIGHT_GRADIENT,
    next_event,
    schedule,
    stop,
    tick,
)

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


FORWARD_STATE, WEIGHT_STATE, INPUT_STATE, AGAIN_STATE, END_STATE = 0, 1, 2, 3, 4


@jit_lean
def check_end(state, passes):
    """After the last pass: end the run, or wait for what is still under way.

    The wait is noted for the first layer's weight gradient alone.
    """
    if state.cursor.iteration < passes:
        return
    state.cursor.where = END_STATE
    if state.cursor.ended == state.cursor.injected:
        state.cursor.status = FINISHED
    elif state.cursor.subscribed == 0:
        state.cursor.subscribed = 1
        finished_or_wait(state, WEIGHT_GRADIENT, 0)


@jit_lean
def compute(state, facts, phase):
    """Compute a phase of the layer, once per visit; return whether it takes time from now."""
    if state.cursor.computed == 1:
        return False
    state.cursor.computed = 1
    time = facts.calls[phase][state.cursor.layer].compute
    state.collective[phase][state.cursor.layer].compute += time
    if time == 0:
        return False
    schedule(state.cursor, state.calendar, state.calendar[0, CLOCK] + time, float(time), STEP, 0)
    return True


@jit_lean
def change(state, where, layer):
    """Go to a state and a layer; that takes 1 ns."""
    state.cursor.where = where
    state.cursor.layer = layer
    state.cursor.computed = 0
    state.cursor.issued = 0
    schedule(state.cursor, state.calendar, state.calendar[0, CLOCK] + 1.0, 1.0, STEP, 0)


@jit_lean
def end_pass(state):
    """Note the end of a pass and begin the next one."""
    state.pass_end[state.cursor.iteration] = tick(state.calendar)
    state.cursor.iteration += 1
    change(state, FORWARD_STATE, 0)


@jit_lean
def forward_step(state, facts):
    """Go on with a forward layer, the first time or again before a backward pass."""
    layer = state.cursor.layer
    if not finished_or_wait(state, WEIGHT_GRADIENT, layer):
        return
    if compute(state, facts, FORWARD):
        return
    if facts.of.recommender:
        if state.cursor.issued == 0 and facts.calls[FORWARD][layer].kind == ALL_TO_ALL:
            state.cursor.issued = 1
            issue(state, facts, FORWARD, layer, HIGHEST, False)
        elif layer == facts.of.last_bottom and not finished_or_wait(state, FORWARD, 0):
            return
    elif facts.of.forward_blocking and state.cursor.issued == 0:
        state.cursor.issued = 1
        if issue(state, facts, FORWARD, layer, SYSTEM_ORDER, True):
            return
    layer += 1
    if state.cursor.where == AGAIN_STATE:
        if layer == facts.rows.shape[0]:
            stop(state.cursor, PAST_THE_END, layer - 1, FORWARD)
            return
        change(state, INPUT_STATE if facts.rows[layer].initiates else AGAIN_STATE, layer)
    elif layer < facts.rows.shape[0]:
        change(state, FORWARD_STATE, layer)
    elif facts.of.inference:
        end_pass(state)
    else:
        change(state, WEIGHT_STATE if facts.of.weight_first else INPUT_STATE, layer - 1)


@jit_lean
def weight_step(state, facts):
    """Go on with a weight gradient."""
    layer = state.cursor.layer
    if compute(state, facts, WEIGHT_GRADIENT):
        return
    if state.cursor.issued == 0 and facts.of.weight_collective:
        state.cursor.issued = 1
        order = FIRST_IN_ORDER if facts.of.weight_first_in else SYSTEM_ORDER
        issue(state, facts, WEIGHT_GRADIENT, layer, order, False)
    if facts.of.weight_waits and not finished_or_wait(state, INPUT_GRADIENT, layer):
        return
    if layer == 0:
        end_pass(state)
    elif facts.of.reorder:
        change(state, WEIGHT_STATE if layer == 1 else INPUT_STATE, layer - 1)
    else:
        change(state, INPUT_STATE, layer if facts.of.weight_first else layer - 1)


@jit_lean
def input_step(state, facts):
    """Go on with an input gradient."""
    layer = state.cursor.layer
    if facts.rows[layer].initiates and state.cursor.again == 0:
        state.cursor.again = 1
        while layer >= 0 and not facts.rows[layer].checkpoint:
            layer -= 1
        if layer < 0:
            stop(state.cursor, NO_CHECKPOINT, state.cursor.layer, INPUT_GRADIENT)
            return
        change(state, AGAIN_STATE, layer)
        return
    if compute(state, facts, INPUT_GRADIENT):
        return
    state.cursor.again = 0
    if facts.of.recommender:
        if layer == facts.of.last_bottom + 1:
            issue(state, facts, INPUT_GRADIENT, 0, HIGHEST, False)
    elif facts.of.input_collective and (layer > 0 or facts.of.first_input_collective):
        issue(state, facts, INPUT_GRADIENT, layer, LAST_IN_ORDER, False)
    change(state, WEIGHT_STATE, layer - 1 if facts.of.weight_first else layer)


@jit_lean
def step(state, facts, passes):
    """Go on with the training loop as far as it comes without waiting."""
    if facts.of.micro:
        while state.cursor.iteration < passes:
            issue(state, facts, WEIGHT_GRADIENT, 0, SYSTEM_ORDER, False)
            state.cursor.iteration += 1
    if state.cursor.status == RUNNING:
        check_end(state, passes)
    if state.cursor.status != RUNNING:
        return
    if state.cursor.where == FORWARD_STATE or state.cursor.where == AGAIN_STATE:
        forward_step(state, facts)
    elif state.cursor.where == WEIGHT_STATE:
        weight_step(state, facts)
    elif state.cursor.where == INPUT_STATE:
        input_step(state, facts)


@jit_lean
def run(state, facts, passes, most_events):
    """Run a workload.

    Parameters
    ----------
    state : State
        `new_state`, which becomes that after the last event: its ``cursor.status`` says how
        the run ended; ``FULL`` with fewer chunks or collectives than were needed.
    facts : Facts
    passes : int
    most_events : int
        The run ends ``TOO_MANY_EVENTS`` beyond.
    """
    step(state, facts, passes)
    while state.cursor.status == RUNNING:
        if state.calendar[0, WAITING] == 0:
            stop(state.cursor, STUCK, 0, 0)
            break
        if state.calendar[0, SCHEDULED] > most_events:
            stop(state.cursor, TOO_MANY_EVENTS, 0, 0)
            break
        kind, item = next_event(state.calendar)
        if kind == STEP:
            step(state, facts, passes)
        elif kind in (PHASE_STEP, MESSAGE_END):
            if take_step(state, facts, item):
                end_phase(state, facts, item)
        elif kind == PHASE_END:
            end_phase(state, facts, item)
        elif kind == SET_END:
            wakes, ended = end_collective(state, facts, item)
            if wakes:
                step(state, facts, passes)
            state.cursor.ended += ended
            if state.cursor.subscribed == 1 and state.cursor.status == RUNNING:
                check_end(state, passes)
