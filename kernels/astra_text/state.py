"""What a run of an ASTRA-sim 1.0 text workload is told and keeps, and its calendar.

Letters of shapes
    layer   rows of the workload
    dim     logical dimensions: those of the network, one perhaps split in two
    queue   queues of all dimensions, one after another
    chunk   pieces of collectives that exist at once
    set     collectives under way at once

The pools have fixed sizes; a run that needs more stops with ``FULL`` and is started again
with larger ones. Tables with named columns hold what belongs together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit

NONE = -1

# Phases of a layer, and numbers of its collectives beyond those of `astra_phase`.
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 0, 1, 2
UNSUPPORTED = 4  # ALLREDUCEALLTOALL: the simulator stops where it is issued

# How a run ends; `Cursor.STATUS`. Beside these: the layer and phase in which it happened.
RUNNING, FINISHED, FULL, EMPTY, NO_CHUNK, TOO_LARGE, PANIC, NO_CHECKPOINT, PAST_THE_END = range(9)
UNEQUAL_STATUS, TOO_LONG_STATUS, TOO_MANY_EVENTS, STUCK, TOO_LATE = 9, 10, 11, 12, 13
LATEST = 2.0**52  # [ns]; until then a float counts single nanoseconds

# Entries of `State.cursor`.
STATUS = 0
STATUS_LAYER = 1
STATUS_PHASE = 2
PRIORITY = 3
TURN = 4  # of the round robin of dimensions
INJECTED = 5  # chunks
ENDED = 6  # chunks of collectives that ended
SEQUENCE = 7  # events so far
EVENTS = 8  # events in the calendar
FREE_CHUNK = 9
FREE_SET = 10
LAST_ISSUE = 11  # [ns], for Themis
FRACTIONS = 12  # whether times may not be whole
CURSORS = 13

# Orders in which a queue takes chunks, and in which a chunk takes dimensions.
FIRST_IN, SMALLEST_FIRST, ALTERNATING, FEWEST_LEFT = 0, 1, 2, 3
ASCENDING, ROUND_ROBIN, THEMIS, THEMIS_FLEX = 0, 1, 2, 3

# Columns of the tables of `State`. NEXT of the two pools comes first.
NEXT = 0
SET, CHUNK_PRIORITY, PHASES, CURRENT, STARTED, SINCE = 1, 2, 3, 4, 5, 6
STEPS_TAKEN = 7  # of the phase, where its messages are followed singly
PHASE_KIND, PHASE_ALGORITHM, PHASE_DIMENSION, PHASE_QUEUE = 0, 1, 2, 3
PHASE_SIZE, PHASE_FINAL = 4, 5  # before and after it [B]
LEFT, TOTAL, CREATED, SET_LAYER, SET_PHASE, SET_FINISH = 1, 2, 3, 4, 5, 6
LENGTH, BUSY = 0, 1
OUTSTANDING, BLOCKING, WAITING_SINCE = 0, 1, 2
EVENT_SEQUENCE, EVENT_KIND, EVENT_ITEM = 0, 1, 2
TIME, REGISTERED = 0, 1
# Kinds of events. Those up to PHASE_STEP are the system layer's own, kept by nanoseconds.
STEP, SET_END, PHASE_STEP, PHASE_END, MESSAGE_END = 0, 1, 2, 3, 4

# Columns of `State.result`; each of the last three is one per phase.
COLLECTIVE_COUNT = 0
COMPUTE = 1
EXPOSED = 4
COMMUNICATION = 7
RESULT_COLUMNS = 10


class Layers(NamedTuple):
    """The workload."""

    compute: np.ndarray  # int64[3, layer] [ns]
    kind: np.ndarray  # int64[3, layer] collective; NONE
    size: np.ndarray  # int64[3, layer] [B]
    update: np.ndarray  # int64[layer] [ns]
    involved: np.ndarray  # bool[3, layer, dim]
    checkpoint: np.ndarray  # bool[layer]
    initiates: np.ndarray  # bool[layer]


class Loop(NamedTuple):
    """What distinguishes the kinds of parallelism."""

    micro: bool  # only the first weight-gradient collective, once per pass
    inference: bool  # forward passes only
    weight_first: bool  # weight gradient before input gradient, which the first layer lacks
    reorder: bool  # the first layer's weight gradient right after the second's
    recommender: bool  # embeddings' exchanges overlap the bottom layers
    forward_blocking: bool  # forward collectives, and the pass waits for them
    input_collective: bool
    first_input_collective: bool  # of layer 0 too
    weight_collective: bool
    weight_waits: bool  # for the layer's input-gradient collective
    weight_first_in: bool  # FIFO, whatever the system's policy
    last_bottom: int


class System(NamedTuple):
    """System and network."""

    members: np.ndarray  # int64[dim]
    stride: np.ndarray  # int64[dim] on the physical dimension
    physical: np.ndarray  # int64[dim]
    algorithm: np.ndarray  # int64[4, dim] by collective
    network: np.ndarray  # float64[physical, column]
    relative_bandwidth: np.ndarray  # float64[dim] to the first dimension's; for Themis
    splits: int
    queues: int  # per dimension
    active: int  # chunks in flight per queue
    delay: int  # of the endpoint [ns]
    last_in_first: bool
    whole_all_reduce: bool  # on each dimension in turn
    intra: int
    inter: int
    fixed: np.ndarray  # float64[3, layer] time of a chunk whatever its bytes [ns]; empty: none


class State(NamedTuple):
    """Everything that changes during a run."""

    cursor: np.ndarray  # int64[CURSORS]
    clock: np.ndarray  # float64[1] [ns]
    event_time: np.ndarray  # float64[event, 2] [ns]
    event: np.ndarray  # int64[event, 3]
    chunk: np.ndarray  # int64[chunk, column]
    phase: np.ndarray  # int64[chunk, 2 dim, column]
    line: np.ndarray  # int64[queue, chunk] chunks of a queue, those under way first
    queue: np.ndarray  # int64[queue, 2]
    next_queue: np.ndarray  # int64[dim]
    sets: np.ndarray  # int64[set, column]
    collective: np.ndarray  # int64[3, layer, 3]
    load: np.ndarray  # float64[dim] of Themis
    load_order: np.ndarray  # int64[dim] dimensions as Themis last sorted them
    result: np.ndarray  # int64[layer, RESULT_COLUMNS]
    pass_end: np.ndarray  # int64[passes] [ns]
    latency: np.ndarray  # int64[dim, 2] sum over phases [ns], and their number
    payload: np.ndarray  # int64[physical] sent by a device [B]


@jit
def new_state(layers, dims, physical, queues, passes, chunks, sets, active):
    """State before the first event.

    Parameters
    ----------
    layers, dims, physical, queues, passes : int
        Lengths; `queues` of all dimensions.
    chunks, sets : int
        Sizes of the pools.
    active : int
        Chunks in flight per queue.
    """
    events = min(queues * active, chunks) + sets + 2  # a chunk or a collective waits for one
    chunk = np.zeros((chunks, 8), np.int64)
    chunk[:, NEXT] = np.arange(1, chunks + 1)
    chunk[chunks - 1, NEXT] = NONE
    pool = np.zeros((sets, 7), np.int64)
    pool[:, NEXT] = np.arange(1, sets + 1)
    pool[sets - 1, NEXT] = NONE
    collective = np.zeros((3, layers, 3), np.int64)
    collective[:, :, WAITING_SINCE] = NONE
    return State(
        np.zeros(CURSORS, np.int64),
        np.zeros(1),
        np.empty((events, 2)),
        np.empty((events, 3), np.int64),
        chunk,
        np.empty((chunks, 2 * dims, 6), np.int64),
        np.empty((queues, chunks), np.int64),
        np.zeros((queues, 2), np.int64),
        np.zeros(dims, np.int64),
        pool,
        collective,
        np.zeros(dims),
        np.arange(dims),
        np.zeros((layers, RESULT_COLUMNS), np.int64),
        np.zeros(passes, np.int64),
        np.zeros((dims, 2), np.int64),
        np.zeros(physical, np.int64),
    )


@jit
def tick(state):
    """Time as the simulator reads it: whole [ns]."""
    return np.int64(np.floor(state.clock[0]))


@jit
def stop(state, status, layer, phase):
    """End the run early; the first reason stays."""
    if state.cursor[STATUS] == RUNNING:
        state.cursor[STATUS] = status
        state.cursor[STATUS_LAYER] = layer
        state.cursor[STATUS_PHASE] = phase


@jit
def goes_before(times, event, one, other):
    """Whether an event of the calendar goes before another one."""
    if times[one, TIME] != times[other, TIME]:
        return times[one, TIME] < times[other, TIME]
    if times[one, REGISTERED] != times[other, REGISTERED]:
        return times[one, REGISTERED] < times[other, REGISTERED]
    return event[one, EVENT_SEQUENCE] < event[other, EVENT_SEQUENCE]


@jit
def swap(times, event, one, other):
    """Let two events of the calendar change places."""
    for column in range(2):
        kept = times[one, column]
        times[one, column] = times[other, column]
        times[other, column] = kept
    for column in range(3):
        number = event[one, column]
        event[one, column] = event[other, column]
        event[other, column] = number


@jit
def first_of_nanosecond(state, time, registered):
    """Time and registration of the system layer's first event in a time's nanosecond.

    Those behind it happen with it: ``system/Sys.cc`` (``try_register_event``).
    """
    for place in range(state.cursor[EVENTS]):
        own = state.event_time[place]
        if state.event[place, EVENT_KIND] <= PHASE_STEP and np.floor(own[TIME]) == np.floor(time):
            return own[TIME], own[REGISTERED]
    return time, registered


@jit
def schedule(state, time, last, kind, item):
    """Put an event into the calendar, which is a binary heap.

    Parameters
    ----------
    time : float
        [ns].
    last : float
        How long before its time the simulator would put it there [ns].
    kind, item : int
    """
    cursor = state.cursor
    place = cursor[EVENTS]
    if place == state.event.shape[0]:
        stop(state, FULL, 0, 0)
        return
    if not time < LATEST:
        stop(state, TOO_LATE, 0, 0)
        return
    times, event = state.event_time, state.event
    registered = time - last
    if cursor[FRACTIONS] == 1 and kind <= PHASE_STEP:
        time, registered = first_of_nanosecond(state, time, registered)
    times[place, TIME] = time
    times[place, REGISTERED] = registered
    event[place, EVENT_SEQUENCE] = cursor[SEQUENCE]
    event[place, EVENT_KIND] = kind
    event[place, EVENT_ITEM] = item
    cursor[SEQUENCE] += 1
    cursor[EVENTS] += 1
    while place > 0 and goes_before(times, event, place, (place - 1) // 2):
        swap(times, event, place, (place - 1) // 2)
        place = (place - 1) // 2


@jit
def next_event(state):
    """Take the next event out of the calendar and set the clock; return its kind and item.

    Events at one time go in the order in which the simulator registers them.
    """
    cursor = state.cursor
    times, event = state.event_time, state.event
    state.clock[0] = times[0, TIME]
    kind, item = event[0, EVENT_KIND], event[0, EVENT_ITEM]
    last = cursor[EVENTS] - 1
    cursor[EVENTS] = last
    swap(times, event, 0, last)
    place, first = 0, 1
    while first < last:
        if first + 1 < last and goes_before(times, event, first + 1, first):
            first += 1
        if not goes_before(times, event, first, place):
            break
        swap(times, event, first, place)
        place, first = first, 2 * first + 1
    return kind, item
