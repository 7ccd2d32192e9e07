"""The table of pipeline schedules: everything that tells them apart but the order of passes.

The order is one function of `perfmodel.kernels.pipeline.orders`, registered under the same name:
a schedule is a row of ``schedules.csv`` and a function there (docs/how-to/add-a-schedule.md), and
nothing else names schedules to tell what they do. The place in `SCHEDULE_FACTS` is the number that
columns and stored datasets use: new schedules are appended. docs/pipelines.md describes all.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.files import read_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOOP, WAVE, BIDIRECTIONAL, TABLE = "loop", "wave", "bidirectional", "table"
"""Where chunk c of p stages lies: on stage c mod p; up and down the stages in turn (a V is one
wave); a chunk a stage, with a second copy of the model from the last stage to the first; or where
a table says."""
PLACEMENTS = (LOOP, WAVE, BIDIRECTIONAL, TABLE)
EVENTS, GPIPE, ONE_F_ONE_B, INTERLEAVED = "", "gpipe", "1f1b", "interleaved"
"""Closed forms that the closing pass has, for chunks of equal layers: none (passes run one by
one), or that of one of these schedules."""
CLOSED_FORMS = (EVENTS, GPIPE, ONE_F_ONE_B, INTERLEAVED)
NO_GROUPS, GIVEN_GROUPS, ROUNDS = "", "given", "rounds"
"""Micro-batches that pass through all chunks of a stage before others do: all of them; as many as
``micro_batch_group`` says; or equal rounds of about as many as there are stages (PyTorch)."""
GROUPS = (NO_GROUPS, GIVEN_GROUPS, ROUNDS)


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a pipeline schedule is.

    Attributes
    ----------
    name : str
        Label of ``pipeline_schedule``.
    placement : str
        One of `PLACEMENTS`.
    fewest_chunks, chunk_step : int
        Chunks that a stage has at least, and the step from there; a step of 0 means no more.
    splits_backward : bool
        Gradients of inputs and of weights are passes of their own.
    title : str
        What it is, in a line.
    batches_per_stage : int
        Micro-batches for each stage that there must be at least.
    even : bool
        Stages and micro-batches must be even.
    groups : str
        One of `GROUPS`.
    closed_form : str
        One of `CLOSED_FORMS`; all but `EVENTS` say that ranks begin with the first micro-batch and
        its first chunk, and end with the backward pass of that chunk.
    closed_if_uneven : bool
        There is a closed form for stages of any length, too: 1F1B's.
    repeats : bool
        p micro-batches after p are treated alike, however many there are.
    blocking_sends : bool
        Nothing runs beside sends between stages, whatever the software does in other schedules.
    pairs_stages : bool
        Early stages keep more activations than late ones, which can take some of them over.

    Raises
    ------
    ValueError
        A fact is none of those that kernels and callers know.
    """

    name: str
    placement: str
    fewest_chunks: int
    chunk_step: int
    splits_backward: bool
    title: str
    batches_per_stage: int = 0
    even: bool = False
    groups: str = NO_GROUPS
    closed_form: str = EVENTS
    closed_if_uneven: bool = False
    repeats: bool = False
    blocking_sends: bool = False
    pairs_stages: bool = False

    def __post_init__(self) -> None:
        for fact, known in (
            ("placement", PLACEMENTS),
            ("groups", GROUPS),
            ("closed_form", CLOSED_FORMS),
        ):
            if getattr(self, fact) not in known:
                raise ValueError(f"schedule {self.name}: {fact} is none of {', '.join(known)}")
        if self.placement == WAVE and (self.fewest_chunks % 2 or self.chunk_step % 2):
            raise ValueError(f"schedule {self.name}: a wave goes down and up, two chunks at a time")
        if self.fewest_chunks < 1 or self.chunk_step < 0:
            raise ValueError(f"schedule {self.name}: a stage has at least one chunk")

    @property
    def joins_ends(self) -> bool:
        """The first and the last chunk lie on one stage."""
        return self.placement == WAVE

    @property
    def copies(self) -> int:
        """Of the model, each of which takes as many micro-batches."""
        return 2 if self.placement == BIDIRECTIONAL else 1

    @property
    def closed(self) -> bool:
        """Chunks of equal layers have a closed form."""
        return self.closed_form != EVENTS


def _schedule(row: Mapping[str, str]) -> Schedule:
    cells: Mapping[str, Callable[[str], Any]] = {"bool": "true".__eq__, "int": int, "str": str}
    facts = {item.name: cells[str(item.type)] for item in dataclasses.fields(Schedule)}
    return Schedule(**{name: facts[name](cell) for name, cell in row.items()})


SCHEDULE_FACTS: Mapping[str, Schedule] = {
    row["name"]: _schedule(row) for row in read_rows(Path(__file__).with_name("schedules.csv"))
}
"""By name."""

SCHEDULES = tuple(name for name in SCHEDULE_FACTS if name != TABLE)
"""Those with an order of their own."""
CODES: Mapping[str, int] = {name: code for code, name in enumerate(SCHEDULE_FACTS)}
"""The number of each, in columns and datasets."""
PLAIN, CHUNKED = "1f1b", "interleaved"
"""Schedules where nothing is said, of stages with one chunk and with several."""


@functools.cache
def schedule_facts(fact: str) -> NDArray[Any]:
    """Return a fact of all schedules, a field or property of `Schedule`, by their numbers."""
    import numpy as np

    return np.array([getattr(item, fact) for item in SCHEDULE_FACTS.values()])
