"""PyTorch's traces as execution traces: operators and kernels, collectives with size and group.

With a Kineto trace, the host's operators and CUDA calls become computation on the host, what
ran on the GPU computation with its recorded duration, and NCCL's kernels collectives with
kind, size and process group; dependencies are those of `perfmodel.convert.pytorch_timeline`.
Host and device then take the recorded time, and collectives that of the network they run on.
Kinds, sizes and groups come from the kernel's arguments in the Kineto trace or from the
``record_param_comms`` operator around its launch, in either trace
(`perfmodel.convert.pytorch_records`).

Without a Kineto trace there are no times: operators follow each other in the order of their
numbers and take none, collectives follow their operator and the one before them in their group,
messages their operator only, and ``wait`` waits for its collective.

What mlcommons/chakra does (``src/converter/pytorch_converter.py``, 02bbd24) differs: it chains
operators by their self time alone, and forgets the time in which the host does something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.convert.pytorch_records import collective_waits, kernel_records, operator_records
from perfmodel.convert.pytorch_timeline import (
    IDLE,
    device_kernels,
    host_segments,
    join_streams,
    synchronise_host,
    wait_for_collectives,
)
from perfmodel.formats.pytorch.collectives import (
    LARGEST_GROUP,
    RECEIVE,
    SEND,
    WAIT,
    CollectiveRecord,
)
from perfmodel.formats.pytorch.host import HostTrace
from perfmodel.formats.pytorch.kineto import KinetoTrace
from perfmodel.trace import ABSENT, COLLECTIVE, COMPUTE, EVERYBODY, Trace, TraceBuilder, TraceSet
from perfmodel.trace import RECEIVE as RECEIVE_NODE
from perfmodel.trace import SEND as SEND_NODE

# A barrier of NCCL is the all-reduce of one element (ProcessGroupNCCL::barrier).
BARRIER_SIZE = 4  # B
IDLE_NAME = "(host, no operator)"
SEPARATOR = ","  # between the ranks in a group's name
# Collectives to which ranks may bring different sizes: with split sizes, or at their root only.
UNEVEN = tuple(map(TRACED.index, ("all_to_all", "scatter", "gather", "broadcast", "reduce")))

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
        return _one_for_all(pairs[0], devices)
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
    traces = [
        replace(trace, group_names=tuple(names[name] for name in trace.group_names))
        for trace in traces
    ]
    for name, ranks in [("", tuple(range(len(pairs)))), *groups.items()]:
        _even_sizes(traces, name, ranks)
    return TraceSet(tuple(traces), groups)


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
    return max(1, *sizes)


class _Writer:
    """Nodes as they are added, and how collectives become nodes."""

    def __init__(self, rank: int, devices: int) -> None:
        self.builder = TraceBuilder()
        self._rank = rank
        self._devices = devices
        self._messages: dict[tuple[int, int], int] = {}
        self._names: dict[int, tuple[str, tuple[int, ...]]] = {}  # of groups, by id of the ranks

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
            collective=TRACED.index(record.kind),
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
        if id(record.ranks) not in self._names:
            everybody = sorted(record.ranks) == list(range(self._devices))
            text = "" if everybody else SEPARATOR.join(map(str, record.ranks))
            self._names[id(record.ranks)] = (text, record.ranks)
        return self._names[id(record.ranks)][0]

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
        parents = [operator]
        message = record.kind in (SEND, RECEIVE)  # maybe of a batch, whose parts have no order
        if record.group in by_group and not message:
            parents.append(by_group[record.group])
        node = writer.collective(f"{record.kind} {record.group}", record, 0.0, parents)
        by_sequence[record.sequence] = node
        if not message:
            by_group[record.group] = node


def _write_timeline(writer: _Writer, host: HostTrace | None, kineto: KinetoTrace) -> None:
    """Add host and device nodes of a Kineto trace, numbered in the order of their starts."""
    threads = host_segments(kineto)
    operators = operator_records(host, kineto)
    kernels = device_kernels(kineto)
    records = kernel_records(kineto, threads, kernels, operators)
    join_streams(kineto, kernels, records)
    waits = collective_waits(kineto, kernels, records, operators)
    wait_for_collectives(kernels, waits, kineto.resolution / 2)
    synchronise_host(kineto, threads, kernels)

    entries = [(segment.start, 0, i) for i, segment in enumerate(threads.segments)]
    entries += [(kernel.start, 1, i) for i, kernel in enumerate(kernels)]
    entries.sort()
    segment_numbers: dict[int, int] = {}
    kernel_numbers: dict[int, range] = {}  # several where a kernel carries several messages
    number = 0
    for _, kind, i in entries:
        if kind == 0:
            segment_numbers[i] = number
            number += 1
        else:
            event = kernels[i].event
            count = len(records.get(event, (None,)))
            kernel_numbers[event] = range(number, number + count)
            number += count
    for _, kind, i in entries:
        if kind == 0:
            segment = threads.segments[i]
            name = IDLE_NAME if segment.owner == IDLE else kineto.names[segment.owner]
            parents = [segment_numbers[before] for before in segment.after]
            parents += _numbers(kernel_numbers, segment.kernels)
            writer.host(name, segment.duration, parents)
            continue
        kernel = kernels[i]
        name, duration = kineto.names[kernel.event], float(kineto.duration[kernel.event])
        launch = threads.last.get(kernel.launch)
        parents = [] if launch is None else [segment_numbers[launch]]
        parents += _numbers(kernel_numbers, kernel.after)
        found = records.get(kernel.event, ())
        for record in found:
            writer.collective(name, record, duration / len(found), parents)
        if not found:
            writer.kernel(name, duration, parents)


def _numbers(of_kernel: Mapping[int, range], events: Iterable[int]) -> list[int]:
    """Return the nodes of kernels."""
    return [number for event in events for number in of_kernel[event]]
