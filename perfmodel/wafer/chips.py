"""Chips of meshes: as devices for roofline models, and with memory beside their cores.

Such a chip (Tenstorrent's) has too little memory in its cores for a model, so that every pass
reads all weights from DRAM: a pass takes as long as the slower of that and its products, and the
sums of tensor parallelism over the chips after each block. A prompt's pass also waits for the
host, which starts its operations one by one; decode replays a recorded trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats
from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.wafer.columns import (
    BEYOND_SRAM,
    CACHE_BEYOND_SRAM,
    CLOSED_ROWS,
    VALID,
    MeshDevice,
)
from perfmodel.model.spec import ModelSpec
from perfmodel.model.state import sequence_state
from perfmodel.wafer.mappings import WaferGrid

# A mesh of cores as the closing kernel wants it, in given number formats.

ELEMENT_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    # 16 elements share an exponent of 8 bit (Tenstorrent's block formats).
    "bfp8": 1.0625,
    "bfp4": 0.5625,
}
"""One number with its part of a shared exponent [B]."""

PREFERRED = ("fp16", "bf16")


def default_precision(hardware: MeshHardware) -> str:
    """Return 16 bit where the mesh multiplies such numbers, else its first format."""
    for name in (*PREFERRED, *hardware.macs_per_cycle):
        if name in hardware.macs_per_cycle:
            return name
    raise HardwareError(f"{hardware.name}: 'macs_per_cycle' is empty")


def mesh_device(
    hardware: MeshHardware, precision: str = "", cache_precision: str = ""
) -> MeshDevice:
    """Return the numbers of a mesh in given formats.

    Parameters
    ----------
    hardware : MeshHardware
    precision : str
        Of weights, at whose rate products run; default: `default_precision`. Activations take
        2 B in all formats of at most 16 bit, else 4.
    cache_precision : str
        Of keys and values; default: as activations.

    Raises
    ------
    HardwareError
        A format that is unknown, or at which the mesh does not multiply.
    """
    name = precision or default_precision(hardware)
    for given in (name, cache_precision or name):
        if given not in ELEMENT_BYTES:
            raise HardwareError(
                f"precision: unknown format '{given}'{did_you_mean(given, ELEMENT_BYTES)}"
            )
    peak = hardware.peak_macs(name)
    element = 4.0 if name == "fp32" else 2.0
    constants = hardware.constants
    return MeshDevice(
        rate=peak * constants.get("mac_fraction", 1.0),
        peak=peak,
        sram=hardware.sram_per_core - hardware.sram_reserved,
        sram_read=hardware.sram_read,
        sram_write=hardware.sram_write,
        link_width=hardware.link_width,
        hop=hardware.hop_cycles,
        ramp=hardware.ramp_cycles,
        stage=constants.get("stage_latency", 0.0),
        routes=float(hardware.routes),
        loop_issue=constants.get("loop_issue", 0.0),
        vector_issue=constants.get("vector_issue", 0.0),
        element_cycles=constants.get("element_cycles", 0.0),
        clock=hardware.clock,
        cores=float(hardware.cores),
        rows=float(hardware.rows),
        columns=float(hardware.columns),
        chips=float(hardware.chips),
        chip_bandwidth=hardware.chip_bandwidth,
        chip_latency=hardware.chip_latency,
        element=element,
        weight=ELEMENT_BYTES[name],
        cache=ELEMENT_BYTES[cache_precision] if cache_precision else element,
    )


# Time of a model on chips whose weights stream from memory beside their meshes of cores.

CHIP_BYTES = {name: ELEMENT_BYTES[name] for name in ("fp16", "bf16", "fp8", "bfp8", "bfp4")}
"""Of weights of chips with memory beside their cores [B]."""

ACTIVATION_BYTES = 2.0  # bf16
PHASES = ("prefill", "decode")
LARGEST = 2**30  # tokens


class ChipTimes(NamedTuple):
    """Times of one pass [s].

    Attributes
    ----------
    time : float
        ``max(memory, compute) + network + host``.
    memory, compute : float
        Weights and caches from DRAM; products.
    network : float
        Sums over the chips.
    host : float
        Dispatch, of a prompt.
    """

    time: float
    memory: float
    compute: float
    network: float
    host: float


def chip_times(
    model: ModelSpec,
    hardware: MeshHardware,
    *,
    phase: str,
    batch: int = 1,
    context: int,
    precision: str = "bfp8",
) -> ChipTimes:
    """Return the times of a pass over a prompt, or of one token of each sequence.

    Parameters
    ----------
    model : ModelSpec
    hardware : MeshHardware
        Chips with DRAM; the model is tensor parallel over all of them.
    phase : {"prefill", "decode"}
        A prompt of one user, as servers of such chips run them, or one token for each of `batch`.
    batch : int
        Sequences of decode.
    context : int
        Tokens of the prompt, or of each sequence's cache.
    precision : str
        Of weights, a key of `CHIP_BYTES`; caches are held in the same.

    Returns
    -------
    ChipTimes

    Raises
    ------
    DataError
        A phase, size or precision that is none.
    HardwareError
        No DRAM, or the weights do not fit in it.
    """
    _check(hardware, phase, batch, context, precision)
    chips, element = hardware.chips, CHIP_BYTES[precision]
    tokens = context if phase == "prefill" else batch
    weights = read_parameters(model, tokens) * element
    if resident_parameters(model) * element > hardware.dram_capacity * chips:
        raise HardwareError(
            f"{model.name}: {resident_parameters(model) * element / 1e9:.1f} GB of {precision} "
            f"weights exceed the {hardware.dram_capacity * chips / 1e9:.1f} GB of {hardware.name}"
        )
    cache = 0.0
    if phase == "decode":
        cache = sequence_state(model, context, "fp8").total * element * batch
    bandwidth = hardware.dram_bandwidth * hardware.constant("dram_fraction")
    memory = (weights + cache) / (bandwidth * chips)
    macs = model.active_parameter_count(include_embeddings=False) * tokens
    cores = hardware.cores * chips
    rate = hardware.peak_macs(precision) * hardware.constant("mac_fraction") * hardware.clock
    compute = macs / (cores * rate)
    network = 2.0 * model.num_layers * _sum_time(hardware, tokens * model.hidden_size)
    host = hardware.constant("layer_latency") * model.num_layers if phase == "prefill" else 0.0
    return ChipTimes(max(memory, compute) + network + host, memory, compute, network, host)


def resident_parameters(model: ModelSpec) -> float:
    """Return the parameters that a system holds."""
    return float(model.parameter_count())


def read_parameters(model: ModelSpec, tokens: int) -> float:
    """Return the parameters that a pass over so many tokens reads.

    Of the token table only single rows; of routed experts those that any token visits, tokens
    choosing evenly and each for itself: ``1 - (1 - k/E)^tokens`` of them.
    """
    table = 0.0 if model.tied_embeddings else model.embedding_parameters()
    every = model.parameter_count() - table
    blocks = [mlp for layer in model.layers for mlp in layer.mlps if mlp.experts]
    if not blocks:
        return every
    share = blocks[0].experts_per_token / blocks[0].experts
    idle = model.parameter_count() - model.active_parameter_count()
    routed = idle / (1.0 - share) if share < 1.0 else 0.0
    return every - routed * (1.0 - share) ** tokens


def _sum_time(hardware: MeshHardware, elements: int) -> float:
    """Return the time of one all-reduce over the chips [s].

    A ring over the longer side of the grid of chips, each of whose rows holds a share of the
    hidden size: ``2 (R - 1) (latency + bytes / R / width)``; a chain of chips is a ring of two
    hops a step (Thakur et al. 2005, of the ring).
    """
    if hardware.chips == 1:
        return 0.0
    side = max(hardware.chip_grid)
    share = elements * ACTIVATION_BYTES * side / hardware.chips
    steps = 2.0 * (side - 1)
    return steps * (hardware.chip_latency + share / side / hardware.chip_bandwidth)


def _check(hardware: MeshHardware, phase: str, batch: int, context: int, precision: str) -> None:
    if phase not in PHASES:
        raise DataError(f"phase: unknown '{phase}'{did_you_mean(phase, PHASES)}")
    for name, value in (("batch", batch), ("context", context)):
        if not 0 < value <= LARGEST:
            raise DataError(f"{name}: a whole number from 1 to {LARGEST}, not {value}")
    if precision not in CHIP_BYTES:
        raise DataError(f"precision: unknown '{precision}'{did_you_mean(precision, CHIP_BYTES)}")
    if hardware.dram_bandwidth <= 0.0:
        raise HardwareError(f"{hardware.name} has no memory beside its cores")


# Rows of a projection for chips that read weights and cache from memory beside their cores.


def streamed_grid(
    model: ModelSpec, mappings: WaferGrid, hardware: MeshHardware, phase: str, precision: str
) -> tuple[Floats, NDArray[np.int64]]:
    """Project a model on chips with memory beside their cores.

    Parameters
    ----------
    model : ModelSpec
    mappings : WaferGrid
        Of which context and batch count: all cores work on every product, and the model is
        tensor parallel over all chips.
    hardware : MeshHardware
    phase : {"decode", "prefill"}
    precision : str
        Of weights and cache; default: 8-bit blocks where the chip has them, else 16 bit.

    Returns
    -------
    values : array, shape (len(CLOSED_ROWS), mappings)
        [s, B, 1]; bytes of a chip's memory; NaN where the weights do not fit.
    status : array of int, shape (mappings,)

    Raises
    ------
    DataError, HardwareError
        As `chip_times`.
    """
    name = precision or ("bfp8" if "bfp8" in hardware.macs_per_cycle else "")
    name = name or default_precision(hardware)
    found = np.full((len(CLOSED_ROWS), len(mappings)), math.nan)
    status = np.zeros(len(mappings), np.int64)
    at = {row: place for place, row in enumerate(CLOSED_ROWS)}
    known: dict[tuple[int, int], int] = {}
    for i in range(len(mappings)):
        key = int(mappings["context"][i]), int(mappings["batch"][i])
        if key in known:  # other fields change nothing
            found[:, i], status[i] = found[:, known[key]], status[known[key]]
            continue
        known[key] = i
        context, batch = key
        element = CHIP_BYTES.get(name, 2.0)
        weights = resident_parameters(model) * element / hardware.chips
        token = (
            sequence_state(model, context, "fp8").total * element * batch / hardware.chips / context
        )
        free = hardware.dram_capacity - weights
        status[i] = VALID if token * context <= free else CACHE_BEYOND_SRAM
        longest = math.floor(free / token) if token > 0.0 else math.inf
        found[at["weight_bytes"], i] = weights
        found[at["cache_bytes"], i] = token * context
        found[at["meshes_needed"], i] = math.ceil(
            (weights + token * context) * hardware.chips / hardware.dram_capacity / hardware.chips
        )
        found[at["cache_tokens_row"], i] = found[at["cache_tokens_shifted"], i] = max(longest, 0)
        found[at["sram_used"], i] = 0.0
        if free < 0.0:
            status[i] = BEYOND_SRAM
            continue
        times = chip_times(
            model, hardware, phase=phase, batch=batch, context=context, precision=name
        )
        found[at["latency"], i] = times.time
        found[at["layer_time"], i] = times.time / model.num_layers
        found[at["compute_time"], i] = times.compute
        found[at["memory_time"], i] = max(0.0, times.memory - times.compute)
        found[at["chip_time"], i] = times.network
        found[at["host_time"], i] = times.host
        for row in ("sram_time", "issue_time", "network_time", "transfer_time", "link_time"):
            found[at[row], i] = 0.0
        share = hardware.constants.get("mac_fraction", 1.0) * times.compute / times.time
        found[at["utilization"], i] = share
        found[at["region_count"], i] = 1.0
        found[at["layers_per_region"], i] = model.num_layers
        found[at["activation_bytes"], i] = 0.0
    return found, status
