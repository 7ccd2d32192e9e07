"""What strategies take at least, and need at least, whatever is still to be chosen of them.

A search proves parts of a space away with these. They look at representatives: strategies of which
ZeRO stage, shard sets and what waits elsewhere are open (`Open`), of one mapping for every price
that layers may have. Part tables and stages are those of the projection itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import batches_of
from perfmodel.training.best_layout import BEST
from perfmodel.training.project import Workload, closing_settings, key_tables, laid_out

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.step.tables import KeyTables, Settings, Stages

Values = NDArray[np.float64]
CODES = {name: code for code, name in enumerate(SCHEDULE_FACTS)}
WHOLE_TURNS = tuple(CODES[name] for name in ("gpipe", "1f1b", "interleaved"))
"""Schedules whose ranks begin with the first micro-batch and its first chunk, and end with the
backward pass of that chunk."""
COMPUTE = ("forward", "backward", "recompute")
SHOWN = ("tensor_exposed", "context_exposed", "expert_exposed")
COLUMNS = (
    *("tensor_parallel", "context_parallel", "data_parallel", "pipeline_parallel"),
    *("expert_parallel", "expert_tensor_parallel", "pipeline_schedule"),
)
STAGE_FIELDS = (
    *("weights", "experts", "trained", "trained_experts"),
    *("activations", "offloadable", "working", "logits", "loss"),
)
PIPELINED_COPIES = CODES["dualpipe"]


class Open(NamedTuple):
    """What is still to be chosen.

    Attributes
    ----------
    zero_stages : sequence of int
        Stages of ZeRO, any of which may be.
    activations, optimizer, parameters : float
        Largest share of each that may wait elsewhere.
    on_stages : bool
        Whether activations may wait on another stage.
    """

    zero_stages: tuple[int, ...]
    activations: float = 0.0
    optimizer: float = 0.0
    parameters: float = 0.0
    on_stages: bool = False


class Bounds(NamedTuple):
    """Lower bounds of every representative, shape (strategies,)."""

    memory: Values  # of the fullest device [B]
    compute: Values  # time of the step without communication [s]
    shown: Values  # and what of communication inside layers it shows besides [s]


def lower_bounds(
    work: Workload, hardware: Hardware, framework: Framework, still: Open, layers: Flags
) -> Bounds:
    """Return what representatives take and need at least.

    Parameters
    ----------
    work : Workload
        Of strategies of one precision, with ZeRO 0 and nothing elsewhere. Memory and compute are
        those of every mapping; what communication shows is that of their own.
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
    See `least_time`, `least_shown` and `least_memory` for proofs. With layers that are still open
    the layout of stages may be, too (`BEST`): then only the mean of all stages is known, and
    neither memory nor communication.
    """
    work = laid_out(work, hardware, framework)
    keys = key_tables(work, hardware, framework)
    stages = work.stage_sums(keys)
    settings = closing_settings(work, hardware, framework)
    unknown = layers & (framework.stage_split == BEST)
    compute = least_time(work, keys, stages, unknown) + settings.step_overhead
    shown = np.where(unknown, 0.0, least_shown(work, stages))
    memory = least_memory(work, keys, stages, settings, still, layers)
    return Bounds(np.where(unknown, 0.0, memory), compute, shown)


def micro_batches(work: Workload) -> Values:
    """Return the micro-batches of every strategy; half of them where either copy takes half."""
    grid = work.grid
    two_ways = (grid["pipeline_schedule"] == PIPELINED_COPIES) & (grid["pipeline_parallel"] > 1)
    return batches_of(grid) * np.where(two_ways, 0.5, 1.0)


def least_time(work: Workload, keys: KeyTables, stages: Stages, unknown: Flags) -> Values:
    """Return the compute of a step's passes, at least, shape (strategies,) [s].

    Parameters
    ----------
    work : Workload
    keys : KeyTables
    stages : Stages
    unknown : ndarray of bool, shape (strategies,)
        Whether layers may still go to other stages.

    Notes
    -----
    A step is ``m (t + e) + b`` and more that is not negative, with t the slowest stage's time for a
    micro-batch, e what shows beside it of shards and copies, b >= 0 the bubble: at least ``m t``
    of every stage, and of their mean.

    Where all forward passes are whole and come before the backward pass of their micro-batch and
    chunk (`WHOLE_TURNS`), a rank begins once the first micro-batch has come through the first chunk
    of all ranks ahead of it, and ends before its last backward pass goes back through these: with
    f their times, ``sum of f ahead + m t`` of every stage. The makespan of the projection is the
    longest of such ways, or longer (`perfmodel.kernels.pipeline.closed`). What is exposed only
    lengthens passes, and so do layers that are recomputed; compute knows no mapping.
    """
    key, grid, batches = work.strategies.stage_key, work.grid, micro_batches(work)
    busy = sum(np.asarray(stages.sums[name]) for name in COMPUTE)
    starts = stages.offset[:-1]
    mean = np.add.reduceat(busy * stages.stages, starts)[key] / grid["pipeline_parallel"]
    found = batches * np.where(unknown, mean, np.maximum.reduceat(busy, starts)[key])
    whole = np.isin(grid["pipeline_schedule"], WHOLE_TURNS) & (grid["pipeline_parallel"] > 1)
    rows = np.flatnonzero(whole & ~unknown)
    table, passes = work.compositions, sum(np.asarray(keys.parts[name]) for name in COMPUTE)
    owners = work.keys_of_pipelines()
    number = np.empty(work.stage_layer_key.size, np.int64)  # of a stage key in its pipeline
    for own in owners:
        number[own] = np.arange(own.size)
    rows = rows[np.argsort(work.stage_pipeline[key[rows]], kind="stable")]
    pipelines, first = np.unique(work.stage_pipeline[key[rows]], return_index=True)
    for pipeline, some in zip(pipelines, np.split(rows, first[1:]), strict=bool(rows.size)):
        own, p = owners[pipeline], int(grid["pipeline_parallel"][some[0]])
        place = slice(table.stage_offset[pipeline], table.stage_offset[pipeline + 1])
        turns = busy[stages.offset[own][:, None] + table.stage_row[place]]
        chunk = table.chunk_row[table.place_offset[pipeline] :][:p]
        entry = passes[work.stage_layer_key[own]] @ table.chunk_counts[chunk].T
        ahead = np.cumsum(entry, axis=1) - entry
        at = number[key[some]]
        ways = ahead[at] + batches[some, None] * turns[at]
        found[some] = np.maximum(found[some], ways.max(axis=1))
    return found


def least_shown(work: Workload, stages: Stages) -> Values:
    """Return what communication inside layers adds to `least_time`, shape (strategies,) [s].

    Every way that `least_time` looks at goes m times through one stage, which shows at least as
    much each time as the stage with least of it. Layers that are recomputed communicate again.
    """
    shown = sum(np.asarray(stages.sums[name]) for name in SHOWN)
    least = np.minimum.reduceat(shown, stages.offset[:-1])
    return micro_batches(work) * least[work.strategies.stage_key]


def least_memory(
    work: Workload,
    keys: KeyTables,
    stages: Stages,
    settings: Settings,
    still: Open,
    layers: Flags,
) -> Values:
    """Return what the fullest device holds at least, shape (strategies,) [B].

    Parameters
    ----------
    work : Workload
    keys : KeyTables
    stages : Stages
    settings : Settings
    still : Open
    layers : ndarray of bool, shape (strategies,)
        As of `lower_bounds`.

    Notes
    -----
    Of the moments that `perfmodel.kernels.step.memory` looks at the one at which the loss goes
    backward, and the one at which a layer does, on every stage, without anything that other
    choices may take away:

    - parameters, gradients and optimizer state as each stage of ZeRO shards them over all ranks
      that hold the same, less the shares that may wait elsewhere; gradients where buffers hold
      them always;
    - activations of as many micro-batches as the schedule keeps (GPipe m, 1F1B ``min(m, p - s)``;
      any other whose forward passes come first: one, between its last forward and its first
      backward pass), less the shares that may wait elsewhere; none where layers are still open;
    - logits and loss of one micro-batch, or the working set of a layer;
    - what the allocator loses of these, and what a process takes beside them.
    """
    grid, key = work.grid, work.strategies.stage_key
    layer = stages.layer_key[key]
    held = np.zeros(len(grid))
    offset = stages.offset
    counts, batches = np.diff(offset)[key], batches_of(grid)
    for place in range(int(counts.max(initial=0))):
        some = np.flatnonzero(counts > place)
        row = offset[key[some]] + place
        columns = {name: grid[name][some] for name in COLUMNS}
        stage = {name: stages.sums[name][row] for name in STAGE_FIELDS}
        state = np.full(some.size, np.inf)
        for zero in still.zero_stages:
            asked = columns, stage, keys.weight_bytes[layer[some]], settings, still
            state = np.minimum(state, _state(zero, *asked))
        alive = _alive(columns, stage, batches[some], stages.first_stage[row], still, layers[some])
        held[some] = np.maximum(held[some], state + (1.0 + settings.fragmentation) * alive)
    return held + _process(grid.columns, settings)


def _state(
    zero: int,
    columns: dict[str, Integers],
    stage: dict[str, Values],
    weight_bytes: Values,
    settings: Settings,
    still: Open,
) -> Values:
    """Return what parameters, gradients and optimizer take with a ZeRO stage, at least [B]."""
    of = settings.memory
    ranks = columns["data_parallel"] * columns["context_parallel"]
    spread = columns["expert_parallel"] * columns["expert_tensor_parallel"]
    copies = np.maximum(ranks * columns["tensor_parallel"] // spread, 1)
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


def _alive(
    columns: dict[str, Integers],
    stage: dict[str, Values],
    batches: Integers,
    first_stage: Values,
    still: Open,
    open_layers: Flags,
) -> Values:
    """Return activations and buffers of stages at the fuller of two moments, at least [B]."""
    schedule, pipelined = columns["pipeline_schedule"], columns["pipeline_parallel"] > 1
    single = np.where(pipelined & (schedule == PIPELINED_COPIES), 0.0, 1.0)
    later = np.minimum(batches, columns["pipeline_parallel"] - first_stage)
    flight = np.where(pipelined & (schedule == CODES["1f1b"]), later, single)
    flight = np.where(pipelined & (schedule == CODES["gpipe"]), batches, flight)
    logits = single * stage["logits"] + stage["loss"]
    movable = stage["activations"] if still.on_stages else stage["offloadable"]
    layers = flight * (stage["activations"] - still.activations * movable)
    most = np.maximum(layers + logits, single * (layers + stage["working"]))
    return np.where(open_layers, logits, most)


def _process(columns: dict[str, Integers], settings: Settings) -> Values:
    """Return what a process takes beside its tensors [B], as `kernels.step.memory.reserve`."""
    names = ("tensor_parallel", "context_parallel", "data_parallel", "expert_parallel")
    groups = sum((columns[name] > 1).astype(np.float64) for name in names)
    groups = groups + 2.0 * (columns["pipeline_parallel"] > 1)
    groups = groups + (groups > 0.0)
    return settings.reserve_bytes + groups * settings.memory.communicator_bytes
