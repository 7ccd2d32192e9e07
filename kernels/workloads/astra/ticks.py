"""Work of ranks in ASTRA-sim's machine: what falls on one time of a rank is one event.

It is made when the first of that work was: astra-sim/system Sys.cc, ``try_register_event``.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.workloads.astra.machine_state import (
    NEXT,
    NONE,
    RANK_TICK,
    REDUCTION,
    TICK_FIRST,
    TICK_LAST,
    TICK_RANK,
    TICK_TIME,
    WHO,
    give_back,
    take,
)
from perfmodel.kernels.workloads.astra.transport import TICK, note

# Who waits: a chunk, or a node of the workload.
KINDS_OF_WHO = 2
A_CHUNK, A_NODE = 0, 1


@jit_lean
def wait(state, time, rank, who, reduction):
    """Let work of a rank wait; what falls on one time shares one event."""
    item = take(state)
    state.cell[item, WHO] = who
    state.cell[item, REDUCTION] = reduction
    state.cell[item, NEXT] = NONE
    tick = state.rank[rank, RANK_TICK]
    while tick != NONE and state.cell[tick, TICK_TIME] != time:
        tick = state.cell[tick, NEXT]
    if tick != NONE:
        state.cell[state.cell[tick, TICK_LAST], NEXT] = item
        state.cell[tick, TICK_LAST] = item
        return
    tick = take(state)
    state.cell[tick, TICK_TIME] = time
    state.cell[tick, TICK_FIRST] = item
    state.cell[tick, TICK_LAST] = item
    state.cell[tick, TICK_RANK] = rank
    state.cell[tick, NEXT] = state.rank[rank, RANK_TICK]
    state.rank[rank, RANK_TICK] = tick
    note(state, time, TICK, tick)


@jit_lean
def forget_tick(state, tick):
    """Forget a time at which a rank had work, which is done."""
    rank = state.cell[tick, TICK_RANK]
    before = state.rank[rank, RANK_TICK]
    if before == tick:
        state.rank[rank, RANK_TICK] = state.cell[tick, NEXT]
    else:
        while state.cell[before, NEXT] != tick:
            before = state.cell[before, NEXT]
        state.cell[before, NEXT] = state.cell[tick, NEXT]
    give_back(state, tick)
