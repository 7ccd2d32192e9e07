"""What every pipeline stage holds through a step: the moments of the memory model, laid in time.

The memory model says what a stage holds at the moments of which one is its peak: as it keeps most,
as a layer goes backward there, as that micro-batch has gone backward, and at the update. Here its
activations come and go with the passes of its schedule; at the fullest of them the stage holds
what the model says of those moments, exactly, and at others as much less as it keeps fewer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.pipeline.actions import FORWARD
from perfmodel.kernels.variables import MEMORY_COMPONENTS
from perfmodel.training.scheduled import chunks_of
from perfmodel.training.stages import StageMemory, memories_of
from perfmodel.training.step.schedule import Closed, Schedule, own_actions

LOSS, FIRST_BACKWARD, LAST_BACKWARD, UPDATE = range(4)
"""Moments, as `perfmodel.training.stages.MOMENTS` has them."""
ACTIVATIONS = MEMORY_COMPONENTS.index("memory_activations")
LOST = MEMORY_COMPONENTS.index("memory_fragmentation")


class Held(NamedTuple):
    """What a stage holds from when on.

    Attributes
    ----------
    start : ndarray, shape (n,)
        [s].
    held : ndarray, shape (n, components)
        Columns as `perfmodel.kernels.variables.MEMORY_COMPONENTS` [B].
    """

    start: NDArray[np.float64]
    held: NDArray[np.float64]

    @property
    def total(self) -> NDArray[np.float64]:
        """All of it, shape (n,) [B]."""
        return np.asarray(self.held.sum(axis=1))


class Moments(NamedTuple):
    """What stages of one composition hold at their moments, and what they keep then."""

    memory: StageMemory
    most: float  # kept on the fullest of them, by the schedule [B]


class Memory:
    """Memory of all stages of a step."""

    def __init__(self, closed: Closed, schedule: Schedule) -> None:
        """Run through what the schedule keeps.

        Parameters
        ----------
        closed : Closed
        schedule : Schedule
        """
        from perfmodel.kernels.pipeline.events import held_over_time, peaks
        from perfmodel.kernels.step.scheduled import kept_bytes
        from perfmodel.kernels.work import kernel_work

        self.closed, self.schedule = closed, schedule
        share, order = closed.share, closed.pipeline.order
        (found,) = memories_of(
            share.work, share.keys, share.stages, closed.waits, share.settings, share.network
        )
        by_first = {memory.first: memory for memory in found}
        chunks = chunks_of(share.work, 0)
        parts = share.keys.parts[share.work.stage_layer_key[0]]
        with kernel_work(pipeline_passes=order.kind.size):
            kept = kept_bytes(order, chunks, parts)
            self.kept = held_over_time(order, schedule.timeline, *kept)[1]
            most = peaks(order, *kept)
        of = share.stages.of[share.work.strategies.stage_key[0]]
        firsts = share.stages.sums.first_stage[int(of.first) : int(of.behind)]
        self.moments = [
            Moments(
                by_first[int(firsts[row])],
                float(max(most[chunks.stage_row == row], default=0.0)),
            )
            for row in chunks.stage_row
        ]

    def of(self, stage: int, ahead: float, update: float, over: float) -> Held:
        """Return what a stage holds through the step.

        Parameters
        ----------
        stage : int
        ahead, update, over : float
            When passes begin, and the update, and when that is over [s].
        """
        own, order = own_actions(self.closed, stage), self.closed.pipeline.order
        timeline, kept = self.schedule.timeline, self.kept[own]
        before = np.concatenate(([0.0], kept[:-1]))
        start, end = ahead + timeline.start[own], ahead + timeline.end[own]
        forward = order.kind[own] == FORWARD
        back = ~forward
        nothing = np.zeros(1)
        # As a pass goes forward it keeps all that it will keep. Of what is at once the last holds.
        steps = [
            (np.zeros(1), LOSS, nothing, False),
            (end[back], LAST_BACKWARD, kept[back], True),
            (start[forward], LOSS, kept[forward], False),
            (start[back], FIRST_BACKWARD, before[back], False),
            (0.5 * (start + end)[back], LAST_BACKWARD, before[back], False),
            (np.array([update]), UPDATE, nothing, False),
            (np.array([over]), LOSS, nothing, False),
        ]
        times = np.concatenate([step[0] for step in steps])
        held = np.concatenate([self._at(self.moments[stage], *step[1:]) for step in steps])
        in_time = np.argsort(times, kind="stable")
        return _changes(times[in_time], held[in_time])

    def _at(
        self, moments: Moments, moment: int, kept: NDArray[np.float64], ended: bool
    ) -> NDArray[np.float64]:
        """Return what a stage holds at a moment with so much kept, shape (n, components) [B].

        Where a pass has `ended`, what it was made of is gone.
        """
        row, most = moments.memory.held[moment], moments.most
        found = np.tile(row, (kept.size, 1))
        if moment == UPDATE:
            return found
        scale = moments.memory.held[LOSS][ACTIVATIONS] / most if most > 0.0 else 0.0
        less = scale * (most - kept)
        there = scale * kept
        activations = np.maximum(row[ACTIVATIONS] - less, 0.0)
        if ended:
            activations = np.minimum(there, row[ACTIVATIONS])
        away = row[ACTIVATIONS] - activations
        found[:, ACTIVATIONS] = activations
        fragmentation = float(self.closed.share.settings.fragmentation)
        found[:, LOST] = np.maximum(row[LOST] - fragmentation * away, 0.0)
        return found


def _changes(start: NDArray[np.float64], held: NDArray[np.float64]) -> Held:
    """Keep the last of what begins at once, and of what stays the same the first."""
    last = np.append(start[1:] != start[:-1], True)
    start, held = start[last], held[last]
    new = np.append(True, (held[1:] != held[:-1]).any(axis=1))
    return Held(start[new], held[new])
