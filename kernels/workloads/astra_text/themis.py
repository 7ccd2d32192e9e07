"""Themis: which dimension a chunk takes first, by how much each already has to do.

Rashidi et al., "Themis: A Network Bandwidth-Aware Collective Scheduling Policy", ISCA
2022, as ASTRA-sim 1.0 has it, its slips included: ``system/scheduling/OfflineGreedy.cc``.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.workloads.astra.phase import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.kernels.workloads.astra_text.state import (
    THEMIS_FLEX,
    tick,
)

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
