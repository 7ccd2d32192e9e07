"""Chunks of collectives in the queues of dimensions, and in which order they take these.

Chunks of collectives in the queues of dimensions, as in ASTRA-sim 1.0.

Source: astra-sim 07d5d19, ``system/Sys.cc`` (``insert_stream``, ``SchedulerUnit``,
``proceed_to_next_vnet_baseline``).

Themis: which dimension a chunk takes first, by how much each already has to do.

Rashidi et al., "Themis: A Network Bandwidth-Aware Collective Scheduling Policy", ISCA
2022, as ASTRA-sim 1.0 has it, its slips included: ``system/scheduling/OfflineGreedy.cc``.
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
from perfmodel.kernels.workloads.astra_text.cost import (
    TOO_LONG,
    goes_in_equal_steps,
    phase,
    take_step,
)
from perfmodel.kernels.workloads.astra_text.state import (
    ALTERNATING,
    FIRST_IN,
    NONE,
    PHASE_END,
    SET_END,
    SMALLEST_FIRST,
    THEMIS_FLEX,
    TOO_LONG_STATUS,
    UNEQUAL_STATUS,
    schedule,
    stop,
    tick,
)


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


MEBIBYTE = 1048576.0
LARGEST_PART = 2.0**46  # [B]; times all devices it still fits 64 bits
SMALL_PART = 16  # of a chunk: a difference that is not worth another order


@jit_lean
def forget_loads(state):
    """Start afresh at every new time at which a collective is issued."""
    if state.cursor.last_issue == tick(state.calendar):
        return
    state.cursor.last_issue = tick(state.calendar)
    for place in range(state.dims.shape[0]):
        state.dims[place].load = 0.0
        state.dims[place].load_order = place


@jit_lean
def _takes_part(dims, involved, dimension):
    """Whether a dimension takes part in a collective."""
    return involved[dimension] and dims[dimension].members > 1


@jit_lean
def _bandwidth(facts, dimension):
    """Bandwidth of a dimension over that of the first one."""
    return facts.network[facts.dims[dimension].physical].relative_bandwidth


@jit_lean
def _fair_size(facts, kind, difference, dimension):
    """Bytes that take a dimension as long as a difference of loads."""
    members = facts.dims[dimension].members
    relative = _bandwidth(facts, dimension)
    share = (members - 1) / members if kind == REDUCE_SCATTER else (members - 1) / 1
    size = difference * relative / share * MEBIBYTE
    return int(size if size < LARGEST_PART else LARGEST_PART)


@jit_lean
def _add_load(loads, facts, kind, dimension, place, size):
    """Add a chunk to the load at a place of the order; return its size behind `dimension`."""
    members = facts.dims[dimension].members
    share = size / MEBIBYTE
    if kind == REDUCE_SCATTER:
        loads[place].load += share * ((members - 1) / members) / _bandwidth(facts, dimension)
        return size // members
    loads[place].load += share * (members - 1) / _bandwidth(facts, dimension)
    return size * members


@jit_lean
def _balancing_size(loads, facts, kind, involved, first):
    """Size of a chunk that would level the loads, the place `first` being the first to work."""
    dims = loads.shape[0]
    if kind == REDUCE_SCATTER:
        difference = abs(loads[dims - 1].load - loads[first].load)
        return _fair_size(facts, kind, difference, loads[first].load_order)
    last = dims - 1
    while not _takes_part(facts.dims, involved, loads[last].load_order):
        last -= 1
    difference = abs(loads[last].load - loads[first].load)
    size = _fair_size(facts, kind, difference, loads[last].load_order)
    last -= 1
    while first <= last:
        if _takes_part(facts.dims, involved, loads[last].load_order):
            size //= facts.dims[loads[last].load_order].members
        last -= 1
    return size


@jit_lean
def _sort_loads(loads):
    """Sort loads and their dimensions together, ascending; equal ones stay in order."""
    for place in range(1, loads.shape[0]):
        load, dimension = loads[place].load, loads[place].load_order
        free = loads[place]
        before = place - 1
        while before >= 0 and loads[before].load > load:
            free.load = loads[before].load
            free.load_order = loads[before].load_order
            free = loads[before]
            before -= 1
        free.load = load
        free.load_order = dimension


@jit_lean
def _reverse_loads(loads):
    """Turn the order round."""
    last = loads.shape[0] - 1
    for place in range((last + 1) // 2):
        one, other = loads[place], loads[last - place]
        one.load, other.load = other.load, one.load
        one.load_order, other.load_order = other.load_order, one.load_order


@jit_lean
def _plain_order(loads, facts, kind, involved, size):
    """Take the dimensions as they are numbered, and add the chunk to their loads."""
    dims = loads.shape[0]
    for place in range(dims):
        loads[loads[place].load_order].load_before = loads[place].load
    for dimension in range(dims):
        loads[dimension].load = loads[dimension].load_before
        loads[dimension].load_order = dimension
    if kind == ALL_GATHER:
        _reverse_loads(loads)
    for dimension in range(dims):  # by place, though the places may be reversed
        if _takes_part(facts.dims, involved, dimension):
            size = _add_load(loads, facts, kind, dimension, dimension, size)


@jit_lean
def themis_order(state, facts, kind, involved, remaining, chunk):
    """Choose the order of dimensions and the size of the next chunk.

    Column ``ORDER`` of ``state.dims`` becomes the dimensions in the order in which it takes them.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE``, ``ALL_GATHER`` or ``REDUCE_SCATTER``.
    involved : bool[dim]
    remaining : int
        Bytes of the collective that are not in chunks yet [B].
    chunk : int
        Recommended size [B].

    Returns
    -------
    int
        Size of the chunk [B].
    """
    loads = state.dims
    dims = loads.shape[0]
    if kind == ALL_REDUCE:
        kind = REDUCE_SCATTER
    _sort_loads(loads)
    if kind == ALL_GATHER:
        _reverse_loads(loads)
    first = 0
    while first < dims and not _takes_part(facts.dims, involved, loads[first].load_order):
        first += 1
    size = chunk if chunk < remaining else remaining
    load_size = chunk
    if first < dims:
        balancing = _balancing_size(loads, facts, kind, involved, first)
        flex = facts.of.inter == THEMIS_FLEX
        if balancing < (chunk if flex else chunk // SMALL_PART):
            for place in range(dims):
                loads[place].order = place
            _plain_order(loads, facts, kind, involved, size if flex else chunk)
            return size
        if flex:
            size = balancing if balancing < remaining else remaining
            load_size = balancing
    for place in range(dims):
        dimension = loads[place].load_order
        loads[place].order = dimension
        if _takes_part(facts.dims, involved, dimension):
            load_size = _add_load(loads, facts, kind, dimension, place, load_size)
    return size
