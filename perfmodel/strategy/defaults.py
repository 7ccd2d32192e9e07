"""What a run has that nobody names: the one answer of every command, of Python and of tables.

A strategy may leave fields open. Some follow from others: the replicas from the devices, the
schedule from the chunks of a stage. Others are as the software has them where a run does not say:
whether the sequence is sharded, how context ranks exchange keys, the ZeRO stage, recomputation.
Degrees of experts, chunks of a stage, micro-batches and recomputation of a run that nobody
describes have likely values: rules that find what tables of measured runs state
(``defaults.csv`` says in what share of rows; `benchmarks/accuracy/open_cells.py` counts them).
What is still open has the default of its field. Sweeps and searches try several values of some
fields (`perfmodel.strategy.enumerate`), always with the one that a single projection has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.axes import decode, encode
from perfmodel.base.columns import Flags, Integers
from perfmodel.base.files import read_rows
from perfmodel.base.pipelines import CHUNKED, CODES, PLAIN, SCHEDULE_FACTS
from perfmodel.base.strategy_fields import (
    CONTEXT_PARALLEL_KINDS,
    DEFAULT_FRAMEWORK,
    FIELD_BY_NAME,
    RECOMPUTE,
)
from perfmodel.model.spec import ModelSpec, mlps_of, run_of_model
from perfmodel.software.framework import Framework, as_run, load_framework
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.strategy.rules import RULES, TABLE_RULES, strategy_status

LIKELY = {
    row["rule"]: row.get("value", "") for row in read_rows(Path(__file__).with_suffix(".csv"))
}
"""Numbers of the rules for likely values."""
OF_SOFTWARE = ("sequence_parallel", "context_parallel_kind", "expert_tensor_parallel")
"""Fields of which sweeps, too, have one value where none is named, as the software has it."""
DEGREES = (
    *("tensor_parallel", "context_parallel", "pipeline_parallel", "virtual_pipeline"),
    *("expert_parallel", "expert_tensor_parallel"),
)


class Defaults(NamedTuple):
    """What runs of one model have by default in one software, as codes.

    Attributes
    ----------
    sequence_parallel, context_parallel_kind : int
        With tensor, or context, parallelism.
    zero_stage, pipeline_zero_stage : int
        Without a pipeline, and with one.
    recompute : str
        Empty: the default of the field.
    experts, divides_experts : bool
        Whether the model has experts, and whether the tensor degree divides those too.
    """

    sequence_parallel: int
    context_parallel_kind: int
    zero_stage: int
    pipeline_zero_stage: int
    recompute: str
    experts: bool
    divides_experts: bool = False

    def replicated(self, columns: Mapping[str, Any]) -> Flags:
        """Tell where several ranks hold the same parameters, those of experts included."""
        data, context, tensor, expert, inner = (
            np.asarray(columns[name], np.float64)  # where absurd degrees cannot overflow
            for name in ("data_parallel", *DEGREES[1::-1], *DEGREES[4:])
        )
        found: Flags = data * context > 1
        if self.experts:
            found = found | (data * context * tensor > expert * inner)
        return found

    def stage(self, columns: Mapping[str, Any]) -> Integers:
        """Return the ZeRO stage of runs that name none; 0 where there is nothing to shard."""
        staged = np.asarray(columns["pipeline_parallel"]) > 1
        stage = np.where(staged, self.pipeline_zero_stage, self.zero_stage)
        return np.where(self.replicated(columns), stage, 0)


def defaults_of(framework: str | Framework | None, model: ModelSpec) -> Defaults:
    """Return what runs of a model have by default; None: as of `DEFAULT_FRAMEWORK`."""
    software = as_run(load_framework(framework or DEFAULT_FRAMEWORK), run_of_model(model, "bf16"))
    stage = software.zero_stage
    return Defaults(
        # Experts with tensor parallelism need it (`perfmodel.strategy.rules`).
        int(software.sequence_parallel or model.has_experts),
        CONTEXT_PARALLEL_KINDS.index(software.context_parallel_kind),
        stage,
        min(stage, 2) if software.gathers_once_in_pipeline else stage,
        software.recompute,
        model.has_experts,
        model.has_experts and software.expert_tensor_parallel,
    )


def following(
    columns: Mapping[str, Any], devices: int, named: Container[str], defaults: Defaults
) -> dict[str, Integers]:
    """Return the columns of open fields that follow from the degrees, by the software's facts.

    Parameters
    ----------
    columns : mapping of str to int or ndarray
        With all `DEGREES`, and what is named of the others.
    devices : int
    named : container of str
        Fields that are not open.
    defaults : Defaults
    """
    tensor, context, pipeline = (np.asarray(columns[name]) for name in DEGREES[:3])
    virtual = np.asarray(columns["virtual_pipeline"])
    # In floating point, where absurd degrees cannot overflow.
    data = np.maximum(devices // (tensor.astype(np.float64) * context * pipeline), 1)
    data = np.asarray(columns.get("data_parallel", data))
    divided = tensor.astype(np.float64) * np.asarray(columns["expert_parallel"])
    shared = defaults.divides_experts & (data * context * tensor % divided == 0)
    found = {
        "data_parallel": lambda: data.astype(np.int64),
        "expert_tensor_parallel": lambda: np.where(shared, tensor, 1),
        "pipeline_schedule": lambda: np.where(virtual > 1, CODES[CHUNKED], CODES[PLAIN]),
        "sequence_parallel": lambda: np.where(tensor > 1, defaults.sequence_parallel, 0),
        "context_parallel_kind": lambda: np.where(context > 1, defaults.context_parallel_kind, 0),
    }
    return {name: fill() for name, fill in found.items() if name not in named}


def completed(row: Mapping[str, Any], devices: int, defaults: Defaults) -> dict[str, Any]:
    """Return a strategy with every field that follows from others, or that software decides."""
    degrees = {name: int(encode(name, row.get(name, 1), FIELD_BY_NAME)) for name in DEGREES}
    done = dict(row)
    named = SCHEDULE_FACTS.get(str(row.get("pipeline_schedule")))
    if named and "virtual_pipeline" not in row and degrees["pipeline_parallel"] > 1:
        done["virtual_pipeline"] = degrees["virtual_pipeline"] = named.fewest_chunks
    known = {
        name: encode(name, row[name], FIELD_BY_NAME) for name in row if name == "data_parallel"
    }
    found: dict[str, Any] = following({**degrees, **known}, devices, row, defaults)
    degrees["expert_tensor_parallel"] = int(found.get(DEGREES[-1], degrees[DEGREES[-1]]))
    done |= {name: decode(name, int(value)) for name, value in found.items()}
    if "zero_stage" not in row:
        data = encode("data_parallel", done["data_parallel"], FIELD_BY_NAME)
        done["zero_stage"] = int(defaults.stage({**degrees, "data_parallel": data}))
    if defaults.recompute:
        done.setdefault("recompute", defaults.recompute)
    return done


def as_software_has_it(
    grid: StrategyGrid, model: ModelSpec, framework: str | Framework
) -> StrategyGrid:
    """Return strategies with what they leave open (`StrategyGrid.open`) as a software has it."""
    if not grid.open:
        return grid
    held = grid.families.grid if grid.families is not None else grid
    named = {*held.columns} - grid.open
    changed = following(held.columns, grid.devices, named, defaults_of(framework, model))
    if all(np.array_equal(held[name], column) for name, column in changed.items()):
        return grid
    columns = {**held.columns, **changed}
    rules = RULES if grid.table is None else TABLE_RULES
    status = strategy_status(columns, model, grid.devices, rules)
    found = StrategyGrid(grid.devices, columns, status, grid.table, open=grid.open)
    if grid.families is None:
        return found
    return replace(replace(grid.families, grid=found).listed(), open=grid.open)


def unlike_software(row: Mapping[str, Any], framework: Framework, model: ModelSpec) -> list[str]:
    """Return the fields of a complete strategy that are not as they would be were they open."""
    degrees = {name: row[name] for name in DEGREES}
    devices = math.prod(row[name] for name in (*DEGREES[:3], "data_parallel"))
    usual = {"recompute": FIELD_BY_NAME["recompute"].default}
    usual |= completed(degrees, devices, defaults_of(framework, model))
    names = (*OF_SOFTWARE, "zero_stage", "recompute")
    return [name for name in names if row[name] != usual[name]]


def likely_rows(
    row: Mapping[str, Any], devices: int, model: ModelSpec, framework: str | Framework
) -> list[dict[str, Any]]:
    """Return the strategies that a run may have had which leaves fields open, likeliest first.

    What is named is kept; `likeliest` chooses among them by memory and time.
    """
    named = {name: int(encode(name, value, FIELD_BY_NAME)) for name, value in row.items()}
    tensor, context, pipeline = (named.get(name, 1) for name in DEGREES[:3])
    data = named.get("data_parallel", max(devices // (tensor * context * pipeline), 1))
    software = load_framework(framework)
    software = as_run(software, run_of_model(model, row.get("precision", "bf16")))
    ranks = (named.get("shard_group") or data * context) * tensor
    degrees = expert_degrees(
        software, model, tensor, ranks, row.get(DEGREES[4]), row.get(DEGREES[5])
    )
    fixed = {**dict(zip(DEGREES[4:], degrees, strict=True)), **row}
    zero = completed(fixed, devices, defaults_of(framework, model))["zero_stage"]
    fixed["zero_stage"] = zero
    chunked = software.stage_split in ("even", "by_cost") and "pipeline_schedule" not in row
    batch = named["global_batch_size"] // data
    axes: dict[str, Sequence[Any]] = {
        "virtual_pipeline": chunks_of_stage(software, model, pipeline) if chunked else [],
        "micro_batch_size": micro_batches(software, batch, pipeline, zero),
        "recompute": [software.recompute] if software.recompute else RECOMPUTE,
    }
    axes = {name: values for name, values in axes.items() if values and name not in row}
    return [
        {**fixed, **dict(zip(axes, values, strict=True))}
        for values in itertools.product(*axes.values())
    ]


def expert_degrees(
    framework: Framework,
    model: ModelSpec,
    tensor: int,
    ranks: int,
    expert: int | None = None,
    inner: int | None = None,
) -> tuple[int, int]:
    """Return expert and expert-tensor degrees, those that are stated or the likely ones.

    Parameters
    ----------
    framework : Framework
    model : ModelSpec
    tensor, ranks : int
        Tensor degree, and ranks of a pipeline stage or of a set of shards.
    expert, inner : int, optional
        What is stated.
    """
    experts = max((mlp.experts for mlp in mlps_of(model) if mlp.kind == "moe"), default=0)
    if inner is None:
        inner = int(LIKELY["expert_tensor_parallel"])
        if experts and framework.expert_tensor_parallel and ranks % (tensor * (expert or 1)) == 0:
            inner = tensor
    if expert is None:
        whole = not experts or framework.software in LIKELY["whole_experts"].split()
        shared = 1 if whole else math.gcd(experts, max(ranks // inner, 1))
        most = int(LIKELY["expert_parallel"])
        expert = max(n for n in range(1, min(shared, most) + 1) if shared % n == 0)
    return expert, inner


def chunks_of_stage(framework: Framework, model: ModelSpec, pipeline: int) -> list[int]:
    """Return the chunks per stage of a run that does not say, the likeliest first."""
    layers = framework.layers_per_chunk
    if pipeline == 1 or not layers:
        return [1]
    layers *= int(LIKELY["virtual_pipeline"]) if model.has_experts else 1
    likely = likely_chunks(model.num_layers, pipeline, layers)
    return [likely, 1] if likely > 1 else [1]


def likely_chunks(layers: int, pipeline: int, per_chunk: int) -> int:
    """Return chunks per stage that come nearest to so many layers each.

    Chunks are equal where embedding, output and a prediction module count as layers or not:
    126 layers on 8 stages are cut like 128.
    """
    ways = {
        n
        for counted in range(layers, layers + 4)
        for n in range(1, counted // pipeline + 1)
        if counted % (pipeline * n) == 0
    }
    return min(ways or {1}, key=lambda n: abs(math.log(layers / (pipeline * n * per_chunk))))


def micro_batches(framework: Framework, batch: int, pipeline: int, zero: int) -> list[int]:
    """Return the sizes of micro-batches that a run may have: the software's, or powers of two.

    Parameters
    ----------
    framework : Framework
    batch : int
        Sequences of a replica.
    pipeline, zero : int
        Pipeline degree and ZeRO stage.
    """
    if not framework.accumulates_gradients and pipeline == 1:
        return [max(batch, 1)]
    usual = framework.micro_batches_per_stage * pipeline
    if pipeline > 1 and usual and batch % usual == 0:
        return [max(batch // usual, 1)]
    most = int(LIKELY["most_sharded" if zero == 3 else "micro_batch_size"])
    return [n for n in (2**i for i in range(most.bit_length())) if batch % n == 0] or [1]


def likeliest(
    rows: Sequence[Mapping[str, Any]],
    valid: ArrayLike,
    fits: ArrayLike,
    memory: ArrayLike,
    time: ArrayLike,
    ran: ArrayLike | None = None,
) -> int:
    """Return the position of the strategy that was likely run, of `likely_rows`.

    Of those that fit in memory, with the first number of chunks that is possible and the least
    recomputation, for nobody recomputes more than memory asks for, the fastest where parameters
    are gathered for every micro-batch (ZeRO 3: a larger one saves traffic), else the smallest
    micro-batch that is nearly as fast. If nothing fits, what needs the least memory.

    Parameters
    ----------
    rows : sequence of mapping
    valid, fits : array of bool
        Of every row; one at least is valid.
    memory, time : array of float
        Peak memory [B] and time of a step [s].
    ran : array of bool, optional
        Of runs that are known to have fitted: what may have, by the error of projected memory.
        Chunks and recomputation are chosen among these, micro-batches among those that fit.
    """
    possible, needed, times = (np.asarray(it) for it in (valid, memory, time))
    strictly = np.asarray(fits)
    held = possible & (strictly if ran is None else np.asarray(ran))
    fitting: list[int] = np.flatnonzero(held).tolist()
    if not fitting:
        return int(min(np.flatnonzero(possible), key=lambda i: needed[i]))

    def effort(i: int) -> tuple[int, int]:
        chunks = rows[i].get("virtual_pipeline") == rows[fitting[0]].get("virtual_pipeline")
        return int(not chunks), RECOMPUTE.index(rows[i].get("recompute", RECOMPUTE[0]))

    least = min(map(effort, fitting))
    same = [i for i in fitting if effort(i) == least]
    same = [i for i in same if strictly[i]] or [min(same, key=lambda i: needed[i])]
    sharded = rows[same[0]].get("zero_stage") == 3
    within = times[same].min() * (1.0 if sharded else 1.0 + float(LIKELY["nearly_fastest"]))
    near = [i for i in same if times[i] <= within]
    return min(near, key=lambda i: (rows[i].get("micro_batch_size", 1), times[i]))
