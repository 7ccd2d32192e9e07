"""Streaming operations: read tensors, do little, write tensors.

Norms, activations, additions, casts, quantisation, optimizer updates and copies
are bounded by the memory, by its cache, or by the start of the kernel. The
model is a roofline (Williams, Waterman, Patterson 2009) with a fixed cost per
kernel and with the part of small tensors that the cache still holds.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit

MEMORY_BOUND = 0
CACHE_BOUND = 1
COMPUTE_BOUND = 2
LATENCY_BOUND = 3

CACHE_SHARPNESS = 4.0
"""Power of the fill level in the miss share. With 4 the replayed quantisation
kernels of H100 miss a third at 76 % of the L2 (aiconfigurator 095f58a: 38 MB in
9.7 us on 50 MB)."""


class StreamDevice(NamedTuple):
    """What the streaming kernels need to know of a device, all floats."""

    bandwidth: float  # device memory, sustained [B/s]
    cache_bandwidth: float  # second-level cache, sustained, >= bandwidth [B/s]
    cache_capacity: float  # second-level cache; 0 for none [B]
    vector_rate: float  # single precision on the general cores, sustained [FLOP/s]
    launch_latency: float  # start and drain of a kernel inside a stream [s]


@jit
def stream_time(device, bytes_read, bytes_written, flops, launches, cached):
    """Time of a chain of equal streaming kernels.

    Parameters
    ----------
    device : StreamDevice
        Sustained rates.
    bytes_read, bytes_written : float
        Traffic of all kernels together [B].
    flops : float
        Vector operations of all kernels together [FLOP].
    launches : float
        Number of kernels that share the traffic evenly, >= 0.
    cached : float
        Share of the bytes of a kernel that is in the cache if its tensors fit
        there: 0 for cold tensors, 1 for repeated replays.

    Returns
    -------
    tuple of (float, int)
        Time [s], bound.

    Notes
    -----
    With the fill level ``x = bytes / capacity`` a share ``cached (1 - x^4)`` of
    the bytes of a kernel hits the cache, and none from ``x = 1`` on. The time
    is monotone in the bytes because a hit is never slower than a miss.
    """
    size = bytes_read + bytes_written
    if launches <= 0.0:
        return 0.0, LATENCY_BOUND
    hits = 0.0
    if device.cache_capacity > 0.0:
        fill = size / launches / device.cache_capacity
        if fill < 1.0:
            hits = cached * size * (1.0 - fill**CACHE_SHARPNESS)
    from_memory = (size - hits) / device.bandwidth
    from_cache = hits / device.cache_bandwidth
    compute = flops / device.vector_rate
    latency = launches * device.launch_latency
    body = max(from_memory + from_cache, compute)
    if latency > body:
        bound = LATENCY_BOUND
    elif compute > from_memory + from_cache:
        bound = COMPUTE_BOUND
    elif from_cache > from_memory:
        bound = CACHE_BOUND
    else:
        bound = MEMORY_BOUND
    return latency + body, bound


@jit
def stream_columns(device, bytes_read, bytes_written, flops, launches, cached, time, bound):
    """Fill ``time`` [s] and ``bound`` row by row; see `stream_time`.

    Parameters
    ----------
    device : StreamDevice
        Sustained rates.
    bytes_read, bytes_written, flops, launches, cached : float64[rows]
        Operations.
    time : float64[rows]
        Result [s].
    bound : uint8[rows]
        Result, one of the bounds of this file.
    """
    for row in range(time.size):
        result = stream_time(
            device, bytes_read[row], bytes_written[row], flops[row], launches[row], cached[row]
        )
        time[row] = result[0]
        bound[row] = result[1]
