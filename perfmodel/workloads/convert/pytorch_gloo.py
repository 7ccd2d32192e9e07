"""Which collectives and messages gloo carried out, for whom the host waited, from Kineto's traces.

An operator of c10d asks for a collective, and a thread of its process group carries it out, in an
event of gloo's (`perfmodel.workloads.formats.pytorch_collectives`). The two are joined by kind,
elements and order: the first event of the kind that began after the operator did and that no
earlier operator has. Operators without an event last as long as they were recorded.

No event names its process group. It is the only one of the trace's list (``pg_config``) that

* this rank is in,
* has as many ranks as the sizes of two tensors say (``_allgather_base_`` and the like),
* has the other rank of a message, and
* could have started all that ran on the same thread of gloo.

Where several would do, the order of threads is taken for that in which the groups were made: a
group makes its threads (`THREADS` of them) when it is made. So threads from the last one on are
given the last groups that they may be of, and those that may be of different ones are of different
ones; provided that the sizes of tensors leave out some group for some thread, and that all ranks of
a group then do the same in it. A remark says so. Where that does not come out either, a collective
stays what it took on the host, and a remark says so; so does one whose size is not recorded.

The host waited for a collective where

* a ``wait_tensor`` lasted until it had ended, or an operator that waits (``asyncOp`` False) until
  shortly after (it ended within the last quarter of that time);
* the caller did nothing until shortly after it had ended, or whatever the pause if the operator
  says that its caller waits; where the caller did nothing ever after, the thread that had paused
  for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from perfmodel.workloads.convert.pytorch_timeline import (
    Host,
    Kernel,
    Segment,
    follow_streams,
    wait_for,
)
from perfmodel.workloads.formats.pytorch_collectives import (
    CARRIED_OUT_AS,
    MONITORED_BARRIER,
    RECEIVE,
    SEND,
    WAIT,
    CollectiveRecord,
    GlooCall,
)
from perfmodel.workloads.formats.pytorch_kineto import GLOO, OPERATOR, KinetoTrace
from perfmodel.workloads.trace import ABSENT

WAITS = ("::wait_tensor", "::wait")  # at the end of operators' names
LAST_PART = 0.25  # of a pause: what ends in it was waited for
ASSUMED = "process group taken from the order of gloo's threads, which no record confirms"
MOST_LOOKED_AT = 64  # events of gloo that might be an operator's

THREADS = 2  # that carry out collectives, of a process group (ProcessGroupGloo::Options)

Ranks = tuple[int, ...]


@dataclass(slots=True)
class Gloo:
    """What gloo did.

    Attributes
    ----------
    collectives : list of Kernel
        Ordered by when they were asked for.
    records : dict of int to tuple of CollectiveRecord
        By event; of those that can be priced.
    remarks : tuple of str
        What cannot, and why.
    """

    collectives: list[Kernel]
    records: dict[int, tuple[CollectiveRecord, ...]]
    remarks: tuple[str, ...]


@dataclass(slots=True)
class _Item:
    """A collective: its operator, its event, what both say, and what group it may be of.

    `operator` or `event` may be `ABSENT`; `end`: of the last event; `candidates` None: no list of
    groups; `assumed`: several would have done.
    """

    operator: int
    event: int
    call: GlooCall
    end: float = 0.0
    record: CollectiveRecord | None = None
    candidates: set[Ranks] | None = None
    assumed: bool = False


def gloo_collectives(
    kineto: KinetoTrace,
    host: Host,
    kernels: Sequence[Kernel],
    operators: Mapping[int, CollectiveRecord],
    assume: bool = True,
) -> Gloo:
    """Return the collectives of gloo.

    Parameters
    ----------
    kineto : KinetoTrace
    host : Host
        Its threads.
    kernels : sequence of Kernel
        What ran on the device: operators that launched some asked NCCL.
    operators : mapping of int to CollectiveRecord
        ``record_param_comms``, by position.
    assume : bool, optional
        Tell groups by the order of threads where nothing else does.
    """
    slack = kineto.resolution / 2
    inside: dict[int, CollectiveRecord] = {}  # what operators of c10d recorded themselves
    for position, record in operators.items():
        if record.kind != WAIT:
            inside |= {caller: record for caller in host.callers(position)[1:]}
    items = _joined(kineto, slack)
    _leave_to_nccl(kineto, host, kernels, inside, items)
    for item in items:
        item.record = inside.get(item.operator)
    _set_candidates(kineto, items)
    if assume:
        _assume_groups(kineto, items)
    collectives: list[Kernel] = []
    records: dict[int, tuple[CollectiveRecord, ...]] = {}
    remarks: Counter[tuple[str, str]] = Counter()
    streams: dict[tuple[Ranks, ...], int] = {}
    for item in items:
        found, reason = _record(item)
        position = item.event if item.event != ABSENT else item.operator
        if found is None:
            remarks[kineto.names[position], f"{reason}; its time stays that of the host"] += 1
        else:
            records[position] = (found,)
            if item.candidates is None:
                remarks[kineto.names[position], "no process groups are listed; of all ranks"] += 1
            if item.assumed:
                remarks[kineto.names[position], ASSUMED] += 1
        group = tuple(sorted(item.candidates or ()))
        stream = ABSENT - 1 - streams.setdefault(group, len(streams))  # none of the device's
        collectives.append(_kernel(kineto, item, position, stream))
    unknown = np.flatnonzero(kineto.category == GLOO).tolist()
    remarks.update(
        (kineto.names[i], "no collective that is known; its time stays that of the host")
        for i in unknown
        if i not in kineto.gloo
    )
    follow_streams(collectives, slack)
    return Gloo(
        collectives,
        records,
        tuple(f"{count} × {name}: {why}" for (name, why), count in sorted(remarks.items())),
    )


def _joined(kineto: KinetoTrace, slack: float) -> list[_Item]:
    """Return operators with their events, and events without an operator, by their start."""
    waiting: dict[str, list[int]] = {}  # events without an operator, by kind, the last one first
    for position in sorted(kineto.gloo, reverse=True):
        if kineto.category[position] == GLOO:
            waiting.setdefault(kineto.gloo[position].kind, []).append(position)
    items: list[_Item] = []
    operators = [i for i in sorted(kineto.gloo) if kineto.category[i] == OPERATOR]
    following = {i: float(kineto.start[j]) for i, j in pairwise(operators)}
    for operator in operators:
        call, found = kineto.gloo[operator], ABSENT
        for kind in CARRIED_OUT_AS.get(call.kind, (call.kind,)):
            events = waiting.get(kind, [])
            while events and kineto.start[events[-1]] < kineto.start[operator] - slack:
                event = events.pop()
                items.append(_Item(ABSENT, event, kineto.gloo[event], _end(kineto, event)))
            fitting = (e for e in reversed(events[-MOST_LOOKED_AT:]) if _fits(call, kineto.gloo[e]))
            found = next(fitting, ABSENT)
            if found != ABSENT:
                events.remove(found)
                break
        item = _Item(operator, found, call)
        items.append(item)
        if found == ABSENT:
            continue
        item.call = _merged(call, kineto.gloo[found])
        item.end = _end(kineto, found)
        # A list to reduce and scatter is one all-reduce for each rank.
        pieces = call.parts and kineto.gloo[found].elements == call.elements
        while pieces and events and kineto.gloo[events[-1]].elements == call.elements:
            if kineto.start[events[-1]] > following.get(operator, np.inf):
                break
            item.end = max(item.end, _end(kineto, events.pop()))
    items += [
        _Item(ABSENT, event, kineto.gloo[event], _end(kineto, event))
        for events in waiting.values()
        for event in events
    ]
    barriers = [item.operator for item in items if item.call.kind == MONITORED_BARRIER]
    items = [item for item in items if not _of_barrier(kineto, item, barriers)]
    return sorted(items, key=lambda item: item.event if item.operator == ABSENT else item.operator)


def _end(kineto: KinetoTrace, event: int) -> float:
    """Return when an event ended [s]."""
    return float(kineto.start[event] + kineto.duration[event])


def _of_barrier(kineto: KinetoTrace, item: _Item, barriers: Sequence[int]) -> bool:
    """Tell whether a message belongs to a ``monitored_barrier``, which sends some."""
    if item.operator != ABSENT:
        return False
    start, thread = kineto.start[item.event], kineto.thread[item.event]
    return any(
        kineto.thread[barrier] == thread
        and kineto.start[barrier] <= start <= kineto.start[barrier] + kineto.duration[barrier]
        for barrier in barriers
    )


def _fits(call: GlooCall, event: GlooCall) -> bool:
    """Tell whether an event may have carried out an operator of its kind."""
    either = ABSENT in (call.elements, event.elements)
    # Of a scatter the root's event has all parts, those of others have nothing.
    return either or call.parts or call.kind == "scatter" or event.elements == call.elements


def _merged(call: GlooCall, event: GlooCall) -> GlooCall:
    """Return what an operator says, with what only its event does."""
    if call.size != ABSENT:
        return call
    if call.elements == ABSENT:  # gloo's are those of all parts
        return replace(call, size=event.size, parts=False)
    if event.element_size == ABSENT:  # of a scatter the root alone says it
        return replace(call, size=0) if call.kind == "scatter" else call
    return replace(call, size=call.elements * event.element_size)


def _leave_to_nccl(
    kineto: KinetoTrace,
    host: Host,
    kernels: Sequence[Kernel],
    inside: Mapping[int, CollectiveRecord],
    items: list[_Item],
) -> None:
    """Drop operators that gloo did not carry out."""
    alone = [item for item in items if item.event == ABSENT]
    if not alone:
        return
    gloo = len(alone) < len(items) or "gloo" in kineto.backend
    launching: set[int] = set()
    if gloo:
        launching = {
            caller
            for kernel in kernels
            if kernel.launch != ABSENT
            for caller in host.callers(kernel.launch)
            if caller in kineto.gloo
        }
    items[:] = [
        item
        for item in items
        if item.event != ABSENT
        or (gloo and item.operator not in inside and item.operator not in launching)
    ]


def _set_candidates(kineto: KinetoTrace, items: Sequence[_Item]) -> None:
    """Set which process groups each collective may be of."""
    if not kineto.gloo_groups:
        return
    groups = {ranks for ranks in kineto.gloo_groups.values() if kineto.rank in (ABSENT, *ranks)}
    of_thread: dict[int, set[Ranks]] = {}
    for item in items:
        call = item.call
        item.candidates = {
            ranks
            for ranks in groups
            if call.group_size in (ABSENT, len(ranks))
            and (call.peer == ABSENT or _is_other(ranks, call.peer, kineto.rank))
        }
        if item.record is not None and item.record.ranks is not None:
            item.candidates = {item.record.ranks}
        thread = _gloo_thread(kineto, item)
        if thread != ABSENT:
            of_thread[thread] = of_thread.get(thread, groups) & item.candidates
    for item in items:
        common = of_thread.get(_gloo_thread(kineto, item))
        if common and item.candidates:
            item.candidates &= common


def _assume_groups(kineto: KinetoTrace, items: Sequence[_Item]) -> None:
    """Settle groups by the order of gloo's threads, for all of them or for none."""
    own = (ranks for ranks in kineto.gloo_groups.values() if kineto.rank in (ABSENT, *ranks))
    order = list(dict.fromkeys(own))
    threads = {_gloo_thread(kineto, item): item.candidates or set() for item in items}
    threads.pop(ABSENT, None)
    numbers = {thread: kineto.thread_numbers[thread] for thread in threads}
    found = {len(candidates) for candidates in threads.values()}
    if ABSENT in numbers.values() or found == {1} or len(found | {len(order)}) == 1:
        return  # nothing to settle, or no size that says anything
    chosen: dict[int, Ranks] = {}
    current, used, before = len(order), 0, None
    for thread in sorted(threads, key=numbers.__getitem__, reverse=True):
        shared = threads[thread] == before and used < THREADS
        places = [order.index(ranks) for ranks in threads[thread] if ranks in order]
        place = max((p for p in places if p < current + shared), default=ABSENT)
        if place == ABSENT:
            return
        current, used, before = place, used + 1 if place == current else 1, threads[thread]
        chosen[thread] = order[place]
    for item in items:
        thread = _gloo_thread(kineto, item)
        if thread in chosen and item.candidates and len(item.candidates) > 1:
            item.candidates, item.assumed = {chosen[thread]}, True


def _is_other(ranks: Ranks, peer: int, rank: int) -> bool:
    """Tell whether a group has a rank at a place, and that is not this one."""
    return peer < len(ranks) and ranks[peer] != rank


def _gloo_thread(kineto: KinetoTrace, item: _Item) -> int:
    """Return the group's thread that carried out a collective; `ABSENT`: the caller did."""
    if ABSENT in (item.operator, item.event):
        return ABSENT
    thread = int(kineto.thread[item.event])
    return ABSENT if thread == kineto.thread[item.operator] else thread


def _record(item: _Item) -> tuple[CollectiveRecord | None, str]:
    """Return a collective's record, or None and why there is none."""
    call = item.call
    if item.candidates is None:
        ranks = None
    elif len(item.candidates) == 1:
        ranks = next(iter(item.candidates))
    elif item.candidates:
        return None, f"may be of any of {len(item.candidates)} process groups"
    else:
        return None, "of no process group that the trace lists"
    size = call.size
    if call.kind in ("barrier", MONITORED_BARRIER):
        call, size = replace(call, kind="barrier"), 0
    elif size == ABSENT and item.record is not None:
        size = item.record.size
    elif call.parts:
        parts = len(ranks) if ranks is not None else call.group_size
        size = size * parts if ABSENT not in (size, parts) else ABSENT
    if size == ABSENT:
        return None, "its size is not recorded (record_shapes=True does)"
    group_size = ABSENT if ranks is None else len(ranks)
    record = CollectiveRecord(call.kind, size, "", ranks, group_size)
    if call.kind not in (SEND, RECEIVE):
        return record, ""
    if call.peer == ABSENT:
        return None, "the other rank is not recorded (record_shapes=True does)"
    return replace(record, peer=call.peer if ranks is None else ranks[call.peer]), ""


def _kernel(kineto: KinetoTrace, item: _Item, position: int, stream: int) -> Kernel:
    """Return a collective as something that ran beside the host."""
    start = float(kineto.start[position])
    end = item.end if item.event != ABSENT else _end(kineto, position)
    asked = item.operator if item.operator != ABSENT else item.event
    return Kernel(
        position,
        item.operator,
        float(kineto.start[asked]),
        float(kineto.start[asked]),
        int(kineto.thread[asked]),
        start,
        end,
        stream,
        collective=True,
    )


def wait_for_gloo(kineto: KinetoTrace, host: Host, gloo: Gloo) -> None:
    """Let the host wait for collectives where it did."""
    slack = kineto.resolution / 2
    for kernel in gloo.collectives:
        blocking = kernel.launch in kineto.gloo and kineto.gloo[kernel.launch].blocking
        if kernel.thread in host.threads:
            segment = _waiting(kineto, host, kernel, blocking, slack)
            if segment is not None:
                wait_for(segment, [kernel])
    streams: dict[int, list[Kernel]] = {}
    for kernel in sorted(gloo.collectives, key=lambda kernel: kernel.end):
        streams.setdefault(kernel.stream, []).append(kernel)
    for segment in host.segments:
        if not kineto.names[segment.owner].endswith(WAITS):
            continue
        for members in streams.values():
            place = bisect_right(members, segment.end + slack, key=lambda kernel: kernel.end) - 1
            while place >= 0 and members[place].launch_start >= segment.start:
                place -= 1
            if place >= 0:
                wait_for(segment, [members[place]])


def _waiting(
    kineto: KinetoTrace, host: Host, kernel: Kernel, blocking: bool, slack: float
) -> Segment | None:
    """Return the segment that waited for a collective: of its caller, or of the caller's caller."""
    pieces = host.pieces.get(kernel.launch)
    if pieces and kernel.end <= host.segments[pieces[-1]].end + slack:
        segment, begin = host.segments[pieces[-1]], float(kineto.start[kernel.launch])
        if not blocking or _late(begin, kernel.end, segment.end):
            return segment if blocking else None
        own = host.threads[kernel.thread]
        return host.segments[pieces[-1] + 1] if pieces[-1] + 1 < own.stop else None
    last = host.last_ended(kernel.thread, kernel.end + slack)
    if last == ABSENT or host.segments[last].end < kernel.launch_start - slack:
        return None
    begin = host.segments[last].end
    following = host.first_begun(kernel.thread, kernel.end - slack)
    if following not in (ABSENT, last + 1):
        return None  # in the midst of other work
    if following != ABSENT:
        segment = host.segments[following]
        return segment if blocking or _late(begin, kernel.end, segment.start) else None
    # The thread (autograd's) ended with it: whoever had paused before and goes on now.
    for thread in host.threads:
        following = host.first_begun(thread, kernel.end - slack)
        if following in (ABSENT, host.threads[thread].start) or thread == kernel.thread:
            continue
        segment = host.segments[following]
        paused = host.segments[following - 1].end <= kernel.launch_start + slack
        if paused and (blocking or _late(begin, kernel.end, segment.start)):
            return segment
    return None


def _late(begin: float, time: float, end: float) -> bool:
    """Tell whether a time lies in the last part of a stretch."""
    return end - time <= LAST_PART * (end - begin)
