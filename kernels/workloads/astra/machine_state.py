"""What ASTRA-sim's machine of ranks is told and keeps: `perfmodel.kernels.workloads.astra.machine`.

Letters of shapes
    rank     devices
    link     directed links of the network
    queue    dimensions of the network, each with one queue of chunks on every rank
    cell     messages, receives, chunks and waiting work that exist at once
    node     operations of all ranks

All that passes between ranks lives in cells of one table, each as long as a line of the
processor's cache; the table grows as needed. What does not change is one list of numbers, facts,
in which records name each other by where they begin. Every array more that a function is handed
costs as much as a small function does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.events import COLUMNS, SCHEDULED, WAITING

NONE = -1

# Facts begin with settings.
RANKS = 0
TOPOLOGY = 1
WIDTH = 2  # of a mesh
ACTIVE = 3  # chunks that a queue works on at once
SETTINGS = 4

# Topologies of shared links, and none: every message by itself.
UNSHARED = -1
RING_LINKS, FULL_LINKS, SWITCH_LINKS, MESH_LINKS = 0, 1, 2, 3

# A collective as a rank begins it. What it is: its phases follow each other.
CALL_MEMBERS = 0  # where the ids of its ring are, in order; NONE: dimensions of the network
CALL_COUNTER = 1  # where chunks that its members began are counted; NONE: all chunks of the rank
CALL_TAG = 2  # of the first chunk
CALL_CHUNKS = 3
CALL_PHASE = 4  # the first one
CALL_PHASES = 5


PHASE_ALGORITHM = 0  # as in kernels.astra.phase, or DOUBLE_TREE
PHASE_KIND = 1
PHASE_MEMBERS = 2
PHASE_STRIDE = 3  # difference of neighbours' ids; 0: those of the list
PHASE_QUEUE = 4
PHASE_DELAY = 5  # of the endpoint [ns]
PHASE_SENDS = 6  # messages of a member
PHASE_PARALLEL = 7  # with how many it starts
PHASE_BARRIER = 8  # messages to be received before the second half begins; 0: no barrier
PHASE_ADDING = 9  # steps of a turn that add what was received, after those it starts with
PHASE_PACKET = 10  # its first message
PHASE_COLUMNS = 11
DOUBLE_TREE = 3

PACKET_SIZE = 0  # [B]
PACKET_OCCUPANCY = 1  # how long a link is busy with it [ns]
PACKET_FLIGHT = 2  # from its start on a link to the far end [ns]
PACKET_REDUCTION = 3  # to add it to local memory [ns]
PACKET_COLUMNS = 4

# A message between two ranks as a rank sends or receives it.
MESSAGE_PEER = 0
MESSAGE_TAG = 1
MESSAGE_PACKET = 2


# Columns of cells. NEXT: the next one in a list, or in that of free cells.
NEXT = 0
TO, LINK, PACKET, TAG, FROM, SENDER = 1, 2, 3, 4, 5, 6  # a message on its way
WHO, REDUCTION = 1, 2  # work of a rank; NONE: complete at its tick, else still to reduce [ns]
TICK_TIME, TICK_FIRST, TICK_LAST, TICK_RANK = 1, 2, 3, 4  # when a rank has work
KEY_TAG, KEY_PAIR, KEY_SIZE, KEY_WHO = 1, 2, 3, 4  # a receive, or a message that came EARLY
RANK, PHASE, CHUNK_TAG, HANDLED, SENT, CREDIT, RECEIVED = 1, 2, 3, 4, 5, 6, 7  # a chunk
CELL_COLUMNS = 8
EARLY = -1

# Columns of tables.
LINK_BUSY, LINK_FIRST, LINK_LAST, LINK_BYTES = 0, 1, 2, 3  # first and last message waiting
# The collective of a rank, its first chunk's tag and the chunks that have started and are left.
RANK_TICK, RANK_BEGUN, RANK_CALL, RANK_PLACE, RANK_NODE = 0, 1, 2, 3, 4
RANK_TAG, RANK_STARTED, RANK_LEFT = 5, 6, 7
RANK_TREES = 8  # chunks that went over trees
# Its queues follow: chunks at work, the first and the last one that waits beyond its first phase.
RANK_QUEUES = 9
QUEUE_RUNNING, QUEUE_FIRST, QUEUE_LAST = 0, 1, 2
QUEUE_COLUMNS = 3

# Counts: the first free cell, how many are free, and the chunks that members of groups began.
FREE, SPARE = 0, 1
COUNTERS = 2


class State(NamedTuple):
    """Everything that a run of the machine reads or changes, but for its workload."""

    facts: np.ndarray  # int64: settings and records
    network: np.ndarray  # float64[dimension, NETWORK_COLUMNS]; empty with shared links
    counts: np.ndarray  # int64: FREE, SPARE, and counters
    calendar: np.ndarray  # int64[event + 1, COLUMNS] of `kernels.events` [ns]
    cell: np.ndarray  # int64[cell, CELL_COLUMNS]
    bucket: np.ndarray  # int64[power of two]: receives and early messages by their key
    link: np.ndarray  # int64[link, 4]
    rank: np.ndarray  # int64[rank, RANK_QUEUES + QUEUE_COLUMNS * queue]


@jit
def new_state(facts, network, links, queues, counters, cells):
    """State before the first event.

    Parameters
    ----------
    facts : int64[:]
    network : float64[dimension, NETWORK_COLUMNS]
    links, queues, counters : int
    cells : int
        To begin with.
    """
    ranks = facts[RANKS]
    cell = np.empty((cells, CELL_COLUMNS), np.int64)
    for place in range(cells):
        cell[place, NEXT] = place + 1
    cell[cells - 1, NEXT] = NONE
    calendar = np.empty((cells + links + 1, COLUMNS), np.int64)
    calendar[0] = 0
    link = np.zeros((links, 4), np.int64)
    link[:, LINK_FIRST] = NONE
    rank = np.zeros((ranks, RANK_QUEUES + QUEUE_COLUMNS * queues), np.int64)
    rank[:, RANK_TICK] = NONE
    for queue in range(queues):
        rank[:, RANK_QUEUES + QUEUE_COLUMNS * queue + QUEUE_FIRST] = NONE
    counts = np.zeros(COUNTERS + counters, np.int64)
    counts[SPARE] = cells
    return State(facts, network, counts, calendar, cell, _buckets(cells), link, rank)


@jit
def _buckets(cells):
    """Empty lists of receives: a power of two, half as many as there are cells at least."""
    number = 1
    while 2 * number < cells:
        number *= 2
    return np.full(number, NONE)


@jit
def grown(state):
    """The same state with room for twice as much."""
    # Loops: Numba takes seconds to compile what copies one array into a part of another.
    cells = state.cell.shape[0]
    cell = np.empty((2 * cells, CELL_COLUMNS), np.int64)
    for place in range(cells):
        for column in range(CELL_COLUMNS):
            cell[place, column] = state.cell[place, column]
        cell[cells + place, NEXT] = cells + place + 1
    cell[2 * cells - 1, NEXT] = state.counts[FREE]
    calendar = np.empty((state.calendar.shape[0] + cells, COLUMNS), np.int64)
    for place in range(state.calendar[0, WAITING] + 1):
        for column in range(COLUMNS):
            calendar[place, column] = state.calendar[place, column]
    bucket = _buckets(2 * cells)
    new = State(
        state.facts, state.network, state.counts, calendar, cell, bucket, state.link, state.rank
    )
    new.counts[FREE] = cells
    new.counts[SPARE] += cells
    # Those of one key stay in their order.
    for place in range(state.bucket.shape[0]):
        waiting = state.bucket[place]
        while waiting != NONE:
            after = cell[waiting, NEXT]
            key = cell[waiting]
            append(new, bucket_of(new, key[KEY_TAG], key[KEY_PAIR], key[KEY_SIZE]), waiting)
            waiting = after
    return new


@jit_lean
def bucket_of(state, tag, pair, size):
    """Where receives of a key are looked for: tag, sender and receiver, size."""
    return (1_000_003 * tag + 31 * pair + 7 * size) & (state.bucket.shape[0] - 1)


@jit_lean
def append(state, bucket, cell):
    """Put a receive or an early message behind the others of its bucket."""
    state.cell[cell, NEXT] = NONE
    last = state.bucket[bucket]
    if last == NONE:
        state.bucket[bucket] = cell
        return
    while state.cell[last, NEXT] != NONE:
        last = state.cell[last, NEXT]
    state.cell[last, NEXT] = cell


@jit_lean
def take(state):
    """Take a free cell; there is one."""
    cell = state.counts[FREE]
    state.counts[FREE] = state.cell[cell, NEXT]
    state.counts[SPARE] -= 1
    return cell


@jit_lean
def give_back(state, cell):
    """Free a cell."""
    state.cell[cell, NEXT] = state.counts[FREE]
    state.counts[FREE] = cell
    state.counts[SPARE] += 1


@jit_lean
def is_short(state, burst):
    """Whether there may not be room for what one event makes: so many cells and events."""
    room = state.calendar.shape[0] - 1 - state.calendar[0, WAITING]
    return state.counts[SPARE] < burst or room < burst


@jit_lean
def events_of(state):
    """Events scheduled so far."""
    return state.calendar[0, SCHEDULED]
