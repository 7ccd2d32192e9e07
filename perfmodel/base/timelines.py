"""Write timelines that https://ui.perfetto.dev and chrome://tracing open.

The Trace Event Format (Google, "Trace Event Format", JSON array form in an object): one
complete event ("X") per operation with begin and duration in microseconds, metadata events
("M") that name processes (ranks) and threads (what the rank's device is busy with), flow events
("s", "f") from sends to receives, and counter events ("C") of what a process holds from when on.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError
from perfmodel.base.files import atomic_path


@dataclass(frozen=True, slots=True)
class Track:
    """Operations that one resource of one rank works on, one after another.

    Attributes
    ----------
    process, thread : str
        Rank and resource, as shown.
    names : sequence of str
        One per operation.
    start, duration : float64[operations]
        [s].
    category : str, or sequence of str
        Shown beside the name; Perfetto filters by it. One of all operations, or one of each.
    arguments : mapping of str to sequence
        Per operation, what a click on it shows; None leaves an entry out.
    flow_out, flow_in : mapping of int to int
        Operation to number of the message that it sends or receives.
    """

    process: str
    thread: str
    names: Sequence[str]
    start: NDArray[np.float64]
    duration: NDArray[np.float64]
    category: str | Sequence[str] = ""
    arguments: Mapping[str, Sequence[Any] | NDArray[Any]] = field(default_factory=dict)
    flow_out: Mapping[int, int] = field(default_factory=dict)
    flow_in: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counter:
    """What a process has of something, from when on.

    Attributes
    ----------
    process, name : str
    start : float64[values]
        [s]; never falling.
    series : mapping of str to sequence of float
        Values of one or more numbers that are shown on top of each other.
    """

    process: str
    name: str
    start: NDArray[np.float64]
    series: Mapping[str, Sequence[float] | NDArray[np.float64]]


def write_timeline(
    tracks: Iterable[Track | Counter], path: str | Path, metadata: Mapping[str, Any] | None = None
) -> int:
    """Write tracks as one JSON file, completely or not at all.

    Parameters
    ----------
    tracks : iterable of Track or Counter
        Taken one by one, so that a long timeline need not lie in memory.
    path : str or Path
        Compressed where it ends in ``.gz``, which viewers open as well.
    metadata : mapping, optional
        Shown on Perfetto's information page.

    Returns
    -------
    int
        Operations written, and values of counters.

    Raises
    ------
    DataError
        A time is not finite or negative, columns differ in length, a counter goes back in time, or
        the file cannot be written.
    """
    processes: dict[str, int] = {}
    threads: dict[tuple[str, str], int] = {}
    written = 0
    with atomic_path(path) as temporary, _opened(temporary, path) as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        file.write(json.dumps({"ph": "M", "name": "trace", "pid": 0, "args": {}}))
        for track in tracks:
            _check(track)
            if track.process not in processes:
                processes[track.process] = len(processes) + 1
                _name(file, "process_name", processes[track.process], 0, track.process)
            pid = processes[track.process]
            if isinstance(track, Counter):
                written += _values(file, track, pid)
                continue
            if (track.process, track.thread) not in threads:
                threads[track.process, track.thread] = len(threads) + 1
                tid = threads[track.process, track.thread]
                _name(file, "thread_name", pid, tid, track.thread)
            written += _operations(file, track, pid, threads[track.process, track.thread])
        file.write('\n],"metadata":')
        file.write(json.dumps(dict(metadata or {})))
        file.write("}\n")
    return written


@contextlib.contextmanager
def _opened(temporary: Path, path: str | Path) -> Iterator[TextIO]:
    """Open a file to be written, compressed where its name says so."""
    if not str(path).endswith(".gz"):
        with temporary.open("w", encoding="utf-8") as file:
            yield file
        return
    import gzip

    # Without a name and a time in it, so that equal timelines are equal files.
    with (
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, 0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as text,
    ):
        yield text


def _check(track: Track | Counter) -> None:
    """Raise unless all columns fit together and every time is a time."""
    if isinstance(track, Counter):
        where, times = f"counter '{track.process}/{track.name}'", track.start
        lengths = {len(times)} | {len(column) for column in track.series.values()}
        values = np.concatenate([np.asarray(it, np.float64) for it in track.series.values()])
        if not np.isfinite(values).all():
            raise DataError(f"{where}: a value is not finite")
        if (np.diff(times) < 0.0).any():
            raise DataError(f"{where}: it goes back in time")
    else:
        where = f"track '{track.process}/{track.thread}'"
        lengths = {len(track.names), len(track.start), len(track.duration)}
        lengths |= {len(column) for column in track.arguments.values()}
        if not isinstance(track.category, str):
            lengths.add(len(track.category))
        times = np.concatenate([track.start, track.duration])
    if len(lengths) != 1:
        raise DataError(f"{where}: columns differ in length")
    if not np.isfinite(times).all() or (times < 0.0).any():
        raise DataError(f"{where}: a time is negative or not finite")


def _name(file: TextIO, kind: str, pid: int, tid: int, name: str) -> None:
    """Write the metadata event that names a process or a thread."""
    event = {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
    file.write(",\n" + json.dumps(event))


def _operations(file: TextIO, track: Track, pid: int, tid: int) -> int:
    """Write the events of one track and return how many operations it has."""
    starts = np.asarray(track.start) * 1e6
    durations = np.asarray(track.duration) * 1e6
    for index, name in enumerate(track.names):
        begin, length = float(starts[index]), float(durations[index])
        event: dict[str, Any] = {
            "ph": "X",
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": begin,
            "dur": length,
        }
        category = track.category
        if category:
            event["cat"] = category if isinstance(category, str) else category[index]
        values = {key: _plain(column[index]) for key, column in track.arguments.items()}
        stated = {key: value for key, value in values.items() if value is not None}
        if stated:
            event["args"] = stated
        file.write(",\n" + json.dumps(event))
        # A flow binds to the slice around its time: the sender's begin, the receiver's end.
        place = {"cat": "message", "name": "message", "pid": pid, "tid": tid}
        if index in track.flow_out:
            flow = {"ph": "s", "id": track.flow_out[index], "ts": begin, **place}
            file.write(",\n" + json.dumps(flow))
        if index in track.flow_in:
            end = begin + length
            flow = {"ph": "f", "bp": "e", "id": track.flow_in[index], "ts": end, **place}
            file.write(",\n" + json.dumps(flow))
    return len(track.names)


def _values(file: TextIO, counter: Counter, pid: int) -> int:
    """Write the events of one counter and return how many values it has."""
    columns = {
        name: np.asarray(column, np.float64).tolist() for name, column in counter.series.items()
    }
    for index, begin in enumerate((np.asarray(counter.start) * 1e6).tolist()):
        values = {name: column[index] for name, column in columns.items()}
        event = {"ph": "C", "name": counter.name, "pid": pid, "tid": 0, "ts": begin}
        file.write(",\n" + json.dumps(event | {"args": values}))
    return len(counter.start)


def _plain(value: Any) -> Any:
    """Return a number or text that JSON knows; None for what is not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
