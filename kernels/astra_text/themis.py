"""Themis: which dimension a chunk takes first, by how much each already has to do.

Rashidi et al., "Themis: A Network Bandwidth-Aware Collective Scheduling Policy", ISCA
2022, as ASTRA-sim 1.0 has it, its slips included: ``system/scheduling/OfflineGreedy.cc``.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.astra.phase import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.kernels.astra_text.state import (
    THEMIS_FLEX,
    tick,
)

MEBIBYTE = 1048576.0
LARGEST_PART = 2.0**46  # [B]; times all devices it still fits 64 bits
SMALL_PART = 16  # of a chunk: a difference that is not worth another order


@jit_lean
def forget_loads(state):
    """Start afresh at every new time at which a collective is issued."""
    if state.cursor.last_issue == tick(state):
        return
    state.cursor.last_issue = tick(state)
    for place in range(state.dims.shape[0]):
        state.dims[place].load = 0.0
        state.dims[place].load_order = place


@jit_lean
def _takes_part(facts, involved, dimension):
    """Whether a dimension takes part in a collective."""
    return involved[dimension] and facts.dims[dimension].members > 1


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
def _add_load(state, facts, kind, dimension, place, size):
    """Add a chunk to the load at a place of the order; return its size behind `dimension`."""
    members = facts.dims[dimension].members
    share = size / MEBIBYTE
    if kind == REDUCE_SCATTER:
        state.dims[place].load += share * ((members - 1) / members) / _bandwidth(facts, dimension)
        return size // members
    state.dims[place].load += share * (members - 1) / _bandwidth(facts, dimension)
    return size * members


@jit_lean
def _balancing_size(state, facts, kind, involved, first):
    """Size of a chunk that would level the loads, the place `first` being the first to work."""
    dims = state.dims.shape[0]
    if kind == REDUCE_SCATTER:
        difference = abs(state.dims[dims - 1].load - state.dims[first].load)
        return _fair_size(facts, kind, difference, state.dims[first].load_order)
    last = dims - 1
    while not _takes_part(facts, involved, state.dims[last].load_order):
        last -= 1
    difference = abs(state.dims[last].load - state.dims[first].load)
    size = _fair_size(facts, kind, difference, state.dims[last].load_order)
    last -= 1
    while first <= last:
        if _takes_part(facts, involved, state.dims[last].load_order):
            size //= facts.dims[state.dims[last].load_order].members
        last -= 1
    return size


@jit_lean
def _sort_loads(state):
    """Sort loads and their dimensions together, ascending; equal ones stay in order."""
    for place in range(1, state.dims.shape[0]):
        load, dimension = state.dims[place].load, state.dims[place].load_order
        before = place - 1
        while before >= 0 and state.dims[before].load > load:
            state.dims[before + 1].load = state.dims[before].load
            state.dims[before + 1].load_order = state.dims[before].load_order
            before -= 1
        state.dims[before + 1].load = load
        state.dims[before + 1].load_order = dimension


@jit_lean
def _reverse_loads(state):
    """Turn the order round."""
    last = state.dims.shape[0] - 1
    for place in range((last + 1) // 2):
        load, dimension = state.dims[place].load, state.dims[place].load_order
        state.dims[place].load = state.dims[last - place].load
        state.dims[place].load_order = state.dims[last - place].load_order
        state.dims[last - place].load = load
        state.dims[last - place].load_order = dimension


@jit_lean
def _plain_order(state, facts, kind, involved, size):
    """Take the dimensions as they are numbered, and add the chunk to their loads."""
    dims = state.dims.shape[0]
    for place in range(dims):
        state.dims[state.dims[place].load_order].load_before = state.dims[place].load
    for dimension in range(dims):
        state.dims[dimension].load = state.dims[dimension].load_before
        state.dims[dimension].load_order = dimension
    if kind == ALL_GATHER:
        _reverse_loads(state)
    for dimension in range(dims):  # by place, though the places may be reversed
        if _takes_part(facts, involved, dimension):
            size = _add_load(state, facts, kind, dimension, dimension, size)


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
    dims = state.dims.shape[0]
    if kind == ALL_REDUCE:
        kind = REDUCE_SCATTER
    _sort_loads(state)
    if kind == ALL_GATHER:
        _reverse_loads(state)
    first = 0
    while first < dims and not _takes_part(facts, involved, state.dims[first].load_order):
        first += 1
    size = chunk if chunk < remaining else remaining
    load_size = chunk
    if first < dims:
        balancing = _balancing_size(state, facts, kind, involved, first)
        flex = facts.of.inter == THEMIS_FLEX
        if balancing < (chunk if flex else chunk // SMALL_PART):
            for place in range(dims):
                state.dims[place].order = place
            _plain_order(state, facts, kind, involved, size if flex else chunk)
            return size
        if flex:
            size = balancing if balancing < remaining else remaining
            load_size = balancing
    for place in range(dims):
        dimension = state.dims[place].load_order
        state.dims[place].order = dimension
        if _takes_part(facts, involved, dimension):
            load_size = _add_load(state, facts, kind, dimension, place, load_size)
    return size
