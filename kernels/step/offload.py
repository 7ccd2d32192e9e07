"""State that waits elsewhere: what moves over which link, what of it shows, what is left.

Activations leave beside the forward pass of their micro-batch and come back beside its backward
(Megatron-Core, ``fine_grained_activation_offloading``; Transformer Engine, ``cpu_offloading``);
parameters come for either pass (ZeRO-Infinity, arXiv:2104.07857; FSDP2's ``CPUOffloadPolicy``);
gradients of parameters that the host updates go out as they are reduced, and what it has updated
comes back (ZeRO-Offload, arXiv:2101.06840; Megatron-Core, ``optimizer_cpu_offload``). Copies run on
engines of their own, both directions of the link at once. A pass is the longer of its compute and
its copies.

The host's NVMe drives stand behind its memory (ZeRO-Infinity): what goes there passes both, and
drives read or write. Activations of 1F1B may wait on another stage instead (BPipe, Kim et al., ICML
2023): stage s hands what it keeps beyond ⌈(p + 2) / 2⌉ micro-batches to stage p - 1 - s, which
keeps as much less; the two are neighbours ("pair-adjacent assignment", section 3.3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean_inline
from perfmodel.kernels.collective.algorithms import POINT_TO_POINT
from perfmodel.kernels.collective.times import MEMO_SLOTS, TIME, memoised_time
from perfmodel.kernels.step.placement import data_groups
from perfmodel.kernels.step.sharding import kept, shards_gradients, shards_parameters
from perfmodel.kernels.step.tables import HOST, NVME, STAGE_PLACE

UPDATE_SHARE = 0.5
"""Share of the host memory's bandwidth at which processors update parameters.

DeepSpeed's CPU-Adam takes 2.57 s for 10 billion parameters (arXiv:2101.06840, table 4) on two Xeon
8168 with twelve channels of DDR4-2666, 256 GB/s: 32 B for each parameter, 125 GB/s. A prior on
other processors."""

AHEAD = 2.0
"""Layers whose activations or parameters are on the device at once: that at work, and the next to
leave or to come."""

TILE = 1e9
"""Parameters that the host reads from its drives, updates and writes back at a time.

DeepSpeed, ``sub_group_size``: "the granularity in which model states move in and out of CPU memory
from NVMe during the optimizer step"; 1e9 unless stated (runtime/zero/config.py)."""


class Offloaded(NamedTuple):
    """What of a stage waits elsewhere [B]."""

    activations: float  # of one micro-batch
    parameters: float  # as they travel: a rank's own
    gradients: float  # of the parameters that the host updates, as they travel


class Away(NamedTuple):
    """What leaves each component of a stage's memory, and what its host holds instead [B]."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float  # less those of another stage that wait here
    host: float
    nvme: float


@jit_lean_inline
def offloads(strategy):
    """Whether a strategy leaves anything elsewhere."""
    return (
        strategy.offload_activations > 0.0
        or strategy.offload_optimizer > 0.0
        or strategy.offload_parameters > 0.0
    )


@jit_lean_inline
def offloaded(strategy, stage, groups, settings):
    """Return the `Offloaded` state of a stage.

    Sharded parameters that are the master copy are cast once they are on the device (PyTorch,
    `FSDPParam.all_gather_inputs`).
    """
    wide = settings.memory.master_bytes if shards_parameters(strategy.zero_stage) else 0.0
    own = kept(strategy.zero_stage, stage.weights, stage.experts, groups)
    trained = kept(strategy.zero_stage, stage.trained, stage.trained_experts, groups)
    updated = strategy.offload_optimizer * trained.updated
    return Offloaded(
        strategy.offload_activations * stage.offloadable,
        strategy.offload_parameters * own.parameters * max(settings.gather_bytes, wide),
        updated * settings.reduce_bytes,
    )


@jit_lean_inline
def parked(strategy, batches, stages, row):
    """Return what the first stage of a row leaves on its pair, and what that leaves on it [B].

    1F1B keeps ``min(m, p - s)`` micro-batches on stage s, p + 1 on both of a pair; with one that is
    on its way, neither has to keep more than ⌈(p + 2) / 2⌉.
    """
    if strategy.offload_activations_to != STAGE_PLACE:
        return 0.0, 0.0
    p, share = strategy.pipeline_parallel, strategy.offload_activations
    most = (p + 3) // 2
    stage = stages.sums[row]
    first = stage.first_stage
    leaving = max(0.0, min(batches, p - first) - most)
    coming = max(0.0, min(batches, first + 1.0) - most)
    return (
        share * leaving * stage.activations,
        share * coming * stages.sums[stage.pair].activations,
    )


@jit_lean_inline
def drive_time(read, written, settings):
    """Time of the host's drives [s]: they read or write."""
    time = 0.0
    if read > 0.0:
        time += read / settings.nvme_read
    if written > 0.0:
        time += written / settings.nvme_write
    return time


@jit_lean_inline
def pass_exposed(strategy, stage, parks, groups, settings, network, memo):
    """Return what copies add to both passes of a micro-batch on a stage [s].

    Beside the time that the stage's own traffic leaves on its adapters, which share a bus with the
    link. Where gradients are sharded, those of every micro-batch go out with its backward pass.
    A stage that parks activations (`parks`) sends those of every micro-batch to its neighbour:
    one that has just gone forward is needed last.
    """
    moved = offloaded(strategy, stage, groups, settings)
    out = moved.gradients if shards_gradients(strategy.zero_stage) else 0.0
    activations, beside = moved.activations, 0.0
    if strategy.offload_activations_to == STAGE_PLACE:
        activations = 0.0
        if parks:
            stride = groups.pipeline_stride
            whole = strategy.offload_activations * stage.activations
            beside = memoised_time(POINT_TO_POINT, whole, 2, stride, network, memo)
    forward, backward = beside, beside
    if activations + moved.parameters + out > 0.0:
        rate = settings.host_bandwidth
        forward = max(forward, max(activations, moved.parameters) / rate)
        backward = max(backward, max(activations + moved.parameters, out) / rate)
    stored = activations if strategy.offload_activations_to == NVME else 0.0
    fetched = moved.parameters if strategy.offload_parameters_to == NVME else 0.0
    forward = max(forward, drive_time(fetched, stored, settings))
    backward = max(backward, drive_time(fetched + stored, 0.0, settings))
    return max(0.0, forward - stage.forward_window) + max(0.0, backward - stage.backward_window)


@jit
def stage_copies(strategy, batches, stages, settings, network, out):
    """Write what `pass_exposed` says of every distinct stage of a strategy.

    Parameters
    ----------
    strategy : record of STRATEGY
    batches : int
        Micro-batches.
    stages : Stages
    settings : record of SETTINGS
    network : Network
    out : float64[rows of the stage key]
        Result [s].
    """
    of = stages.of[strategy.stage_key]
    groups = data_groups(strategy, network)
    memo = np.zeros((MEMO_SLOTS, TIME + 1))
    for row in range(of.first, of.behind):
        leaves, _ = parked(strategy, batches, stages, row)
        moves = leaves > 0.0
        out[row - of.first] = pass_exposed(
            strategy, stages.sums[row], moves, groups, settings, network, memo
        )


@jit_lean_inline
def update_exposed(strategy, load, stage, groups, settings, device_time):
    """Return what the host's update adds to that of the device, which runs beside it [s].

    Gradients that are reduced once a step go out beside the backward pass of the last micro-batch.
    Copies of updated parameters follow the update piece by piece. States on drives are read with
    their gradients, which were written beside that backward pass, updated and written back, tile
    by tile: one after the other, or at once (DeepSpeed, ``pipeline_read``, ``pipeline_write``).
    """
    share = strategy.offload_optimizer
    if not share > 0.0:
        return 0.0
    trained = kept(strategy.zero_stage, load.weights, load.experts, groups)
    updated = share * trained.updated
    state = 2.0 * settings.optimizer_bytes + settings.gradient_bytes
    traffic = updated * (state + 2.0 * settings.gather_bytes)
    update = traffic / (UPDATE_SHARE * settings.host_memory_bandwidth)
    back, late, written, read = 0.0, 0.0, 0.0, 0.0
    if not strategy.offload_parameters > 0.0:
        back = updated * settings.gather_bytes / settings.host_bandwidth
    elif strategy.offload_parameters_to == NVME:
        written = updated * settings.gather_bytes
    if not shards_gradients(strategy.zero_stage):
        out = updated * settings.reduce_bytes / settings.host_bandwidth
        late = max(0.0, out - stage.backward_window)
    if strategy.offload_optimizer_to == NVME:
        read = updated * (settings.optimizer_bytes + settings.gradient_bytes)
        written += updated * settings.optimizer_bytes
        out = drive_time(0.0, updated * settings.gradient_bytes, settings)
        late = max(late, out - stage.backward_window)
    drives = drive_time(read, written, settings)
    update = max(update, drives) if settings.overlap_nvme else update + drives
    return late + max(0.0, max(update, back) - device_time)


@jit_lean_inline
def offload_memory(strategy, stage, flight, parking, parameters, trained, settings):
    """Return what is `Away` of a stage; buffers of `AHEAD` layers stay on the device.

    What goes to drives passes buffers of the host: as many layers, and the `TILE` that it updates
    (and the next one, where that is read ahead).

    Parameters
    ----------
    strategy : record of STRATEGY
    stage : record of STAGE
    flight : float
        Micro-batches in flight, in whole-stage units.
    parking : tuple of two floats
        Of `parked`.
    parameters : float
        Those of the device [B], the master copy among them where they are it.
    trained : Kept
        What it keeps of the trained ones.
    settings : record of SETTINGS
    """
    weights = strategy.offload_parameters * parameters
    whole = stage.weights + stage.experts
    layers = AHEAD * stage.layer / whole if whole > 0.0 else 0.0  # share of a stage
    buffer = min(weights, layers * parameters)
    updated = strategy.offload_optimizer * trained.updated
    gradients = 0.0
    if shards_gradients(strategy.zero_stage):  # the host adds up what it updates with
        gradients = strategy.offload_optimizer * trained.gradients * settings.gradient_bytes
    optimizer = updated * (settings.optimizer_bytes - settings.memory.master_bytes)
    host, nvme = 0.0, 0.0
    if strategy.offload_parameters_to == NVME:
        nvme += weights
        host += buffer
    else:
        host += weights
    if strategy.offload_optimizer_to == NVME:
        tiles = TILE * (2.0 if settings.overlap_nvme else 1.0)
        states = optimizer + updated * settings.gradient_bytes
        nvme += states
        host += states * min(1.0, tiles / updated) if updated > 0.0 else 0.0
    else:
        host += gradients + optimizer
    if strategy.offload_activations_to == STAGE_PLACE:
        leaving, coming = parking
        return Away(weights - buffer, gradients, optimizer, leaving - coming, host, nvme)
    activations = strategy.offload_activations * flight * stage.offloadable
    ahead = min(activations, AHEAD * stage.widest_part)
    if strategy.offload_activations_to == HOST:
        host += activations
    else:
        nvme += activations
        host += ahead
    return Away(weights - buffer, gradients, optimizer, activations - ahead, host, nvme)
