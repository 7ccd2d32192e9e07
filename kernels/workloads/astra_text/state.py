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
from perfmodel.kernels.events import CLOCK, COLUMNS, MADE, TIME, WAITING, WHAT
from perfmodel.kernels.plain import blank
from perfmodel.kernels.records import record_types

_RECORDS = record_types(__file__)

NONE = -1

# Phases of a layer, and numbers of its collectives beyond those of `astra_phase`.
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 0, 1, 2
UNSUPPORTED = 4  # ALLREDUCEALLTOALL: the simulator stops where it is issued

# How a run ends; `state.cursor.status`.
RUNNING, FINISHED, FULL, EMPTY, NO_CHUNK, TOO_LARGE, PANIC, NO_CHECKPOINT, PAST_THE_END = range(9)
UNEQUAL_STATUS, TOO_LONG_STATUS, TOO_MANY_EVENTS, STUCK, TOO_LATE = 9, 10, 11, 12, 13
LATEST = 2.0**52  # [ns]; until then a float counts single nanoseconds

# Orders in which a queue takes chunks, and in which a chunk takes dimensions.
FIRST_IN, SMALLEST_FIRST, ALTERNATING, FEWEST_LEFT = 0, 1, 2, 3
ASCENDING, ROUND_ROBIN, THEMIS, THEMIS_FLEX = 0, 1, 2, 3

# Kinds of events; an event's code is KINDS * (number of the chunk or set) + kind. Those up to
# PHASE_STEP are the system layer's own, kept by nanoseconds.
STEP, SET_END, PHASE_STEP, PHASE_END, MESSAGE_END = 0, 1, 2, 3, 4
KINDS = 5

# What a run keeps: `state.cursor.status`, `state.chunk[i].since`.
CURSOR = _RECORDS["CURSOR"]
CHUNK = _RECORDS["CHUNK"]
PHASE = _RECORDS["PHASE"]
SET = _RECORDS["SET"]
QUEUE = _RECORDS["QUEUE"]
COLLECTIVES = _RECORDS["COLLECTIVES"]
DIMENSION = _RECORDS["DIMENSION"]

# What a run is told.
CALL = _RECORDS["CALL"]
ROW = _RECORDS["ROW"]
LOGICAL = _RECORDS["LOGICAL"]


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
    network: np.recarray  # of NETWORK, shape (physical,)
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
    calls: np.recarray  # of CALL, shape (3, layer)
    rows: np.recarray  # of ROW, shape (layer,)
    involved: np.ndarray  # bool[3, layer, dim]
    dims: np.recarray  # of LOGICAL, shape (dim,)
    network: np.recarray  # of NETWORK, shape (physical,)
    fixed: np.ndarray  # float64[3, layer], or empty


class State(NamedTuple):
    """Everything that changes during a run."""

    cursor: np.record  # of CURSOR
    # float64[event + 1, COLUMNS] [ns]; made: when it is registered there. CLOCK of row 0: [ns]
    calendar: np.ndarray
    chunk: np.recarray  # of CHUNK, shape (chunk,)
    phase: np.recarray  # of PHASE, shape (chunk, 2 dim)
    line: np.ndarray  # int64[queue, chunk] chunks of a queue, those under way first
    queue: np.recarray  # of QUEUE, shape (queue,)
    sets: np.recarray  # of SET, shape (set,)
    collective: np.recarray  # of COLLECTIVES, shape (3, layer)
    dims: np.recarray  # of DIMENSION, shape (dim,)
    pass_end: np.ndarray  # int64[passes] [ns]


def _table(dtype, /, **columns):
    """Return a record array of columns, whose first one says the shape."""
    first = next(iter(columns.values()))
    table = np.zeros(np.shape(first), dtype).view(np.recarray)
    for name, column in columns.items():
        table[name] = column
    return table


def facts_of(layers, loop, system):
    """Return `Facts`.

    Parameters
    ----------
    layers : Layers
    loop : Loop
    system : System
    """
    values = loop._asdict() | system._asdict()
    return Facts(
        _table(SETTINGS, **{name: [values[name]] for name in SETTINGS.names or ()})[0],
        _table(CALL, kind=layers.kind, message=layers.size, compute=layers.compute),
        _table(ROW, update=layers.update, checkpoint=layers.checkpoint, initiates=layers.initiates),
        layers.involved,
        _table(
            LOGICAL,
            members=system.members,
            stride=system.stride,
            physical=system.physical,
            algorithm=system.algorithm.T,
        ),
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
    state = State(
        blank(CURSOR),
        np.zeros((events + 1, COLUMNS)),
        blank(CHUNK, chunks),
        blank(PHASE, chunks, 2 * dims),
        np.zeros((queues, chunks), np.int64),
        blank(QUEUE, queues),
        blank(SET, sets),
        blank(COLLECTIVES, 3, layers),
        blank(DIMENSION, dims),
        np.zeros(passes, np.int64),
    )
    for pool in (state.chunk, state.sets):
        for place in range(len(pool)):
            pool[place].next = place + 1
        pool[len(pool) - 1].next = NONE
    for phase in state.collective:
        for own in phase:
            own.waiting_since = NONE
    for dimension in range(dims):
        state.dims[dimension].load_order = dimension
    follows = facts.fixed.size == 0 and (facts.network.memory_scale > 0.0).any()
    state.cursor.fractions = int(follows)
    return state


@jit_lean
def tick(calendar):
    """Time as the simulator reads it: whole [ns]."""
    return int(calendar[0, CLOCK])


@jit_lean
def stop(cursor, status, layer, phase):
    """End the run early; the first reason stays."""
    if cursor.status == RUNNING:
        cursor.status = status
        cursor.status_layer = layer
        cursor.status_phase = phase


@jit_lean
def first_of_nanosecond(calendar, time, registered):
    """Time and registration of the system layer's first event in a time's nanosecond.

    Those behind it happen with it: ``system/Sys.cc`` (``try_register_event``).
    """
    for place in range(1, np.int64(calendar[0, WAITING]) + 1):
        own = calendar[place]
        if np.int64(own[WHAT]) % KINDS <= PHASE_STEP and int(own[TIME]) == int(time):
            return own[TIME], own[MADE]
    return time, registered


@jit_lean
def schedule(cursor, calendar, time, last, kind, item):
    """Put an event into the calendar.

    Parameters
    ----------
    cursor, calendar
        Of the `State`.
    time : float
        [ns].
    last : float
        How long before its time the simulator would put it there [ns].
    kind, item : int
    """
    if calendar[0, WAITING] == calendar.shape[0] - 1:
        stop(cursor, FULL, 0, 0)
        return
    if not time < LATEST:
        stop(cursor, TOO_LATE, 0, 0)
        return
    registered = time - last
    if cursor.fractions == 1 and kind <= PHASE_STEP:
        time, registered = first_of_nanosecond(calendar, time, registered)
    calendars.schedule(calendar, time, registered, KINDS * item + kind)


@jit_lean
def next_event(calendar):
    """Take the next event out of the calendar and set the clock; return its kind and item.

    Events at one time go in the order in which the simulator registers them.
    """
    calendar[0, CLOCK], _, code = calendars.next_event(calendar)
    return code % KINDS, code // KINDS
