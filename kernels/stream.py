"""Streaming operations: read tensors, do little, write tensors.

Norms, activations, additions, casts, quantisation, optimizer updates and copies
are bounded by the memory, by its cache, or by the start of the kernel. The
model is a roofline (Williams, Waterman, Patterson 2009) with a fixed cost per
kernel, with the part of small tensors that the cache still holds, with second
reads that hit where what was touched in between fits the cache, and with the
dependent steps that no bandwidth shortens (a long row walked by one block).

What passes through a cache until a call's data come up again stands here, too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.elementwise import larger


@jit
def bytes_between(own, copies, resident):
    """Bytes that a cache sees from one use of some data to the next, these included.

    Parameters
    ----------
    own : float
        Of one call [B].
    copies : float
        Calls until the same data come up again: 1 where a call is replayed; 0: never.
    resident : float
        All bytes that are in use from call to call, other kernels' too [B]; 0: not stated.

    Returns
    -------
    float
        [B]; infinite where the data come from memory.
    """
    if resident > 0.0:
        return larger(resident, own)
    return own * copies if copies > 0.0 else math.inf


MEMORY_BOUND = 0
CACHE_BOUND = 1
COMPUTE_BOUND = 2
LATENCY_BOUND = 3

CACHE_SHARPNESS = 4.0
"""Power of the fill level in the miss share. With 4 the replayed quantisation kernels
of H100 miss a quarter at 72 % of the L2 (aiconfigurator 095f58a: 38 MB in 10.4 us on
50 MiB), and nearly all from 100 % on."""


class StreamDevice(NamedTuple):
    """What the streaming kernels need to know of a device, all floats."""

    bandwidth: float  # device memory, sustained [B/s]
    cache_bandwidth: float  # second-level cache, sustained, >= bandwidth [B/s]
    cache_capacity: float  # second-level cache; 0 for none [B]
    vector_rate: float  # single precision on the general cores, sustained [FLOP/s]
    launch_latency: float  # from the end of a kernel to the start of the next [s]
    round_trip_latency: float  # a load from memory; no kernel is shorter [s]


@jit
def hit_share(device, distance):
    """Share of bytes that the cache still holds after ``distance`` other bytes.

    Parameters
    ----------
    device : StreamDevice
    distance : float
        Bytes touched between two uses, these included [B].

    Returns
    -------
    float
        ``1 - (distance / capacity)^4``, 0 from the capacity on.
    """
    if device.cache_capacity <= 0.0 or distance >= device.cache_capacity:
        return 0.0
    return 1.0 - (distance / device.cache_capacity) ** CACHE_SHARPNESS


@jit
def stream_time(
    device,
    bytes_read,
    bytes_written,
    flops,
    launches,
    cached,
    bytes_reread=0.0,
    reread_distance=0.0,
    chain=0.0,
):
    """Time of a chain of equal streaming kernels.

    Parameters
    ----------
    device : StreamDevice
        Sustained rates.
    bytes_read, bytes_written : float
        Traffic of all kernels together, every byte once [B].
    flops : float
        Vector operations of all kernels together [FLOP].
    launches : float
        Number of kernels that share the traffic evenly, >= 0.
    cached : float
        Share of the bytes of a kernel that is in the cache if its tensors fit
        there: 0 for cold tensors, 1 for repeated replays.
    bytes_reread : float
        Bytes that all kernels together read again [B].
    reread_distance : float
        Bytes touched between the two reads [B].
    chain : float
        Dependent steps of all kernels together: they overlap with the traffic,
        but no bandwidth shortens them [s].

    Returns
    -------
    tuple of (float, int)
        Time [s], bound.

    Notes
    -----
    ``launches t_launch + max(misses / B_memory + hits / B_cache, bytes / B_cache,
    flops / rate, chain, launches t_round_trip)``. Hits are those of the first reads and
    of the writes; second reads that hit pass the cache beside the traffic of other
    blocks. A kernel lasts at least one load. The time is monotone in the bytes because
    a hit is never slower than a miss.
    """
    size = bytes_read + bytes_written
    if launches <= 0.0:
        return 0.0, LATENCY_BOUND
    hits = cached * size * hit_share(device, size / launches)
    missed_again = bytes_reread * (1.0 - hit_share(device, reread_distance))
    from_memory = (size - hits + missed_again) / device.bandwidth
    from_cache = hits / device.cache_bandwidth
    memory = from_memory + from_cache
    cache = (size + bytes_reread) / device.cache_bandwidth
    compute = flops / device.vector_rate
    latency = launches * device.launch_latency
    body = max(memory, cache, compute)
    chain = max(chain, launches * device.round_trip_latency)
    if max(latency, chain) > body:
        bound = LATENCY_BOUND
    elif compute == body:
        bound = COMPUTE_BOUND
    elif memory >= cache and from_memory >= from_cache:
        bound = MEMORY_BOUND
    else:
        bound = CACHE_BOUND
    return latency + max(body, chain), bound


@jit
def stream_times(
    device,
    bytes_read,
    bytes_written,
    flops,
    launches,
    cached,
    bytes_reread,
    reread_distance,
    chain,
):
    """Times of many operations, row by row; see `stream_time`.

    Parameters
    ----------
    device : StreamDevice
        Sustained rates.
    bytes_read, bytes_written, flops, launches, cached : float64[rows]
    bytes_reread, reread_distance, chain : float64[rows]
        Operations.

    Returns
    -------
    time : float64[rows]
        [s].
    bound : uint8[rows]
        One of the bounds of this file.
    """
    time = np.empty(bytes_read.size)
    bound = np.empty(bytes_read.size, np.uint8)
    for row in range(time.size):
        time[row], bound[row] = stream_time(
            device,
            bytes_read[row],
            bytes_written[row],
            flops[row],
            launches[row],
            cached[row],
            bytes_reread[row],
            reread_distance[row],
            chain[row],
        )
    return time, bound
