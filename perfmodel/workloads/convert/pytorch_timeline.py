"""What a host did when, and what its GPU's kernels waited for, from a Kineto trace.

The host's threads become chains of segments, side by side. A segment ends where an operator or
a call of the CUDA runtime begins or ends, so that a kernel is launched at its recorded moment.
Threads wait for each other where the trace shows it:

* the first operator of a backward pass waits for its operator of the forward pass, where they run
  on different threads (``fwdbwd`` arrows);
* where a thread did nothing for a while, and all that another one did in that time lies within it,
  the first had set the second to work and waited for it (a caller and autograd's thread).

A kernel waits for its launch, for the kernel before it on its stream, and for kernels of other
streams: as recorded (``Stream Wait Event``, which PyTorch's profiler records on request), or
else by inference:

* a kernel that began after a kernel of another stream ended, and that its own launch and
  stream would have let begin before that, waits for the latest such kernel;
* a collective waits for the kernel launched before it by the same thread, as PyTorch's
  ProcessGroupNCCL makes its stream wait for the current one;
* a kernel launched after a ``wait`` for a collective waits for that collective.

A copy that began and ended within the call that asked for it waits for the call to begin, and what
is left of the call waits for the copy.

No dependency contradicts the recorded times; what else passed before something began is a pause
(`perfmodel.workloads.convert.pytorch`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from perfmodel.workloads.formats.pytorch_kineto import CALL, DEVICE, OPERATOR, WAIT, KinetoTrace
from perfmodel.workloads.trace import ABSENT

DEVICE_SYNCHRONISE = "DeviceSynchronize"  # cuda… or hip…
SYNCHRONISE = ("StreamSynchronize", "EventSynchronize", DEVICE_SYNCHRONISE)
COPIES = ("Memcpy", "Memset")  # in the names of calls
MOST_LOOKED_AT = 16  # segments or kernels, one after another


@dataclass(slots=True)
class Segment:
    """A stretch of a host thread.

    Attributes
    ----------
    owner : int
        Position of the innermost event.
    thread : int
    start, end : float
        When it worked [s]; without the time in which the host waited for something.
    after : list of int
        Segments that have to end first.
    events : list of int
        Positions of what ran on the device or between ranks and has to end first.
    """

    owner: int
    thread: int
    start: float
    end: float
    after: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Host:
    """Segments of all threads.

    Attributes
    ----------
    segments : list of Segment
        By thread, then by time.
    threads : dict of int to range
        Positions of the segments of each thread.
    pieces : dict of int to list of int
        By event: its segments; events without a time of their own have none.
    caller : dict of int to int
        By event: the event around it.
    """

    segments: list[Segment] = field(default_factory=list)
    threads: dict[int, range] = field(default_factory=dict)
    pieces: dict[int, list[int]] = field(default_factory=dict)
    caller: dict[int, int] = field(default_factory=dict)

    def callers(self, event: int) -> list[int]:
        """Return an event and the events around it, from the inside out."""
        found = [event]
        while found[-1] in self.caller:
            found.append(self.caller[found[-1]])
        return found

    def last_ended(self, thread: int, time: float) -> int:
        """Return the segment of a thread that ended last at a time; `ABSENT`: none had."""
        own = self.threads.get(thread, range(0))
        place = bisect_right(own, time, key=lambda i: self.segments[i].end)
        return own[place - 1] if place else ABSENT

    def first_begun(self, thread: int, time: float) -> int:
        """Return the first segment of a thread that begins at a time or later; `ABSENT`: none."""
        own = self.threads.get(thread, range(0))
        place = bisect_left(own, time, key=lambda i: self.segments[i].start)
        return own[place] if place < len(own) else ABSENT


def host_segments(kineto: KinetoTrace) -> Host:
    """Cut the host's threads into segments, each waiting for those that let it begin."""
    host = Host()
    slack = kineto.resolution / 2
    on_host = np.flatnonzero((kineto.category == OPERATOR) | (kineto.category == CALL))
    for thread in np.unique(kineto.thread[on_host]).tolist():
        first = len(host.segments)
        _cut_thread(kineto, on_host[kineto.thread[on_host] == thread].tolist(), host)
        host.threads[thread] = range(first, len(host.segments))
        for index in host.threads[thread][1:]:
            host.segments[index].after.append(index - 1)
    _follow_arrows(kineto, host, slack)
    _follow_handovers(host, slack)
    return host


def _cut_thread(kineto: KinetoTrace, events: list[int], host: Host) -> None:
    """Add the segments of one thread: always that of the innermost event."""
    thread = int(kineto.thread[events[0]])
    open_events: list[tuple[int, float]] = []  # and where they end
    now = float(kineto.start[events[0]])

    def add(owner: int, end: float) -> None:
        missing = owner not in host.pieces and kineto.category[owner] == CALL
        if end > now + kineto.resolution / 2 or missing:
            host.pieces.setdefault(owner, []).append(len(host.segments))
            host.segments.append(Segment(owner, thread, now, max(end, now)))

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


def _follow_arrows(kineto: KinetoTrace, host: Host, slack: float) -> None:
    """Let backward passes wait for operators of the forward pass on other threads."""
    on_host = np.flatnonzero(kineto.category == OPERATOR)[::-1]  # of several, the outermost
    places = zip(kineto.thread[on_host].tolist(), kineto.start[on_host].tolist(), strict=True)
    operators = dict(zip(places, on_host.tolist(), strict=True))
    latest: dict[tuple[int, int], int] = {}  # segment that a thread waits for of another
    for forward, backward in sorted(kineto.backward, key=lambda ends: ends[1][1]):
        pieces = host.pieces.get(operators.get(forward, ABSENT), [])
        index = host.first_begun(backward[0], backward[1] - slack)
        if not pieces or index == ABSENT or forward[0] == backward[0]:
            continue
        segment, threads = host.segments[index], (backward[0], forward[0])
        late = host.segments[pieces[-1]].end > segment.start + slack
        if not late and pieces[-1] > latest.get(threads, ABSENT):
            latest[threads] = pieces[-1]
            segment.after.append(pieces[-1])


def _follow_handovers(host: Host, slack: float) -> None:
    """Let threads wait for each other where one worked only while the other did nothing."""
    by_end = sorted(range(len(host.segments)), key=lambda i: host.segments[i].end)
    ends = [host.segments[i].end for i in by_end]
    for own in host.threads.values():
        for before, following in pairwise(own):
            begin, end = host.segments[before].end, host.segments[following].start
            if end <= begin + slack:
                continue
            place = bisect_right(ends, end + slack) - 1
            seen = {host.segments[before].thread}
            for last in reversed(by_end[max(place - MOST_LOOKED_AT, -1) + 1 : place + 1]):
                thread = host.segments[last].thread
                if host.segments[last].end <= begin + slack:
                    break
                if thread in seen:
                    continue
                seen.add(thread)
                first = host.first_begun(thread, begin - slack)
                other = host.threads[thread]
                busy_before = first > other.start and (host.segments[first - 1].end > begin + slack)
                busy_after = last + 1 < other.stop and (host.segments[last + 1].start < end - slack)
                if first == ABSENT or first > last or busy_before or busy_after:
                    continue
                host.segments[first].after.append(before)
                host.segments[following].after.append(last)
                break


@dataclass(slots=True)
class Kernel:
    """Something that ran on the device, or a collective of gloo.

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


def launched_after(host: Host, kernel: Kernel, slack: float) -> list[int]:
    """Return the segments after which something began: of its launch, or those before that."""
    if kernel.launch == ABSENT:
        return []
    pieces = host.pieces.get(kernel.launch)
    if not pieces:
        last = host.last_ended(kernel.thread, kernel.start + slack)
        return [] if last == ABSENT else [last]
    ended = [piece for piece in pieces if host.segments[piece].end <= kernel.start + slack]
    return ended[-1:] or host.segments[pieces[0]].after


def join_streams(kineto: KinetoTrace, kernels: list[Kernel], collectives: Iterable[int]) -> None:
    """Let kernels wait for their stream and for kernels of others; `collectives` communicate."""
    communicating = set(collectives)
    for kernel in kernels:
        kernel.collective = kernel.event in communicating
    follow_streams(kernels, kineto.resolution / 2)
    if kineto.waits:
        _follow_recorded_waits(kineto, kernels)
    else:
        _infer_waits(kernels, kineto.resolution / 2)


def _positions(keys: np.ndarray, where: np.ndarray) -> dict[int, int]:
    """Return the position of the last event with each key; events without a key are left out."""
    places = np.flatnonzero(where & (keys != ABSENT))
    return dict(zip(keys[places].tolist(), places.tolist(), strict=True))


def follow_streams(kernels: Iterable[Kernel], slack: float) -> None:
    """Let each kernel wait for the one before it on its stream that had ended."""
    streams: dict[int, list[Kernel]] = {}
    for kernel in kernels:
        before = streams.setdefault(kernel.stream, [])
        for other in reversed(before[-MOST_LOOKED_AT:]):
            if other.end <= kernel.start + slack:
                kernel.after.append(other.event)
                break
        before.append(kernel)


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
    recorded to end before it does. A copy within its own call lets the rest of it wait.
    """
    slack = kineto.resolution / 2
    streams: dict[int, list[Kernel]] = {}
    for kernel in sorted(kernels, key=lambda kernel: kernel.end):
        streams.setdefault(kernel.stream, []).append(kernel)
    ends = {stream: [kernel.end for kernel in members] for stream, members in streams.items()}
    for segment in host.segments:
        if not synchronises(kineto, segment.owner):
            continue
        done = []
        for stream, members in streams.items():
            place = bisect_right(ends[stream], segment.end + slack) - 1
            while place >= 0 and members[place].launch_start >= segment.start:
                place -= 1
            if place >= 0:
                done.append(members[place])
        if not kineto.names[segment.owner].endswith(DEVICE_SYNCHRONISE):
            done = sorted((k for k in done if k.end > segment.start), key=lambda k: k.end)[-1:]
        wait_for(segment, done)
    for kernel in kernels:
        pieces = host.pieces.get(kernel.launch)
        if not pieces or not any(copy in kineto.names[kernel.launch] for copy in COPIES):
            continue
        last = host.segments[pieces[-1]]
        if kernel.launch_start <= kernel.start and kernel.end <= last.end + slack:
            wait_for(last, [kernel])


def wait_for(segment: Segment, awaited: Sequence[Kernel]) -> None:
    """Let a segment go on when the last of several things has ended."""
    segment.events += [kernel.event for kernel in awaited]
    ended = max((kernel.end for kernel in awaited), default=segment.start)
    segment.start = min(max(segment.start, ended), segment.end)


def synchronises(kineto: KinetoTrace, event: int) -> bool:
    """Tell whether a call lets the host wait for the device."""
    return kineto.names[event].endswith(SYNCHRONISE)
