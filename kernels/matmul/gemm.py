"""Time of a matrix product, tile by tile, the way a library would run it.

A product ``C[m,n] (+)= A[m,k] B[k,n]`` is cut into output tiles that the compute
units take in waves. Every candidate (tile, split of ``k``) is priced, and the
fastest one counts, as in a library's heuristic. Each candidate's cost never
falls when ``m``, ``n``, ``k`` or ``batch`` grow, and a larger product never has
more candidates, so the minimum never falls either.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.elementwise import chosen, larger, smaller
from perfmodel.kernels.matmul.candidates import (
    BOUND_LATENCY,
    CLUSTER_SHARE,
    ELEMENT_STEP,
    FULL_RATE,
    L2_SECOND,
    LEAST_PART,
    MEMORY_SECOND,
    PER_UNIT,
    PORT_SECOND,
    POWER_LOSS,
    RESIDENT_SECOND,
    ROW,
    TIME,
    Product,
    best_split,
    bound_of,
    ceiling,
    heated_time,
    price_tiles,
    tile_table,
    work_of,
)
from perfmodel.kernels.stream import bytes_between


class GemmDevice(NamedTuple):
    """One device at one precision, all numbers in SI base units.

    Attributes
    ----------
    units : float
        Compute units that take tiles.
    unit_rate : float
        Rate of one unit inside the main loop, at full clock [FLOP/s].
    power_rate : float
        Rate that the whole device can keep up within its power limit [FLOP/s].
    heat_time : float
        Busy time after which the power limit is felt [s]; 0 under a steady load.
    l2_bandwidth, unit_bandwidth : float
        Operand traffic: whole device, and port of one unit [B/s].
    memory_bandwidth : float
        Sustained bandwidth of the device memory [B/s].
    cache_capacity : float
        Last shared cache before the device memory [B].
    operand_bytes : float
        One element of A or B, scale factors included [B].
    max_tile_area : float
        Elements of C that one unit can accumulate.
    tile_half : float
        Side at which a tile's main loop loses half of its rate per operand [elements].
    k_step : float
        Depth of one main-loop step [elements].
    cluster : float
        Units that share the loads of one operand (multicast, 2-CTA pairs).
    fine_tiles : float
        1 if the library has tiles that are no power of two.
    array_side : float
        Side of a systolic array whose compiler walks panels of C; 0 for GPUs.
    launch_latency : float
        First instruction, first loads and last stores of an empty product [s].
    tile_latency : float
        Start and end of a wave of 128 x 128 tiles that nothing hides [s].
    split_latency : float
        Reduction after a split of k [s].
    load_latency : float
        From the request of a main-loop step to its arrival [s].
    scratchpad : float
        Memory of one unit that holds steps under way [B].
    pipeline_stages : float
        Most steps that the library keeps under way.
    matrix_side : float
        Smallest longer side of a tile: rows of one matrix instruction.
    narrow_side : float
        Shorter side of the library's smallest tile for more rows than that; half of it
        for fewer. 0 where the library has tiles of any side.
    largest_split : float
        Most parts into which the library cuts k.
    overlap_loss, store_loss : float
        Share of the shorter of compute, L2 and memory time, and of the store of
        C, that is not hidden behind the longest.
    resident_bandwidth, resident_capacity : float
        Of the cache that holds what stays from call to call [B/s], [B].
    weight_copies, activation_copies : float
        Calls until the same B, and the same A and C, come up again; 0 where they never do,
        or where other work has emptied the cache.
    resident : float
        All bytes that are in use from call to call [B]; 0: not stated.
    """

    units: float
    unit_rate: float
    power_rate: float
    heat_time: float
    l2_bandwidth: float
    unit_bandwidth: float
    memory_bandwidth: float
    cache_capacity: float
    operand_bytes: float
    max_tile_area: float
    tile_half: float
    k_step: float
    cluster: float
    fine_tiles: float
    array_side: float
    launch_latency: float
    tile_latency: float
    split_latency: float
    load_latency: float
    scratchpad: float
    pipeline_stages: float
    matrix_side: float
    narrow_side: float
    largest_split: float
    overlap_loss: float
    store_loss: float
    resident_bandwidth: float = math.inf
    resident_capacity: float = 0.0
    weight_copies: float = 0.0
    activation_copies: float = 0.0
    resident: float = 0.0


LARGEST_WORK = 2.0**120
"""Products m n k batch from here on are refused with NaN."""


@jit
def share_found(between, capacity):
    """Share of bytes that is still in a cache after `between` bytes of other accesses.

    ``1 - (between / capacity)^8``, none beyond the capacity: nearly the step of a cache that
    drops what was used longest ago. Replayed products of L40S want a step or this (mean error
    of short ones 11.6 and 11.9 %), not the softer ``^4`` of streams (13.2 %).
    """
    if capacity == 0.0:
        return 0.0
    filled = smaller(between, capacity) / capacity
    filled *= filled
    filled *= filled
    return 1.0 - filled * filled


@jit_inline
def least_side(m, device):
    """Shorter side of the smallest tile that the library takes: half of it up to as many rows."""
    return chosen(m > device.narrow_side, device.narrow_side, 0.5 * device.narrow_side)


@jit_inline
def product_of(m, n, k, batch, output_bytes, accumulate, device, table):
    """Return what all tiles of a product have in common; arguments of `gemm_time`.

    Returns
    -------
    product : Product
    found, stored : float
        What a cache still holds of the operands, and what of C goes to the memory [B].
    """
    a_bytes = m * k * device.operand_bytes * batch
    b_bytes = n * k * device.operand_bytes * batch
    c_bytes = m * n * output_bytes * batch * chosen(accumulate, 2.0, 1.0)
    memory_second = table[MEMORY_SECOND]
    activations = a_bytes + c_bytes
    b_passed = bytes_between(b_bytes, device.weight_copies, device.resident)
    a_passed = bytes_between(activations, device.activation_copies, device.resident)
    if device.resident == 0.0:  # what the other operand's copies add on the way
        turns = min(device.weight_copies, device.activation_copies)
        if turns == 0.0:
            turns = max(device.weight_copies, device.activation_copies)
        b_passed = b_passed + turns * activations
        a_passed = a_passed + turns * b_bytes
    b_found = share_found(b_passed, device.resident_capacity)
    a_found = share_found(a_passed, device.resident_capacity)
    resident_second = table[RESIDENT_SECOND]
    found = a_found * a_bytes + b_found * b_bytes
    full_speed = 2.0 * m * n * k * batch / table[FULL_RATE]
    product = Product(
        m,
        n,
        batch,
        ceiling(k / device.k_step),
        a_bytes,
        b_bytes,
        larger(1.0 - device.cache_capacity / (a_bytes + b_bytes), 0.0),
        heated_time(full_speed, table[POWER_LOSS], device.heat_time),
        c_bytes * (memory_second - a_found * (memory_second - resident_second)),
        found * (resident_second - memory_second),
        memory_second,
        table[L2_SECOND],
        table[ELEMENT_STEP],
        table[PORT_SECOND],
        table[CLUSTER_SHARE],
        table[PER_UNIT],
        table[LEAST_PART],
        c_bytes,
        8.0 * m * n * batch,
    )
    return product, found, c_bytes * (1.0 - a_found)


@jit_inline
def gemm_time(m, n, k, batch, output_bytes, accumulate, device, table, tiles, parts):
    """Time of ``batch`` independent products ``C[m,n] (+)= A[m,k] B[k,n]`` in one launch.

    Parameters
    ----------
    m, n, k, batch : float
        Sizes, all >= 1.
    output_bytes : float
        One element of C [B].
    accumulate : bool
        Whether C is read and added to.
    device : GemmDevice
        Device at one precision.
    table : ndarray
    tiles, parts : int
        Candidate tiles and splits of k and their numbers, `tile_table`.

    Returns
    -------
    time : float
        Launch to completion [s]; NaN if a size is NaN.
    traffic : float
        Device memory traffic of the chosen candidate [B].
    tile, split, bound : int
        Row of the tiles behind `table`, parts of k, one of the ``BOUND_`` codes.

    Notes
    -----
    For a tile ``(a, b)`` and a split ``s``, with ``w = ceil(tiles s / units)`` waves
    and ``d`` main-loop steps per part::

        unit    = w (d max(2 a b step / unit_rate', (a + b) step bytes / unit_bandwidth,
                     load_latency / stages) + tile_latency a b / 128^2)
        compute = max(unit, power_limited_time)
        l2      = operand bytes of all tiles / l2_bandwidth
        memory  = (operands once + re-reads + C) / memory_bandwidth
        time    = launch + longest + overlap_loss (other two) + store_loss min(C, rest)
                  + split_latency (if s > 1)

    ``unit_rate' = unit_rate / (1 + tile_half (1/a + 1/b))``. The tiles of one wave
    form about a square of C, so A is read ``n min(m, side) / side^2`` times and B
    likewise; re-reads that fit in the cache cost no memory traffic.

    Compiled code takes several tiles at once: first the time of all without a split, and a
    bound of the time with one. Splits are tried of the one or two tiles whose bound is not
    above the best time so far. Of equally fast candidates the first one counts.
    """
    if not (m * n * k * batch < LARGEST_WORK):  # NaN, or past exact counting
        return math.nan, math.nan, 0, 1, BOUND_LATENCY
    product, found, stored = product_of(m, n, k, batch, output_bytes, accumulate, device, table)
    price_tiles(product, least_side(m, device), device, table, tiles)
    best = math.inf
    tile = -1
    for i in range(tiles):
        if table[TIME + i] < best:
            best = table[TIME + i]
            tile = i
    split = 1.0
    if tile >= 0 and parts > 1:
        best, tile, split = best_split(best, tile, product, device, table, tiles, parts)
    if tile < 0:
        return math.nan, math.nan, 0, 1, BOUND_LATENCY
    work = work_of(tile, product, device, table)
    bound = bound_of(split, work, product, device)
    if device.launch_latency > best:
        bound = BOUND_LATENCY
    traffic = work.loads - found + stored
    return device.launch_latency + best, traffic, int(table[ROW + tile]), int(split), bound


@jit
def gemm_times(m, n, k, batch, output_bytes, accumulate, device, tiles, splits):
    """Times of equally long float64 columns; see `gemm_time` for meaning and units.

    Returns
    -------
    tuple of ndarray, shape (shape,)
        time [s], traffic [B], tile (row of `tiles`), split, bound.
    """
    count = m.size
    time, traffic = np.empty(count), np.empty(count)
    tile, split = np.empty(count, np.int64), np.empty(count, np.int64)
    bound = np.empty(count, np.uint8)
    table, usable, parts = tile_table(device, tiles, splits)
    for i in range(count):
        time[i], traffic[i], tile[i], split[i], bound[i] = gemm_time(
            m[i], n[i], k[i], batch[i], output_bytes[i], accumulate[i], device, table, usable, parts
        )
    return time, traffic, tile, split, bound
