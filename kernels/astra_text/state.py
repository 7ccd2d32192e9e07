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
from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.astra_text.cost import MEMORY_SCALE
from perfmodel.kernels.events import CLOCK, COLUMNS, MADE, TIME, WAITING, WHAT

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
# The training loop's own: its state, layer and pass; whether the layer's computation in this state
# is done, and its collective issued; whether the forward pass before this input gradient was run
# again, and whether the loop waits for the end of chunks.
WHERE, LAYER, PASS, COMPUTED, ISSUED, AGAIN, SUBSCRIBED = 11, 12, 13, 14, 15, 16, 17
CURSORS = 18

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
# Of `State.collective`; from COUNT on what is reported.
OUTSTANDING, BLOCKING, WAITING_SINCE, COUNT, COMPUTE, EXPOSED, COMMUNICATION = 0, 1, 2, 3, 4, 5, 6
COLLECTIVE_COLUMNS = 7
# Of `State.dims`: the queue that is next, the chunk's order and that of loads (the dimension at a
# place), sum of the time of phases [ns] and their number, bytes sent.
NEXT_QUEUE, ORDER, LOAD_ORDER, PHASE_TIME, PHASE_COUNT, SENT = 0, 1, 2, 3, 4, 5
LOAD, LOAD_BEFORE = 0, 1  # of `State.loads`: of Themis, and while they change their order
# Columns of the tables of `Facts`.
CALL_KIND, CALL_SIZE, CALL_COMPUTE = 0, 1, 2
UPDATE, CHECKPOINT, INITIATES = 0, 1, 2
MEMBERS, STRIDE, PHYSICAL, ALGORITHM = 0, 1, 2, 3  # one algorithm for each collective
# Kinds of events; an event's code is KINDS * (number of the chunk or set) + kind. Those up to
# PHASE_STEP are the system layer's own, kept by nanoseconds.
STEP, SET_END, PHASE_STEP, PHASE_END, MESSAGE_END = 0, 1, 2, 3, 4
KINDS = 5


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
    splits: int
    queues: int  # per dimension
    active: int  # chunks in flight per queue
    delay: int  # of the endpoint [ns]
    last_in_first: bool
    whole_all_reduce: bool  # on each dimension in turn
    intra: int
    inter: int
    fixed: np.ndarray  # float64[3, layer] time of a chunk whatever its bytes [ns]; empty: none


SETTINGS = np.dtype(
    [(name, np.bool_) for name in Loop._fields if name != "last_bottom"]
    + [("last_bottom", np.int64)]
    + [(name, np.int64) for name in ("splits", "queues", "active", "delay", "intra", "inter")]
    + [(name, np.bool_) for name in ("last_in_first", "whole_all_reduce")],
    align=True,
)
"""Numbers of `Loop` and `System`."""


class Facts(NamedTuple):
    """All that a run is told, in as few arrays as can be: kernels hand them on often."""

    of: np.record  # of SETTINGS
    calls: np.ndarray  # int64[3, layer, column]
    rows: np.ndarray  # int64[layer, column]
    involved: np.ndarray  # bool[3, layer, dim]
    dims: np.ndarray  # int64[dim, column]
    network: np.ndarray  # float64[physical, column]
    fixed: np.ndarray  # float64[3, layer], or empty


class State(NamedTuple):
    """Everything that changes during a run."""

    cursor: np.ndarray  # int64[CURSORS]
    # float64[event + 1, COLUMNS] [ns]; made: when it is registered there. CLOCK of row 0: [ns]
    calendar: np.ndarray
    chunk: np.ndarray  # int64[chunk, column]
    phase: np.ndarray  # int64[chunk, 2 dim, column]
    line: np.ndarray  # int64[queue, chunk] chunks of a queue, those under way first
    queue: np.ndarray  # int64[queue, 2]
    sets: np.ndarray  # int64[set, column]
    collective: np.ndarray  # int64[3, layer, column]
    dims: np.ndarray  # int64[dim, column]
    loads: np.ndarray  # float64[dim, 2] of Themis
    pass_end: np.ndarray  # int64[passes] [ns]


def facts_of(layers, loop, system):
    """Return `Facts`.

    Parameters
    ----------
    layers : Layers
    loop : Loop
    system : System
    """
    values = loop._asdict() | system._asdict()
    row = tuple(values[name] for name in SETTINGS.names)
    return Facts(
        np.array([row], SETTINGS).view(np.recarray)[0],
        np.stack((layers.kind, layers.size, layers.compute), axis=2),
        np.stack((layers.update, layers.checkpoint, layers.initiates), axis=1),
        layers.involved,
        np.column_stack((system.members, system.stride, system.physical, system.algorithm.T)),
        system.network,
        system.fixed,
    )


def new_state(facts, passes, chunks, sets):
    """State before the first event.

    Parameters
    ----------
    facts : Facts
    passes : int
    chunks, sets : int
        Sizes of the pools: most chunks and collectives at once.
    """
    dims, layers = len(facts.dims), len(facts.rows)
    queues = int(dims * facts.of.queues)
    # A chunk or a collective waits for one event.
    events = min(queues * int(facts.of.active), chunks) + sets + 2
    chunk = np.zeros((chunks, 8), np.int64)
    pool = np.zeros((sets, 7), np.int64)
    for table in (chunk, pool):
        table[:, NEXT] = np.arange(1, len(table) + 1)
        table[-1, NEXT] = NONE
    collective = np.zeros((3, layers, COLLECTIVE_COLUMNS), np.int64)
    collective[:, :, WAITING_SINCE] = NONE
    cursor = np.zeros(CURSORS, np.int64)
    cursor[FRACTIONS] = (facts.network[:, MEMORY_SCALE] > 0.0).any() and facts.fixed.size == 0
    table = np.zeros((dims, 6), np.int64)
    table[:, LOAD_ORDER] = np.arange(dims)
    return State(
        cursor,
        np.zeros((events + 1, COLUMNS)),
        chunk,
        np.zeros((chunks, 2 * dims, 6), np.int64),
        np.zeros((queues, chunks), np.int64),
        np.zeros((queues, 2), np.int64),
        pool,
        collective,
        table,
        np.zeros((dims, 2)),
        np.zeros(passes, np.int64),
    )


@jit_lean
def tick(state):
    """Time as the simulator reads it: whole [ns]."""
    return int(state.calendar[0, CLOCK])


@jit_lean
def stop(state, status, layer, phase):
    """End the run early; the first reason stays."""
    if state.cursor[STATUS] == RUNNING:
        state.cursor[STATUS] = status
        state.cursor[STATUS_LAYER] = layer
        state.cursor[STATUS_PHASE] = phase


@jit_lean
def first_of_nanosecond(state, time, registered):
    """Time and registration of the system layer's first event in a time's nanosecond.

    Those behind it happen with it: ``system/Sys.cc`` (``try_register_event``).
    """
    for place in range(1, np.int64(state.calendar[0, WAITING]) + 1):
        own = state.calendar[place]
        if np.int64(own[WHAT]) % KINDS <= PHASE_STEP and int(own[TIME]) == int(time):
            return own[TIME], own[MADE]
    return time, registered


@jit_lean
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


@jit_lean
def next_event(state):
    """Take the next event out of the calendar and set the clock; return its kind and item.

    Events at one time go in the order in which the simulator registers them.
    """
    state.calendar[0, CLOCK], _, code = calendars.next_event(state.calendar)
    return code % KINDS, code // KINDS
