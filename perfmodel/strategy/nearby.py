"""What would be possible, where what was asked for is not, or not good."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from perfmodel.base.axes import axis_values
from perfmodel.base.pipelines import CHUNKED, CODES
from perfmodel.model.spec import ModelSpec
from perfmodel.strategy.grid import VALID, StrategyGrid
from perfmodel.strategy.rules import strategy_status

TRIED = 6  # candidates on either side
DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")


def virtual_degrees(model: ModelSpec, grid: StrategyGrid) -> list[int]:
    """Return the numbers of model chunks per stage that a pipeline could interleave.

    Parameters
    ----------
    model : ModelSpec
    grid : StrategyGrid
        One possible strategy.

    Returns
    -------
    list of int
        Above 1, smallest first; empty without a pipeline, or where the layers or micro-batches
        do not divide.
    """
    stages = int(grid["pipeline_parallel"][0])
    layers = model.num_layers
    virtual = np.array(
        [
            degree
            for degree in range(2, (layers + 2) // stages + 1)
            if layers % (stages * degree) == 0 or (layers + 2) % (stages * degree) == 0
        ],
        np.int64,
    )
    columns = {name: np.repeat(column, virtual.size) for name, column in grid.columns.items()}
    columns["virtual_pipeline"] = virtual
    columns["pipeline_schedule"][:] = CODES[CHUNKED]
    status = strategy_status(columns, model, grid.devices)
    return [int(degree) for degree in virtual[status == VALID]]


def instead(
    devices: int,
    axes: Mapping[str, Any],
    possible: Callable[[int, Mapping[str, Any]], bool],
    node: int,
) -> str:
    """Say which devices or batch near those that were asked for have a possible strategy.

    Parameters
    ----------
    devices : int
        Without a possible strategy.
    axes : mapping of str to value or list of values
        Strategy fields.
    possible : callable
        Tells of devices and axes whether they have one.
    node : int
        Devices of a node.

    Returns
    -------
    str
        A clause that begins with a semicolon; empty where nothing near is possible.
    """
    counts = [
        next((count for count in near if possible(count, axes)), None)
        for near in _nearby(devices, _steps(axes, node))
    ]
    ways = [f"--devices {_either(counts)}"] if any(counts) else []
    batches = axis_values("global_batch_size", axes["global_batch_size"]).tolist()
    if len(batches) == 1:
        below, above = _nearby(batches[0], [devices // 2**i for i in range(4)])
        either = [
            next((it for it in near if possible(devices, {**axes, "global_batch_size": it})), None)
            for near in (below, above)
        ]
        ways += [f"--global-batch {_either(either)}"] if any(either) else []
    return f"; {', or '.join(ways)} would be possible" if ways else ""


def _steps(axes: Mapping[str, Any], node: int) -> list[int]:
    """Return what numbers of devices near are multiples of: nodes, and degrees that are fixed."""
    fixed = [
        int(axis_values(name, axes[name])[0])
        for name in DEGREES
        if axes.get(name) is not None and axis_values(name, axes[name]).size == 1
    ]
    product = math.prod(fixed)
    return [math.lcm(node, product), product] if product > 1 else [node]


def _nearby(number: int, steps: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return multiples of the steps, and powers of two, below and above a number, nearest first."""
    power = 2 ** (number.bit_length() - 1)
    below, above = {power}, {2 * power}
    for step in (step for step in steps if step > 0):
        below |= {(number // step - i) * step for i in range(TRIED)}
        above |= {(number // step + i) * step for i in range(1, TRIED + 1)}
    return (
        sorted((item for item in below if 0 < item < number), reverse=True)[:TRIED],
        sorted(item for item in above if item > number)[:TRIED],
    )


def _either(found: Iterable[int | None]) -> str:
    return " or ".join(f"{item:,}" for item in found if item)
