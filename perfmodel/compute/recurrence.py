"""Times of recurrent mixers and causal convolutions on a hardware profile.

Linear attention and state-space models: see `perfmodel.kernels.recurrence`. No kernel of them is
fitted, so all are priors: every constant is a fact of the device, or one that was fitted to other
kernels of its family. ``docs/kernels.md`` holds published times against them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.columns import broadcast, check_least
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.precisions import OPERAND_BYTES, wide_format
from perfmodel.compute.attention_device import attention_constants
from perfmodel.compute.gemm import gemm_device
from perfmodel.compute.recurrence_counts import (
    RECURRENCE_PHASES,
    RECURRENCES,
    recurrence_flops,
)
from perfmodel.compute.stream import DEFAULT_CACHED, StreamTimes, stream_device
from perfmodel.hwprofiles import Hardware, load_hardware

if TYPE_CHECKING:
    from perfmodel.kernels.recurrence.blocks import RecurrenceDevice

RECURRENCE_BOUNDS = ("compute", "vector", "memory", "latency")
"""Meaning of the codes in `RecurrenceTimes.bound`."""

CONVOLUTION_PHASES = RECURRENCE_PHASES

LARGEST_SIZE = 2.0**30
"""Of a length or a width, so that products of a few are exact."""

SILU_OPERATIONS = 4.0
"""Operations of SiLU apart from its exponential
(`perfmodel.compute.stream_catalogue.ELEMENTWISE`)."""


class RecurrenceTimes(NamedTuple):
    """Columns of equal length."""

    time: np.ndarray  # float64 [s]
    flops: np.ndarray  # float64, by `recurrence_flops`: not what backward computes again
    memory_traffic: np.ndarray  # float64, from and to device memory [B]
    bound: np.ndarray  # uint8, index into RECURRENCE_BOUNDS


def recurrence_device(hardware: Hardware, precision: str = "bf16") -> RecurrenceDevice:
    """Return what the kernels of recurrent mixers need to know of a device.

    Parameters
    ----------
    hardware : Hardware
        Profile with ``[calibration.gemm]`` and ``[calibration.stream]``.
    precision : str
        Of the projections: narrow formats leave the mixers in bf16.

    Returns
    -------
    RecurrenceDevice
        Matrix rate, ports and overlap as for matrix products; launches and the general cores as
        for streaming operations; memory as for those (the scan of Mamba-1) and as for other
        kernels in a portable language (all else); the rest are facts.

    Raises
    ------
    HardwareError
        Precision that the device lacks, or a missing calibration key.
    """
    from perfmodel.kernels.recurrence.blocks import (
        ANY_RESIDENTS,
        BLOCK_REGISTERS,
        LEAST_RESIDENTS,
        SHARED_BYTES_PER_CLOCK,
        STREAM_RESIDENTS,
        RecurrenceDevice,
    )

    products, stream = gemm_device(hardware, wide_format(precision)), stream_device(hardware)
    device = hardware.device
    shared = SHARED_BYTES_PER_CLOCK * device.boost_clock
    if device.memory.shared_memory_per_unit <= 0.0 or products.array_side > 0.0:
        shared = 0.0
    residents = device.memory.register_file_per_unit // BLOCK_REGISTERS
    scheduled = ANY_RESIDENTS if products.array_side > 0.0 else 0.0
    return RecurrenceDevice(
        units=products.units,
        unit_rate=products.unit_rate,
        shared_bandwidth=shared,
        array_side=products.array_side,
        unit_vector_rate=stream.vector_rate / products.units,
        special_operations=hardware.calibrated("stream", "special_operations"),
        unit_bandwidth=products.unit_bandwidth,
        stream=stream,
        portable_bandwidth=_portable_bandwidth(hardware),
        exchange_latency=hardware.calibrated("stream", "reduction_latency"),
        residents=max(LEAST_RESIDENTS, float(residents), scheduled),
        stream_residents=max(STREAM_RESIDENTS, scheduled),
        overlap_loss=products.overlap_loss,
        element_bytes=products.operand_bytes,
    )


def _portable_bandwidth(hardware: Hardware) -> float:
    """Return what kernels in a portable language sustain of the device memory [B/s]."""
    efficiency = attention_constants(hardware, "portable")("memory_efficiency")
    return float(hardware.device.memory.bandwidth * efficiency)


def recurrence_times(
    hardware: Hardware | str,
    precision: str,
    *,
    kind: ArrayLike,
    batch: ArrayLike,
    length: ArrayLike,
    heads: ArrayLike,
    key_heads: ArrayLike,
    key_dim: ArrayLike,
    value_dim: ArrayLike,
    chunk: ArrayLike = 64,
    phase: ArrayLike = "forward",
) -> RecurrenceTimes:
    """Return the times of recurrent mixers, without projections, convolution and gated norm.

    Parameters
    ----------
    hardware : Hardware
        Profile.
    precision : str
        See `recurrence_device`.
    kind : array_like of str
        Of `RECURRENCES`: "gated_delta" (Gated DeltaNet), "kimi_delta" (KDA), "mamba2" (SSD),
        "mamba1" (selective scan), "lightning".
    batch, length : array_like of int
        Sequences, and tokens of each; decode takes one token whatever the length.
    heads, key_heads, key_dim, value_dim : array_like of int
        On this device. mamba2: heads, groups, ``d_state``, ``headdim``; mamba1: channels, 1,
        ``d_state``, 1. Heads are a multiple of key heads.
    chunk : array_like of int
        Tokens of a chunk; mamba1 has none.
    phase : array_like of str
        Of `RECURRENCE_PHASES`; backward is the whole backward pass, which computes again what
        the libraries do not keep.

    Returns
    -------
    RecurrenceTimes
        One row per broadcast call: the whole chain of kernels, L2 norms of queries and keys and
        sums of gates included; device time only.

    Raises
    ------
    DataError
        Unknown kind or phase, shapes that don't broadcast, or numbers out of range.
    HardwareError
        See `recurrence_device`.
    """
    hardware = load_hardware(hardware)
    from perfmodel.kernels.recurrence import chains
    from perfmodel.kernels.work import kernel_work

    device = recurrence_device(hardware, precision)
    codes = {
        "kind": _codes("kind", kind, RECURRENCES),
        "phase": _codes("phase", phase, RECURRENCE_PHASES),
    }
    sizes = {
        "batch": batch,
        "length": length,
        "heads": heads,
        "key_heads": key_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
        "chunk": chunk,
    }
    columns = broadcast("recurrence_times", codes | sizes)
    kinds, phases = (columns.pop(name).astype(np.int64) for name in codes)
    _check_sizes(columns)
    with kernel_work(recurrences=kinds.size) as run:
        time, traffic, bound = run(chains.recurrence_times)(
            device, kinds, phases, *columns.values()
        )
    return RecurrenceTimes(time, _flops(kinds, phases, columns), traffic, bound)


def _flops(kinds: np.ndarray, phases: np.ndarray, columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return the FLOP of every row."""
    flops = np.zeros(kinds.size)
    shape = ("heads", "key_heads", "key_dim", "value_dim", "chunk")
    for code, kind in enumerate(RECURRENCES):
        for number, phase in enumerate(RECURRENCE_PHASES):
            rows = (kinds == code) & (phases == number)
            if not rows.any():
                continue
            part = {name: columns[name][rows] for name in shape}
            tokens = columns["batch"][rows]
            if phase != "decode":
                tokens = tokens * columns["length"][rows]
            flops[rows] = tokens * recurrence_flops(kind, phase=phase, **part)
    return flops


def _codes(name: str, words: ArrayLike, known: tuple[str, ...]) -> np.ndarray:
    """Return the positions of words, or refuse what is none of them."""
    given = np.asarray(words)
    codes = np.full(given.shape, -1)
    for code, word in enumerate(known):
        codes[given == word] = code
    if (codes < 0).any():
        wrong = str(given[codes < 0].flat[0])
        hint = did_you_mean(wrong, known) or f"; known: {', '.join(known)}"
        raise DataError(f"recurrence_times: unknown {name} '{wrong}'{hint}")
    return codes


def _check_sizes(columns: dict[str, np.ndarray]) -> None:
    """Refuse what is no whole number in range, and heads that share no keys evenly."""
    check_least("recurrence_times {row}", columns, 1.0, whole=True)
    for name, column in columns.items():
        if (column > LARGEST_SIZE).any():
            row = int(np.argmax(column))
            raise DataError(
                f"recurrence_times: {name}[{row}] = {column[row]:g}; at most {LARGEST_SIZE:g}"
            )
    heads, key_heads = columns["heads"], columns["key_heads"]
    uneven = heads % key_heads != 0.0
    if uneven.any():
        row = int(np.argmax(uneven))
        raise DataError(
            f"recurrence_times: heads[{row}] = {heads[row]:g} is not a multiple of "
            f"key_heads[{row}] = {key_heads[row]:g}"
        )


def convolution_flops(channels: ArrayLike, kernel: ArrayLike, phase: str = "forward") -> ArrayLike:
    """FLOP of a causal depthwise convolution per token: ``2 kernel channels``, twice backward."""
    products = 2.0 * np.asarray(channels, np.float64) * np.asarray(kernel, np.float64)
    return products * (2.0 if phase == "backward" else 1.0)


def convolution_times(
    hardware: Hardware | str,
    *,
    tokens: ArrayLike,
    channels: ArrayLike,
    kernel: ArrayLike,
    phase: str = "forward",
    activation: bool = True,
    precision: str = "bf16",
) -> StreamTimes:
    """Return the times of causal depthwise convolutions along the sequence.

    Parameters
    ----------
    hardware : Hardware
        Profile.
    tokens, channels, kernel : array_like of int
        Tokens of all sequences together, channels, width of the filter. Decode: tokens are
        sequences.
    phase : {"forward", "backward", "prefill", "decode"}
    activation : bool
        SiLU in the same kernel.
    precision : str
        See `recurrence_device`.

    Returns
    -------
    StreamTimes
        `bound` is an index into `perfmodel.compute.stream.STREAM_BOUNDS`.

    Raises
    ------
    DataError
        Unknown phase, or sizes out of range.

    Notes
    -----
    One kernel each (Dao-AILab/causal-conv1d ``causal_conv1d_fwd``, ``_bwd``, ``_update``). Forward
    reads and writes every element once; backward reads inputs and output gradients, computes
    the output before the activation again, and writes input gradients (the filter's are
    summed in the cache); decode reads and writes the last ``kernel - 1`` inputs besides. Memory as
    under other kernels in a portable language, which most of these are (vLLM,
    flash-linear-attention); those in CUDA are no nearer to its rate (``docs/kernels.md``).
    """
    hardware = load_hardware(hardware)
    from perfmodel.kernels import stream
    from perfmodel.kernels.work import kernel_work

    if phase not in CONVOLUTION_PHASES:
        hint = (
            did_you_mean(phase, CONVOLUTION_PHASES) or f"; known: {', '.join(CONVOLUTION_PHASES)}"
        )
        raise DataError(f"convolution_times: unknown phase '{phase}'{hint}")
    sizes = broadcast(
        "convolution_times", {"tokens": tokens, "channels": channels, "kernel": kernel}
    )
    check_least("convolution_times {row}", sizes, 1.0, whole=True)
    moved = convolution_bytes(phase=phase, precision=precision, **sizes)
    elements = sizes["tokens"] * sizes["channels"]
    flops = sizes["tokens"] * convolution_flops(sizes["channels"], sizes["kernel"], phase)
    if activation:
        special = hardware.calibrated("stream", "special_operations")
        flops = flops + elements * (SILU_OPERATIONS + special)
    if phase == "backward":  # the output before the activation again
        flops = flops + elements * 2.0 * sizes["kernel"]
    device = stream_device(hardware)._replace(bandwidth=_portable_bandwidth(hardware))
    none, once = np.zeros(flops.size), np.ones(flops.size)
    with kernel_work(streams=flops.size) as run:
        columns = (*moved, flops, once, DEFAULT_CACHED * once, none, none, none)
        return StreamTimes(*run(stream.stream_times)(device, *columns))


def convolution_bytes(
    *,
    tokens: np.ndarray,
    channels: np.ndarray,
    kernel: np.ndarray,
    phase: str = "forward",
    precision: str = "bf16",
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes that a causal convolution reads and writes; see `convolution_times`."""
    element = OPERAND_BYTES[wide_format(precision)]
    once = tokens * channels * element
    weights = channels * (kernel + 1.0) * element
    if phase == "backward":
        return 2.0 * once + weights, once + 2.0 * weights
    state = once * (kernel - 1.0) if phase == "decode" else 0.0
    return once + state + weights, once + state
