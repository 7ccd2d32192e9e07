"""Time of a model on chips whose weights stream from memory beside their meshes of cores.

Such a chip (Tenstorrent's) has too little memory in its cores for a model, so that every pass
reads all weights from DRAM: a pass takes as long as the slower of that and its products, and the
sums of tensor parallelism over the chips after each block. A prompt's pass also waits for the
host, which starts its operations one by one; decode replays a recorded trace.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.model.build import ModelSpec
from perfmodel.model.state import sequence_state

ELEMENT_BYTES = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "bfp8": 1.0 + 1 / 16, "bfp4": 0.5 + 1 / 16}
"""Of weights [B]; of block floats 16 elements share an exponent of a byte."""

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
        Of weights, a key of `ELEMENT_BYTES`; caches are held in the same.

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
    chips, element = hardware.chips, ELEMENT_BYTES[precision]
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
    if precision not in ELEMENT_BYTES:
        raise DataError(f"precision: unknown '{precision}'{did_you_mean(precision, ELEMENT_BYTES)}")
    if hardware.dram_bandwidth <= 0.0:
        raise HardwareError(f"{hardware.name} has no memory beside its cores")
