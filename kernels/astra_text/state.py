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

from perfmodel.kernels import events as calendars
from perfmodel.kernels._jit import jit
from perfmodel.kernels.events import COLUMNS, MADE, TIME, WAITING, WHAT

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
FREE_CHUNK = 7
FREE_SET = 8
LAST_ISSUE = 9  # [ns], for Themis
FRACTIONS = 10  # whether times may not be whole
CURSORS = 11

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
# Kinds of events; an event's code is KINDS * (number of the chunk or set) + kind. Those up to
# PHASE_STEP are the system layer's own, kept by nanoseconds.
STEP, SET_END, PHASE_STEP, PHASE_END, MESSAGE_END = 0, 1, 2, 3, 4
KINDS = 5

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
    calendar: np.ndarray  # float64[event + 1, COLUMNS] [ns]; made: when it is registered there
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
    calendar = np.empty((events + 1, COLUMNS))
    calendar[0] = 0.0
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
        calendar,
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
def first_of_nanosecond(state, time, registered):
    """Time and registration of the system layer's first event in a time's nanosecond.

    Those behind it happen with it: ``system/Sys.cc`` (``try_register_event``).
    """
    for place in range(1, np.int64(state.calendar[0, WAITING]) + 1):
        own = state.calendar[place]
        if np.int64(own[WHAT]) % KINDS <= PHASE_STEP and np.floor(own[TIME]) == np.floor(time):
            return own[TIME], own[MADE]
    return time, registered


@jit
def schedule(state, time, last, kind, item):
    """Put an event into the calendar.

    Parameters
    ----------
    time : float
        [ns].
    last : float
        How long before its time the simulator would put it there [ns].
    kind, item : int
    """
    if state.calendar[0, WAITING] == state.calendar.shape[0] - 1:
        stop(state, FULL, 0, 0)
        return
    if not time < LATEST:
        stop(state, TOO_LATE, 0, 0)
        return
    registered = time - last
    if state.cursor[FRACTIONS] == 1 and kind <= PHASE_STEP:
        time, registered = first_of_nanosecond(state, time, registered)
    calendars.schedule(state.calendar, time, registered, KINDS * item + kind)


@jit
def next_event(state):
    """Take the next event out of the calendar and set the clock; return its kind and item.

    Events at one time go in the order in which the simulator registers them.
    """
    state.clock[0], _, code = calendars.next_event(state.calendar)
    return code % KINDS, code // KINDS
