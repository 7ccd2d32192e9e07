"""Where the time of a strategy's step or a served point's passes goes, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import StrategyError
from perfmodel.base.pipelines import BIDIRECTIONAL
from perfmodel.base.units import format_si
from perfmodel.kernels.variables import OPERATION_COMPONENTS, STEP_ROWS, STEP_VARIABLES
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operations import (
    Attention,
    Communication,
    Gemm,
    Indexer,
    LayerKeys,
    Recurrence,
    SparseAttention,
    Stream,
)
from perfmodel.operations.parts import Part
from perfmodel.operations.priced import Priced, crossed_level
from perfmodel.serving import grid as serving_grid
from perfmodel.serving.grid import DeploymentGrid, LoadGrid
from perfmodel.serving.pass_operations import Pass, PassOperation, pass_operations
from perfmodel.software.framework import Framework, load_framework
from perfmodel.strategy.grid import StrategyGrid, batches_of
from perfmodel.strategy.rules import check_one_strategy
from perfmodel.training.part_table import price_parts
from perfmodel.training.project import framework_of_run, project_grid
from perfmodel.training.schedule import held_parts, recomputed_of, stage_compositions
from perfmodel.training.stages import (
    MOMENTS,
    PipelineTimeline,
    StageMemory,
    pipeline_timeline,
    stage_memories,
)
from perfmodel.training.workload import Workload, layer_columns, placement_of

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


@dataclass(frozen=True, slots=True)
class OperationCost:
    """One operation of the slowest stage, over a whole step.

    Attributes
    ----------
    part, name, phase, kind : str
        Part of the model, operation, phase, and "gemm", "attention", "stream" or an
        axis of communication.
    shape : str
        Sizes, readable.
    calls : float
        Times it runs per step on the stage.
    time, exposed : float
        Of one call, and what all calls add to the step [s].
    half_width : float
        Half the 10-90 % band of `exposed` [s].
    flops : float
        Matrix FLOP of one call.
    traffic : float
        Bytes of one call, memory or wire [B].
    bound : str
        What limits it.
    level : str
        Outermost network level that a communication crosses; "" for other operations.
    """

    part: str
    name: str
    phase: str
    kind: str
    shape: str
    calls: float
    time: float
    exposed: float
    half_width: float
    flops: float
    traffic: float
    bound: str
    level: str = ""


def operation_costs(
    model: ModelSpec,
    grid: StrategyGrid,
    hardware: Hardware,
    *,
    framework: str | Framework = "megatron",
) -> list[OperationCost]:
    """Price every operation of the slowest stage of one strategy.

    Parameters
    ----------
    model : ModelSpec
    grid : StrategyGrid
        Exactly one strategy.
    hardware : Hardware
    framework : str or Framework

    Returns
    -------
    list of OperationCost
        In the order in which they run. Their ``exposed`` times add up to compute and
        tensor-, context- and expert-parallel components of the step.

    Raises
    ------
    StrategyError
        As of `check_one_strategy`.
    """
    check_one_strategy(grid, hardware, "explain takes")
    framework = framework_of_run(load_framework(framework), model, hardware, grid)
    keys = LayerKeys(layer_columns(grid.columns))
    held = (
        int(grid["pipeline_parallel"][0]),
        int(grid["virtual_pipeline"][0]),
        placement_of(int(grid["pipeline_schedule"][0]), grid),
        framework.stage_split,
        recomputed_of(int(grid["recompute_method"][0]), int(grid["recompute_num_layers"][0])),
    )
    parts = held_parts(model, [held])
    priced = price_parts(model, keys, hardware, framework, grid.devices, parts)
    pipeline, virtual, placement, split, chosen = held
    counts = stage_compositions(model, pipeline, virtual, split, placement, chosen, parts)
    # Of the model; each takes its share.
    copies = 2 if placement == BIDIRECTIONAL and pipeline > 1 else 1
    batches = int(batches_of(grid)[0]) // copies
    stage = counts[_critical_stage(model, grid, hardware, framework, batches * counts, priced)]
    costs = []
    for (part, items), held in zip(priced, stage, strict=True):
        for item in items:
            count = float(np.asarray(item.operation.count).reshape(-1)[0])
            if held == 0 or count == 0:
                continue
            runs = float(held) * batches
            costs.append(
                OperationCost(
                    part.name,
                    item.operation.name,
                    item.operation.phase,
                    _kind(item.operation),
                    _shape(item.operation, hardware),
                    runs * count,
                    float(item.time[0]) / count,
                    runs * float(item.exposed[0]),
                    runs * float(item.half_width[0]),
                    float(item.flops[0]) / count,
                    float(item.traffic[0]) / count,
                    item.bound_of(0),
                    _level(item.operation, hardware),
                )
            )
    return costs


def pipeline_of(
    model: ModelSpec, grid: StrategyGrid, hardware: Hardware, framework: Framework
) -> PipelineTimeline:
    """Return the passes of the pipeline of one strategy, in time."""
    run = framework_of_run(framework, model, hardware, grid)
    return pipeline_timeline(model, grid, hardware, run)


def memory_moments(
    model: ModelSpec, grid: StrategyGrid, hardware: Hardware, framework: Framework
) -> tuple[tuple[str, ...], list[StageMemory]]:
    """Return the moments of a step, and what the stages of one strategy hold at each."""
    return MOMENTS, stage_memories(model, grid, hardware, framework)


# Components of the step that add up from operations; the others have no operations.
def component(cost: OperationCost) -> str:
    """Return the component of the step time to which an operation adds."""
    return _component(cost.kind.partition(" ")[0], cost.phase)


def _component(kind: str, phase: str) -> str:
    if kind in ("tensor", "context", "expert"):
        return f"{kind}_parallel_exposed"
    return {"forward": "forward_time", "recompute": "recompute_time"}.get(phase, "backward_time")


def _critical_stage(
    model: ModelSpec,
    grid: StrategyGrid,
    hardware: Hardware,
    framework: Framework,
    runs: NDArray[np.float64],
    priced: list[tuple[Part, list[Priced]]],
) -> int:
    """Return the stage whose operations add up to the components of the projected step.

    The closing pass picks the slowest stage with everything that can delay it; this
    finds the stage that it picked.
    """
    out = np.zeros((len(STEP_VARIABLES), 1))
    project_grid(Workload(model, grid), hardware, framework, out, threads=1)
    projected = np.array([out[STEP_ROWS[name], 0] for name in OPERATION_COMPONENTS])
    per_part = np.zeros((len(priced), projected.size))
    for i, (_, items) in enumerate(priced):
        for item in items:
            name = _component(_kind(item.operation).partition(" ")[0], item.operation.phase)
            per_part[i, OPERATION_COMPONENTS.index(name)] += float(item.exposed[0])
    return int(np.argmin(np.abs(runs @ per_part - projected).sum(axis=1)))


def _kind(operation: object) -> str:
    if isinstance(operation, Communication):
        return f"{operation.axis} {operation.collective}"
    return type(operation).__name__.lower()


def _level(operation: object, hardware: Hardware) -> str:
    """Return the name of the outermost network level that an operation crosses."""
    return crossed_level(operation, hardware) if isinstance(operation, Communication) else ""


def _shape(operation: object, hardware: Hardware) -> str:
    def number(value: object) -> str:
        return f"{float(np.asarray(value).reshape(-1)[0]):g}"

    if isinstance(operation, Gemm):
        batch = number(operation.batch)
        shape = f"{number(operation.m)}×{number(operation.n)}×{number(operation.k)}"
        return shape if batch == "1" else f"{batch} of {shape}"
    if isinstance(operation, Attention | SparseAttention):
        shape = (
            f"b{number(operation.batch)} q{number(operation.query_length)} "
            f"k{number(operation.key_length)} h{number(operation.heads)}/"
            f"{number(operation.key_value_heads)} d{number(operation.head_dim_qk)}"
        )
        if isinstance(operation, SparseAttention):
            shape += f" of {_listed_keys(operation)}"
        return shape
    if isinstance(operation, Indexer):
        return (
            f"b{number(operation.batch)} q{number(operation.query_length)} "
            f"k{number(operation.key_length)} h{number(operation.heads)} "
            f"d{number(operation.head_dim)} best {number(operation.top_k)}"
        )
    if isinstance(operation, Recurrence):
        return (
            f"{operation.kind} b{number(operation.batch)} s{number(operation.length)} "
            f"h{number(operation.heads)}/{number(operation.key_heads)} "
            f"d{number(operation.key_dim)}×{number(operation.value_dim)}"
        )
    if isinstance(operation, Communication):
        size = float(np.asarray(operation.size).reshape(-1)[0])
        return (
            f"{format_si(size, 'B')} over {number(operation.members)} ranks, "
            f"{number(operation.stride)} apart ({_level(operation, hardware)})"
        )
    if isinstance(operation, Stream):
        size = np.asarray(operation.bytes_read) + np.asarray(operation.bytes_written)
        return format_si(float(size.reshape(-1)[0]), "B")
    return ""


def _listed_keys(operation: SparseAttention) -> str:
    """Return which keys a query sees, in a few words."""
    words = [f"{operation.selected:g} chosen"] if operation.selected else []
    if operation.compression > 1.0:
        words.append(f"1 in {operation.compression:g}")
    if operation.window:
        words.append(f"window {operation.window:g}")
    return ", ".join(words)


def point_passes(grid: DeploymentGrid, loads: LoadGrid, batch: float) -> dict[str, Pass]:
    """Return a decode pass and a pass with a prompt, as an operating point has them.

    Parameters
    ----------
    grid : DeploymentGrid
    loads : LoadGrid
        One of each.
    batch : float
        Sequences that decode on an attention rank; NaN where none does.

    Returns
    -------
    dict of str to Pass
        "decode": the mean batch, halfway through its answers. "prefill": the first chunk of a
        prompt, beside that batch where the engine runs both in one pass.
    """
    engine = grid.engines[int(grid["engine"][0])]
    spread = 0.5 * (1.0 + float(loads["length_spread"][0]))
    prompt = spread * float(loads["input_length"][0])
    answer = spread * float(loads["output_length"][0])
    prefix = min(float(loads["prefix"][0]), prompt - 1.0)
    verified = 1.0 + float(grid["draft_length"][0])
    decoding = batch / float(grid["pipeline_parallel"][0])
    found = {}
    if math.isfinite(batch) and batch > 0.0:
        decoding = max(decoding, 1.0)
        context = prompt + 0.5 * answer
        found["decode"] = Pass(decoding=decoding, context=context, verified=verified)
    beside = found.get("decode", Pass())
    apart = bool(grid["prefill_workers"][0])
    if apart or engine.scheduler == "prefill_first":
        beside = Pass()
    new = prompt - prefix
    room = float(grid["token_budget"][0]) - beside.decoding * beside.verified
    chunk = min(new, max(room, 1.0))
    found["prefill"] = beside._replace(
        prompts=1.0, chunk=chunk, before=prefix, finished=float(chunk == new)
    )
    return found


def explain_point(
    grid: DeploymentGrid,
    loads: LoadGrid,
    hardware: Hardware,
    row: Mapping[str, Any],
) -> dict[str, list[PassOperation]]:
    """Price the passes of one operating point, operation by operation.

    Parameters
    ----------
    grid : DeploymentGrid
    loads : LoadGrid
        One of each.
    hardware : Hardware
    row : mapping of str to value
        The point's results; its ``batch`` counts.

    Returns
    -------
    dict of str to list of PassOperation
        By the names of `point_passes`.

    Raises
    ------
    StrategyError
        More than one point, or an impossible deployment.
    """
    if len(grid) != 1 or len(loads) != 1:
        raise StrategyError(
            f"explain takes exactly one point, not {len(grid):,} deployments under {len(loads):,}"
        )
    if grid.status[0] != serving_grid.VALID:
        reason = serving_grid.STATUS_REASONS[int(grid.status[0])]
        raise StrategyError(f"impossible deployment: {reason}")
    layouts, layout, second = grid.layouts()
    found = {}
    for name, what in point_passes(grid, loads, float(row["batch"])).items():
        apart = name == "prefill" and second[0] >= 0
        held = layouts.take(np.array([second[0] if apart else layout[0]]))
        found[name] = pass_operations(grid.model, held, hardware, what)
    return found
