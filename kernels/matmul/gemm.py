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

from perfmodel.kernels._jit import jit
from perfmodel.kernels.matmul.power import power_limited_time
from perfmodel.kernels.matmul.tiles import POWER_OF_TWO_TILES
from perfmodel.kernels.reuse import bytes_between

BOUND_COMPUTE = 0
BOUND_L2 = 1
BOUND_MEMORY = 2
BOUND_LATENCY = 3
BOUNDS = ("compute", "l2", "memory", "latency")


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


@jit
def ceiling(value):
    """Round up a number of 0 to 2^62; quicker than ``math.ceil`` once compiled."""
    whole = float(int(value))
    return whole if whole >= value else whole + 1.0


# Columns of a tile table.
_A, _B, _INVERSE_A, _INVERSE_B, _STEP_COMPUTE, _STEP_LATENCY, _SIDE, _ROW, _INVERSE_AREA = range(9)
ROUNDING = 1e-9  # so that ceil(m * (1/a)) of a multiple of a is exact

LARGEST_WORK = 2.0**120
"""Products m n k batch from here on are refused with NaN."""

REFERENCE_TILE = 16384.0
"""Elements of the tile, 128 x 128, whose start and end `tile_latency` is."""


@jit
def stage_count(a, b, device):
    """Main-loop steps of a tile that are loaded ahead: what fits, what the library does."""
    step_bytes = (a + b) * device.k_step * device.operand_bytes
    return max(2.0, min(device.pipeline_stages, math.floor(device.scratchpad / step_bytes)))


@jit
def unit_step_rate(a, b, device):
    """Rate of one unit in the main loop of a tile [FLOP/s]."""
    return device.unit_rate / (1.0 + device.tile_half * (1.0 / a + 1.0 / b))


@jit
def tile_table(device, tiles):
    """Return what a tile costs whatever the shape: the rows that the device can run.

    Parameters
    ----------
    device : GemmDevice
    tiles : ndarray, shape (tile, 2)

    Returns
    -------
    ndarray, shape (usable, 9)
        Sides, their inverses, compute time and latency of a main-loop step [s],
        side of the square of C that a wave covers, row in `tiles`, inverse of its area.
    """
    table = np.empty((tiles.shape[0], 9))
    count = 0
    for i in range(tiles.shape[0]):
        a = tiles[i, 0]
        b = tiles[i, 1]
        if a * b > device.max_tile_area:
            continue
        if max(a, b) < device.matrix_side:
            continue
        if i >= POWER_OF_TWO_TILES and device.fine_tiles == 0.0:
            continue
        table[count, _A] = a
        table[count, _B] = b
        table[count, _INVERSE_A] = 1.0 / a
        table[count, _INVERSE_B] = 1.0 / b
        table[count, _STEP_COMPUTE] = 2.0 * a * b * device.k_step / unit_step_rate(a, b, device)
        table[count, _STEP_LATENCY] = device.load_latency / stage_count(a, b, device)
        table[count, _SIDE] = math.sqrt(device.units * a * b)
        table[count, _ROW] = i
        table[count, _INVERSE_AREA] = 1.0 / (device.units * a * b)
        count += 1
    return table[:count]


@jit
def share_found(between, capacity):
    """Share of bytes that is still in a cache after `between` bytes of other accesses.

    ``1 - (between / capacity)^8``, none beyond the capacity: nearly the step of a cache that
    drops what was used longest ago. Replayed products of L40S want a step or this (mean error
    of short ones 11.6 and 11.9 %), not the softer ``^4`` of streams (13.2 %).
    """
    if not between < capacity:
        return 0.0
    filled = (between / capacity) ** 2
    filled *= filled
    return 1.0 - filled * filled


@jit
def gemm_time(m, n, k, batch, output_bytes, accumulate, device, table, splits):
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
    table : ndarray, shape (tile, 9)
        Candidate tiles, `tile_table`.
    splits : ndarray, shape (split,)
        Candidate splits of k, ascending, 1 first.

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
    likewise; re-reads that fit in the cache cost no memory traffic. A tile whose cost
    without rounding to waves exceeds the best so far is left out before its splits.
    """
    if not (m * n * k * batch < LARGEST_WORK):  # NaN, or past exact counting
        return math.nan, math.nan, 0, 1, BOUND_LATENCY
    a_bytes = m * k * device.operand_bytes * batch
    b_bytes = n * k * device.operand_bytes * batch
    c_bytes = m * n * output_bytes * batch * (2.0 if accumulate else 1.0)
    partial_bytes = 8.0 * m * n * batch  # one fp32 part written and read again
    memory_second = 1.0 / device.memory_bandwidth
    l2_second = 1.0 / device.l2_bandwidth
    per_unit = 1.0 / device.units
    activations = a_bytes + c_bytes
    b_passed = bytes_between(b_bytes, device.weight_copies, device.resident)
    a_passed = bytes_between(activations, device.activation_copies, device.resident)
    if device.resident == 0.0:  # what the other operand's copies add on the way
        turns = min(device.weight_copies, device.activation_copies)
        if turns == 0.0:
            turns = max(device.weight_copies, device.activation_copies)
        b_passed += turns * activations
        a_passed += turns * b_bytes
    b_found = share_found(b_passed, device.resident_capacity)
    a_found = share_found(a_passed, device.resident_capacity)
    resident_second = min(1.0 / device.resident_bandwidth, memory_second)
    store_time = c_bytes * (memory_second - a_found * (memory_second - resident_second))
    found = a_found * a_bytes + b_found * b_bytes
    resident_time = found * (resident_second - memory_second)  # less than from the memory
    power_time = power_limited_time(2.0 * m * n * k * batch, device)
    missing = max(0.0, 1.0 - device.cache_capacity / (a_bytes + b_bytes))
    steps_of_k = ceiling(k / device.k_step)
    element_step = device.k_step * device.operand_bytes
    port_second = element_step / device.unit_bandwidth
    cluster_share = 1.0 - 1.0 / device.cluster
    # A dispatch by rows: half the side up to as many rows, whatever the columns.
    least_side = device.narrow_side if m > device.narrow_side else 0.5 * device.narrow_side

    best = math.inf
    best_traffic = math.nan
    best_tile = 0
    best_split = 1.0
    best_bound = BOUND_LATENCY
    for i in range(table.shape[0]):
        a = table[i, _A]
        b = table[i, _B]
        if min(a, b) < least_side:
            continue
        if device.array_side > 0.0:  # panels end at the array's edge, not at their own
            padded_m = device.array_side * ceiling(m / device.array_side)
            padded_n = device.array_side * ceiling(n / device.array_side)
            step_compute = table[i, _STEP_COMPUTE]
            if a > padded_m or b > padded_n:
                a = min(a, padded_m)
                b = min(b, padded_n)
                step_compute = 2.0 * a * b * device.k_step / unit_step_rate(a, b, device)
            count = batch * padded_m * padded_n / (a * b)
            side = math.sqrt(device.units * a * b)
        else:
            count = batch * ceiling(m * table[i, _INVERSE_A] - ROUNDING)
            count *= ceiling(n * table[i, _INVERSE_B] - ROUNDING)
            step_compute = table[i, _STEP_COMPUTE]
            side = table[i, _SIDE]
        rows = min(m, a)
        columns = min(n, b)
        step_time = max(step_compute, (rows + columns) * port_second, table[i, _STEP_LATENCY])
        # Units of a cluster share the loads of the longer operand side.
        loaded = rows + columns - cluster_share * max(rows, columns)
        tile_latency = device.tile_latency * rows * columns / REFERENCE_TILE
        operand_time = count * steps_of_k * loaded * element_step * l2_second
        # No split of this tile is faster than the bounds of its work: leave it out early.
        waves = max(1.0, count * per_unit)
        steps_time = count * steps_of_k * step_time * per_unit
        compute = max(steps_time + waves * tile_latency, power_time)
        if max(compute, operand_time) >= best:
            continue
        inverse_area = table[i, _INVERSE_AREA] if device.array_side == 0.0 else 1.0 / (side * side)
        loads = (
            a_bytes
            + b_bytes
            + missing * a_bytes * max(0.0, n * min(m, side) * inverse_area - 1.0)
            + missing * b_bytes * max(0.0, m * min(n, side) * inverse_area - 1.0)
        )
        load_time = loads * memory_second + resident_time
        memory_time = load_time + store_time
        longest = max(compute, operand_time, memory_time)
        least = longest + device.overlap_loss * (compute + operand_time + memory_time - longest)
        least += device.store_loss * min(store_time, max(compute, operand_time, load_time))
        if least >= best:
            continue
        for j in range(splits.shape[0]):
            split = splits[j]
            if split > device.largest_split or (
                split > 1.0
                and (
                    count * (split - 1.0) >= 2.0 * device.units
                    or least + device.split_latency >= best
                )
            ):
                break
            waves = count * split * per_unit
            waves = max(1.0, waves) if device.array_side > 0.0 else ceiling(waves - ROUNDING)
            steps = ceiling(steps_of_k / split)
            unit_time = waves * (steps * step_time + tile_latency)
            compute = max(unit_time, power_time)
            reduced = split * partial_bytes if split > 1.0 else c_bytes
            l2_time = operand_time + reduced * l2_second
            longest = max(compute, l2_time, memory_time)
            time = longest
            time += device.overlap_loss * (compute + l2_time + memory_time - longest)
            time += device.store_loss * min(store_time, max(compute, l2_time, load_time))
            if split > 1.0:
                time += device.split_latency
            if time < best:
                best = time
                best_traffic = loads - found + c_bytes * (1.0 - a_found)
                best_tile = int(table[i, _ROW])
                best_split = split
                if longest == memory_time:
                    best_bound = BOUND_MEMORY
                elif longest == l2_time:
                    best_bound = BOUND_L2
                else:
                    best_bound = BOUND_COMPUTE
    if math.isinf(best):
        return math.nan, math.nan, 0, 1, BOUND_LATENCY
    if device.launch_latency > best:
        best_bound = BOUND_LATENCY
    return device.launch_latency + best, best_traffic, best_tile, int(best_split), best_bound


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
    table = tile_table(device, tiles)
    for i in range(count):
        time[i], traffic[i], tile[i], split[i], bound[i] = gemm_time(
            m[i], n[i], k[i], batch[i], output_bytes[i], accumulate[i], device, table, splits
        )
    return time, traffic, tile, split, bound
