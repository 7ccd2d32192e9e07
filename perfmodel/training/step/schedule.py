"""When everything happens in the step of one strategy, so that it takes what the closing pass says.

The closing pass adds up what delays the slowest stage. Its passes, and those of all other stages,
run here one by one: each stage works on what it holds and waits for what it needs. What is priced
of the slowest stage alone (gradients that are reduced after every micro-batch, copies to a host)
stands on that stage, and the others wait for it; what is priced once a step stands ahead of all
passes or behind them, on all stages alike.

In closed form a bubble is what longest ways through the passes say, which events say as well, and
sends add so much for each pass of the slowest stage, and once more to fill and drain the pipeline.
Passes that run one by one never take longer than that; where a way of theirs meets more sends than
the closed form counts, sends of other stages are drawn that much shorter (`Schedule.drawn_sends`),
and what is left at the end all stages wait.

A pass of a micro-batch through a model chunk is made of pieces (`pass_pieces`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT
from perfmodel.kernels.variables import STEP_VARIABLES, TIME_COMPONENTS
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import StrategyGrid, batches_of
from perfmodel.strategy.pipelines import Pipeline
from perfmodel.training.best_layout import BEST, best_splits
from perfmodel.training.project import Share, add_waits, framework_of_run, shares_of
from perfmodel.training.scheduled import chunks_of, sends_are_hidden
from perfmodel.training.stages import pipeline_of
from perfmodel.training.step.program import (
    GRADIENTS,
    PHASE_NAMES,
    ProgramStep,
    host_share,
    pass_program,
)
from perfmodel.training.step.types import ProjectedPart, component_of
from perfmodel.training.step.workload import model_chunks
from perfmodel.training.workload import Workload, placement_of

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.pipeline.events import Durations, Timeline
    from perfmodel.kernels.step.scheduled import Shards
    from perfmodel.kernels.step.tables import Waits

DEPTHS = ("passes", "layers", "operations")
"""How finely a pass is told: by what its time goes to, the same of every layer, or of every
operation."""

COMPONENT = {name: code for code, name in enumerate(TIME_COMPONENTS)}
WORDS = {
    name: name.removesuffix("_time").removesuffix("_exposed").replace("_", " ")
    for name in TIME_COMPONENTS
} | {"pipeline_bubble": "bubble"}
"""What components of the step are called on a timeline."""


class Piece(NamedTuple):
    """Some of a pass.

    Attributes
    ----------
    component : int
        Place in `perfmodel.kernels.variables.TIME_COMPONENTS` of what its time goes to.
    name : str
    duration : float
        What it adds to the pass [s].
    hidden : float
        Communication: what runs beside other work [s].
    beside : float
        When that begins, from the start of the pass [s].
    """

    component: int
    name: str
    duration: float
    hidden: float = 0.0
    beside: float = 0.0


def pass_pieces(
    blocks: Sequence[tuple[str, ProjectedPart]], kind: int, depth: str = DEPTHS[0]
) -> list[Piece]:
    """Return the pieces of one pass of one micro-batch, in their order.

    Parameters
    ----------
    blocks : sequence of (str, ProjectedPart)
        Labels and parts of the chunk, in the order of the model.
    kind : int
        Of `perfmodel.kernels.pipeline.actions`.
    depth : {"passes", "layers", "operations"}
    """
    found: list[Piece] = []
    forward, gradients = kind == FORWARD, GRADIENTS[kind]
    for label, part in blocks if forward else blocks[::-1]:
        program = pass_program(part.operations, forward, gradients)
        pieces = _operation_pieces(program, label, sum(piece.duration for piece in found))
        wait = part.host_forward if forward else host_share(gradients, part) * part.host_backward
        if wait > 0.0:
            pieces.append(Piece(COMPONENT["host_time"], f"{label} host", wait))
        found += _joined(pieces, f"{label} ") if depth == DEPTHS[1] else pieces
    return found if depth != DEPTHS[0] else _joined(found, "")


def _operation_pieces(program: Sequence[ProgramStep], label: str, begin: float) -> list[Piece]:
    """Return what every operation adds; what hides does so from the first step beside it on."""
    starts = [begin]
    for step in program:
        starts.append(starts[-1] + step.operation.exposed)
    return [
        Piece(
            COMPONENT[component_of(step.operation)],
            f"{label} {PHASE_NAMES[step.operation.phase]} {step.operation.name}",
            step.operation.exposed,
            max(step.operation.time - step.operation.exposed, 0.0),
            starts[min(step.first, i) if step.aside else i],
        )
        for i, step in enumerate(program)
    ]


def _joined(pieces: Sequence[Piece], prefix: str) -> list[Piece]:
    """Join the pieces of every component; those come in the order in which they first do."""
    joined: dict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        joined[piece.component].append(piece)
    return [
        Piece(
            component,
            prefix + WORDS[TIME_COMPONENTS[component]],
            sum(piece.duration for piece in own),
            sum(piece.hidden for piece in own),
            min(piece.beside for piece in own),
        )
        for component, own in joined.items()
    ]


Columns = NDArray[np.float64]
EXPERT = COMPONENT["expert_parallel_exposed"]
DATA = COMPONENT["data_parallel_exposed"]
OFFLOAD = COMPONENT["offload_exposed"]
SAME = 1e-12
"""Of the passes' time: what roundings may be."""


class Closed(NamedTuple):
    """One strategy as the closing pass has it.

    Attributes
    ----------
    share : Share
    waits : Waits
    shards : Shards
    results : dict of str to float
        Every variable of `perfmodel.kernels.variables.STEP_VARIABLES`.
    details : dict of str to float
        By the names of `perfmodel.kernels.step.close.DetailRows`.
    copies : ndarray
        Offload of every distinct stage, each micro-batch [s].
    pipeline : Pipeline
    chunks : list of list of (str, ProjectedPart)
        What the chunks of the model hold.
    """

    share: Share
    waits: Waits
    shards: Shards
    results: Mapping[str, float]
    details: Mapping[str, float]
    copies: Columns
    pipeline: Pipeline
    chunks: Sequence[Sequence[tuple[str, ProjectedPart]]]

    @property
    def critical(self) -> int:
        """Number of the slowest stage, the first of those alike."""
        return int(self.share.stages.sums.first_stage[int(self.details["critical"])])

    @property
    def in_closed_form(self) -> bool:
        """Whether the projection takes the pipeline in closed form."""
        return int(self.share.work.strategies.waits[0]) < 0

    @property
    def batches(self) -> int:
        """Micro-batches of either copy of the model."""
        order = self.pipeline.order
        return order.micro_batches // order.copies


def closed_step(
    model: ModelSpec, grid: StrategyGrid, hardware: Hardware, framework: Framework
) -> Closed:
    """Close one strategy, and keep what it is closed of.

    Parameters
    ----------
    model : ModelSpec
    grid : StrategyGrid
        Of one possible strategy.
    hardware : Hardware
    framework : Framework
    """
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.work import kernel_work

    (share,) = shares_of(Workload(model, grid), hardware, framework)
    waits = add_waits(share)
    with kernel_work(strategies=2):
        from perfmodel.kernels.step import close as kernel

        arguments = share.arguments(share.work.strategies, waits)
        out = np.zeros((len(STEP_VARIABLES), 1))
        results = kernel.results_in(out)
        kernel.close_strategies(*map(plain, arguments), results)
        details = dict(zip(kernel.DETAIL._fields, results.details.tolist(), strict=True))
        copies = np.zeros(share.stages.sums.size)
        if details["copied"] > 0.0:
            from perfmodel.kernels.step.offload import stage_copies

            asked = map(plain, (share.stages, share.settings, share.network))
            strategy, count = plain(share.work.strategies[0]), int(batches_of(grid)[0])
            stage_copies(strategy, count, *asked, copies)
    pipeline = pipeline_of(grid)
    software = framework_of_run(framework, model, hardware, grid)
    split = software.stage_split
    if split == BEST:
        stages, virtual = int(grid["pipeline_parallel"][0]), int(grid["virtual_pipeline"][0])
        placed = (stages, virtual, placement_of(int(grid["pipeline_schedule"][0]), grid))
        (split,) = best_splits(model, [placed], share.keys.parts)
    return Closed(
        share,
        waits,
        arguments[5],
        {item.name: float(out[i, 0]) for i, item in enumerate(STEP_VARIABLES)},
        details,
        copies,
        pipeline,
        model_chunks(model, grid, hardware, software, pipeline.order, split),
    )


class Passes(NamedTuple):
    """What passes of every kind and chunk take.

    Attributes
    ----------
    pieces : dict of (int, int) to list of Piece
        Of every kind of pass and chunk that there are, sends left out.
    work : ndarray, shape (KINDS, chunks)
        Their sums [s].
    send : float
        Between stages [s].
    shown : float
        What of a send is part of each pass (`in_closed_form`) [s].
    keeps : float
        Share of a send that keeps its sender from working, beyond that [1].
    """

    pieces: Mapping[tuple[int, int], list[Piece]]
    work: Columns
    send: float
    shown: float
    keeps: float


def passes_of(closed: Closed, depth: str) -> Passes:
    """Return what passes take, with all that the closing pass adds to those of one stage."""
    order, critical = closed.pipeline.order, closed.critical
    kinds = np.unique(order.kind).tolist()
    pieces = {
        (kind, chunk): pass_pieces(blocks, kind, depth)
        for chunk, blocks in enumerate(closed.chunks)
        for kind in kinds
    }
    _add_shards(closed, pieces)
    _add_lonely_exchanges(closed, pieces)
    batches, details = closed.batches, closed.details
    stage_row = chunks_of(closed.share.work, 0).stage_row
    for stage in range(order.first.size - 1):
        own = np.flatnonzero(order.rank_of == stage).tolist()
        if stage == critical:
            reduced = batches * (details["each"] - details["sharded"])
            _spread(pieces, own, DATA, "reduce gradients", reduced / batches)
        if stage == critical or closed.in_closed_form:
            # Between the ends the closed form takes what shows on any stage.
            copies = closed.copies[stage_row]
            if stage not in (0, critical):
                copies[:-1] = copies.min()
            _spread(pieces, own, OFFLOAD, "copies", float(copies[stage]))
    work = np.zeros((KINDS, len(closed.chunks)))
    for place, found in pieces.items():
        work[place] = sum(piece.duration for piece in found)
    strategy, settings = closed.share.work.strategies[0], closed.share.settings
    stages, virtual, send = (
        int(strategy.pipeline_parallel),
        int(strategy.virtual_pipeline),
        details["send"],
    )
    if stages == 1:
        return Passes(pieces, work, 0.0, 0.0, 0.0)
    name = str(closed.share.work.grid.row(0)["pipeline_schedule"])
    if not closed.in_closed_form:
        return Passes(pieces, work, send, 0.0, float(not sends_are_hidden(name, settings)))
    shown = send
    if settings.overlap_pipeline and virtual > 1:
        shown = max(0.0, send - _stage_time(closed) / (2.0 * virtual))
    return Passes(pieces, work, send, shown, 0.0)


def _spread(
    pieces: Mapping[tuple[int, int], list[Piece]],
    chunks: Sequence[int],
    component: int,
    name: str,
    time: float,
) -> None:
    """Add what a micro-batch takes on a stage beyond its passes to those that end it there.

    To its chunks evenly: whole backward passes, or those for the weights.
    """
    if not time > 0.0:
        return
    for chunk in chunks:
        for kind in (BACKWARD, WEIGHT):
            if (kind, chunk) in pieces:
                pieces[kind, chunk].append(Piece(component, name, time / len(chunks)))


def _stage_time(closed: Closed) -> float:
    """Return what a micro-batch takes on the slowest stage, as the closing pass finds it [s]."""
    row = int(closed.details["critical"])
    busy = float(closed.share.stages.sums.busy[row])
    return busy + closed.details["sharded"] + float(closed.copies[_own_row(closed)])


def _own_row(closed: Closed) -> int:
    """Return the slowest stage's row among those of its pipeline."""
    of = closed.share.stages.of[closed.share.work.strategies.stage_key[0]]
    return int(closed.details["critical"]) - int(of.first)


def _add_shards(closed: Closed, pieces: Mapping[tuple[int, int], list[Piece]]) -> None:
    """Add what gathers and reductions of sharded parameters (ZeRO-3) delay passes by."""
    if closed.shards.row[0] < 0:
        return
    from perfmodel.kernels.step.scheduled import chunk_rows

    order, chunks = closed.pipeline.order, chunks_of(closed.share.work, 0)
    prices, details = closed.shards.parts[closed.shards.row[0]], closed.details
    rows = chunk_rows(order.rank_of, chunks)
    last = np.where(chunks.counts > 0.0, prices["last"], 0.0).max(axis=1)[rows]
    for stage in range(order.first.size - 1):
        own = np.flatnonzero(order.rank_of == stage)
        last[own] = last[own].max() / own.size  # shows once a micro-batch
    held = chunks.counts[rows]
    ahead, exposed, total = (held @ prices[name] for name in ("ahead", "exposed", "total"))
    hidden = np.maximum(total - exposed - last, 0.0)
    # The first gather of a step, which shows, is one of those that hide otherwise.
    left = details["each_total"] - details["each"] - details["gather"] / closed.batches
    own = order.rank_of == closed.critical
    if hidden[own].any():
        hidden[own] *= max(left, 0.0) / hidden[own].sum()
    for (kind, chunk), found in pieces.items():
        if kind == FORWARD:
            found.insert(0, Piece(DATA, "gather parameters", ahead[chunk], 0.5 * hidden[chunk]))
        elif kind in (BACKWARD, INPUT):
            shown = exposed[chunk] - ahead[chunk] + last[chunk]
            found.append(Piece(DATA, "gather and reduce", shown, 0.5 * hidden[chunk]))


def _add_lonely_exchanges(closed: Closed, pieces: Mapping[tuple[int, int], list[Piece]]) -> None:
    """Add exchanges of experts that show where a pass has no partner to hide behind.

    A share of passes, which all passes of the slowest stage bear alike here.
    """
    order, row = closed.pipeline.order, int(closed.details["critical"])
    of = closed.share.stages.sums[row]
    hidden = closed.batches * float(of.expert_total - of.expert_exposed)
    more = closed.results["expert_parallel_exposed"] - closed.batches * float(of.expert_exposed)
    if not hidden > 0.0 or not more > 0.0:
        return
    share = more / hidden
    for (_, chunk), found in pieces.items():
        if order.rank_of[chunk] != closed.critical:
            continue
        for place, piece in enumerate(found):
            if piece.component == EXPERT and piece.hidden > 0.0:
                shown = piece.duration + share * piece.hidden
                found[place] = piece._replace(duration=shown, hidden=(1.0 - share) * piece.hidden)


class Schedule(NamedTuple):
    """When passes run.

    Attributes
    ----------
    timeline : Timeline
        By action of the order, from the first pass on.
    until : float
        When all stages go on with what is done once a step, from the first pass on [s].
    drawn_sends : float
        Share of the time of sends with which passes of stages but the slowest run [1].
    drawn_work : float
        The same of their work: below 1 only where the closed form takes stages as shorter than
        they are (offload of stages that differ).
    """

    timeline: Timeline
    until: float
    drawn_sends: float
    drawn_work: float


def schedule_of(closed: Closed, passes: Passes) -> Schedule:
    """Let the passes of a strategy run within the time that it has for them."""
    from perfmodel.kernels.work import kernel_work

    results, details = closed.results, closed.details
    once = details["gather"] + details["reduce"] + details["copies"]
    once += results["optimizer_time"] + float(closed.share.settings.step_overhead)
    until = results["step_time"] - once
    order, program = closed.pipeline
    with kernel_work(pipeline_passes=3 * order.kind.size):
        from perfmodel.kernels.pipeline.events import run_order

        def run(sends: float, work: float) -> Timeline:
            found: Timeline = run_order(order, program, _durations(closed, passes, sends, work))
            return found

        limit = until * (1.0 + SAME)
        found, sends, work = run(1.0, 1.0), 1.0, 1.0
        if found.makespan > limit and passes.shown + passes.send > 0.0:
            slow, found, sends = found, run(0.0, 1.0), 0.0
            if found.makespan <= limit:
                # A sum of maxima is convex: what a chord says is never too long.
                for _ in range(3):
                    more = (until - found.makespan) / (slow.makespan - found.makespan)
                    sends += (1.0 - sends) * max(more, 0.0)
                    found = run(sends, 1.0)
        if found.makespan > limit:
            slow, found = found, run(0.0, 0.0)
            work = (until - found.makespan) / (slow.makespan - found.makespan)
            found = run(0.0, work)
    return Schedule(found, until, sends, work)


def _durations(closed: Closed, passes: Passes, sends: float, work: float) -> Durations:
    from perfmodel.kernels.pipeline.events import Durations

    takes = pass_scale(closed, work) * passes.work + shown_sends(closed, passes, sends)
    left = sends * (passes.send - passes.shown)
    moved = np.full_like(takes, left)
    return Durations(takes, moved, np.empty((0, 0)), passes.keeps, 0.0)


def pass_scale(closed: Closed, work: float) -> Columns:
    """Return by how much passes of every chunk are drawn shorter than they are [1]."""
    return np.where(closed.pipeline.order.rank_of == closed.critical, 1.0, work)


def shown_sends(closed: Closed, passes: Passes, sends: float) -> Columns:
    """Return what sends add to a pass of every kind and chunk, shape (KINDS, chunks) [s]."""
    scale = np.where(closed.pipeline.order.rank_of == closed.critical, 1.0, sends)
    moves = np.ones((KINDS, 1))
    moves[WEIGHT] = 0.0
    return moves * scale * passes.shown


class Gap(NamedTuple):
    """Between two passes of a stage, ahead of the first and behind the last, in their order.

    Attributes
    ----------
    start, length : ndarray
        [s].
    sent, received : ndarray
        What of it counts as sends: from its start on, and until its end [s].
    """

    start: Columns
    length: Columns
    sent: Columns
    received: Columns


def gaps_of(closed: Closed, passes: Passes, schedule: Schedule, stage: int) -> Gap:
    """Return where a stage does not work, and what of that are sends.

    On the slowest stage as much as the projection says, first those that keep it, then those that
    it waits for; the rest is its bubble.
    """
    order, program = closed.pipeline
    own = slice(*order.first[stage : stage + 2].tolist())
    start, end = schedule.timeline.start[own], schedule.timeline.end[own]
    begin = np.concatenate(([0.0], end))
    length = np.maximum(np.concatenate((start, [schedule.until])) - begin, 0.0)
    sends, receives = np.zeros(order.kind.size, bool), np.zeros(order.kind.size, bool)
    sends[program.action], receives[program.action] = program.sends, program.receives
    kept = np.concatenate(([0.0], np.where(sends[own], passes.keeps * passes.send, 0.0)))
    kept = np.minimum(kept, length)
    received = np.zeros_like(length)
    if stage != closed.critical:
        return Gap(begin, length, kept, received)
    in_passes = float((shown_sends(closed, passes, 1.0)[order.kind[own], order.stage[own]]).sum())
    left = max(closed.results["pipeline_exposed"] - in_passes, 0.0)
    kept = _up_to(left, kept)
    left -= float(kept.sum())
    comes = np.concatenate((receives[own], [False]))
    received = _up_to(left, np.where(comes, np.minimum(length - kept, passes.send), 0.0))
    left -= float(received.sum())
    # What fills and drains the pipeline in formulas alone: at the end.
    received += _up_to(left, (length - kept - received)[::-1])[::-1]
    return Gap(begin, length, kept, received)


def _up_to(most: float, parts: Columns) -> Columns:
    """Return as much of the parts, from the first on, as comes to a sum."""
    before = np.cumsum(parts) - parts
    found: Columns = np.clip(most - before, 0.0, parts)
    return found


def moving(closed: Closed) -> Flags:
    """Tell which actions send what they make to another stage."""
    order, program = closed.pipeline
    found = np.zeros(order.kind.size, bool)
    found[program.action] = program.sends
    return found


def own_actions(closed: Closed, stage: int) -> Integers:
    """Return the actions of a stage."""
    return np.arange(*closed.pipeline.order.first[stage : stage + 2].tolist())
