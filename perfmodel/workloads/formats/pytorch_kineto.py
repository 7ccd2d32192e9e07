"""Read Kineto's traces: what PyTorch's profiler recorded on the host and on the GPU, with times.

The file is a Chrome trace, ``{"traceEvents": [{"ph": "X", "cat": …, "name": …, "tid": …,
"ts": …, "dur": …, "args": {…}}, …]}``, with times in microseconds, often packed by gzip. What
is read: operators (``cpu_op``), calls of the CUDA runtime and driver, and what runs on the
device (``kernel``, ``gpu_memcpy``, ``gpu_memset``), joined by ``correlation`` and ``External
id``; what gloo ran (``gloo:…``, a ``user_annotation``); and, where recorded, the waits between
streams (``cuda_sync``) and which operator of a backward pass belongs to which of the forward pass
(arrows of ``fwdbwd``).

Sources: pytorch/kineto, ``libkineto/src/output_json.cpp`` and ``CuptiActivity.cpp``;
mlcommons/chakra, ``src/trace_link/kineto_operator.py`` (0f378c8).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_json, shortened
from perfmodel.workloads.formats.pytorch_collectives import (
    EVENT_PREFIX,
    LARGEST_GROUP,
    CollectiveRecord,
    GlooCall,
    RankLists,
    checked_ranks,
    gloo_call,
    record_from_keys,
    whole,
)
from perfmodel.workloads.formats.words import words_of
from perfmodel.workloads.trace import ABSENT

OPERATOR, CALL, DEVICE, WAIT, GLOO = range(5)
CATEGORIES = {
    name: number
    for number, names in enumerate(words_of("pytorch")["categories"].values())
    for name in names
}
ARROWS = "fwdbwd"
STREAM_WAIT = "Stream Wait Event"
MICROSECOND = 1e-6  # s
NANOSECOND = 1e-9  # s
LARGEST_TIME = 1e18  # µs; a clock since 1970 stands at 2e15
LONGEST = 1e12  # µs


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """Events of one process; every column has one entry per event, ordered by start.

    Events that start together keep the longer one first: it is the caller.

    Attributes
    ----------
    names : tuple of str
    category : int8[events]
        `OPERATOR`, `CALL` (of the CUDA runtime), `DEVICE`, `WAIT` (of a stream) or `GLOO`.
    start, duration : float64[events]
        Since the first event, and how long [s].
    thread : int64[events]
        On the host; positions in order of appearance, as in `thread_numbers`.
    stream : int64[events]
        On the device: positions of (device, stream); `ABSENT` on the host.
    correlation : int64[events]
        Joins a call and what it started; `ABSENT`: none.
    external : int64[events]
        Joins an operator and what its calls started; `ABSENT`: none.
    record_function : int64[events]
        ``rf_id`` in the host trace; `ABSENT`: not recorded.
    collectives : mapping of int to CollectiveRecord
        By position: what the event's arguments say of a collective.
    waits : mapping of int to (int, int)
        By position: of a `WAIT` for an event of another stream, that stream's position and the
        correlation of the call that recorded the event.
    gloo : mapping of int to GlooCall
        By position: what events of gloo and operators of c10d say of a collective.
    backward : sequence of ((int, float), (int, float))
        Operators of the forward pass and theirs of the backward pass: thread and start [s].
    gloo_groups : mapping of str to tuple of int
        Ranks of the process groups that gloo may serve, in the order in which they were made.
    thread_numbers : sequence of int
        ``tid`` of each thread; `ABSENT`: it is no number.
    backend : str
        Of ``distributedInfo``; empty: not recorded.
    rank, devices : int
        ``distributedInfo``; `ABSENT`: not recorded.
    resolution : float
        Times that differ by less are the same [s]: Kineto writes nanoseconds, but a float64
        of microseconds since 1970 resolves a quarter of one.
    """

    names: tuple[str, ...]
    category: NDArray[np.int8]
    start: NDArray[np.float64]
    duration: NDArray[np.float64]
    thread: Integers
    stream: Integers
    correlation: Integers
    external: Integers
    record_function: Integers
    collectives: Mapping[int, CollectiveRecord]
    waits: Mapping[int, tuple[int, int]]
    gloo: Mapping[int, GlooCall]
    backward: Sequence[tuple[tuple[int, float], tuple[int, float]]]
    gloo_groups: Mapping[str, tuple[int, ...]]
    thread_numbers: Sequence[int] = ()
    backend: str = ""
    rank: int = ABSENT
    devices: int = ABSENT
    resolution: float = NANOSECOND

    @property
    def events(self) -> int:
        """Number of events."""
        return len(self.names)


def read_kineto(path: str | os.PathLike[str]) -> KinetoTrace:
    """Read a Kineto trace (JSON, or JSON packed by gzip).

    Raises
    ------
    FormatError
        The file cannot be read or is no such trace; says the event and what would be right.
    """
    return kineto_trace(read_json(path), str(path))


def kineto_trace(content: Any, file: str) -> KinetoTrace:
    """Return the trace that a JSON value describes; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_kineto`.
    """
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise FormatError(f"{file}: no Kineto trace: an object with 'traceEvents' is needed")
    rows = _Rows(file)
    for index, event in enumerate(events):
        if not isinstance(event, dict):
            continue
        category = event.get("cat")
        if event.get("ph") == "X":
            if isinstance(category, str) and category in CATEGORIES:
                rows.add(event, index)
        elif category == ARROWS:
            rows.add_arrow(event)
    info = content.get("distributedInfo") if isinstance(content, dict) else None
    info = info if isinstance(info, dict) else {}
    rows.complete(info.get("pg_config"))
    rank, devices = info.get("rank"), info.get("world_size")
    return rows.columns(
        str(info.get("backend", "")),
        whole(rank, 0, LARGEST_GROUP),
        whole(devices, 1, LARGEST_GROUP),
    )


class _Rows:
    """Events as they are read."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._names: list[str] = []
        self._times: list[tuple[float, float]] = []
        self._numbers: list[tuple[int, int, int, int, int, int]] = []
        self._records: dict[int, CollectiveRecord] = {}
        self._lists = RankLists()
        self._waits: dict[int, tuple[int, int]] = {}
        self._gloo: dict[int, GlooCall] = {}
        self._gloo_groups: dict[str, tuple[int, ...]] = {}
        self._arrows: dict[str, dict[str, tuple[int, float]]] = {}
        self._threads: dict[str, int] = {}
        self._thread_numbers: list[int] = []
        self._streams: dict[tuple[int, int], int] = {}

    def add(self, event: Mapping[str, Any], index: int) -> None:
        """Add one event that has a duration."""
        name = event.get("name")
        place = f"{self._file}, traceEvents[{index}] ({shortened(str(name))})"
        keys = event.get("args", {})
        if not isinstance(name, str) or not isinstance(keys, dict):
            raise FormatError(f"{place}: should have a name, and args that are an object")
        start = _time(event.get("ts"), -LARGEST_TIME, LARGEST_TIME, "ts", place)
        duration = _time(event.get("dur", 0), 0.0, LONGEST, "dur", place)
        category = CATEGORIES[event["cat"]]
        if name.startswith(EVENT_PREFIX) and category in (OPERATOR, GLOO):
            category = GLOO
        elif category == GLOO:
            return
        position = len(self._names)
        device = whole(keys.get("device", 0))
        stream = ABSENT
        if category in (DEVICE, WAIT):
            stream = self._stream(device, whole(keys.get("stream", event.get("tid"))))
        if category == WAIT and name == STREAM_WAIT:
            waits_for = self._stream(device, whole(keys.get("wait_on_stream")))
            self._waits[position] = (
                waits_for,
                whole(keys.get("wait_on_cuda_event_record_corr_id")),
            )
        record = None
        if category in (OPERATOR, DEVICE):
            record = record_from_keys(keys, place, self._lists)
        if record is not None:
            self._records[position] = record
        if category in (OPERATOR, GLOO):
            call = gloo_call(name, keys)
            if call is not None:
                self._gloo[position] = call
        thread = self._thread(event)
        self._names.append(name)
        self._times.append((start, duration))
        self._numbers.append(
            (
                category,
                thread,
                stream,
                whole(keys.get("correlation"), 0),
                whole(keys.get("External id", keys.get("external id")), 0),
                whole(keys.get("Record function id"), 0),
            )
        )

    def add_arrow(self, event: Mapping[str, Any]) -> None:
        """Add one end of an arrow from a forward to a backward operator."""
        time, phase = event.get("ts"), event.get("ph")
        if phase not in ("s", "f") or isinstance(time, bool) or not isinstance(time, int | float):
            return
        if -LARGEST_TIME <= time <= LARGEST_TIME:
            ends = self._arrows.setdefault(str(event.get("id")), {})
            ends[phase] = (self._thread(event), float(time))

    def _thread(self, event: Mapping[str, Any]) -> int:
        """Return the position of an event's thread."""
        position = self._threads.setdefault(
            f"{event.get('pid')}/{event.get('tid')}", len(self._threads)
        )
        if position == len(self._thread_numbers):
            self._thread_numbers.append(whole(event.get("tid"), 0))
        return position

    def _stream(self, device: int, stream: int) -> int:
        """Return the position of a stream of a device."""
        return self._streams.setdefault((device, stream), len(self._streams))

    def complete(self, groups: Any) -> None:
        """Give records whose ranks are not known those of ``distributedInfo``'s ``pg_config``."""
        known = {}
        for index, group in enumerate(groups if isinstance(groups, list) else ()):
            ranks = group.get("ranks") if isinstance(group, dict) else None
            if isinstance(ranks, list) and ranks:
                place = f"{self._file}, distributedInfo, pg_config[{index}]"
                name = str(group.get("pg_name", ""))
                known[name] = checked_ranks(ranks, ABSENT, place)
                if "gloo" in str(group.get("backend_config", "gloo")):
                    self._gloo_groups[name] = known[name]
        for position, record in self._records.items():
            ranks = known.get(record.group)
            if record.ranks is None and ranks and record.group_size in (ABSENT, len(ranks)):
                self._records[position] = replace(record, ranks=ranks)

    def columns(self, backend: str, rank: int, devices: int) -> KinetoTrace:
        """Return the events by start."""
        times = np.array(self._times, np.float64).reshape(-1, 2)
        order = np.lexsort((-times[:, 1], times[:, 0]))
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        numbers = np.array(self._numbers, np.int64).reshape(-1, 6)[order]
        start = times[order, 0]
        latest = float(np.abs(start).max(initial=0.0))
        first = float(start[0]) if len(start) else 0.0
        start -= first
        thread, stream, correlation, external, record_function = numbers[:, 1:].T.copy()

        def moment(thread: int, time: float) -> tuple[int, float]:
            return thread, (time - first) * MICROSECOND

        return KinetoTrace(
            tuple(self._names[i] for i in order),
            numbers[:, 0].astype(np.int8),
            start * MICROSECOND,
            times[order, 1] * MICROSECOND,
            thread,
            stream,
            correlation,
            external,
            record_function,
            {int(places[i]): record for i, record in self._records.items()},
            {int(places[i]): wait for i, wait in self._waits.items()},
            {int(places[i]): call for i, call in self._gloo.items()},
            [
                (moment(*ends["s"]), moment(*ends["f"]))
                for ends in self._arrows.values()
                if len(ends) == 2
            ],
            self._gloo_groups,
            self._thread_numbers,
            backend,
            rank,
            devices,
            max(NANOSECOND, 2 * float(np.spacing(latest)) * MICROSECOND),
        )


def _time(value: Any, least: float, most: float, key: str, place: str) -> float:
    """Return a time of an event [µs]."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not least <= value <= most:
        raise FormatError(
            f"{place}: {key} is '{shortened(str(value))}'; it should be a number of microseconds, "
            f"{least:g} to {most:g}"
        )
    return float(value)
