"""State that waits in the host's memory: what moves over the link, what of it shows, what is left.

Activations leave beside the forward pass of their micro-batch and come back beside its backward
(Megatron-Core, ``fine_grained_activation_offloading``; Transformer Engine, ``cpu_offloading``);
parameters come for either pass (ZeRO-Infinity, arXiv:2104.07857; FSDP2's ``CPUOffloadPolicy``);
gradients of parameters that the host updates go out as they are reduced, and what it has updated
comes back (ZeRO-Offload, arXiv:2101.06840; Megatron-Core, ``optimizer_cpu_offload``). Copies run on
engines of their own, both directions of the link at once. A pass is the longer of its compute and
its copies.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit_inline
from perfmodel.kernels.step.sharding import kept, shards_gradients

UPDATE_SHARE = 0.5
"""Share of the host memory's bandwidth at which processors update parameters.

DeepSpeed's CPU-Adam takes 2.57 s for 10 billion parameters (arXiv:2101.06840, table 4) on two Xeon
8168 with twelve channels of DDR4-2666, 256 GB/s: 32 B for each parameter, 125 GB/s."""

AHEAD = 2.0
"""Layers whose activations or parameters are on the device at once: that at work, and the next to
leave or to come."""


class Offloaded(NamedTuple):
    """What of a stage waits in the host's memory [B]."""

    activations: float  # of one micro-batch
    parameters: float  # as they travel: a rank's own
    gradients: float  # of the parameters that the host updates, as they travel
    optimizer: float  # their states, master copy included


class Away(NamedTuple):
    """What leaves each component of a stage's memory, and what the host holds instead [B]."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    host: float


@jit_inline
def offloads(strategy):
    """Whether a strategy leaves anything to the host."""
    return (
        strategy.offload_activations > 0.0
        or strategy.offload_optimizer > 0.0
        or strategy.offload_parameters > 0.0
    )


@jit_inline
def offloaded(strategy, stage, groups, settings):
    """Return the `Offloaded` state of a stage."""
    own = kept(strategy.zero, stage.weights, stage.experts, groups)
    trained = kept(strategy.zero, stage.trained, stage.trained_experts, groups)
    updated = strategy.offload_optimizer * trained.updated
    return Offloaded(
        strategy.offload_activations * stage.activations,
        strategy.offload_parameters * own.parameters * settings.gather_bytes,
        updated * settings.reduce_bytes,
        updated * settings.optimizer_bytes,
    )


@jit_inline
def pass_exposed(strategy, stage, groups, settings):
    """Return what copies add to both passes of a micro-batch on a stage [s].

    Beside the time that the stage's own traffic leaves on its adapters, which share a bus with the
    link. Where gradients are sharded, those of every micro-batch go out with its backward pass.
    """
    moved = offloaded(strategy, stage, groups, settings)
    rate = settings.host_bandwidth
    out = moved.gradients if shards_gradients(strategy.zero) else 0.0
    forward = max(moved.activations, moved.parameters) / rate
    backward = max(moved.activations + moved.parameters, out) / rate
    return max(0.0, forward - stage.forward_window) + max(0.0, backward - stage.backward_window)


@jit_inline
def update_exposed(strategy, load, stage, groups, settings, device_time):
    """Return what the host's update adds to that of the device, which runs beside it [s].

    Gradients that are reduced once a step go out beside the backward pass of the last micro-batch.
    Copies of updated parameters follow the update piece by piece.
    """
    share = strategy.offload_optimizer
    if not share > 0.0:
        return 0.0
    trained = kept(strategy.zero, load.weights, load.experts, groups)
    updated = share * trained.updated
    state = 2.0 * settings.optimizer_bytes + settings.gradient_bytes
    traffic = updated * (state + 2.0 * settings.gather_bytes)
    update = traffic / (UPDATE_SHARE * settings.host_memory_bandwidth)
    back = 0.0
    if not strategy.offload_parameters > 0.0:
        back = updated * settings.gather_bytes / settings.host_bandwidth
    late = 0.0
    if not shards_gradients(strategy.zero):
        out = updated * settings.reduce_bytes / settings.host_bandwidth
        late = max(0.0, out - stage.backward_window)
    return late + max(0.0, max(update, back) - device_time)


@jit_inline
def offload_memory(strategy, stage, flight, own, trained, weight_bytes, settings):
    """Return what is `Away` of a stage; buffers of `AHEAD` layers stay on the device.

    Parameters
    ----------
    strategy : Strategies
        One of them.
    stage : record of STAGE
    flight : float
        Micro-batches in flight, in whole-stage units.
    own, trained : Kept
        What the device keeps of the stage, and of its trained parameters.
    weight_bytes : float
        Of a stored parameter [B].
    settings : Settings
    """
    weights = strategy.offload_parameters * own.parameters * weight_bytes
    whole = stage.weights + stage.experts
    layers = AHEAD * stage.layer / whole if whole > 0.0 else 0.0  # share of a stage
    buffer = min(weights, layers * own.parameters * weight_bytes)
    gradients = 0.0
    if shards_gradients(strategy.zero):  # the host adds up what it updates with
        gradients = strategy.offload_optimizer * trained.gradients * settings.gradient_bytes
    optimizer = strategy.offload_optimizer * trained.updated * settings.optimizer_bytes
    activations = strategy.offload_activations * flight * stage.activations
    ahead = min(activations, AHEAD * stage.widest_part)
    host = weights + gradients + optimizer + activations
    return Away(weights - buffer, gradients, optimizer, activations - ahead, host)
