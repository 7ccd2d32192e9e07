"""The update of the parameters."""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit_lean_inline
from perfmodel.kernels.step.overlap import width_of
from perfmodel.kernels.step.sharding import kept
from perfmodel.kernels.stream import stream_time

# Multi-tensor kernels, a handful of launches (8 assumed), and about 12 FLOP per parameter
# (Adam's rule).
OPTIMIZER_LAUNCHES = 8.0
OPTIMIZER_FLOPS = 12.0


@jit_lean_inline
def optimizer_work(zero, weights, experts, groups, settings):
    """Parameters that a device updates, and the bytes that its update reads and writes.

    The shard's gradients are read for their norm, scaled by it and read for the update; the
    state is read and written, parameters are written. All gradients are zeroed for the next
    step.

    Parameters
    ----------
    zero : int
        ZeRO stage.
    weights, experts : float
        Parameters of a stage on one device.
    groups : Groups
    settings : record of SETTINGS
    """
    own = kept(zero, weights, experts, groups)
    updated = own.updated
    read = updated * (3.0 * settings.gradient_bytes + settings.optimizer_bytes)
    written = updated * (settings.gradient_bytes + settings.optimizer_bytes + 2.0)
    return updated, read, written + own.gradients * settings.gradient_bytes


class Update(NamedTuple):
    """The update on the stage with most parameters."""

    time: float  # [s]
    width: float  # its half-width [s]


@jit_lean_inline
def optimizer_time(strategy, load, groups, settings, device):
    """Return the `Update` of a strategy: of what the host does not update."""
    updated, read, written = optimizer_work(
        strategy.zero, load.weights, load.experts, groups, settings
    )
    own = 1.0 - strategy.offload_optimizer
    updated, read, written = own * updated, own * read, own * written
    # Nothing cached, nothing read again, no chain.
    time, _ = stream_time(
        device, read, written, OPTIMIZER_FLOPS * updated, OPTIMIZER_LAUNCHES, 0.0, 0.0, 0.0, 0.0
    )
    return Update(time, width_of(read + written, settings.stream_widths) * time)
