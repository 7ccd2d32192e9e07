"""Themis: which dimension a chunk takes first, by how much each already has to do.

Rashidi et al., "Themis: A Network Bandwidth-Aware Collective Scheduling Policy", ISCA
2022, as ASTRA-sim 1.0 has it, its slips included: ``system/scheduling/OfflineGreedy.cc``.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.astra.phase import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.kernels.astra_text.state import LAST_ISSUE, THEMIS_FLEX, tick

MEBIBYTE = 1048576.0
LARGEST_PART = 2.0**46  # [B]; times all devices it still fits 64 bits
SMALL_PART = 16  # of a chunk: a difference that is not worth another order


@jit
def forget_loads(state):
    """Start afresh at every new time at which a collective is issued."""
    if state.cursor[LAST_ISSUE] == tick(state):
        return
    state.cursor[LAST_ISSUE] = tick(state)
    state.load[:] = 0.0
    state.load_order[:] = np.arange(state.load.shape[0])


@jit
def _takes_part(system, involved, dimension):
    """Whether a dimension takes part in a collective."""
    return involved[dimension] and system.members[dimension] > 1


@jit
def _fair_size(system, kind, difference, dimension):
    """Bytes that take a dimension as long as a difference of loads."""
    members = system.members[dimension]
    relative = system.relative_bandwidth[dimension]
    share = (members - 1) / members if kind == REDUCE_SCATTER else (members - 1) / 1
    return np.int64(min(difference * relative / share * MEBIBYTE, LARGEST_PART))


@jit
def _add_load(state, system, kind, dimension, place, size):
    """Add a chunk to the load at a place of the order; return its size behind `dimension`."""
    members = system.members[dimension]
    share = size / MEBIBYTE
    if kind == REDUCE_SCATTER:
        state.load[place] += (
            share * ((members - 1) / members) / system.relative_bandwidth[dimension]
        )
        return size // members
    state.load[place] += share * (members - 1) / system.relative_bandwidth[dimension]
    return size * members


@jit
def _balancing_size(state, system, kind, involved, first):
    """Size of a chunk that would level the loads, the place `first` being the first to work."""
    dims = state.load.shape[0]
    order = state.load_order
    if kind == REDUCE_SCATTER:
        difference = abs(state.load[dims - 1] - state.load[first])
        return _fair_size(system, kind, difference, order[first])
    last = dims - 1
    while not _takes_part(system, involved, order[last]):
        last -= 1
    difference = abs(state.load[last] - state.load[first])
    size = _fair_size(system, kind, difference, order[last])
    last -= 1
    while first <= last:
        if _takes_part(system, involved, order[last]):
            size //= system.members[order[last]]
        last -= 1
    return size


@jit
def _sort_loads(state):
    """Sort loads and their dimensions together, ascending; equal ones stay in order."""
    for place in range(1, state.load.shape[0]):
        load, dimension = state.load[place], state.load_order[place]
        before = place - 1
        while before >= 0 and state.load[before] > load:
            state.load[before + 1] = state.load[before]
            state.load_order[before + 1] = state.load_order[before]
            before -= 1
        state.load[before + 1] = load
        state.load_order[before + 1] = dimension


@jit
def _reverse_loads(state):
    """Turn the order round."""
    state.load[:] = state.load[::-1].copy()
    state.load_order[:] = state.load_order[::-1].copy()


@jit
def _plain_order(state, system, kind, involved, size):
    """Take the dimensions as they are numbered, and add the chunk to their loads."""
    dims = state.load.shape[0]
    load = np.empty(dims)
    for place in range(dims):
        load[state.load_order[place]] = state.load[place]
    state.load[:] = load
    state.load_order[:] = np.arange(dims)
    if kind == ALL_GATHER:
        _reverse_loads(state)
    for dimension in range(dims):  # by place, though the places may be reversed
        if _takes_part(system, involved, dimension):
            size = _add_load(state, system, kind, dimension, dimension, size)


@jit
def themis_order(state, system, kind, involved, remaining, chunk, order):
    """Choose the order of dimensions and the size of the next chunk.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE``, ``ALL_GATHER`` or ``REDUCE_SCATTER``.
    involved : bool[dim]
    remaining : int
        Bytes of the collective that are not in chunks yet [B].
    chunk : int
        Recommended size [B].
    order : int64[dim]
        Result: dimensions in the order in which the chunk takes them.

    Returns
    -------
    int
        Size of the chunk [B].
    """
    dims = order.shape[0]
    if kind == ALL_REDUCE:
        kind = REDUCE_SCATTER
    _sort_loads(state)
    if kind == ALL_GATHER:
        _reverse_loads(state)
    first = 0
    while first < dims and not _takes_part(system, involved, state.load_order[first]):
        first += 1
    size = min(remaining, chunk)
    load_size = chunk
    if first < dims:
        balancing = _balancing_size(state, system, kind, involved, first)
        flex = system.inter == THEMIS_FLEX
        if balancing < (chunk if flex else chunk // SMALL_PART):
            order[:] = np.arange(dims)
            _plain_order(state, system, kind, involved, size if flex else chunk)
            return size
        if flex:
            size = min(remaining, balancing)
            load_size = balancing
    for place in range(dims):
        dimension = state.load_order[place]
        order[place] = dimension
        if _takes_part(system, involved, dimension):
            load_size = _add_load(state, system, kind, dimension, place, load_size)
    return size
