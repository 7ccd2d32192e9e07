"""Where the time and the memory of one strategy go, operation by operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import StrategyError
from perfmodel.framework import Framework, load_framework
from perfmodel.model import ModelSpec
from perfmodel.operations import LAYER_KEY_FIELDS, Attention, Communication, Gemm, LayerKeys
from perfmodel.part_table import price_parts
from perfmodel.schedule import stage_compositions
from perfmodel.strategy import StrategyGrid
from perfmodel.strategy_rules import STATUS_REASONS, VALID

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
    flops : float
        Matrix FLOP of one call.
    traffic : float
        Bytes of one call, memory or wire [B].
    bound : str
        What limits it.
    """

    part: str
    name: str
    phase: str
    kind: str
    shape: str
    calls: float
    time: float
    exposed: float
    flops: float
    traffic: float
    bound: str


def explain(
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
        Not exactly one strategy, or an impossible one (with its reason).
    """
    if len(grid) != 1:
        raise StrategyError(f"explain takes exactly one strategy, not {len(grid)}")
    if grid.status[0] != VALID:
        raise StrategyError(f"impossible strategy: {STATUS_REASONS[int(grid.status[0])]}")
    framework = load_framework(framework)
    keys = LayerKeys({name: grid[name] for name in LAYER_KEY_FIELDS})
    priced = price_parts(model, keys, hardware, framework)
    counts = stage_compositions(
        model, int(grid["pipeline_parallel"][0]), int(grid["virtual_pipeline"][0])
    )
    per_part = np.array([sum(float(item.exposed[0]) for item in items) for _, items in priced])
    stage = counts[int(np.argmax(counts @ per_part))]
    batches = int(
        grid["global_batch_size"][0] // (grid["data_parallel"][0] * grid["micro_batch_size"][0])
    )
    costs = []
    for (part, items), held in zip(priced, stage, strict=True):
        for item in items:
            count = float(np.asarray(item.operation.count).reshape(-1)[0])
            if held == 0 or count == 0:
                continue
            runs = held * batches
            costs.append(
                OperationCost(
                    part.name,
                    item.operation.name,
                    item.operation.phase,
                    _kind(item.operation),
                    _shape(item.operation),
                    runs * count,
                    float(item.time[0]) / count,
                    runs * float(item.exposed[0]),
                    float(item.flops[0]) / count,
                    float(item.traffic[0]) / count,
                    item.bound[0],
                )
            )
    return costs


def _kind(operation: object) -> str:
    if isinstance(operation, Communication):
        return f"{operation.axis} {operation.collective}"
    return type(operation).__name__.lower()


def _shape(operation: object) -> str:
    def number(value: object) -> str:
        return f"{float(np.asarray(value).reshape(-1)[0]):g}"

    if isinstance(operation, Gemm):
        batch = number(operation.batch)
        shape = f"{number(operation.m)}×{number(operation.n)}×{number(operation.k)}"
        return shape if batch == "1" else f"{batch} of {shape}"
    if isinstance(operation, Attention):
        return (
            f"b{number(operation.batch)} q{number(operation.query_length)} "
            f"k{number(operation.key_length)} h{number(operation.heads)}/"
            f"{number(operation.key_value_heads)} d{number(operation.head_dim_qk)}"
        )
    if isinstance(operation, Communication):
        return f"{number(operation.members)} ranks, {number(operation.stride)} apart"
    return ""
