"""Pipeline schedules: what each is called, where it puts its chunks, and what it asks for.

The place in `SCHEDULE_FACTS` is the number that columns, stored datasets and kernels use. Kernels
import nothing of ours and say their numbers themselves; ``tests/base`` holds the two together.
In which order passes run is in `perfmodel.kernels.pipeline`; docs/pipelines.md describes all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LOOP, WAVE, BIDIRECTIONAL, TABLE = "loop", "wave", "bidirectional", "table"
"""Where chunk c of p stages lies: on stage c mod p; up and down the stages in turn (a V is one
wave); a chunk a stage, with a second copy of the model from the last stage to the first; or where
a table says."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a pipeline schedule is.

    Attributes
    ----------
    name : str
        Label of ``pipeline_schedule``.
    placement : str
        `LOOP`, `WAVE`, `BIDIRECTIONAL` or `TABLE`.
    fewest_chunks, chunk_step : int
        Chunks that a stage has at least, and the step from there; a step of 0 means no more.
    splits_backward : bool
        Gradients of inputs and of weights are passes of their own.
    batches_per_stage : int
        Micro-batches for each stage that there must be at least.
    even : bool
        Stages and micro-batches must be even.
    title : str
        What it is, in a line.
    """

    name: str
    placement: str
    fewest_chunks: int
    chunk_step: int
    splits_backward: bool
    title: str
    batches_per_stage: int = 0
    even: bool = False


_SCHEDULES = (
    Schedule("gpipe", LOOP, 1, 0, False, "all forward passes, then all backward ones"),
    Schedule("1f1b", LOOP, 1, 0, False, "one forward, one backward"),
    Schedule("interleaved", LOOP, 2, 1, False, "1F1B over several chunks a stage"),
    Schedule("eager_1f1b", LOOP, 1, 0, False, "1F1B with twice the forward passes ahead"),
    Schedule("looped_bfs", LOOP, 1, 1, False, "breadth first: every chunk all micro-batches"),
    Schedule("interleaved_zero_bubble", LOOP, 1, 1, True, "interleaved, weight gradients apart"),
    Schedule("zb_h1", LOOP, 1, 0, True, "zero bubble with the memory of 1F1B"),
    Schedule("zb_h2", LOOP, 1, 0, True, "zero bubble with twice that memory"),
    Schedule("zb_v", WAVE, 2, 0, True, "zero bubble over two chunks in a V"),
    Schedule("v_half", WAVE, 2, 0, True, "the same with half of 1F1B's activations"),
    Schedule("v_min", WAVE, 2, 0, True, "the same with a third of them"),
    Schedule(
        "dualpipe", BIDIRECTIONAL, 1, 0, True, "two copies, filled from both ends", 2, even=True
    ),
    Schedule("dualpipe_v", WAVE, 2, 0, True, "DualPipe cut in half: one copy in a V", 2),
    Schedule("hanayo", WAVE, 2, 2, False, "1F1B over chunks in waves"),
    Schedule("table", TABLE, 1, 1, True, "as a file says (--schedule-file)"),
)  # fmt: skip
SCHEDULE_FACTS: Mapping[str, Schedule] = {item.name: item for item in _SCHEDULES}
"""By name."""

SCHEDULES = tuple(name for name in SCHEDULE_FACTS if name != TABLE)
"""Those with an order of their own."""
