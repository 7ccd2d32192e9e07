"""How far measured times may lie from projected ones: the uncertainty of each operation.

A profile holds, per kernel class and regime, half the width of the band from the 10th to
the 90th percentile of ln(measured / predicted): ``[calibration.uncertainty]``. Operations
of one class share their model and so its error: their half-widths add up. Classes err
independently: theirs add up in quadrature (`perfmodel.kernels.step.stages`, `…step`),
together with the share of a whole step that no kernel explains. docs/training.md has the
formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Column
from perfmodel.base.regimes import LIMITS, REGIMES, regime
from perfmodel.operations.operations import (
    Attention,
    Communication,
    Gemm,
    Indexer,
    Operation,
    Recurrence,
    Role,
    SparseAttention,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

CLASSES = (
    *("gemm", "attention", "attention_backward", "moe"),
    *("recurrence", "sparse", "stream", "collective"),
)
"""Kernel classes of a training step, in the order of the width columns of the part table."""

# Backward of attention runs five products over the unmasked pairs where forward runs two;
# regimes count those of forward.
FORWARD_SHARE = 2.0 / 5.0


def kernel_class(operation: Operation) -> str:
    """Return the kernel class of an operation, one of `CLASSES`.

    Products of experts belong to "moe": their error is that of the whole expert layer,
    loads included.
    """
    if isinstance(operation, Gemm):
        return "moe" if operation.role == Role.EXPERT_PRODUCT else "gemm"
    if isinstance(operation, Attention):
        return "attention_backward" if operation.backward else "attention"
    if isinstance(operation, Recurrence):
        return "recurrence"
    if isinstance(operation, SparseAttention | Indexer):
        return "sparse"
    return "collective" if isinstance(operation, Communication) else "stream"


def class_widths(rows: Sequence[Hardware]) -> dict[str, NDArray[np.float64]]:
    """Return `width_table` of every kernel class on rows of hardware, shape (rows, regimes)."""
    return {name: np.array([width_table(row, name) for row in rows]) for name in CLASSES}


def relative_width(
    widths: Mapping[str, NDArray[np.float64]], operation: Operation, flops: Column
) -> Column:
    """Return the relative half-width of the 10-90 % band of an operation's time.

    Parameters
    ----------
    widths : mapping of str to ndarray
        `class_widths` of rows of hardware.
    operation : Operation
    flops : ndarray, shape (rows, keys)
        Matrix FLOP of one call; decides the regime of attention only.

    Returns
    -------
    ndarray, shape (rows, keys)
        Half-width of ln(measured / predicted) [1], by the regime of each key's call.
    """
    name = kernel_class(operation)
    found = np.broadcast_to(regime(name, _quantity(operation, flops)), flops.shape)
    return np.take_along_axis(widths[name], found, axis=1)


def _quantity(operation: Operation, flops: Column) -> Column | float:
    """Return what tells the regimes of an operation's class apart, in SI units."""
    if isinstance(operation, Gemm):
        rows = operation.m
        if kernel_class(operation) == "moe":  # tokens of all experts, in one launch or several
            rows = rows * operation.batch * operation.count
        return np.asarray(rows, np.float64)
    if isinstance(operation, Attention):
        return flops * (FORWARD_SHARE if operation.backward else 1.0)
    if isinstance(operation, Recurrence | SparseAttention | Indexer):
        return flops
    if isinstance(operation, Communication):
        return np.asarray(operation.size, np.float64)
    return np.asarray(operation.bytes_read + operation.bytes_written, np.float64)


def width_table(hardware: Hardware, name: str) -> NDArray[np.float64]:
    """Relative half-width of a kernel class in each of `perfmodel.base.regimes.REGIMES`."""
    return np.array([hardware.uncertainty(name, item) for item in REGIMES])


def kernel_widths(hardware: Hardware, name: str) -> tuple[float, float, float, float, float]:
    """Limits and half-widths of a kernel class, as `perfmodel.kernels.step.overlap.width_of`.

    Returns
    -------
    tuple of five floats
        First value of the middle and of the large regime [of `perfmodel.base.regimes.LIMITS`],
        then the relative half-widths of small, middle and large.
    """
    _, middle, large = LIMITS[name]
    small_width, middle_width, large_width = width_table(hardware, name).tolist()
    return middle, large, small_width, middle_width, large_width


def step_width(hardware: Hardware, experts: bool) -> float:
    """Relative half-width of what no kernel explains in a whole step.

    Parameters
    ----------
    hardware : Hardware
    experts : bool
        The model has layers with experts, whose loads and exchanges no table states.

    Returns
    -------
    float
        ``calibration.uncertainty.step_moe`` with experts, else ``calibration.uncertainty.step``
        (also where the profile has no other); 0 where the profile has none.
    """
    if "uncertainty" not in hardware.calibration:
        return 0.0
    width = hardware.lookup("uncertainty")
    step = width("step", 0.0)
    return width("step_moe", step) if experts else step


def memory_width(hardware: Hardware) -> float:
    """Relative half-width of the band of the peak memory; 0 where the profile has none.

    ``calibration.uncertainty.memory``.
    """
    if "uncertainty" not in hardware.calibration:
        return 0.0
    return hardware.lookup("uncertainty")("memory", 0.0)
