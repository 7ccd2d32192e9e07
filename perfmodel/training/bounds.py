"""What strategies take at least, and need at least, whatever is still to be chosen of them.

A search proves parts of a space away with these. They look at representatives: strategies of which
ZeRO stage, shard sets and what waits elsewhere are open (`Open`), of one mapping for every price
that layers may have. Part tables and stages are those of the projection itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.pipelines import CODES, GPIPE, INTERLEAVED, ONE_F_ONE_B, PLAIN, schedule_facts
from perfmodel.base.strategy_fields import RECOMPUTE
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import StrategyGrid, batches_of
from perfmodel.training.best_layout import BEST
from perfmodel.training.project import closing_settings, key_tables, laid_out
from perfmodel.training.scheduled import needs_events
from perfmodel.training.workload import Workload

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.step.tables import KeyTables, Stages
    from perfmodel.model.spec import ModelSpec

Values = NDArray[np.float64]
COMPUTE = ("forward", "backward", "recompute")
SHOWN = ("tensor_exposed", "context_exposed", "expert_exposed")
COLUMNS = (
    *("tensor_parallel", "context_parallel", "data_parallel"),
    *("expert_parallel", "expert_tensor_parallel", "zero_stage", "shard_group"),
    *("pipeline_schedule", "pipeline_parallel", "virtual_pipeline"),
)
STAGE_FIELDS = (
    *("weights", "experts", "trained", "trained_experts"),
    *("activations", "offloadable", "working", "logits", "loss", "forward_pass"),
    *("forward", "backward", "recompute"),
    *("tensor_exposed", "context_exposed", "expert_exposed", "host"),
)
BUSY = STAGE_FIELDS[-7:]
SLACK = 1.0 - 1e-9
"""On bounds, which round otherwise than what they bound."""


class Open(NamedTuple):
    """What is still to be chosen, and what it has to keep.

    Attributes
    ----------
    capacity : float
        Memory in which a strategy has to fit [B].
    zero_stages : tuple of int
        Stages of ZeRO, any of which may be; none: strategies have their own, and their shard sets.
    activations : tuple of float
        Shares of the activations that may wait elsewhere.
    optimizer, parameters : float
        Largest share of each that may.
    on_stages : bool
        Whether activations may wait on another stage.
    """

    capacity: float
    zero_stages: tuple[int, ...]
    activations: tuple[float, ...] = (0.0,)
    optimizer: float = 0.0
    parameters: float = 0.0
    on_stages: bool = False


class Bounds(NamedTuple):
    """Lower bounds of every representative, shape (strategies,)."""

    memory: Values  # of the fullest device [B]
    passes: Values  # time of the step without communication [s]
    compute: Values  # the same with copies to or from elsewhere that cannot hide [s]
    shown: Values  # what communication inside layers adds to `passes` [s]


def lower_bounds(
    model: ModelSpec,
    grid: StrategyGrid,
    hardware: Hardware,
    framework: Framework,
    still: Open,
    layers: Flags,
) -> Bounds:
    """Return what representatives take and need at least.

    Parameters
    ----------
    model : ModelSpec
    grid : StrategyGrid
        Of one precision, with nothing elsewhere. Memory and compute are those of every mapping;
        what communication shows is that of their own.
    hardware : Hardware
    framework : Framework
        What it does in this precision (`perfmodel.training.project.framework_of_run`).
    still : Open
    layers : ndarray of bool, shape (strategies,)
        Whether any layer may be recomputed, alone or with others; then representatives keep all.

    Returns
    -------
    Bounds

    Notes
    -----
    See `least_times`, `least_shown` and `fullest` for proofs. With layers that are still open
    the layout of stages may be, too (`BEST`): then only the mean of all stages is known, and
    neither memory nor communication.
    """
    work = laid_out(Workload(model, grid), hardware, framework)
    keys = key_tables(work, hardware, framework)
    stages = work.stage_sums(keys)
    settings = closing_settings(work, hardware, framework)
    family = np.repeat(np.arange(len(work.grid)), work.families.size)
    found = Stated(work, keys, stages, grid, family, work.strategies["stage_key"][family])
    price = np.full(len(grid), np.inf)
    if layers.any():
        price[layers] = recompute_price(found, hardware, framework, layers)
    unknown = layers & (framework.stage_split == BEST)
    memory, again, longer = fullest(found, settings, still, layers, price)
    forced = (np.where(unknown[:, None], 0.0, it) for it in (again, longer))
    passes, compute = least_times(found, unknown, *forced)
    shown = np.where(unknown, 0.0, least_shown(found))
    overhead = settings.step_overhead
    return Bounds(np.where(unknown, 0.0, memory), passes + overhead, compute + overhead, shown)


class Stated(NamedTuple):
    """Representatives with their tables.

    Attributes
    ----------
    work : Workload
    keys : KeyTables
    stages : Stages
    grid : StrategyGrid
    family : ndarray of int64, shape (strategies,)
        Of the workload's, each one's.
    key : ndarray of int64, shape (strategies,)
        Stage key.
    """

    work: Workload
    keys: KeyTables
    stages: Stages
    grid: StrategyGrid
    family: Integers
    key: Integers


def recompute_price(
    stated: Stated, hardware: Hardware, framework: Framework, layers: Flags
) -> Values:
    """Return what it takes to compute a byte of activations again, at least [s/B].

    Of the layer that is cheapest by that measure; shape (strategies with open layers,).
    """
    work, keys = stated.work, stated.keys
    own = work.stage_layer_key[stated.key]
    asked, first = np.unique(own[layers], return_index=True)
    grid = stated.grid.take(np.flatnonzero(layers)[first])  # one strategy of every layer key
    one = np.ones(len(grid), np.int64)
    changed = {"recompute": RECOMPUTE.index("full") * one, "pipeline_schedule": CODES[PLAIN] * one}
    changed |= {"pipeline_parallel": one, "virtual_pipeline": one}
    again = Workload(
        work.model, StrategyGrid(grid.devices, {**grid.columns, **changed}, grid.status)
    )
    others = key_tables(again, hardware, framework)
    families = np.repeat(np.arange(len(again.grid)), again.families.size)
    other = again.stage_layer_key[again.strategies["stage_key"][families]]
    prices = np.full(len(work.keys), np.inf)
    for number, part in enumerate(again.parts):
        if part.layer is not None:
            kept = keys.parts["activations"][asked, number]
            time = others.parts["recompute"][other, number]
            each = np.divide(time, kept, out=np.full_like(time, np.inf), where=kept > 0.0)
            prices[asked] = np.minimum(prices[asked], each)
    return prices[own[layers]]


def micro_batches(grid: StrategyGrid) -> Values:
    """Return the micro-batches of every strategy; half of them where either copy takes half."""
    two_ways = schedule_facts("copies")[grid["pipeline_schedule"]] > 1
    two_ways &= grid["pipeline_parallel"] > 1
    return np.where(two_ways, 0.5, 1.0) * batches_of(grid).astype(np.float64)


def least_times(
    stated: Stated, unknown: Flags, again: Values, longer: Values
) -> tuple[Values, Values]:
    """Return what a step's passes take at least without communication, shape (strategies,) [s].

    First without copies to and from elsewhere, then with them.

    Parameters
    ----------
    stated : Stated
    unknown : ndarray of bool, shape (strategies,)
        Whether layers may still go to other stages.
    again, longer : ndarray, shape (strategies, rows of a stage key at most)
        Of `fullest`: what stages have to do beside for want of memory.

    Notes
    -----
    A step is ``m (t + e) + b`` and more that is not negative, with t the slowest stage's time for a
    micro-batch, e what shows beside it of shards and copies, b >= 0 the bubble: at least
    ``m (t + e)`` of every stage, and of their mean.

    Where all forward passes are whole and come before the backward pass of their micro-batch and
    chunk (in all schedules with a closed form), a rank begins once the first micro-batch has come
    through the first chunk of all ranks ahead of it, and ends before its last backward pass goes
    back through these: with f their times, ``sum of f ahead + m t`` of every stage. The makespan
    of the projection is the longest of such ways, or longer (`perfmodel.kernels.pipeline.closed`).
    What is exposed only lengthens passes, and so do layers that are recomputed; compute knows no
    mapping.
    """
    work, keys, stages, grid, _, key = stated
    batches, first_row = micro_batches(grid), work.stage_offset[:-1]
    busy = _added(stages.sums, COMPUTE)
    mean = np.add.reduceat(busy * work.stages, first_row)[key]
    passes = np.where(unknown, batches * mean / grid["pipeline_parallel"], 0.0)
    compute = passes.copy()
    counts = np.where(unknown, 0, np.diff(work.stage_offset)[key])
    for place in range(int(counts.max(initial=0))):
        some = np.flatnonzero(counts > place)
        turn = busy[first_row[key[some]] + place]
        for found, beside in ((passes, again), (compute, longer)):
            found[some] = np.maximum(found[some], batches[some] * (turn + beside[some, place]))
    whole = schedule_facts("closed")[grid["pipeline_schedule"]] & (grid["pipeline_parallel"] > 1)
    rows = np.flatnonzero(whole & ~unknown)
    rows = rows[np.argsort(work.stage_pipeline[key[rows]], kind="stable")]
    pipelines, first = np.unique(work.stage_pipeline[key[rows]], return_index=True)
    table, times = work.compositions, _added(keys.parts, COMPUTE)
    owners = work.keys_of_pipelines() if rows.size else []
    number = np.empty(work.stage_layer_key.size, np.int64)  # of a stage key in its pipeline
    for own in owners:
        number[own] = np.arange(own.size)
    for pipeline, some in zip(pipelines, np.split(rows, first[1:]), strict=bool(rows.size)):
        own, p = owners[pipeline], int(grid["pipeline_parallel"][some[0]])
        row = table.stage_row[table.stage_offset[pipeline] : table.stage_offset[pipeline + 1]]
        turns = busy[first_row[own][:, None] + row]
        chunk = table.chunk_row[table.place_offset[pipeline] :][:p]
        entry = times[work.stage_layer_key[own]] @ table.chunk_counts[chunk].T
        ahead = np.cumsum(entry, axis=1) - entry
        at = number[key[some]]
        ways = ahead[at] + batches[some, None] * (turns[at] + again[some][:, row])
        passes[some] = np.maximum(passes[some], ways.max(axis=1))
    return passes, np.maximum(passes, compute)


def least_shown(stated: Stated) -> Values:
    """Return what communication inside layers adds to `least_times`, shape (strategies,) [s].

    Every way that `least_times` looks at goes m times through one stage, which shows at least as
    much each time as the stage with least of it. Layers that are recomputed communicate again.
    """
    shown = _added(stated.stages.sums, SHOWN)
    least = np.minimum.reduceat(shown, stated.work.stage_offset[:-1])
    return micro_batches(stated.grid) * least[stated.key]


def fullest(
    stated: Stated, settings: np.record, still: Open, layers: Flags, price: Values
) -> tuple[Values, Values, Values]:
    """Return what the fullest device holds at least, and what stages do for want of memory.

    Parameters
    ----------
    stated : Stated
    settings : Settings
    still : Open
    layers : ndarray of bool, shape (strategies,)
        As of `lower_bounds`.
    price : ndarray, shape (strategies,)
        Of `recompute_price`, where layers are open.

    Returns
    -------
    memory : ndarray, shape (strategies,)
        [B].
    again, longer : ndarray, shape (strategies, rows of a stage key at most)
        What a stage computes again for every micro-batch, at least; and this with copies to or
        from elsewhere that outlast the pass beside them [s].

    Notes
    -----
    Of the moments that `perfmodel.kernels.step.memory` looks at the one at which the loss goes
    backward, and the one at which a layer does, on every stage, without anything that other
    choices may take away:

    - parameters, gradients and optimizer state as each stage of ZeRO shards them over all ranks
      that hold the same, less the shares that may wait elsewhere; gradients where buffers hold
      them always;
    - activations of as many micro-batches as the schedule keeps (GPipe m, 1F1B ``min(m, p - s)``,
      interleaved with chunks alike its warm-up; any other whose forward passes come first: one,
      between its last forward and its first backward pass);
    - logits and loss of one micro-batch, or the working set of a layer;
    - what the allocator loses of these, and what a process takes beside them.

    Of activations the share a waits elsewhere. Whatever of them is too much must be computed again
    where layers are open: a share x of what layers keep takes x r, with r what all of them take by
    the layer that is cheapest for its size. Copies of the rest outlast the forward pass by ``(1 -
    x) a bytes / rate - pass``. Both together are convex in x, and so least at the smallest x that
    fits, where copies just hide, or at 1; of all shares a that fit the best one counts. (With its
    communication a pass takes longer and hides more: so copies are compared with all of it.)
    """
    work, keys, stages, grid, family, key = stated
    layer = work.stage_layer_key[key]
    counts, batches = np.diff(work.stage_offset)[key], batches_of(grid)
    shape = len(grid), int(counts.max(initial=0))
    memory, again, longer = np.zeros(len(grid)), np.zeros(shape), np.zeros(shape)
    closed = ~needs_events(work)[family]
    of_layers = np.array([part.layer is not None for part in work.parts])
    beside = _process(grid.columns, settings)
    for place in range(shape[1]):
        some = np.flatnonzero(counts > place)
        row = work.stage_offset[key[some]] + place
        columns = {name: grid[name][some] for name in COLUMNS}
        stage = {name: stages.sums[name][row] for name in STAGE_FIELDS}
        kept = keys.parts["activations"][layer[some]][:, of_layers]
        droppable = (work.counts[row][:, of_layers] * kept).sum(axis=1)
        state = np.full(some.size, np.inf)
        for zero in still.zero_stages or range(4):
            asked = columns, stage, keys.of["weight_bytes"][layer[some]], settings, still
            may = bool(still.zero_stages) | (columns["zero_stage"] == zero)
            state = np.where(may, np.minimum(state, _state(zero, *asked)), state)
        state += beside[some]
        flight = _flight(columns, batches[some], work.first_stage[row], closed[some])
        found = _least_beside(
            stage,
            state,
            flight,
            np.where(layers[some], droppable, 0.0),
            price[some],
            settings,
            still,
        )
        memory[some] = np.maximum(memory[some], found[0])
        again[some, place], longer[some, place] = found[1:]
    return memory, again, longer


def _least_beside(
    stage: dict[str, Values],
    state: Values,
    flight: Values,
    droppable: Values,
    price: Values,
    settings: np.record,
    still: Open,
) -> tuple[Values, Values, Values]:
    """Return memory of stages, and what they do for want of it, as `fullest`, each at least.

    `droppable` are the bytes of a micro-batch that may be computed again, 0 where none may.
    """
    lost, rate = 1.0 + settings.fragmentation, settings.host_bandwidth
    whole = np.minimum(flight, 1.0)  # a micro-batch, where one is known to be there
    ends = whole * stage["logits"] + stage["loss"]
    opened = droppable > 0.0
    dear = np.where(opened, price, 0.0) * droppable
    busy = _added(stage, BUSY)
    memory, again, longer = (np.full(state.size, np.inf) for _ in range(3))
    for share in still.activations:
        for on_stages in (False, True) if still.on_stages and share > 0.0 else (False,):
            movable = stage["activations"] if on_stages else stage["offloadable"]
            rest = flight * (stage["activations"] - share * movable)
            # What is not movable may be what is dropped.
            all_move = movable >= stage["activations"] * SLACK
            drop = flight * np.where(all_move, 1.0 - share, 1.0) * droppable
            # At the loss, and as a layer goes backward: its working set may be smaller than here.
            need = np.maximum(rest + ends, np.where(opened, 0.0, whole * (rest + stage["working"])))
            least = state + lost * (need - drop)
            memory = np.minimum(memory, least)
            fits = least * SLACK <= still.capacity
            over = state + lost * need - still.capacity
            short = np.divide(over, lost * drop, out=np.zeros_like(over), where=drop > 0.0)
            short = np.clip(short, 0.0, 1.0)
            sent = share * movable
            moved = np.zeros_like(sent) if on_stages or not rate > 0.0 else sent / rate
            hidden = np.divide(
                moved - stage["forward_pass"],
                share * droppable / rate if rate > 0.0 else 1.0,
                out=np.ones_like(moved),
                where=share * droppable > 0.0,
            )
            beside = np.full(state.size, np.inf)
            for x in (short, np.clip(hidden, short, 1.0), np.ones_like(short)):
                gone = x * share * droppable / rate if rate > 0.0 else 0.0
                copies = np.maximum(moved - gone - stage["forward_pass"], 0.0)
                back = np.maximum(moved - (busy - stage["forward_pass"]), 0.0)
                copies = copies + np.where(opened, 0.0, back)
                beside = np.minimum(beside, x * dear + copies)
            again = np.where(fits, np.minimum(again, short * dear), again)
            longer = np.where(fits, np.minimum(longer, beside), longer)
    again, longer = (np.where(np.isfinite(it), it, 0.0) for it in (again, longer))
    return memory, again, longer


def _flight(
    columns: dict[str, Integers], batches: Integers, first_stage: Values, closed: Flags
) -> Values:
    """Return micro-batches whose activations a stage keeps at its peak, at least."""
    schedule, p, v = (columns[name] for name in COLUMNS[-3:])
    after = p - first_stage
    forms = schedule_facts("closed_form")
    found = np.where(schedule_facts("copies")[schedule] > 1, 0.0, 1.0)
    found = np.where((forms == ONE_F_ONE_B)[schedule], np.minimum(batches, after), found)
    found = np.where((forms == GPIPE)[schedule], batches, found)
    warm_up = np.minimum(batches, (2.0 * (after - 1) + (v - 1) * p + 1) / v)
    found = np.where((forms == INTERLEAVED)[schedule] & closed, warm_up, found)
    return np.where(p > 1, found, 1.0)


def _state(
    zero: int,
    columns: dict[str, Integers],
    stage: dict[str, Values],
    weight_bytes: Values,
    settings: np.record,
    still: Open,
) -> Values:
    """Return what parameters, gradients and optimizer take with a ZeRO stage, at least [B]."""
    of = settings.memory
    ranks = columns["data_parallel"] * columns["context_parallel"]
    spread = columns["expert_parallel"] * columns["expert_tensor_parallel"]
    copies = np.maximum(ranks * columns["tensor_parallel"] // spread, 1)
    if not still.zero_stages:
        sets = columns["shard_group"]
        ranks = np.where(sets > 0, np.minimum(sets, ranks), ranks)
    if zero == 0:
        ranks = copies = np.ones_like(ranks)
    owned = stage["weights"] / ranks + stage["experts"] / copies
    updated = stage["trained"] / ranks + stage["trained_experts"] / copies
    whole = stage["trained"] + stage["trained_experts"]
    parameters = (owned if zero == 3 else stage["weights"] + stage["experts"]) * weight_bytes
    if of.master_bytes > 0.0 and zero == 3:
        parameters = (owned - updated) * weight_bytes
    parameters = parameters + of.master_bytes * updated
    optimizer = (settings.optimizer_bytes - of.master_bytes) * updated
    gradients = np.zeros_like(owned)
    if of.persistent_gradients:
        gradients = (updated if zero >= 2 else whole) * settings.gradient_bytes
        if zero == 2 and of.whole_in_pipeline:
            gradients = np.minimum(gradients, whole * settings.reduce_bytes)
    left = (1.0 - still.parameters) * parameters + (1.0 - still.optimizer) * optimizer
    return left + (1.0 - still.optimizer) * gradients


def _added(table: Any, names: Sequence[str]) -> Values:
    """Return the sum of some of a table's columns."""
    return np.sum([np.asarray(table[name]) for name in names], axis=0)


def _process(columns: Mapping[str, Integers], settings: np.record) -> Values:
    """Return what a process takes beside its tensors [B], as `kernels.step.memory.reserve`."""
    names = ("tensor_parallel", "context_parallel", "data_parallel", "expert_parallel")
    groups = np.sum([columns[name] > 1 for name in names], axis=0)
    groups = groups + 2.0 * (columns["pipeline_parallel"] > 1)
    groups = groups + (groups > 0.0)
    return settings.reserve_bytes + groups * settings.memory.communicator_bytes
