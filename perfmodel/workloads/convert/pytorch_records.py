"""Which collectives and messages the kernels of NCCL carried out, from PyTorch's traces.

A kernel's arguments in the Kineto trace say it, or the ``record_param_comms`` operator around
its launch. Calls between ``_start_coalescing`` and ``_end_coalescing`` (also those of
``batch_isend_irecv``) record themselves, but start nothing: one kernel, launched by nobody's
operator, does the work of them all (pytorch/pytorch, ``ProcessGroupNCCL::endCoalescing``). It
gets the records that stand open on its thread: collectives as one of their summed size,
messages one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.workloads.convert.pytorch_timeline import Host, Kernel
from perfmodel.workloads.formats.pytorch_collectives import (
    RECEIVE,
    SEND,
    WAIT,
    CollectiveRecord,
    collective_kind,
)
from perfmodel.workloads.formats.pytorch_host import HostTrace
from perfmodel.workloads.formats.pytorch_kineto import OPERATOR, KinetoTrace
from perfmodel.workloads.trace import ABSENT

LIBRARIES = ("nccl", "rccl")
MESSAGES = (SEND, RECEIVE)
EXCHANGE = "sendrecv"  # in the name of a kernel that sends and receives

Records = tuple[CollectiveRecord, ...]


def operator_records(host: HostTrace | None, kineto: KinetoTrace) -> dict[int, CollectiveRecord]:
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


def kernel_records(
    kineto: KinetoTrace,
    threads: Host,
    kernels: Sequence[Kernel],
    operators: Mapping[int, CollectiveRecord],
) -> dict[int, Records]:
    """Return what each kernel of NCCL carries out, by its position; at least one record each."""
    libraries = [
        kernel
        for kernel in kernels
        if any(library in kineto.names[kernel.event].lower() for library in LIBRARIES)
    ]
    around = {
        kernel.event: [
            operator
            for operator in (threads.callers(kernel.launch) if kernel.launch != ABSENT else [])
            if operator in operators and operators[operator].kind != WAIT
        ]
        for kernel in libraries
    }
    waiting = _Open(kineto, operators, {found for items in around.values() for found in items})
    records: dict[int, Records] = {}
    for kernel in sorted(libraries, key=lambda kernel: kernel.launch_start):
        record = kineto.collectives.get(kernel.event)
        for operator in around[kernel.event]:
            record = _merged(record, operators[operator])
        coalesced: Records = ()
        if not around[kernel.event]:
            name = kineto.names[kernel.event]
            coalesced = _coalesced(name, waiting.before(kernel))
            if record is None:
                record = CollectiveRecord(collective_kind(name))
        assert record is not None
        if coalesced and record.size == ABSENT:
            records[kernel.event] = coalesced
        elif record.kind not in ("", WAIT):
            records[kernel.event] = (record,)
    return records


class _Open:
    """Operators that recorded a collective but launched no kernel, by thread and time."""

    def __init__(
        self, kineto: KinetoTrace, operators: Mapping[int, CollectiveRecord], launched: set[int]
    ) -> None:
        self._start = kineto.start
        self._operators = operators
        self._of_thread: dict[int, list[int]] = {}
        for position in sorted(set(operators) - launched, reverse=True):
            if operators[position].kind != WAIT:
                self._of_thread.setdefault(int(kineto.thread[position]), []).append(position)

    def before(self, kernel: Kernel) -> list[CollectiveRecord]:
        """Take the records of a kernel's thread from before its launch."""
        listed = self._of_thread.get(kernel.thread, [])
        found = []
        while listed and self._start[listed[-1]] <= kernel.launch_start:
            found.append(self._operators[listed.pop()])
        return found


def _coalesced(name: str, records: Sequence[CollectiveRecord]) -> Records:
    """Return what a kernel does with open records; nothing where they are not its own."""
    if not records:
        return ()
    kind = collective_kind(name)
    messages = tuple(record for record in records if record.kind in MESSAGES)
    if messages and EXCHANGE in name.lower():
        return messages
    own = [record for record in records if record.kind == kind]
    if not own or any(record.size == ABSENT for record in own):
        return ()
    return (replace(own[-1], size=sum(record.size for record in own)),)


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


def collective_waits(
    kineto: KinetoTrace,
    kernels: Sequence[Kernel],
    records: Mapping[int, Records],
    operators: Mapping[int, CollectiveRecord],
) -> list[tuple[int, float, int]]:
    """Return where host threads waited for which collective's kernel, by sequence number."""
    launched = sorted(
        (kernel.launch_start, kernel.event)
        for kernel in kernels
        if kernel.event in records and records[kernel.event][0].sequence != ABSENT
    )
    waits = [position for position, record in operators.items() if record.kind == WAIT]
    latest: dict[int, int] = {}
    found = []
    next_launch = 0
    for position in sorted(waits):
        time = float(kineto.start[position])
        while next_launch < len(launched) and launched[next_launch][0] <= time:
            event = launched[next_launch][1]
            latest |= {record.sequence: event for record in records[event]}
            next_launch += 1
        event = latest.get(operators[position].sequence, ABSENT)
        if event != ABSENT:
            found.append((int(kineto.thread[position]), time, event))
    return found
