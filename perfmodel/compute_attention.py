"""Times of fused attention on a hardware profile; see `perfmodel.kernels.attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.errors import DataError, HardwareError, did_you_mean
from perfmodel.hwprofiles import Hardware

if TYPE_CHECKING:
    from perfmodel.kernels.attention import AttentionDevice

ATTENTION_BOUNDS = ("compute", "softmax", "memory", "latency")
"""Meaning of the codes in `AttentionTimes.bound`."""

INPUT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
"""Element of Q, K, V and dO by precision [B]; O and gradients are 2 bytes wide."""

OUTPUT_BYTES = 2.0

LARGEST_COUNT = 2**30
"""So that a product of two lengths fits 64 bits."""


class AttentionTimes(NamedTuple):
    """Columns of equal length."""

    time: np.ndarray  # float64 [s]
    flops: np.ndarray  # float64, executed: unmasked pairs only
    memory_traffic: np.ndarray  # float64, from and to device memory [B]
    bound: np.ndarray  # uint8, index into ATTENTION_BOUNDS


def attention_device(hardware: Hardware, precision: str) -> AttentionDevice:
    """Return what the attention kernels need to know of a device.

    Parameters
    ----------
    hardware : Hardware
        Profile with an ``[calibration.attention]`` table.
    precision : {"bf16", "fp16", "fp8"}
        Of the matrix products.

    Returns
    -------
    AttentionDevice
        Rates, tiles and efficiencies.

    Raises
    ------
    HardwareError
        Unknown precision, one that the device lacks, or a missing calibration key.
    """
    from perfmodel.kernels.attention import AttentionDevice

    if precision not in INPUT_BYTES:
        raise HardwareError(
            f"attention has no precision '{precision}'{did_you_mean(precision, INPUT_BYTES)}"
        )
    device = hardware.device

    def calibrated(key: str) -> float:
        return float(hardware.calibrated("attention", key))

    narrow = calibrated("fp8_matrix") if precision == "fp8" else 1.0
    return AttentionDevice(
        matrix_rate=float(device.peak(precision)),
        exponential_rate=float(device.special_function_rate),
        vector_rate=float(device.vector_flops),
        units=float(device.compute_units),
        bandwidth=float(device.memory.bandwidth),
        input_bytes=INPUT_BYTES[precision],
        output_bytes=OUTPUT_BYTES,
        query_tile=calibrated("query_tile"),
        key_tile=calibrated("key_tile"),
        backward_query_tile=calibrated("backward_query_tile"),
        backward_key_tile=calibrated("backward_key_tile"),
        matrix_efficiency=calibrated("matrix_efficiency") * narrow,
        backward_matrix_efficiency=calibrated("backward_matrix_efficiency"),
        wide_backward=calibrated("wide_backward"),
        softmax_operations=calibrated("softmax_operations"),
        backward_operations=calibrated("backward_operations"),
        overlap=calibrated("overlap"),
        backward_overlap=calibrated("backward_overlap"),
        tail=calibrated("tail"),
        memory_efficiency=calibrated("memory_efficiency"),
        block_latency=calibrated("block_latency"),
        launch_latency=calibrated("launch_latency"),
    )


def attention_times(
    hardware: Hardware,
    precision: str,
    batch: ArrayLike,
    query_length: ArrayLike,
    key_length: ArrayLike,
    heads: ArrayLike,
    key_value_heads: ArrayLike,
    head_dim_qk: ArrayLike,
    head_dim_v: ArrayLike,
    causal: ArrayLike = True,
    window: ArrayLike = 0,
    backward: ArrayLike = False,
) -> AttentionTimes:
    """Return the times of fused attention calls on one device.

    Parameters
    ----------
    hardware : Hardware
        Profile.
    precision : {"bf16", "fp16", "fp8"}
        Of the matrix products.
    batch : array_like of int
        Sequences, >= 1.
    query_length, key_length : array_like of int
        Tokens per sequence, >= 1. Queries are aligned to the end of the keys.
    heads, key_value_heads : array_like of int
        Heads on this device, the first a multiple of the second.
    head_dim_qk, head_dim_v : array_like of int
        Width of a query or key and of a value.
    causal : array_like of bool
        Whether later keys are masked.
    window : array_like of int
        Sliding window, the query's own position included; 0 for none.
    backward : array_like of bool
        True: the whole backward pass instead of the forward pass.

    Returns
    -------
    AttentionTimes
        One row per broadcast call; device time only.

    Raises
    ------
    DataError
        Shapes that don't broadcast, or numbers out of range.
    HardwareError
        Precision that the device lacks, or a missing calibration key.
    """
    from perfmodel.kernels.attention import attention_columns

    device = attention_device(hardware, precision)
    columns = {
        "batch": batch,
        "query_length": query_length,
        "key_length": key_length,
        "heads": heads,
        "key_value_heads": key_value_heads,
        "head_dim_qk": head_dim_qk,
        "head_dim_v": head_dim_v,
        "causal": causal,
        "window": window,
        "backward": backward,
    }
    try:
        arrays = np.broadcast_arrays(*(np.asarray(c) for c in columns.values()))
    except ValueError as error:
        shapes = {name: np.shape(column) for name, column in columns.items()}
        raise DataError(f"attention_times: columns do not broadcast: {shapes}") from error
    flat = dict(zip(columns, (array.reshape(-1) for array in arrays), strict=True))
    integers = {
        name: _integers(name, flat[name]) for name in columns if name not in ("causal", "backward")
    }
    uneven = integers["heads"] % integers["key_value_heads"] != 0
    if uneven.any():
        row = int(np.argmax(uneven))
        raise DataError(
            f"attention_times: heads[{row}] = {integers['heads'][row]} is not a multiple of "
            f"key_value_heads[{row}] = {integers['key_value_heads'][row]}"
        )
    rows = flat["batch"].size
    time, flops, traffic = np.empty(rows), np.empty(rows), np.empty(rows)
    bound = np.empty(rows, dtype=np.uint8)
    attention_columns(
        device,
        integers["batch"],
        integers["query_length"],
        integers["key_length"],
        integers["heads"],
        integers["key_value_heads"],
        integers["head_dim_qk"],
        integers["head_dim_v"],
        _flags("causal", flat["causal"]),
        integers["window"],
        _flags("backward", flat["backward"]),
        time,
        flops,
        traffic,
        bound,
    )
    return AttentionTimes(time, flops, traffic, bound)


def _integers(name: str, column: np.ndarray) -> np.ndarray:
    """Return an int64 column, or refuse what is not a count in range."""
    least = 0 if name == "window" else 1
    if column.dtype.kind not in "iuf":
        raise DataError(f"attention_times: {name} must be numbers, not {column.dtype}")
    wrong = ~np.isfinite(column) | (column < least) | (column > LARGEST_COUNT)
    if column.dtype.kind == "f":
        wrong |= column != np.floor(column)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"attention_times: {name}[{row}] = {column[row]}; "
            f"it must be a whole number from {least} to {LARGEST_COUNT}"
        )
    return np.ascontiguousarray(column, dtype=np.int64)


def _flags(name: str, column: np.ndarray) -> np.ndarray:
    """Return a bool column, or refuse what is no truth value."""
    if column.dtype.kind not in "biuf" or not np.isin(column, (0, 1)).all():
        raise DataError(f"attention_times: {name} must be true or false in every row")
    return np.ascontiguousarray(column, dtype=np.bool_)
