"""PyTorch's traces as execution traces: operators and kernels, collectives with size and group.

With a Kineto trace, the host's operators and CUDA calls become computation on the host, what
ran on the GPU computation with its recorded duration, and NCCL's kernels collectives with
kind, size and process group; dependencies are those of
`perfmodel.workloads.convert.pytorch_timeline`. Host and device then take the recorded time, and
collectives that of the network they run on. Kinds, sizes and groups come from the kernel's
arguments in the Kineto trace or from the ``record_param_comms`` operator around its launch, in
either trace (`perfmodel.workloads.convert.pytorch_records`).

Without a Kineto trace there are no times: operators follow each other in the order of their
numbers and take none, collectives follow their operator and the one before them in their group,
messages their operator only, and ``wait`` waits for its collective.

What mlcommons/chakra does (``src/converter/pytorch_converter.py``, 02bbd24) differs: it chains
operators by their self time alone, and forgets the time in which the host does something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.workloads.convert.pytorch_gloo import ASSUMED, gloo_collectives, wait_for_gloo
from perfmodel.workloads.convert.pytorch_records import (
    collective_waits,
    kernel_records,
    operator_records,
)
from perfmodel.workloads.convert.pytorch_timeline import (
    device_kernels,
    host_segments,
    join_streams,
    launched_after,
    synchronise_host,
    wait_for_collectives,
)
from perfmodel.workloads.formats.pytorch_collectives import (
    LARGEST_GROUP,
    OPERATOR_PREFIX,
    RECEIVE,
    SEND,
    WAIT,
    CollectiveRecord,
    collective_kind,
)
from perfmodel.workloads.formats.pytorch_host import HostTrace
from perfmodel.workloads.formats.pytorch_kineto import KinetoTrace
from perfmodel.workloads.trace import (
    ABSENT,
    COLLECTIVE,
    COMPUTE,
    EVERYBODY,
    PAUSE,
    REMARKS,
    Trace,
    TraceBuilder,
    TraceSet,
)
from perfmodel.workloads.trace import RECEIVE as RECEIVE_NODE
from perfmodel.workloads.trace import SEND as SEND_NODE

# A barrier of NCCL is the all-reduce of one element (ProcessGroupNCCL::barrier).
BARRIER_SIZE = 4  # B
PAUSE_NAME = "(pause)"
SEPARATOR = ","  # between the ranks in a group's name
# Collectives to which ranks may bring different sizes: with split sizes, or at their root only.
UNEVEN = tuple(map(TRACED.index, ("all_to_all", "scatter", "gather", "broadcast", "reduce")))

RankTraces = tuple[HostTrace | None, KinetoTrace | None]


def pytorch_trace(
    host: HostTrace | None,
    kineto: KinetoTrace | None = None,
    rank: int = 0,
    devices: int | None = None,
    assume: bool = True,
) -> Trace:
    """Convert the traces of one process.

    Parameters
    ----------
    host : HostTrace or None
        None: the Kineto trace alone, which since PyTorch 2.3 says all that is needed.
    kineto : KinetoTrace, optional
        Of the same run.
    rank : int, optional
        Of the process; counts for messages, which name only the other side.
    devices : int, optional
        Ranks of the recorded job; by default what the traces say. Collectives of them all
        have no group, others one named after its ranks.
    assume : bool, optional
        As of `perfmodel.workloads.convert.pytorch_gloo.gloo_collectives`.

    Returns
    -------
    Trace

    Raises
    ------
    FormatError
        A collective's kind, size or group, or a message's other side, is not recorded.
    """
    if devices is None:
        devices = _recorded_devices(host, kineto)
    writer = _Writer(rank, devices)
    if kineto is not None:
        _write_timeline(writer, host, kineto, assume)
    elif host is not None:
        _write_operators(writer, host)
    else:
        raise FormatError("neither a host trace nor a Kineto trace is given")
    return writer.builder.build({REMARKS: "\n".join(writer.remarks)} if writer.remarks else {})


def pytorch_traces(pairs: Sequence[RankTraces], devices: int | None = None) -> TraceSet:
    """Convert the traces of a job.

    Parameters
    ----------
    pairs : sequence of (HostTrace or None, KinetoTrace or None)
        By rank. One pair stands for every rank, if all its collectives are of all ranks.
    devices : int, optional
        Number of ranks; by default that of `pairs`, or for a single one what it says. A single
        pair may run on any number.

    Returns
    -------
    TraceSet
        Groups are numbered ``1``, ``2`` …

    Raises
    ------
    FormatError
        As of `pytorch_trace`; or there are neither one nor `devices` pairs, they are not in the
        order of ranks, or a single one has groups or messages.
    """
    if not pairs:
        raise FormatError("no trace is given")
    if len(pairs) == 1:
        return _one_for_all(pairs[0], devices)
    if devices not in (None, len(pairs)):
        raise FormatError(f"{len(pairs)} traces for {devices} ranks; give one, or one per rank")
    for place, (_, kineto) in enumerate(pairs):
        if kineto is not None and kineto.rank not in (ABSENT, place):
            raise FormatError(
                f"trace {place} is that of rank {kineto.rank}; traces should be in order of ranks"
            )
    traces = _ranks_traces(pairs, assume=True)
    assumed = any(ASSUMED in trace.metadata.get(REMARKS, "") for trace in traces)
    if assumed and not _same_collectives(traces):
        traces = _ranks_traces(pairs, assume=False)
    names: dict[str, str] = {}
    for trace in traces:
        for name in trace.group_names:
            names.setdefault(name, str(len(names) + 1))
    groups = {names[name]: tuple(map(int, name.split(SEPARATOR))) for name in names}
    for ranks in groups.values():
        if max(ranks) >= len(pairs):
            raise FormatError(f"a process group has rank {max(ranks)} of {len(pairs)} traces")
    traces = [
        replace(trace, group_names=tuple(names[name] for name in trace.group_names))
        for trace in traces
    ]
    for name, ranks in [("", tuple(range(len(pairs)))), *groups.items()]:
        _even_sizes(traces, name, ranks)
    return TraceSet(tuple(traces), groups)


def _ranks_traces(pairs: Sequence[RankTraces], assume: bool) -> list[Trace]:
    """Return the trace of each rank of a job."""
    return [
        pytorch_trace(host, kineto, rank, len(pairs), assume)
        for rank, (host, kineto) in enumerate(pairs)
    ]


def _same_collectives(traces: Sequence[Trace]) -> bool:
    """Tell whether the ranks of every group do the same collectives in it."""
    for name in {name for trace in traces for name in trace.group_names} | {""}:
        ranks = list(map(int, name.split(SEPARATOR))) if name else range(len(traces))
        if max(ranks) >= len(traces):
            return False
        kinds = [traces[rank].collective[_collectives_of(traces[rank], name)] for rank in ranks]
        if any(not np.array_equal(kind, kinds[0]) for kind in kinds):
            return False
    return True


def _one_for_all(pair: RankTraces, devices: int | None) -> TraceSet:
    """Return the trace of one rank as that of every rank."""
    trace = pytorch_trace(*pair)
    count = _recorded_devices(*pair) if devices is None else devices
    if count > 1 and (trace.group_names or (trace.source != ABSENT).any()):
        raise FormatError(
            f"one trace cannot stand for {count} ranks: it has collectives of some ranks "
            "only, or messages; give the traces of all ranks"
        )
    if count > LARGEST_GROUP:
        raise FormatError(f"{count} ranks; at most {LARGEST_GROUP} are run")
    return TraceSet((trace,) * max(count, 1))


def _even_sizes(traces: list[Trace], group: str, ranks: Sequence[int]) -> None:
    """Give all ranks the largest size where theirs may differ; a simulation knows one size."""
    nodes = [_collectives_of(traces[rank], group) for rank in ranks]
    kinds = [traces[rank].collective[found] for rank, found in zip(ranks, nodes, strict=True)]
    if any(not np.array_equal(kind, kinds[0]) for kind in kinds):
        return  # the ranks do something else; whoever runs them says so
    sizes = np.array(
        [traces[rank].communication_size[found] for rank, found in zip(ranks, nodes, strict=True)]
    )
    change = np.isin(kinds[0], UNEVEN) & (sizes != sizes[0]).any(axis=0)
    if not change.any():
        return
    largest = sizes.max(axis=0)[change]
    for rank, found in zip(ranks, nodes, strict=True):
        column = traces[rank].communication_size.copy()
        column[found[change]] = largest
        traces[rank] = replace(traces[rank], communication_size=column)


def _collectives_of(trace: Trace, group: str) -> np.ndarray:
    """Return the positions of a group's collectives in a trace."""
    number = EVERYBODY
    if group:
        if group not in trace.group_names:
            return np.zeros(0, np.int64)
        number = trace.group_names.index(group)
    return np.flatnonzero((trace.kinds == COLLECTIVE) & (trace.group == number))


def _recorded_devices(host: HostTrace | None, kineto: KinetoTrace | None) -> int:
    """Return how many ranks the traces speak of; at least 1."""
    sizes = [1 if host is None else host.devices]
    if kineto is not None:
        sizes += [kineto.devices, *(record.group_size for record in kineto.collectives.values())]
        sizes += [max(ranks) + 1 for ranks in kineto.gloo_groups.values()]
    return max(1, *sizes)


class _Writer:
    """Nodes as they are added, and how collectives become nodes."""

    def __init__(self, rank: int, devices: int) -> None:
        self.builder = TraceBuilder()
        self.remarks: list[str] = []
        self._rank = rank
        self._devices = devices
        self._messages: dict[tuple[int, int], int] = {}
        self._names: dict[int, tuple[str, tuple[int, ...]]] = {}  # of groups, by id of the ranks

    def work(
        self,
        parents: Sequence[int],
        name: str,
        duration: float = 0.0,
        lane: int = ABSENT,
        on_cpu: int = 1,
    ) -> int:
        """Add work of the host, or of the device."""
        return self.builder.add(
            name, COMPUTE, duration=duration, on_cpu=on_cpu, lane=lane, data=parents
        )

    def pause(self, parents: Sequence[int], duration: float, name: str = PAUSE_NAME) -> int:
        """Add time in which nobody works."""
        return self.work(parents, name, duration, PAUSE)

    def collectives(
        self,
        parents: Sequence[int],
        name: str,
        records: Sequence[CollectiveRecord],
        duration: float,
        lane: int,
    ) -> None:
        """Add what one kernel carried out, one or several messages in turn."""
        if len(records) > 1:
            lane = ABSENT
        for record in records:
            self.collective(name, record, duration / len(records), parents, lane)

    def collective(
        self,
        name: str,
        record: CollectiveRecord,
        duration: float,
        parents: Sequence[int],
        lane: int = ABSENT,
    ) -> int:
        """Add a collective or message; `duration` is the recorded one."""
        size = record.size
        if record.kind == "barrier":
            record, size = replace(record, kind="all_reduce"), BARRIER_SIZE
        if size == ABSENT:
            raise FormatError(
                f"'{name}': the size of its {record.kind} is not recorded; give the host trace "
                "of the same run, or record with PyTorch 2.3 or later"
            )
        if record.kind in (SEND, RECEIVE):
            return self._message(name, record, duration, parents, lane)
        return self.builder.add(
            name,
            COLLECTIVE,
            collective=TRACED.index(record.kind),
            communication_size=size,
            duration=duration,
            group=self._group(name, record),
            on_cpu=0,
            lane=lane,
            data=parents,
        )

    def _group(self, name: str, record: CollectiveRecord) -> str:
        """Return the name of a collective's group; empty for all ranks."""
        if record.ranks is None:
            if record.group_size in (ABSENT, self._devices):
                return ""
            raise FormatError(
                f"'{name}': the ranks of process group '{record.group}' of {record.group_size} "
                f"are not recorded, and the job has {self._devices}"
            )
        if id(record.ranks) not in self._names:
            everybody = sorted(record.ranks) == list(range(self._devices))
            text = "" if everybody else SEPARATOR.join(map(str, record.ranks))
            self._names[id(record.ranks)] = (text, record.ranks)
        return self._names[id(record.ranks)][0]

    def _message(
        self,
        name: str,
        record: CollectiveRecord,
        duration: float,
        parents: Sequence[int],
        lane: int = ABSENT,
    ) -> int:
        """Add a message; the n-th one between two ranks has tag n on both sides."""
        if record.peer == ABSENT:
            raise FormatError(f"'{name}': the other rank of this {record.kind} is not recorded")
        sends = record.kind == SEND
        ends = (self._rank, record.peer) if sends else (record.peer, self._rank)
        tag = self._messages.get(ends, 0)
        self._messages[ends] = tag + 1
        return self.builder.add(
            name,
            SEND_NODE if sends else RECEIVE_NODE,
            source=ends[0],
            destination=ends[1],
            tag=tag,
            communication_size=record.size,
            duration=duration,
            on_cpu=0,
            lane=lane,
            data=parents,
        )


def _write_operators(writer: _Writer, host: HostTrace) -> None:
    """Add operators and collectives of a host trace, in the order of their numbers."""
    recorded = {int(host.parents[position]) for position in host.collectives}
    silent = Counter(
        name
        for identifier, name in zip(host.identifiers.tolist(), host.names, strict=True)
        if name.startswith(OPERATOR_PREFIX) and collective_kind(name) and identifier not in recorded
    )
    writer.remarks += [
        f"{count} × {name}: no record_param_comms says its size and process group; it takes no time"
        for name, count in sorted(silent.items())
    ]
    last: list[int] = []
    by_sequence: dict[int, int] = {}
    by_group: dict[str, int] = {}
    for position, name in enumerate(host.names):
        if name.startswith("[pytorch|"):  # stands for a thread or the process
            continue
        record = host.collectives.get(position)
        parents = list(last)
        if record is not None and record.kind == WAIT and record.sequence in by_sequence:
            parents.append(by_sequence[record.sequence])
        operator = writer.work(parents, name)
        last = [operator]
        if record is None or record.kind == WAIT:
            continue
        parents = [operator]
        message = record.kind in (SEND, RECEIVE)  # maybe of a batch, whose parts have no order
        if record.group in by_group and not message:
            parents.append(by_group[record.group])
        node = writer.collective(f"{record.kind} {record.group}", record, 0.0, parents)
        by_sequence[record.sequence] = node
        if not message:
            by_group[record.group] = node


@dataclass(slots=True, eq=False)
class _Step:
    """Something of a timeline that becomes nodes.

    Attributes
    ----------
    start, end : float
        [s].
    write : callable
        Adds its nodes, given the numbers of those that have to end first.
    nodes : int
        So many.
    after : list of _Step
        What has to end first.
    first : int
        Number of its first node, once that is settled.
    """

    start: float
    end: float
    write: Callable[..., object]
    nodes: int = 1
    after: list[_Step] = field(default_factory=list)
    first: int = ABSENT

    def pause(self) -> float:
        """Return what passed since the last thing before it ended, or since the beginning [s]."""
        return self.start - max((step.end for step in self.after), default=0.0)


def _write_timeline(
    writer: _Writer, host: HostTrace | None, kineto: KinetoTrace, assume: bool
) -> None:
    """Add host and device nodes of a Kineto trace."""
    slack = kineto.resolution / 2
    threads = host_segments(kineto)
    operators = operator_records(host, kineto)
    kernels = device_kernels(kineto)
    records = kernel_records(kineto, threads, kernels, operators)
    join_streams(kineto, kernels, records)
    waits = collective_waits(kineto, kernels, records, operators)
    wait_for_collectives(kernels, waits, slack)
    synchronise_host(kineto, threads, kernels)
    gloo = gloo_collectives(kineto, threads, kernels, operators, assume)
    wait_for_gloo(kineto, threads, gloo)
    writer.remarks += gloo.remarks

    def work(position: int, duration: float, lane: int, on_cpu: int) -> Callable[..., object]:
        name = kineto.names[position]
        return partial(writer.work, name=name, duration=duration, lane=lane + 1, on_cpu=on_cpu)

    records |= gloo.records
    of_gloo = {kernel.event for kernel in gloo.collectives}
    segments = [
        _Step(s.start, s.end, work(s.owner, s.end - s.start, s.thread, 1)) for s in threads.segments
    ]
    events: dict[int, _Step] = {}
    for kernel in (*kernels, *gloo.collectives):
        duration = kernel.end - kernel.start
        found = records.get(kernel.event, ())
        write = work(kernel.event, duration, kernel.stream, 0)
        if found:
            name = kineto.names[kernel.event]
            lane = kernel.stream
            if kernel.event in of_gloo:
                lane = int(kineto.thread[kernel.event])
            write = partial(
                writer.collectives, name=name, records=found, duration=duration, lane=lane + 1
            )
        elif kernel.event in of_gloo:
            write = partial(writer.pause, duration=duration, name=kineto.names[kernel.event])
        events[kernel.event] = _Step(kernel.start, kernel.end, write, max(len(found), 1))
    for segment, step in zip(threads.segments, segments, strict=True):
        step.after = [segments[before] for before in segment.after]
        step.after += [events[event] for event in segment.events]
    for kernel in (*kernels, *gloo.collectives):
        step = events[kernel.event]
        step.after = [segments[before] for before in launched_after(threads, kernel, slack)]
        step.after += [events[event] for event in kernel.after]
    asked = [events[kernel.event] for kernel in gloo.collectives]
    _write_steps(writer, [*segments, *events.values()], asked, slack)


def _write_steps(
    writer: _Writer, steps: Sequence[_Step], asked: Sequence[_Step], slack: float
) -> None:
    """Write all steps in the order of their starts, and pauses where recorded.

    Collectives of gloo, which several threads carry out, keep the order in which they were
    `asked` for: all ranks have that one.
    """
    place = {
        step: number for number, step in enumerate(sorted(steps, key=lambda s: (s.start, s.end)))
    }
    turn = {step: step.start for step in steps}
    latest = 0.0
    for step in asked:
        turn[step] = latest = max(latest, step.start)
    order = sorted(steps, key=lambda step: turn[step])
    number = 0
    for step in order:
        # Times that differ by less than their resolution could let things wait for each other.
        step.after = [before for before in dict.fromkeys(step.after) if place[before] < place[step]]
        step.first = number + (step.pause() > slack)
        number = step.first + step.nodes
    for step in order:
        parents = [
            node
            for before in step.after
            for node in range(before.first, before.first + before.nodes)
        ]
        if step.pause() > slack:
            writer.pause(parents, step.pause())
            parents = [step.first - 1]
        step.write(parents)
