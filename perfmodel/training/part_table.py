"""Tables of what each part of a model costs per micro-batch, for every layer key.

The closing pass (`perfmodel.kernels.step.close`) only adds rows of these tables.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Column
from perfmodel.model.build import ModelSpec
from perfmodel.operations.operations import Communication, LayerKeys, Machine
from perfmodel.operations.parts import Part, model_parts, part_operations
from perfmodel.operations.pricing import Priced, column_of, price_operations
from perfmodel.operations.uncertainty import CLASSES, kernel_class
from perfmodel.software.framework import Framework
from perfmodel.training.memory import part_memory

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

BACKWARD_PHASES = ("backward_input", "backward_weight")


def slowest_of(devices: int, spread: float) -> float:
    """Expected slowdown of the slowest of a number of devices whose speeds spread.

    A step waits for its slowest device. The expected maximum of n normal deviates is
    ``Φ⁻¹((n - 0.375) / (n + 0.25))`` standard deviations (Blom 1958).

    Parameters
    ----------
    devices : int
        Number of devices n, >= 1.
    spread : float
        Standard deviation of the time of equal work, relative to its mean.

    Returns
    -------
    float
        Factor on the mean time, 1 for a single device.
    """
    return 1.0 + spread * NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


def machine_of(hardware: Hardware) -> Machine:
    """Facts of a profile that decide which operations run."""
    return Machine(
        domain=hardware.system.network[0].size or hardware.system.devices_per_node,
        fp8_transposed_copies=hardware.device.fp8_transposed_copies,
        sizes=tuple(level.size for level in hardware.system.network),
    )


def price_parts(
    model: ModelSpec, keys: LayerKeys, hardware: Hardware, framework: Framework, devices: int
) -> list[tuple[Part, list[Priced]]]:
    """Price the operations of every part of a model on one device."""
    machine = machine_of(hardware)
    slowdown = slowest_of(devices, hardware.calibrated("host", "speed_spread"))
    return [
        (
            part,
            price_operations(
                hardware,
                part_operations(model, part, keys, framework, machine),
                keys,
                framework,
                slowdown,
            ),
        )
        for part in model_parts(model)
    ]


def part_table(
    model: ModelSpec, keys: LayerKeys, hardware: Hardware, framework: Framework, devices: int
) -> NDArray[np.float64]:
    """Fill the table of one device.

    Returns
    -------
    ndarray of float64, shape (keys, parts, columns)
        Columns as numbered in `perfmodel.kernels.step.close`: seconds, parameters, bytes or
        FLOP per micro-batch and device.
    """
    from perfmodel.kernels.step import tables as step

    parts = price_parts(model, keys, hardware, framework, devices)
    table = np.zeros((len(keys), len(parts), step.PART_COLUMNS))
    launch = hardware.calibrated(
        "host", "graph_launch_time" if framework.graph_launch else "launch_time"
    )
    for index, (part, priced) in enumerate(parts):
        row = table[:, index]
        device, host = np.zeros((2, len(keys))), np.zeros((2, len(keys)))
        for item in priced:
            backward = int(item.operation.phase != "forward")
            _add_priced(row, item)
            device[backward] += item.exposed
            host[backward] += _launches(item, keys) * launch
        # Each pass takes as long as the slower of the device and the host that feeds it.
        window = np.maximum(device, host)
        row[:, step.FORWARD_WINDOW], row[:, step.BACKWARD_WINDOW] = window
        row[:, step.HOST] = (window - device).sum(axis=0)
        kept = part_memory(model, part, keys, framework)
        row[:, step.WEIGHTS] = kept.weights
        row[:, step.EXPERTS] = kept.experts
        row[:, step.ACTIVATIONS] = kept.activations
        row[:, step.WORKING] = kept.working
        row[:, step.LOGITS] = kept.logits
    return table


def _launches(item: Priced, keys: LayerKeys) -> Column:
    """Kernels that the host launches for an operation, shape (keys,)."""
    launches: Column | float = getattr(item.operation, "launches", 1.0)
    return column_of(launches, len(keys)) * column_of(item.operation.count, len(keys))


def _add_priced(row: NDArray[np.float64], item: Priced) -> None:
    """Add one operation's seconds, their half-width and its FLOP to its columns."""
    from perfmodel.kernels.step import tables as step

    operation = item.operation
    row[:, step.FIRST_WIDTH + CLASSES.index(kernel_class(operation))] += item.half_width
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
