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
from dataclasses import dataclass
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
        self.warmup = arguments.warmup
        self.repeats = arguments.repeats
        self.least = arguments.least
        self.graph = arguments.graph

    def time(self, calls: Sequence[Call], graph: bool | None = None) -> Timing:
        """Return the times of one of `calls`, which differ in their tensors only."""
        cuda = self.torch.cuda
        use_graph = self.graph if graph is None else graph
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):  # compilers and libraries choose their kernels here
            for call in (*calls, *calls[:1]):
                call()
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()
        once = self._elapsed(lambda: [call() for call in calls])
        loops = min(max(math.ceil(self.least / max(once, 1e-7)), 1), 2000)

        def run() -> None:
            for _ in range(loops):
                for call in calls:
                    call()

        replay: Call = run
        if use_graph:
            captured = cuda.CUDAGraph()
            with cuda.graph(captured):
                run()
            replay = captured.replay
        begin = time.perf_counter()
        while time.perf_counter() - begin < self.warmup:
            replay()
            cuda.synchronize()
        per_call = loops * len(calls)
        samples = [self._elapsed(replay) / per_call for _ in range(self.repeats)]
        return Timing(statistics.median(samples), min(samples), max(samples), len(samples))

    def _elapsed(self, run: Call) -> float:
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        cuda.synchronize()
        return start.elapsed_time(end) * 1e-3


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
