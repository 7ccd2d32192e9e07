"""What the congestion-aware simulation of a collective keeps.

Letters of shapes
    rank    devices that take part
    link    directed links of the network
    stream  chunks that the collective is cut into
    step    messages that one rank handles for one stream, in order
    slot    neighbours that one rank receives from
    token   messages, receives and waiting work items that can exist at once

Every message a rank sends uses up one permission, and every message that arrives
gives one, so the tokens of a stream never grow beyond those it starts with. All
pools below are therefore of fixed size.

Tables with named columns hold what belongs together: every array more that a function
is handed costs as much as a small function does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.events import COLUMNS

NONE = -1

# Columns of `Plan.steps`.
OFFSET = 0  # to the peer's index
SLOT = 1  # of the peer among those that a rank receives from
SIZE = 2  # [B]
OCCUPANCY = 3  # how long a link is busy with the message [ns]
FLIGHT = 4  # from the start on a link to its far end [ns]
REDUCTION = 5  # local reduction before the step [ns]; NONE where none

# Entries of `State.cursor`: the first free place of each pool.
FREE_MESSAGE = 0
FREE_ITEM = 1
FREE_TICK = 2
CURSORS = 3

# Columns of the tables of `State`. NEXT of messages, items and ticks comes first in
# all three: the next place in a list, or in the pool of free ones.
NEXT = 0
MESSAGE_STREAM, MESSAGE_STEP, MESSAGE_RANK, MESSAGE_LINK = 1, 2, 3, 4
ITEM_STREAM, ITEM_REDUCTION = 1, 2  # NONE: complete at its tick; else still to reduce [ns]
TICK_TIME, TICK_FIRST, TICK_LAST = 1, 2, 3  # [ns], first and last item
LINK_BUSY, LINK_FIRST, LINK_LAST, LINK_BYTES = 0, 1, 2, 3  # first and last message waiting
RANK_TICK, RANK_STARTED, RANK_FINISHED, RANK_TIME = 0, 1, 2, 3  # streams; end of all [ns]
HANDLED, SENT, CREDIT, RECEIVED = 0, 1, 2, 3  # steps begun, messages, permissions, messages


class Plan(NamedTuple):
    """What a simulation is told: the messages of a rank, and the network.

    Every rank handles the same steps for every stream. The table has one step per
    message sent and, after them, one per message that a rank may start with: those
    only mark the end.
    """

    steps: np.ndarray  # (step, column)
    sends: int  # messages that a rank sends per stream
    parallel: int  # messages that a rank may start with
    barrier: int  # messages to be received before the second half begins; 0: no barrier
    paired: bool  # the peer is index XOR offset; else index + offset (from: - offset)
    delay: int  # of the endpoint, before every step [ns]
    next_link: np.ndarray  # (node, rank) directed link on the way from node to rank
    target: np.ndarray  # (link,) node at its far end


class State(NamedTuple):
    """Everything that changes during a simulation."""

    cursor: np.ndarray  # (CURSORS,)
    calendar: np.ndarray  # (token + link + 1, COLUMNS) of `kernels.events` [ns]
    message: np.ndarray  # (token, column) on their way
    item: np.ndarray  # (token, column) work of a rank that waits for a tick
    tick: np.ndarray  # (token, column) times at which a rank has work
    link: np.ndarray  # (link, column)
    rank: np.ndarray  # (rank, column)
    stream: np.ndarray  # (stream, rank, column)
    balance: np.ndarray  # (stream, rank, slot) receives posted - messages arrived


@jit
def _pool(size, columns):
    """Table whose rows are all free, each pointing to the next."""
    table = np.empty((size, columns), np.int64)
    table[:, NEXT] = np.arange(1, size + 1)
    table[size - 1, NEXT] = NONE
    return table


@jit
def new_state(ranks, links, streams, parallel, slots):
    """State before the first event."""
    # One place more: the item that is being handled lives on until its work is done.
    tokens = ranks * streams * parallel + 1
    calendar = np.empty((tokens + links + 1, COLUMNS), np.int64)
    calendar[0] = 0
    link = np.zeros((links, 4), np.int64)
    link[:, LINK_FIRST] = NONE
    rank = np.zeros((ranks, 4), np.int64)
    rank[:, RANK_TICK] = NONE
    rank[:, RANK_TIME] = NONE
    return State(
        np.zeros(CURSORS, np.int64),
        calendar,
        _pool(tokens, 5),
        _pool(tokens, 3),
        _pool(tokens, 4),
        link,
        rank,
        np.zeros((streams, ranks, 4), np.int64),
        np.zeros((streams, ranks, slots), np.int32),
    )


@jit
def take(cursor, pool, table):
    """Take the first free row of a pool."""
    row = cursor[pool]
    cursor[pool] = table[row, NEXT]
    return row


@jit
def give_back(cursor, pool, table, row):
    """Return a row to its pool."""
    table[row, NEXT] = cursor[pool]
    cursor[pool] = row
