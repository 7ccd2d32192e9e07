"""What a host did when, and what its GPU's kernels waited for, from a Kineto trace.

The host's threads become chains of segments. A segment ends where an operator or a call of the
CUDA runtime begins or ends, so that a kernel is launched at its recorded moment. Time in which no
thread does anything is a segment too. A thread that paused goes on after what another thread
did meanwhile.

A kernel waits for its launch, for the kernel before it on its stream, and for kernels of other
streams: as recorded (``Stream Wait Event``, which PyTorch's profiler records on request), or
else by inference:

* a kernel that began after a kernel of another stream ended, and that its own launch and
  stream would have let begin before that, waits for the latest such kernel;
* a collective waits for the kernel launched before it by the same thread, as PyTorch's
  ProcessGroupNCCL makes its stream wait for the current one;
* a kernel launched after a ``wait`` for a collective waits for that collective.

No dependency contradicts the recorded times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from perfmodel.formats.pytorch.kineto import CALL, DEVICE, OPERATOR, WAIT, KinetoTrace
from perfmodel.trace import ABSENT

IDLE = ABSENT  # owner of a segment in which a thread does nothing
DEVICE_SYNCHRONISE = "DeviceSynchronize"  # cuda… or hip…
SYNCHRONISE = ("StreamSynchronize", "EventSynchronize", DEVICE_SYNCHRONISE)


@dataclass(slots=True)
class Segment:
    """A stretch of a host thread, or of time in which no thread worked.

    Attributes
    ----------
    owner : int
        Position of the innermost event; `IDLE`: none.
    thread : int
        `ABSENT` where none worked.
    start, end : float
        As recorded [s].
    duration : float
        Without the time in which the host waited for the device [s].
    after : list of int
        Segments that have to end first.
    kernels : list of int
        Positions of device events that have to end first.
    """

    owner: int
    thread: int
    start: float
    end: float
    duration: float
    after: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Host:
    """Segments of all threads.

    Attributes
    ----------
    segments : list of Segment
        By thread, then by time.
    last : dict of int to int
        By event: its last segment; events without a time of their own have none.
    caller : dict of int to int
        By event: the event around it.
    """

    segments: list[Segment]
    last: dict[int, int]
    caller: dict[int, int]

    def callers(self, event: int) -> list[int]:
        """Return an event and the events around it, from the inside out."""
        found = [event]
        while found[-1] in self.caller:
            found.append(self.caller[found[-1]])
        return found


def host_segments(kineto: KinetoTrace) -> Host:
    """Cut the host's threads into segments, each waiting for the ones before it."""
    host = Host([], {}, {})
    on_host = np.flatnonzero((kineto.category == OPERATOR) | (kineto.category == CALL))
    for thread in np.unique(kineto.thread[on_host]):
        _cut_thread(kineto, on_host[kineto.thread[on_host] == thread].tolist(), host)
    _join_threads(host, kineto.resolution)
    return host


def _cut_thread(kineto: KinetoTrace, events: list[int], host: Host) -> None:
    """Add the segments of one thread: always that of the innermost event."""
    thread = int(kineto.thread[events[0]])
    open_events: list[tuple[int, float]] = []  # and where they end
    now = float(kineto.start[events[0]])

    def add(owner: int, end: float) -> None:
        missing = owner not in host.last and kineto.category[owner] == CALL
        if end > now + kineto.resolution / 2 or missing:
            end = max(end, now)
            host.last[owner] = len(host.segments)
            host.segments.append(Segment(owner, thread, now, end, end - now))

    def close(until: float) -> None:
        nonlocal now
        while open_events and open_events[-1][1] <= until + kineto.resolution / 2:
            owner, end = open_events.pop()
            add(owner, end)
            now = max(now, end)

    for event in events:
        start = float(kineto.start[event])
        close(start)
        end = start + float(kineto.duration[event])
        if open_events:
            caller, limit = open_events[-1]
            add(caller, start)
            host.caller[event] = caller
            end = min(end, limit)
        now = start
        open_events.append((event, end))
    close(float("inf"))


def _join_threads(host: Host, resolution: float) -> None:
    """Let every segment wait for the one before it, and after a pause for other threads too."""
    slack = resolution / 2
    by_end = sorted(range(len(host.segments)), key=lambda i: host.segments[i].end)
    ends = [host.segments[i].end for i in by_end]
    threads = [host.segments[i].thread for i in by_end]
    other = list(range(-1, len(by_end) - 1))  # before i in this order, of another thread
    for i in range(1, len(by_end)):
        if threads[i - 1] == threads[i]:
            other[i] = other[i - 1]
    working = list(host.segments)
    idle = _idle_segments(host, slack)
    idle_ends = [host.segments[i].end for i in idle]
    previous: dict[int, int] = {}
    for index, segment in enumerate(working):
        before = previous.get(segment.thread)
        previous[segment.thread] = index
        paused_since = -np.inf
        if before is not None:
            segment.after.append(before)
            paused_since = working[before].end
        if segment.start <= paused_since + slack:
            continue
        place = bisect_right(ends, segment.start + slack) - 1
        while place >= 0 and threads[place] == segment.thread:
            place = other[place]
        if place >= 0 and ends[place] > paused_since + slack:
            segment.after.append(by_end[place])
        place = bisect_right(idle_ends, segment.start + slack) - 1
        if place >= 0 and idle_ends[place] > paused_since + slack:
            segment.after.append(idle[place])


def _idle_segments(host: Host, slack: float) -> list[int]:
    """Add a segment for every time in which no thread did anything; return their positions."""
    found = []
    order = sorted(range(len(host.segments)), key=lambda i: host.segments[i].start)
    last = ABSENT  # the segment that ended last so far
    for i in order:
        segment = host.segments[i]
        if last != ABSENT and segment.start > host.segments[last].end + slack:
            start = host.segments[last].end
            found.append(len(host.segments))
            duration = segment.start - start
            host.segments.append(
                Segment(IDLE, ABSENT, start, segment.start, duration, after=[last])
            )
        if last == ABSENT or segment.end > host.segments[last].end:
            last = i
    return found


@dataclass(slots=True)
class Kernel:
    """Something that ran on the device.

    Attributes
    ----------
    event : int
        Its position.
    launch : int
        Position of the call (or the operator) that started it; `ABSENT`: not recorded.
    launch_start, launch_end : float
        [s]; minus infinity where not recorded.
    thread : int
        That launched it; `ABSENT`: not recorded.
    start, end : float
        [s].
    stream : int
    collective : bool
    after : list of int
        Events that have to end first.
    """

    event: int
    launch: int
    launch_start: float
    launch_end: float
    thread: int
    start: float
    end: float
    stream: int
    collective: bool = False
    after: list[int] = field(default_factory=list)


def device_kernels(kineto: KinetoTrace) -> list[Kernel]:
    """Return what ran on the device and where it was launched, in the order of starts."""
    calls = _positions(kineto.correlation, kineto.category == CALL)
    launches = {key: call for key, call in calls.items() if not synchronises(kineto, call)}
    operators = _positions(kineto.external, kineto.category == OPERATOR)
    kernels = []
    for event in np.flatnonzero(kineto.category == DEVICE).tolist():
        launch = launches.get(int(kineto.correlation[event]), ABSENT)
        start = float(kineto.start[event])
        launch_start = launch_end = -np.inf
        if launch != ABSENT and kineto.start[launch] > start:
            launch = ABSENT  # clocks of host and device disagree
        elif launch != ABSENT:
            launch_start = float(kineto.start[launch])
            launch_end = min(launch_start + float(kineto.duration[launch]), start)
        else:
            launch = operators.get(int(kineto.external[event]), ABSENT)
            launch = ABSENT if launch != ABSENT and kineto.start[launch] > start else launch
        kernels.append(
            Kernel(
                event,
                launch,
                launch_start,
                launch_end,
                int(kineto.thread[launch]) if launch != ABSENT else ABSENT,
                start,
                start + float(kineto.duration[event]),
                int(kineto.stream[event]),
            )
        )
    return kernels


def join_streams(kineto: KinetoTrace, kernels: list[Kernel], collectives: Iterable[int]) -> None:
    """Let kernels wait for their stream and for kernels of others; `collectives` communicate."""
    communicating = set(collectives)
    for kernel in kernels:
        kernel.collective = kernel.event in communicating
    _follow_streams(kernels)
    if kineto.waits:
        _follow_recorded_waits(kineto, kernels)
    else:
        _infer_waits(kernels, kineto.resolution / 2)


def _positions(keys: np.ndarray, where: np.ndarray) -> dict[int, int]:
    """Return the position of the last event with each key; events without a key are left out."""
    places = np.flatnonzero(where & (keys != ABSENT))
    return dict(zip(keys[places].tolist(), places.tolist(), strict=True))


def _follow_streams(kernels: list[Kernel]) -> None:
    """Let each kernel wait for the one before it on its stream."""
    last: dict[int, int] = {}
    for kernel in kernels:
        if kernel.stream in last:
            kernel.after.append(last[kernel.stream])
        last[kernel.stream] = kernel.event


def _follow_recorded_waits(kineto: KinetoTrace, kernels: list[Kernel]) -> None:
    """Let kernels wait as recorded: for what was on another stream when the event was made."""
    calls = _positions(kineto.correlation, kineto.category == CALL)
    streams = _grouped(kernels, "stream")
    waiting: dict[int, list[tuple[float, Kernel]]] = {}
    for position in np.flatnonzero(kineto.category == WAIT).tolist():
        stream, record = kineto.waits.get(position, (ABSENT, ABSENT))
        if record not in calls or stream not in streams:
            continue
        times, launched = streams[stream]
        place = bisect_right(times, float(kineto.start[calls[record]])) - 1
        if place >= 0:
            call = calls.get(int(kineto.correlation[position]), position)
            entry = (float(kineto.start[call]), launched[place])
            waiting.setdefault(int(kineto.stream[position]), []).append(entry)
    for stream, entries in waiting.items():
        times, launched = streams.get(stream, ([], []))
        for time, awaited in entries:
            place = bisect_left(times, time)
            if place < len(launched):
                _wait(launched[place], awaited, kineto.resolution / 2)


def _grouped(kernels: list[Kernel], key: str) -> dict[int, tuple[list[float], list[Kernel]]]:
    """Return the kernels of each stream or thread in the order of launches, with its times."""
    groups: dict[int, tuple[list[float], list[Kernel]]] = {}
    for kernel in sorted(kernels, key=lambda kernel: kernel.launch_start):
        times, members = groups.setdefault(getattr(kernel, key), ([], []))
        times.append(kernel.launch_start)
        members.append(kernel)
    return groups


def _infer_waits(kernels: list[Kernel], slack: float) -> None:
    """Let kernels wait for other streams where the recorded times say that they did."""
    by_end = sorted(kernels, key=lambda kernel: kernel.end)
    ends = [kernel.end for kernel in by_end]
    stream_end: dict[int, float] = {}
    for kernel in kernels:
        could_start = max(kernel.launch_end, stream_end.get(kernel.stream, -np.inf))
        stream_end[kernel.stream] = kernel.end
        for place in range(bisect_right(ends, kernel.start + slack) - 1, -1, -1):
            if ends[place] < could_start - slack:
                break
            if by_end[place].stream != kernel.stream:
                _wait(kernel, by_end[place], slack)
                break
    last: dict[int, Kernel] = {}
    for kernel in sorted(kernels, key=lambda kernel: kernel.launch_start):
        if kernel.thread == ABSENT:
            continue
        if kernel.collective and kernel.thread in last:
            _wait(kernel, last[kernel.thread], slack)
        if not kernel.collective:
            last[kernel.thread] = kernel


def wait_for_collectives(
    kernels: list[Kernel], waits: list[tuple[int, float, int]], slack: float
) -> None:
    """Let the kernels launched after a ``wait`` wait for its collective.

    Parameters
    ----------
    kernels : list of Kernel
    waits : list of (int, float, int)
        Thread, time [s], and position of the collective's kernel.
    slack : float
        Times that differ by less are the same [s].
    """
    by_event = {kernel.event: kernel for kernel in kernels}
    threads = _grouped([kernel for kernel in kernels if not kernel.collective], "thread")
    for thread, time, event in waits:
        times, launched = threads.get(thread, ([], []))
        place = bisect_left(times, time)
        if place < len(launched):
            _wait(launched[place], by_event[event], slack)


def _wait(kernel: Kernel, other: Kernel, slack: float) -> None:
    """Let a kernel wait for another, unless the recorded times contradict."""
    earlier = other.end <= kernel.start + slack and other.event < kernel.event
    if earlier and other.event not in kernel.after:
        kernel.after.append(other.event)


def synchronise_host(kineto: KinetoTrace, host: Host, kernels: list[Kernel]) -> None:
    """Let calls that wait for the device wait for kernels instead of for a recorded time.

    A call that synchronises the device waits for the last kernel of each stream, another for
    the kernel that ended last during the call; only for kernels launched before it that were
    recorded to end before it does.
    """
    streams: dict[int, list[Kernel]] = {}
    for kernel in sorted(kernels, key=lambda kernel: kernel.end):
        streams.setdefault(kernel.stream, []).append(kernel)
    ends = {stream: [kernel.end for kernel in members] for stream, members in streams.items()}
    for segment in host.segments:
        if segment.owner == IDLE or not synchronises(kineto, segment.owner):
            continue
        done = []
        for stream, members in streams.items():
            place = bisect_right(ends[stream], segment.end + kineto.resolution / 2) - 1
            while place >= 0 and members[place].launch_start >= segment.start:
                place -= 1
            if place >= 0:
                done.append(members[place])
        if not kineto.names[segment.owner].endswith(DEVICE_SYNCHRONISE):
            done = sorted((k for k in done if k.end > segment.start), key=lambda k: k.end)[-1:]
        segment.kernels += [kernel.event for kernel in done]
        ended = max((kernel.end for kernel in done), default=segment.start)
        segment.duration = max(segment.end - max(ended, segment.start), 0.0)


def synchronises(kineto: KinetoTrace, event: int) -> bool:
    """Tell whether a call lets the host wait for the device."""
    return kineto.names[event].endswith(SYNCHRONISE)
