"""Times of streaming operations on a hardware profile; see `perfmodel.kernels.stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.errors import DataError
from perfmodel.hwprofiles import Hardware

if TYPE_CHECKING:
    from perfmodel.kernels.stream import StreamDevice

STREAM_BOUNDS = ("memory", "cache", "compute", "latency")
"""Meaning of the codes in `StreamTimes.bound`."""

DEFAULT_CACHED = 0.5
"""Inside a step, what an operation reads was often just written, and what it
writes need not reach the memory: half of the bytes of small tensors hit. An
assumption between cold (0) and replayed (1) kernels."""


class StreamTimes(NamedTuple):
    """Columns of equal length."""

    time: np.ndarray  # float64 [s]
    bound: np.ndarray  # uint8, index into STREAM_BOUNDS


def stream_device(hardware: Hardware) -> StreamDevice:
    """Return what the streaming kernels need to know of a device.

    Parameters
    ----------
    hardware : Hardware
        Profile with a ``[calibration.stream]`` table.

    Returns
    -------
    StreamDevice
        Sustained rates.

    Raises
    ------
    HardwareError
        A calibration key is missing.
    """
    from perfmodel.kernels.stream import StreamDevice

    memory = hardware.device.memory
    bandwidth = memory.bandwidth * hardware.calibrated("stream", "memory_efficiency")
    cache_bandwidth = memory.l2_bandwidth * hardware.calibrated("stream", "cache_efficiency")
    vector_rate = hardware.device.vector_flops * hardware.calibrated("stream", "vector_efficiency")
    return StreamDevice(
        bandwidth=float(bandwidth),
        cache_bandwidth=float(max(bandwidth, cache_bandwidth)),
        cache_capacity=float(memory.l2_capacity),
        vector_rate=float(vector_rate),
        launch_latency=float(hardware.calibrated("stream", "launch_latency")),
    )


def stream_times(
    hardware: Hardware,
    bytes_read: ArrayLike,
    bytes_written: ArrayLike,
    flops: ArrayLike = 0.0,
    launches: ArrayLike = 1.0,
    cached: ArrayLike = DEFAULT_CACHED,
) -> StreamTimes:
    """Return the times of streaming operations.

    Parameters
    ----------
    hardware : Hardware
        Profile.
    bytes_read, bytes_written : array_like
        Traffic of each operation [B], >= 0.
    flops : array_like
        Operations on the general cores [FLOP], >= 0.
    launches : array_like
        Kernels that share the traffic evenly, >= 0; with 0 the operation is
        fused into a neighbour and costs nothing.
    cached : array_like
        Share of the bytes that the cache holds if the tensors fit, 0 to 1.

    Returns
    -------
    StreamTimes
        One row per broadcast operation; device time only, without the time
        that the host needs to launch.

    Raises
    ------
    DataError
        Shapes that don't broadcast, negative or not finite numbers.
    HardwareError
        The profile lacks a calibration key.
    """
    from perfmodel.kernels.stream import stream_columns

    columns = {
        "bytes_read": bytes_read,
        "bytes_written": bytes_written,
        "flops": flops,
        "launches": launches,
        "cached": cached,
    }
    try:
        arrays = np.broadcast_arrays(*(np.asarray(c, dtype=np.float64) for c in columns.values()))
    except ValueError as error:
        shapes = {name: np.shape(column) for name, column in columns.items()}
        raise DataError(
            f"stream_times: columns do not broadcast or are not numbers: {shapes}"
        ) from error
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    for name, array in zip(columns, flat, strict=True):
        _check(name, array)
    time = np.empty(flat[0].size)
    bound = np.empty(flat[0].size, dtype=np.uint8)
    stream_columns(stream_device(hardware), *flat, time, bound)
    return StreamTimes(time, bound)


def _check(name: str, column: np.ndarray) -> None:
    """Refuse what is not finite, negative, or a share above 1."""
    limit = 1.0 if name == "cached" else np.inf
    wrong = ~np.isfinite(column) | (column < 0.0) | (column > limit)
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = "0 to 1" if name == "cached" else "finite and not negative"
        raise DataError(f"stream_times: {name}[{row}] = {column[row]:g}; it must be {expected}")
