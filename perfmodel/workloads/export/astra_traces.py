"""Traces that ASTRA-sim takes: what one of its versions cannot read is put in another form.

Pure functions of traces. Ranks that share their columns share them afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from perfmodel.base.collectives import SIMULATED, TRACED
from perfmodel.base.columns import Flags, Floats, Integers
from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.chakra.schema import MICROSECONDS
from perfmodel.workloads.formats.chakra.writing import whole_microseconds
from perfmodel.workloads.simulation.costs import node_text, on_host, states_collective
from perfmodel.workloads.trace import (
    ABSENT,
    COMPUTE,
    EVERYBODY,
    MEM_LOAD,
    MEM_STORE,
    METADATA,
    OWN,
    PEERS,
    RECEIVE,
    SEND,
    NamedSizes,
    OtherPeers,
    Ragged,
    RankTraces,
    Trace,
    TraceSet,
)

# The tracker of local memory wants `inputs` and `outputs` on every node, be they empty
# (LocalMemUsageTracker.cc, recordReads). They are written where a trace names a tensor: this one,
# which no node touches.
UNTOUCHED = NamedSizes.of([("none", 0)])
RUN = tuple(TRACED.index(name) for name in (*SIMULATED, "broadcast"))
COLUMNS = tuple(field.name for field in fields(Trace) if field.name not in OWN)


@dataclass(frozen=True, slots=True)
class Accepted:
    """Traces as ASTRA-sim takes them.

    Attributes
    ----------
    traces : TraceSet
    host_time : float64[ranks]
        Work of the host and waiting for it, of each rank [s].
    given_rates : bool
        Computation that stated neither operations nor bytes states some now.
    """

    traces: TraceSet
    host_time: Floats
    given_rates: bool


def accepted(traces: TraceSet, *, peak: float, host: bool) -> Accepted:
    """Return traces that ASTRA-sim takes, and takes as our own reader does.

    Parameters
    ----------
    traces : TraceSet
    peak : float
        Rate of the device [FLOP/s].
    host : bool
        Keep nodes of the host, and of metadata; else what waited for one waits for that node's
        parents, and its time is left out.

    Returns
    -------
    Accepted
        Times are whole microseconds, a positive one at least 1. Every node states lists of inputs
        and outputs, and whether it is the host's. Computation of the device states operations
        and bytes: where there are neither, as many operations as the peak does in its duration;
        where there are no bytes, 1.

    Raises
    ------
    FormatError
        ASTRA-sim stops at a node: a collective that it does not run, an empty message, remote
        memory. Names rank and node.
    """
    changes: dict[tuple[int, ...], _Changed] = {}
    whole: dict[int, Trace] = {}
    parts: list[Trace | OtherPeers] = []
    times = np.zeros(traces.devices)
    for rank, part in enumerate(traces.parts):
        trace = _columns_of(part)
        key = _key(trace)
        if key not in changes:
            changes[key] = _changed(trace, rank, peak, host)
        found = changes[key]
        times[rank] = found.host_time
        if id(trace) not in whole:
            whole[id(trace)] = found.with_own(trace)
        own = whole[id(trace)]
        if isinstance(part, OtherPeers):
            places = part.positions if host else np.searchsorted(found.kept, part.positions)
            parts.append(OtherPeers(own, places, part.source, part.destination))
        else:
            parts.append(own)
    given = any(found.given_rates for found in changes.values())
    return Accepted(TraceSet(RankTraces(parts), traces.groups), times, given)


def uses_groups_of_some(traces: TraceSet) -> bool:
    """Tell whether a collective is of a group that leaves ranks out.

    ASTRA-sim's main then frees an algorithm twice where its list has one entry, that is on
    networks of one dimension: CommunicatorGroup.cc, get_collective_plan; ~CollectivePlan.
    """
    everybody = traces.devices
    some = {name for name, ranks in traces.groups.items() if len(ranks) < everybody}
    seen: set[tuple[int, ...]] = set()
    for trace in map(_columns_of, traces.parts):
        key = (id(trace.group), id(trace.collective), id(trace.group_names))
        if key in seen or some.isdisjoint(trace.group_names):
            continue
        seen.add(key)
        rows = (trace.group != EVERYBODY) & states_collective(trace)
        if any(trace.group_names[group] in some for group in np.unique(trace.group[rows])):
            return True
    return False


def states_durations(traces: TraceSet) -> bool:
    """Tell whether every computation of a device states how long it lasts."""
    return not any(
        (_computes(trace) & (trace.duration == 0)).any() for trace in distinct(traces).values()
    )


def distinct(traces: TraceSet) -> dict[tuple[int, ...], Trace]:
    """Return one trace of those that share all columns but their groups and peers."""
    found: dict[tuple[int, ...], Trace] = {}
    for trace in map(_columns_of, traces.parts):
        found.setdefault(_key(trace), trace)
    return found


def _columns_of(part: Trace | OtherPeers) -> Trace:
    """Return the columns of a rank; peers may be others."""
    return part if isinstance(part, Trace) else part.trace


def _key(trace: Trace) -> tuple[int, ...]:
    """Return what is equal for traces that share their columns, while these are kept."""
    return tuple(id(getattr(trace, name)) for name in COLUMNS)


@dataclass(frozen=True, slots=True)
class _Changed:
    """Columns that some ranks share, changed.

    Attributes
    ----------
    before, after : Trace
    kept : int64[nodes]
        Positions before of the nodes after.
    host_time : float
    given_rates : bool
    """

    before: Trace
    after: Trace
    kept: Integers
    host_time: float
    given_rates: bool

    def with_own(self, trace: Trace) -> Trace:
        """Return the changed trace with what a rank that shared the columns had of its own."""
        own = {name: getattr(trace, name) for name in OWN if name not in PEERS}
        for name in PEERS:
            same = getattr(trace, name) is getattr(self.before, name)
            own[name] = getattr(self.after, name) if same else getattr(trace, name)[self.kept]
        return replace(self.after, **own)


def _changed(trace: Trace, rank: int, peak: float, host: bool) -> _Changed:
    """Return the columns of a trace as ASTRA-sim takes them."""
    _check(trace, rank)
    on_cpu = on_host(trace) & (trace.kinds == COMPUTE)
    host_time = float(trace.duration[on_cpu].sum())
    uncounted = on_cpu | (trace.kinds == METADATA)  # Statistics.cc of main knows neither
    kept = np.arange(trace.nodes) if host else np.flatnonzero(~uncounted)
    after = trace if kept.size == trace.nodes else _without(trace, kept)
    after, given = _with_rates(after, peak)
    after = replace(
        after,
        duration=whole_microseconds(after.duration)[0] / MICROSECONDS,
        start_time=whole_microseconds(after.start_time)[0] / MICROSECONDS,
        on_cpu=np.maximum(after.on_cpu, 0).astype(np.int8),
        lane=np.full(after.nodes, ABSENT, np.int32),
        tensors=after.tensors if len(after.tensors) else UNTOUCHED,
        whole_microseconds=True,
    )
    return _Changed(trace, after, kept, host_time, given)


def _check(trace: Trace, rank: int) -> None:
    """Raise at a node at which every version of ASTRA-sim stops."""
    wrong: Sequence[tuple[Flags, str]] = (
        (
            states_collective(trace) & ~np.isin(trace.collective, RUN),
            "is a collective that ASTRA-sim does not run; it runs "
            + ", ".join(TRACED[kind] for kind in RUN),
        ),
        (
            np.isin(trace.kinds, (SEND, RECEIVE)) & (trace.communication_size <= 0),
            "is a message of 0 B, at which ASTRA-sim stops; it should have at least 1",
        ),
        (
            np.isin(trace.kinds, (MEM_LOAD, MEM_STORE)),
            "loads or stores remote memory, of which ASTRA-sim has none here",
        ),
    )
    for flags, text in wrong:
        if flags.any():
            raise FormatError(f"{node_text(trace, int(np.flatnonzero(flags)[0]), rank)} {text}")


def _computes(trace: Trace) -> Flags:
    """Tell which nodes are computation of the device."""
    return (trace.kinds == COMPUTE) & ~on_host(trace)


def _with_rates(trace: Trace, peak: float) -> tuple[Trace, bool]:
    """Return a trace whose computation states operations and bytes; ASTRA-sim aborts without.

    The operations of a node that states neither take its duration at the peak: half a nanosecond
    more, since ASTRA-sim rounds down.
    """
    computes = _computes(trace)
    no_operations = computes & (trace.num_ops == ABSENT)
    no_bytes = computes & (trace.tensor_size == ABSENT)
    if not (no_operations | no_bytes).any():
        return trace, False
    neither = no_operations & no_bytes
    micros = whole_microseconds(trace.duration)[0]
    nanoseconds = np.maximum(micros * 1000.0, 1.0)
    operations = np.ceil((nanoseconds + 0.5) * 1e-9 * peak).astype(np.int64)
    num_ops = np.where(neither, operations, np.where(no_operations, 1, trace.num_ops))
    tensor_size = np.where(no_bytes, 1, trace.tensor_size)
    return replace(trace, num_ops=num_ops, tensor_size=tensor_size), bool(neither.any())


def _without(trace: Trace, kept: Integers) -> Trace:
    """Return a trace with some of its nodes; what waited for others waits for their parents."""
    removed = np.setdiff1d(np.arange(trace.nodes), kept)
    instead = _instead(trace, removed)
    columns: dict[str, Any] = {
        name: getattr(trace, name)[kept]
        for name in (*COLUMNS, *PEERS)
        if isinstance(getattr(trace, name), np.ndarray)
    }
    columns |= {
        name: _chosen(getattr(trace, name), kept, instead if "parents" in name else {})
        for name in ("data_parents", "control_parents", "inputs", "outputs")
    }
    place = np.cumsum(np.isin(np.arange(trace.nodes), kept)) - 1
    gone = set(removed.tolist())
    other = {int(place[at]): values for at, values in trace.other.items() if at not in gone}
    names = [trace.names[position] for position in kept.tolist()]
    return replace(trace, names=names, other=other, **columns)


def _instead(trace: Trace, removed: Integers) -> dict[int, list[int]]:
    """Return for the identifier of each removed node those of the nodes that count in its place."""
    parents = {
        int(trace.identifiers[at]): [
            *trace.data_parents[at].tolist(),
            *trace.control_parents[at].tolist(),
        ]
        for at in removed.tolist()
    }
    found: dict[int, list[int]] = {}
    for first in parents:
        waiting = [first]
        while waiting:  # a removed node may wait for another
            node = waiting[-1]
            ahead = [one for one in parents[node] if one in parents and one not in found]
            if ahead:
                waiting += ahead
                continue
            lists = (found.get(one, [one]) for one in parents[node])
            found[node] = list(dict.fromkeys(one for some in lists for one in some))
            waiting.pop()
    return found


def _chosen(column: Ragged, kept: Integers, instead: dict[int, list[int]]) -> Ragged:
    """Return some of the lists of a column, with other values in the place of some."""
    values = column.values.tolist()
    begins, ends = column.offsets[kept].tolist(), column.offsets[kept + 1].tolist()
    lists = [values[begin:end] for begin, end in zip(begins, ends, strict=True)]
    if instead and not instead.keys().isdisjoint(values):
        for at, items in enumerate(lists):
            if not instead.keys().isdisjoint(items):
                new = (one for item in items for one in instead.get(item, [item]))
                lists[at] = list(dict.fromkeys(new))
    return Ragged.from_lists(lists)
