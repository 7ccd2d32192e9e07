"""How far measured times may lie from projected ones: the uncertainty of each operation.

A profile holds, per kernel class and regime, half the width of the band from the 10th to
the 90th percentile of ln(measured / predicted): ``[calibration.uncertainty]``. Operations
of one class share their model and so its error: their half-widths add up. Classes err
independently: theirs add up in quadrature (`perfmodel.kernels.step.stages`, `…step`),
together with the share of a whole step that no kernel explains. docs/training.md has the
formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.base.regimes import regime
from perfmodel.hwprofiles.rows import width_table
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


def relative_width(hardware: Hardware, operation: Operation, flops: Column) -> Column:
    """Return the relative half-width of the 10-90 % band of an operation's time.

    Parameters
    ----------
    hardware : Hardware
    operation : Operation
    flops : ndarray, shape (keys,)
        Matrix FLOP of one call; decides the regime of attention only.

    Returns
    -------
    ndarray, shape (keys,)
        Half-width of ln(measured / predicted) [1], by the regime of each key's call.
    """
    name = kernel_class(operation)
    found = regime(name, _quantity(operation, flops))
    return np.broadcast_to(width_table(hardware, name)[found], flops.shape)


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
