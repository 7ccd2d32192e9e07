"""Tables of what each part of a model costs per micro-batch, for every layer key.

The closing pass (`perfmodel.kernels.step`) only adds rows of these tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.framework import Framework
from perfmodel.memory import part_memory
from perfmodel.model import ModelSpec
from perfmodel.operations import Column, Communication, LayerKeys
from perfmodel.pricing import Priced, column_of, price_operations
from perfmodel.workload import Part, model_parts, part_operations

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

BACKWARD_PHASES = ("backward_input", "backward_weight")


def price_parts(
    model: ModelSpec, keys: LayerKeys, hardware: Hardware, framework: Framework
) -> list[tuple[Part, list[Priced]]]:
    """Price the operations of every part of a model on one device."""
    return [
        (part, price_operations(hardware, part_operations(model, part, keys, framework), keys))
        for part in model_parts(model)
    ]


def part_table(
    model: ModelSpec, keys: LayerKeys, hardware: Hardware, framework: Framework
) -> NDArray[np.float64]:
    """Fill the table of one device.

    Returns
    -------
    ndarray of float64, shape (keys, parts, columns)
        Columns as numbered in `perfmodel.kernels.step`: seconds, parameters, bytes or
        FLOP per micro-batch and device.
    """
    from perfmodel.kernels import step_tables as step

    parts = price_parts(model, keys, hardware, framework)
    table = np.zeros((len(keys), len(parts), step.PART_COLUMNS))
    launch = hardware.calibrated(
        "host", "graph_launch_time" if framework.graph_launch else "launch_time"
    )
    for index, (part, priced) in enumerate(parts):
        row = table[:, index]
        for item in priced:
            _add_priced(row, item, keys, launch)
        kept = part_memory(model, part, keys, framework)
        row[:, step.WEIGHTS] = kept.weights
        row[:, step.EXPERTS] = kept.experts
        row[:, step.ACTIVATIONS] = kept.activations
        row[:, step.WORKING] = kept.working
    return table


def _add_priced(row: NDArray[np.float64], item: Priced, keys: LayerKeys, launch: float) -> None:
    """Add one operation's seconds, launches and FLOP to its columns."""
    from perfmodel.kernels import step_tables as step

    operation = item.operation
    launches: Column | float = getattr(operation, "launches", 1.0)
    count = column_of(operation.count, len(keys))
    row[:, step.HOST] += column_of(launches, len(keys)) * count * launch
    if isinstance(operation, Communication):
        exposed = {
            "tensor": step.TENSOR_EXPOSED,
            "context": step.CONTEXT_EXPOSED,
            "expert": step.EXPERT_EXPOSED,
        }[operation.axis]
        row[:, exposed] += item.exposed
        row[:, exposed + 1] += item.time
        return
    row[:, step.FLOPS] += item.flops
    if operation.phase == "forward":
        row[:, step.FORWARD] += item.time
    elif operation.phase in BACKWARD_PHASES:
        row[:, step.BACKWARD] += item.time
    else:
        row[:, step.RECOMPUTE] += item.time
