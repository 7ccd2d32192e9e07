"""Time calls on the device, and how many copies of their tensors to rotate over.

How a time comes about: the calls of one shape rotate over copies of their tensors that
together exceed the last cache twice (``--warm`` uses one copy), are captured into a CUDA
graph (unless ``--no-graph``) that lasts at least ``--least`` seconds, run for ``--warmup``
seconds, then ``--repeats`` times between two events. The median is the time of a call.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

Call = Callable[[], Any]

MOST_COPIES = 64
MEMORY_SHARE = 0.4  # of the free device memory, for copies


@dataclass(frozen=True)
class Timing:
    """Times of one call [s]: median, smallest and largest of the repeats."""

    median: float
    low: float
    high: float
    repeats: int


class Timer:
    """Times calls between events of the device; see the text of this module."""

    def __init__(self, torch: Any, arguments: argparse.Namespace) -> None:
        self.torch = torch
        self.stream = torch.cuda.Stream()
        self.warmup = arguments.warmup
        self.repeats = arguments.repeats
        self.least = arguments.least
        self.graph = arguments.graph

    def time(
        self,
        make: Callable[[], Call],
        count: int,
        watch: AbstractContextManager[Any],
        graph: bool | None = None,
    ) -> Timing:
        """Return the times of one of `count` calls, which differ in their tensors only.

        Parameters
        ----------
        make : callable
            Makes tensors and the call on them. All is made, called and captured in one
            stream, because a backward pass runs in the stream of its forward pass.
        count : int
            Calls to rotate over.
        watch : context manager
            Entered while the device warms up and is timed, not while kernels are compiled.
        graph : bool, optional
            In place of the arguments' choice.
        """
        cuda = self.torch.cuda
        with cuda.stream(self.stream):
            calls = [make() for _ in range(count)]
            for call in (*calls, *calls[:1]):  # compilers and libraries choose their kernels
                call()
            cuda.synchronize()
            loops = self._loops(self._elapsed(partial(_run, calls, 1)))
            replay: Call = partial(_run, calls, loops)
            if self.graph if graph is None else graph:
                replay = self._captured(replay)
                # Calls that waited for the host take less time in a graph.
                longer = self._loops(self._elapsed(replay) / loops)
                if longer > loops:
                    loops = longer
                    replay = self._captured(partial(_run, calls, loops))
            with watch:
                begin = time.perf_counter()
                while time.perf_counter() - begin < self.warmup:
                    replay()
                    cuda.synchronize()
                samples = [self._elapsed(replay) for _ in range(self.repeats)]
        times = [sample / (loops * count) for sample in samples]
        return Timing(statistics.median(times), min(times), max(times), len(times))

    def _loops(self, once: float) -> int:
        """Return how often to go round calls that together take `once` [s]."""
        return min(max(math.ceil(self.least / max(once, 1e-7)), 1), 2000)

    def _captured(self, run: Call) -> Call:
        """Return what replays `run`."""
        captured = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(captured, stream=self.stream):
            run()
        return captured.replay

    def _elapsed(self, run: Call) -> float:
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        cuda.synchronize()
        return start.elapsed_time(end) * 1e-3


def _run(calls: Sequence[Call], loops: int) -> None:
    """Go round the calls; what one returns is kept until its turn comes again.

    Otherwise the next call would write where this one did, into the cache.
    """
    kept: list[Any] = [None] * len(calls)
    for _ in range(loops):
        for i, call in enumerate(calls):
            kept[i] = None
            kept[i] = call()


def copies_of(size: float, cache: float, free: float, warm: bool) -> int:
    """Return how many copies of tensors of `size` bytes to rotate over.

    Two of the last cache together, so that none of a copy is still there when its turn
    comes again; fewer where the memory does not hold them; one for warm caches.
    """
    if warm or size <= 0:
        return 1
    wanted = math.ceil(2 * cache / size) + 1
    room = max(int(free * MEMORY_SHARE / size), 1)
    return max(1, min(wanted, room, MOST_COPIES))
