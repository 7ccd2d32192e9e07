"""The timeline of one training step: what every pipeline stage does when, and what it holds.

>>> from perfmodel import step_timeline, strategy_grid
>>> grid = strategy_grid("llama-3.1-8b", 8, sequence_length=8192, global_batch_size=32,
...                      tensor_parallel=2, pipeline_parallel=4)
>>> step = step_timeline("llama-3.1-8b", grid.take(slice(0, 1)), "dgx-h100")
>>> step.write("step.json")  # doctest: +SKIP

Its end is the projected step, and on the slowest stage the sums by kind are the step's components.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, StrategyError, did_you_mean
from perfmodel.base.timelines import Counter, Track, write_timeline
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, KINDS, WEIGHT
from perfmodel.kernels.variables import MEMORY_COMPONENTS, TIME_COMPONENTS
from perfmodel.model.presets import load_model
from perfmodel.software.framework import Framework, load_framework
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.strategy.rules import check_one_strategy
from perfmodel.training.stages import passes_track
from perfmodel.training.step.memory import Held, Memory
from perfmodel.training.step.schedule import (
    COMPONENT,
    DEPTHS,
    WORDS,
    Closed,
    Passes,
    Schedule,
    closed_step,
    gaps_of,
    moving,
    own_actions,
    pass_scale,
    passes_of,
    schedule_of,
    shown_sends,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec

Columns = NDArray[np.float64]
BUBBLE, PIPELINE = COMPONENT["pipeline_bubble"], COMPONENT["pipeline_exposed"]
DATA, OFFLOAD = COMPONENT["data_parallel_exposed"], COMPONENT["offload_exposed"]
OPTIMIZER, HOST = COMPONENT["optimizer_time"], COMPONENT["host_time"]
COMPUTE_TIMES = ("forward_time", "backward_time", "recompute_time", "optimizer_time")
COMPUTE = tuple(COMPONENT[name] for name in COMPUTE_TIMES)
MOST_EVENTS = 500_000
"""Of a file: some 80 MB, which Perfetto opens in seconds."""


class Spans(NamedTuple):
    """What a stage does one after the other.

    Attributes
    ----------
    start, duration : ndarray of float64
        [s].
    component : ndarray of int64
        Places in `perfmodel.kernels.variables.TIME_COMPONENTS`.
    name : ndarray of int64
        Places in `StepTimeline.names`.
    """

    start: Columns
    duration: Columns
    component: Integers
    name: Integers

    def totals(self) -> Columns:
        """Return what all of it takes by component, shape (components,) [s]."""
        found = np.zeros(len(TIME_COMPONENTS))
        np.add.at(found, self.component, self.duration)
        return found

    def at(self, rows: NDArray[Any]) -> Spans:
        """Return some of them: places, or a mask."""
        return Spans(self.start[rows], self.duration[rows], self.component[rows], self.name[rows])


class StagePasses(NamedTuple):
    """The passes of a stage.

    Attributes
    ----------
    start, duration : ndarray of float64
        [s].
    kind : ndarray of int64
        Of `PASSES`.
    micro_batch, chunk : ndarray of int64
        Chunks are the stage's own, from 0.
    """

    start: Columns
    duration: Columns
    kind: Integers
    micro_batch: Integers
    chunk: Integers


@dataclass(frozen=True, slots=True)
class StageTimeline:
    """One pipeline stage.

    Attributes
    ----------
    stage : int
    passes : StagePasses
    shown : Spans
        What it does and waits for from the begin of the step to its end, without a gap.
    hidden : Spans
        Communication that runs beside that; one after the other for each component.
    memory : Held
    """

    stage: int
    passes: StagePasses
    shown: Spans
    hidden: Spans
    memory: Held


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """One training step.

    Attributes
    ----------
    title : str
    results : mapping of str to float
        The projected step (`perfmodel.kernels.variables.STEP_VARIABLES`).
    critical : int
        The slowest stage, which the components of the step are of.
    stages : tuple of StageTimeline
        Those that were asked for.
    count : int
        Stages of the pipeline.
    names : tuple of str
    depth : str
        Of `perfmodel.training.step.schedule.DEPTHS`.
    drawn_sends, drawn_work : float
        Share of the time of sends, and of passes, with which stages but the slowest are drawn, so
        that all ends with the step [1] (`perfmodel.training.step.schedule.Schedule`).
    """

    title: str
    results: Mapping[str, float]
    critical: int
    stages: tuple[StageTimeline, ...]
    count: int
    names: tuple[str, ...]
    depth: str
    drawn_sends: float
    drawn_work: float

    @property
    def end(self) -> float:
        """When the last of it is over [s]."""
        return max(float(it.shown.start[-1] + it.shown.duration[-1]) for it in self.stages)

    @property
    def events(self) -> int:
        """Slices and values of counters that a file of it has."""
        return sum(
            2 * it.passes.start.size
            + it.shown.start.size
            + it.hidden.start.size
            + 2 * it.memory.start.size
            for it in self.stages
        )

    def totals(self, stage: int) -> dict[str, float]:
        """Return what a stage's time goes to, by component of the step [s]."""
        found = self._of(stage).shown.totals()
        return dict(zip(TIME_COMPONENTS, found.tolist(), strict=True))

    def hidden(self, stage: int) -> dict[str, float]:
        """Return communication of a stage that nothing shows of, by component [s]."""
        found = self._of(stage).hidden.totals()
        pairs = zip(TIME_COMPONENTS, found.tolist(), strict=True)
        return {name: time for name, time in pairs if time > 0.0}

    def _of(self, stage: int) -> StageTimeline:
        for found in self.stages:
            if found.stage == stage:
                return found
        raise StrategyError(f"stage {stage} is not on the timeline")

    def tracks(self) -> Iterator[Track | Counter]:
        """Yield what a file of it shows."""
        for one in self.stages:
            yield from _stage_tracks(self, one)

    def write(self, path: str | Path) -> int:
        """Write it as a file for https://ui.perfetto.dev, completely or not at all.

        Parameters
        ----------
        path : str or Path
            ``.json``, or ``.json.gz``.

        Returns
        -------
        int
            Events written.

        Raises
        ------
        DataError
            The file cannot be written.
        """
        about: dict[str, Any] = {"title": self.title, "slowest stage": self.critical}
        about |= {f"{name} [s]": self.results[name] for name in ("step_time", *TIME_COMPONENTS)}
        return write_timeline(self.tracks(), path, about)


def check_passes(grid: StrategyGrid, stages: int | None = None, most: int = MOST_EVENTS) -> None:
    """Refuse more passes than a viewer opens, before anything is made of them.

    Parameters
    ----------
    grid : StrategyGrid
        Exactly one strategy.
    stages : int, optional
        How many are told of; all unless given.
    most : int

    Raises
    ------
    DataError
    """
    one = {name: int(grid[name][0]) for name in ("micro_batch_size", "data_parallel")}
    batches = int(grid["global_batch_size"][0]) // (one["micro_batch_size"] * one["data_parallel"])
    _check_events(2 * batches * (stages or int(grid["pipeline_parallel"][0])), most)


def _check_events(events: int, most: int) -> None:
    """Refuse more events than a viewer opens."""
    if events > most:
        raise DataError(
            f"a timeline of about {events:,} events, more than {most:,}: fewer stages have fewer "
            "(--stages first,last)"
        )


def step_timeline(
    model: ModelSpec | str,
    grid: StrategyGrid,
    hardware: Hardware | str,
    *,
    framework: str | Framework = "megatron",
    stages: Sequence[int] | None = None,
    depth: str = DEPTHS[0],
    most: int = MOST_EVENTS,
) -> StepTimeline:
    """Lay the training step of one strategy in time.

    Parameters
    ----------
    model : ModelSpec or str
    grid : StrategyGrid
        Exactly one strategy.
    hardware : Hardware or str
    framework : str or Framework
    stages : sequence of int, optional
        Pipeline stages to tell of; negative ones count from the end. All unless given.
    depth : {"passes", "layers", "operations"}
        How finely passes are told; less finely where there are too many events.
    most : int
        Events that a file of it has at most.

    Returns
    -------
    StepTimeline
        Its end is the projected step time, and the sums by component on its slowest stage are the
        projected components, to rounding.

    Raises
    ------
    StrategyError
        Not exactly one strategy, an impossible one, a stage or a depth that there is not.
    DataError
        Passes alone are more than `most` events.
    """
    from perfmodel.hwprofiles import load_hardware

    model, hardware = load_model(model), load_hardware(hardware)
    check_one_strategy(grid, hardware, "a timeline takes")
    if depth not in DEPTHS:
        raise StrategyError(f"unknown depth '{depth}'{did_you_mean(depth, DEPTHS)}")
    count = int(grid["pipeline_parallel"][0])
    numbers = range(count) if stages is None else [_stage(stage, count) for stage in stages]
    chosen = sorted(set(numbers))
    check_passes(grid, len(chosen), most)
    software = load_framework(framework)
    closed = closed_step(model, grid, hardware, software)
    for told in DEPTHS[DEPTHS.index(depth) :: -1]:
        passes = passes_of(closed, told)
        events = _expected_events(closed, passes, chosen)
        if events <= most:
            break
    _check_events(events, most)
    schedule = schedule_of(closed, passes)
    found = _Found(closed, passes, schedule, Memory(closed, schedule))
    return StepTimeline(
        f"{model.name} on {grid.devices:,} × {hardware.name}, {software.name}",
        closed.results,
        closed.critical,
        tuple(found.stage(number) for number in chosen),
        count,
        tuple(found.names),
        told,
        schedule.drawn_sends,
        schedule.drawn_work,
    )


def _expected_events(closed: Closed, passes: Passes, stages: Sequence[int]) -> int:
    """Return about how many events the passes of some stages have."""
    order = closed.pipeline.order
    runs = np.zeros((KINDS, order.rank_of.size), np.int64)
    np.add.at(runs, (order.kind, order.stage), 1)
    chosen = np.isin(order.rank_of, stages)
    found = 0
    for (kind, chunk), pieces in passes.pieces.items():
        if chosen[chunk]:
            # A pass, its pieces, what is behind it, and up to four values of counters.
            each = 6 + len(pieces) + sum(piece.hidden > 0.0 for piece in pieces)
            found += each * int(runs[kind, chunk])
    return found


def _stage(stage: int, count: int) -> int:
    if not -count <= stage < count:
        raise StrategyError(f"stage {stage}; the strategy has stages 0 to {count - 1}")
    return stage % count


class _Found:
    """Puts the pieces of a step together, stage by stage."""

    def __init__(self, closed: Closed, passes: Passes, schedule: Schedule, memory: Memory) -> None:
        self.closed, self.passes, self.schedule, self.memory = closed, passes, schedule, memory
        self.names: dict[str, int] = {}
        self.ahead = closed.details["gather"]
        self.moving = moving(closed)
        self.scale = pass_scale(closed, schedule.drawn_work)
        self.sends = shown_sends(closed, passes, schedule.drawn_sends)

    def stage(self, stage: int) -> StageTimeline:
        """Return the timeline of one stage."""
        own, order = own_actions(self.closed, stage), self.closed.pipeline.order
        timeline = self.schedule.timeline
        start, end = timeline.start[own], timeline.end[own]
        chunks = np.flatnonzero(order.rank_of == stage).searchsorted(order.stage[own])
        passes = StagePasses(
            self.ahead + start, end - start, order.kind[own], order.micro_batch[own], chunks
        )
        shown, hidden = self._pass_spans(own)
        shown += [self._gap_spans(stage), self._once()]
        hidden += self._hidden_sends(stage, own) + self._hidden_data(stage)
        details, step = self.closed.details, self.closed.results["step_time"]
        update = self.ahead + self.schedule.until + details["reduce"]
        over = update + self.closed.results["optimizer_time"] + details["copies"]
        held = self.memory.of(stage, self.ahead, update, min(over, step))
        return StageTimeline(stage, passes, self._in_turn(shown), self._packed(hidden), held)

    def _name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def _pass_spans(self, own: Integers) -> tuple[list[Spans], list[Spans]]:
        """Return what passes consist of, and what runs beside them, from the first pass on."""
        order, timeline = self.closed.pipeline.order, self.schedule.timeline
        shown, hidden = [], []
        for (kind, chunk), pieces in self.passes.pieces.items():
            runs = own[(order.kind[own] == kind) & (order.stage[own] == chunk)]
            if not runs.size:
                continue
            scale, send = float(self.scale[chunk]), float(self.sends[kind, chunk])
            durations = [scale * piece.duration for piece in pieces]
            components = [piece.component for piece in pieces]
            names = [self._name(piece.name) for piece in pieces]
            first = self._receives(kind, chunk)
            if send > 0.0:
                at = 0 if first else len(pieces)
                durations.insert(at, send)
                components.insert(at, PIPELINE)
                names.insert(at, self._name("receive" if first else "send"))
            offsets = np.cumsum([0.0, *durations])[:-1]
            shown.append(_repeated(timeline.start[runs], offsets, durations, components, names))
            begin = send if first else 0.0
            beside = [piece for piece in pieces if piece.hidden > 0.0]
            hidden.append(
                _repeated(
                    timeline.start[runs],
                    np.array([begin + scale * piece.beside for piece in beside]),
                    [scale * piece.hidden for piece in beside],
                    [piece.component for piece in beside],
                    [self._name(piece.name) for piece in beside],
                )
            )
        return shown, hidden

    def _receives(self, kind: int, chunk: int) -> bool:
        """Tell whether a pass begins with what another stage has sent; the others send."""
        depth = self.closed.pipeline.order.rank_of.size // self.closed.pipeline.order.copies
        place = chunk % depth
        return place > 0 if kind == FORWARD else place < depth - 1

    def _gap_spans(self, stage: int) -> Spans:
        """Return where a stage does not work."""
        gap = gaps_of(self.closed, self.passes, self.schedule, stage)
        idle = np.maximum(gap.length - gap.sent - gap.received, 0.0)
        start = np.stack((gap.start, gap.start + gap.sent, gap.start + gap.sent + idle))
        duration = np.stack((gap.sent, idle, gap.received))
        names = np.array([self._name(it) for it in ("send", "bubble", "wait for a send")])
        kinds = np.array([PIPELINE, BUBBLE, PIPELINE])
        size = gap.start.size
        return Spans(
            self.ahead + start.ravel(),
            duration.ravel(),
            np.repeat(kinds, size),
            np.repeat(names, size),
        )

    def _once(self) -> Spans:
        """Return what is done once a step, on all stages alike."""
        details, results = self.closed.details, self.closed.results
        behind = self.ahead + self.schedule.until
        ends = (
            ("gather parameters", DATA, details["gather"]),
            ("reduce gradients", DATA, details["reduce"]),
            ("optimizer", OPTIMIZER, results["optimizer_time"]),
            ("copies of the update", OFFLOAD, details["copies"]),
            ("host", HOST, float(self.closed.share.settings.step_overhead)),
        )
        durations = np.array([time for *_, time in ends])
        start = np.concatenate(([0.0], behind + np.cumsum([0.0, *durations[1:-1]])))
        names = [self._name(name) for name, *_ in ends]
        return Spans(start, durations, np.array([it[1] for it in ends]), np.array(names))

    def _hidden_sends(self, stage: int, own: Integers) -> list[Spans]:
        """Return sends that run beside passes, from the end of what they send."""
        sends = own[self.moving[own]]
        if not sends.size:
            return []
        results, send = self.closed.results, self.passes.send
        each = (1.0 - self.passes.keeps) * (send - self.passes.shown)
        if stage == self.closed.critical:  # the projection counts receives as well
            hidden = results["pipeline_total"] - results["pipeline_exposed"]
            each = max(hidden, 0.0) / sends.size
        name = self._name("send")
        return [
            _repeated(self.schedule.timeline.end[sends], np.zeros(1), [each], [PIPELINE], [name])
        ]

    def _hidden_data(self, stage: int) -> list[Spans]:
        """Return gathers and reductions that run beside passes: first, last, or all of them."""
        details, until = self.closed.details, self.schedule.until
        gather = max(details["gather_total"] - details["gather"], 0.0)
        reduce = max(details["reduce_total"] - details["reduce"], 0.0)
        found = [
            _repeated(
                np.zeros(1),
                np.array([0.0, until - reduce]),
                [gather, reduce],
                [DATA, DATA],
                [self._name("gather parameters"), self._name("reduce gradients")],
            )
        ]
        each = details["each_total"] - details["each"]
        sharded = self.closed.shards.row[0] >= 0  # is part of passes, as is what hides of it
        if stage == self.closed.critical and not sharded and each > 0.0:
            own, order = own_actions(self.closed, stage), self.closed.pipeline.order
            behind = own[np.isin(order.kind[own], (BACKWARD, WEIGHT))]
            each *= self.closed.batches / behind.size
            name = self._name("reduce gradients")
            start = self.schedule.timeline.start[behind]
            found.append(_repeated(start, np.zeros(1), [each], [DATA], [name]))
        return found

    def _in_turn(self, spans: list[Spans]) -> Spans:
        """Return all that a stage does in its order; those of passes begin behind the gather."""
        *passes, gaps, once = spans
        moved = [it._replace(start=self.ahead + it.start) for it in passes]
        return _sorted(_joined([*moved, gaps, once]), self.closed.results["step_time"])

    def _packed(self, hidden: list[Spans]) -> Spans:
        """Return what hides, in the time of passes, of each component one after the other."""
        end = self.closed.results["step_time"]
        found = _sorted(_joined(hidden), end)
        start = found.start.copy()
        for component in np.unique(found.component):
            rows = np.flatnonzero(found.component == component)
            start[rows] = _one_by_one(start[rows], found.duration[rows], self.schedule.until)
        return _sorted(found._replace(start=self.ahead + start), end)


def _repeated(
    starts: Columns,
    offsets: Columns,
    durations: Sequence[float],
    components: Sequence[int],
    names: Sequence[int],
) -> Spans:
    """Return the pieces of many passes alike, pass after pass."""
    runs = starts.size
    return Spans(
        (starts[:, None] + offsets).ravel(),
        np.tile(np.array(durations, np.float64), runs),
        np.tile(np.array(components, np.int64), runs),
        np.tile(np.array(names, np.int64), runs),
    )


def _joined(spans: Sequence[Spans]) -> Spans:
    return Spans(
        np.concatenate([it.start for it in spans]),
        np.concatenate([it.duration for it in spans]),
        np.concatenate([it.component for it in spans]),
        np.concatenate([it.name for it in spans]),
    )


def _sorted(spans: Spans, end: float) -> Spans:
    """Return what takes time, more than roundings at the end do, by its begin."""
    rows = np.flatnonzero(spans.duration > 4.0 * np.spacing(end))
    rows = rows[np.argsort(spans.start[rows], kind="stable")]
    return spans.at(rows)


def _one_by_one(ready: Columns, duration: Columns, until: float) -> Columns:
    """Return when each can begin with one at a time, as late as it has to and all within a time."""
    before = np.cumsum(duration) - duration
    start = np.maximum.accumulate(ready - before) + before
    left = np.cumsum(duration[::-1])[::-1]
    return np.maximum(np.minimum(start, until - left), 0.0)


def _stage_tracks(step: StepTimeline, one: StageTimeline) -> Iterator[Track | Counter]:
    """Yield the tracks of one stage."""
    slowest = " (slowest)" if one.stage == step.critical else ""
    process = f"stage {one.stage}{slowest}"
    passes, shown = one.passes, one.shown
    about = passes.kind, passes.micro_batch, passes.chunk
    yield passes_track(process, passes.start, passes.duration, *about)
    communicates = ~np.isin(shown.component, [*COMPUTE, HOST, BUBBLE])
    threads = {
        "compute": np.isin(shown.component, COMPUTE),
        "communication that shows": communicates,
        "host": shown.component == HOST,
        "bubble": shown.component == BUBBLE,
    }
    for thread, chosen in threads.items():
        if chosen.any():
            yield _track(step, process, thread, shown.at(chosen), "")
    for component in np.unique(one.hidden.component).tolist():
        chosen = one.hidden.component == component
        thread = f"hidden {WORDS[TIME_COMPONENTS[component]]}"
        yield _track(step, process, thread, one.hidden.at(chosen), "hidden ")
    memory = one.memory
    yield Counter(process, "memory [B]", memory.start, {"total": memory.total})
    parts = {
        name.removeprefix("memory_"): memory.held[:, i] for i, name in enumerate(MEMORY_COMPONENTS)
    }
    yield Counter(process, "memory by component [B]", memory.start, parts)


def _track(step: StepTimeline, process: str, thread: str, spans: Spans, prefix: str) -> Track:
    return Track(
        process,
        thread,
        [step.names[name] for name in spans.name.tolist()],
        spans.start,
        spans.duration,
        [prefix + TIME_COMPONENTS[component] for component in spans.component.tolist()],
    )
