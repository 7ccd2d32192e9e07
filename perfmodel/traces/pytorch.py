"""PyTorch's traces as execution traces: operators and kernels, collectives with size and group.

With a Kineto trace, the host's operators and CUDA calls become computation on the host, what
ran on the GPU computation with its recorded duration, and NCCL's kernels collectives with
kind, size and process group; dependencies are those of `perfmodel.traces.pytorch_timeline`.
Host and device then take the recorded time, and collectives that of the network they run on.
Kinds, sizes and groups come from the kernel's arguments in the Kineto trace or from the
``record_param_comms`` operator around its launch, in either trace.

Without a Kineto trace there are no times: operators follow each other in the order of their
numbers and take none, collectives follow their operator, and ``wait`` waits for its collective.

What mlcommons/chakra does (``src/converter/pytorch_converter.py``, 02bbd24) differs: it chains
operators by their self time alone, and forgets the time in which the host does something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.errors import FormatError
from perfmodel.formats.kineto import OPERATOR, KinetoTrace
from perfmodel.formats.pytorch_collectives import (
    RECEIVE,
    SEND,
    WAIT,
    CollectiveRecord,
    collective_kind,
)
from perfmodel.formats.pytorch_trace import HostTrace
from perfmodel.trace import (
    ABSENT,
    COLLECTIVE,
    COLLECTIVES,
    COMPUTE,
    Trace,
    TraceBuilder,
    TraceSet,
)
from perfmodel.trace import RECEIVE as RECEIVE_NODE
from perfmodel.trace import SEND as SEND_NODE
from perfmodel.traces.pytorch_timeline import (
    IDLE,
    Host,
    Kernel,
    device_kernels,
    host_segments,
    join_streams,
    synchronise_host,
    wait_for_collectives,
)

# A barrier of NCCL is the all-reduce of one element (ProcessGroupNCCL::barrier).
BARRIER_SIZE = 4  # B
LIBRARIES = ("nccl", "rccl")
IDLE_NAME = "(host, no operator)"
SEPARATOR = ","  # between the ranks in a group's name

RankTraces = tuple[HostTrace | None, KinetoTrace | None]


def pytorch_trace(
    host: HostTrace | None,
    kineto: KinetoTrace | None = None,
    rank: int = 0,
    devices: int | None = None,
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
        _write_timeline(writer, host, kineto)
    elif host is not None:
        _write_operators(writer, host)
    else:
        raise FormatError("neither a host trace nor a Kineto trace is given")
    return writer.builder.build()


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
        trace = pytorch_trace(*pairs[0])
        count = _recorded_devices(*pairs[0]) if devices is None else devices
        if count > 1 and (trace.group_names or (trace.source != ABSENT).any()):
            raise FormatError(
                f"one trace cannot stand for {count} ranks: it has collectives of some ranks "
                "only, or messages; give the traces of all ranks"
            )
        return TraceSet((trace,) * max(count, 1))
    if devices not in (None, len(pairs)):
        raise FormatError(f"{len(pairs)} traces for {devices} ranks; give one, or one per rank")
    for place, (_, kineto) in enumerate(pairs):
        if kineto is not None and kineto.rank not in (ABSENT, place):
            raise FormatError(
                f"trace {place} is that of rank {kineto.rank}; traces should be in order of ranks"
            )
    traces = [
        pytorch_trace(host, kineto, rank, len(pairs)) for rank, (host, kineto) in enumerate(pairs)
    ]
    names: dict[str, str] = {}
    for trace in traces:
        for name in trace.group_names:
            names.setdefault(name, str(len(names) + 1))
    groups = {names[name]: tuple(map(int, name.split(SEPARATOR))) for name in names}
    for ranks in groups.values():
        if max(ranks) >= len(pairs):
            raise FormatError(f"a process group has rank {max(ranks)} of {len(pairs)} traces")
    return TraceSet(
        tuple(
            replace(trace, group_names=tuple(names[name] for name in trace.group_names))
            for trace in traces
        ),
        groups,
    )


def _recorded_devices(host: HostTrace | None, kineto: KinetoTrace | None) -> int:
    """Return how many ranks the traces speak of; at least 1."""
    sizes = [1 if host is None else host.devices]
    if kineto is not None:
        sizes += [kineto.devices, *(record.group_size for record in kineto.collectives.values())]
    return max(1, *sizes)


class _Writer:
    """Nodes as they are added, and how collectives become nodes."""

    def __init__(self, rank: int, devices: int) -> None:
        self.builder = TraceBuilder()
        self._rank = rank
        self._devices = devices
        self._messages: dict[tuple[int, int], int] = {}

    def host(self, name: str, duration: float, parents: Sequence[int]) -> int:
        """Add work of the host."""
        return self.builder.add(name, COMPUTE, duration=duration, on_cpu=1, data=parents)

    def kernel(self, name: str, duration: float, parents: Sequence[int]) -> int:
        """Add computation on the device."""
        return self.builder.add(name, COMPUTE, duration=duration, on_cpu=0, data=parents)

    def collective(
        self, name: str, record: CollectiveRecord, duration: float, parents: Sequence[int]
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
            return self._message(name, record, duration, parents)
        return self.builder.add(
            name,
            COLLECTIVE,
            collective=COLLECTIVES.index(record.kind),
            communication_size=size,
            duration=duration,
            group=self._group(name, record),
            on_cpu=0,
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
        if sorted(record.ranks) == list(range(self._devices)):
            return ""
        return SEPARATOR.join(map(str, record.ranks))

    def _message(
        self, name: str, record: CollectiveRecord, duration: float, parents: Sequence[int]
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
            data=parents,
        )


def _write_operators(writer: _Writer, host: HostTrace) -> None:
    """Add operators and collectives of a host trace, in the order of their numbers."""
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
        operator = writer.host(name, 0.0, parents)
        last = [operator]
        if record is None or record.kind == WAIT:
            continue
        parents = [operator, *[by_group[g] for g in (record.group,) if g in by_group]]
        node = writer.collective(f"{record.kind} {record.group}", record, 0.0, parents)
        by_group[record.group] = by_sequence[record.sequence] = node


def _write_timeline(writer: _Writer, host: HostTrace | None, kineto: KinetoTrace) -> None:
    """Add host and device nodes of a Kineto trace, numbered in the order of their starts."""
    threads = host_segments(kineto)
    operators = _operator_records(host, kineto)
    kernels = device_kernels(kineto)
    records = _kernel_records(kineto, threads, kernels, operators)
    join_streams(kineto, kernels, records)
    waits = _waits(kineto, kernels, records, operators)
    wait_for_collectives(kernels, waits, kineto.resolution / 2)
    synchronise_host(kineto, threads, kernels)

    entries = [(segment.start, 0, i) for i, segment in enumerate(threads.segments)]
    entries += [(kernel.start, 1, i) for i, kernel in enumerate(kernels)]
    entries.sort()
    segment_numbers = {i: number for number, (_, kind, i) in enumerate(entries) if kind == 0}
    kernel_numbers = {
        kernels[i].event: number for number, (_, kind, i) in enumerate(entries) if kind == 1
    }
    for _, kind, i in entries:
        if kind == 0:
            segment = threads.segments[i]
            name = IDLE_NAME if segment.owner == IDLE else kineto.names[segment.owner]
            parents = [segment_numbers[before] for before in segment.after]
            parents += [kernel_numbers[event] for event in segment.kernels]
            writer.host(name, segment.duration, parents)
            continue
        kernel = kernels[i]
        name, duration = kineto.names[kernel.event], float(kineto.duration[kernel.event])
        launch = threads.last.get(kernel.launch)
        parents = [] if launch is None else [segment_numbers[launch]]
        parents += [kernel_numbers[event] for event in kernel.after]
        if kernel.event in records:
            writer.collective(name, records[kernel.event], duration, parents)
        else:
            writer.kernel(name, duration, parents)


def _operator_records(host: HostTrace | None, kineto: KinetoTrace) -> dict[int, CollectiveRecord]:
    """Return what both traces say of the collectives of operators, by Kineto's position."""
    records = {
        position: record
        for position, record in kineto.collectives.items()
        if kineto.category[position] == OPERATOR
    }
    if host is not None:
        by_function = {
            int(host.record_function[position]): record
            for position, record in host.collectives.items()
        }
        for position in np.flatnonzero(kineto.category == OPERATOR).tolist():
            record = by_function.get(int(kineto.record_function[position]))
            if record is not None and kineto.record_function[position] != ABSENT:
                records[position] = _merged(records.get(position), record)
    return records


def _kernel_records(
    kineto: KinetoTrace,
    threads: Host,
    kernels: Sequence[Kernel],
    operators: Mapping[int, CollectiveRecord],
) -> dict[int, CollectiveRecord]:
    """Return the collectives that NCCL's kernels run, by position."""
    found = {}
    for kernel in kernels:
        name = kineto.names[kernel.event]
        if not any(library in name.lower() for library in LIBRARIES):
            continue
        record = kineto.collectives.get(kernel.event)
        around = threads.callers(kernel.launch) if kernel.launch != ABSENT else []
        for operator in around:
            if operator in operators and operators[operator].kind != WAIT:
                record = _merged(record, operators[operator])
        if record is None:
            kind = collective_kind(name)
            if not kind:
                continue
            record = CollectiveRecord(kind)
        found[kernel.event] = record
    return found


def _merged(first: CollectiveRecord | None, second: CollectiveRecord) -> CollectiveRecord:
    """Return the first record with what it does not state from the second."""
    if first is None:
        return second
    missing = {
        name: getattr(second, name)
        for name, none in (
            ("size", ABSENT),
            ("group", ""),
            ("ranks", None),
            ("group_size", ABSENT),
            ("sequence", ABSENT),
            ("peer", ABSENT),
        )
        if getattr(first, name) == none
    }
    return replace(first, **missing)


def _waits(
    kineto: KinetoTrace,
    kernels: Sequence[Kernel],
    records: Mapping[int, CollectiveRecord],
    operators: Mapping[int, CollectiveRecord],
) -> list[tuple[int, float, int]]:
    """Return where host threads waited for which collective's kernel, by sequence number."""
    launched = sorted(
        (kernel.launch_start, kernel.event)
        for kernel in kernels
        if kernel.event in records and records[kernel.event].sequence != ABSENT
    )
    waits = [position for position, record in operators.items() if record.kind == WAIT]
    latest: dict[int, int] = {}
    found = []
    next_launch = 0
    for position in sorted(waits):
        time = float(kineto.start[position])
        while next_launch < len(launched) and launched[next_launch][0] <= time:
            event = launched[next_launch][1]
            latest[records[event].sequence] = event
            next_launch += 1
        event = latest.get(operators[position].sequence, ABSENT)
        if event != ABSENT:
            found.append((int(kineto.thread[position]), time, event))
    return found
