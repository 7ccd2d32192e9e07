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
from perfmodel.kernels.gemm_tiles import POWER_OF_TWO_TILES

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
        Start and end of each wave that nothing hides [s].
    split_latency : float
        Reduction after a split of k [s].
    step_latency : float
        Shortest main-loop step: memory latency over pipeline depth [s].
    overlap_loss, store_loss : float
        Share of the shorter of compute, L2 and memory time, and of the store of
        C, that is not hidden behind the longest.
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
    step_latency: float
    overlap_loss: float
    store_loss: float


@jit
def power_limited_time(flops, device):
    """Time below which rate and power limit don't let a product finish [s].

    A short product runs at full clock, on the charge of the regulators and within
    the averaging window of the limit; a long one at `power_rate`. With
    ``x = flops / (units unit_rate)`` and ``g = units unit_rate / power_rate - 1`` the
    time is ``x (1 + g x / (x + heat_time))``, which grows with `flops`.
    """
    full_rate = device.units * device.unit_rate
    fast = flops / full_rate
    loss = max(0.0, full_rate / device.power_rate - 1.0)
    return fast * (1.0 + loss * fast / (fast + device.heat_time))


@jit
def gemm_time(m, n, k, batch, output_bytes, accumulate, device, tiles, splits):
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
    tiles : ndarray, shape (tile, 2)
        Candidate tiles, `perfmodel.kernels.gemm_tiles`.
    splits : ndarray, shape (split,)
        Candidate splits of k, ascending, 1 first.

    Returns
    -------
    time : float
        Launch to completion [s]; NaN if a size is NaN.
    traffic : float
        Device memory traffic of the chosen candidate [B].
    tile, split, bound : int
        Row of `tiles`, parts of k, one of the ``BOUND_`` codes.

    Notes
    -----
    For a tile ``(a, b)`` and a split ``s``, with ``w = ceil(tiles s / units)`` waves
    and ``d`` main-loop steps per part::

        unit    = w (d max(2 a b step / unit_rate', (a + b) step bytes / unit_bandwidth,
                     step_latency) + tile_latency)
        compute = max(unit, power_limited_time)
        l2      = operand bytes of all tiles / l2_bandwidth
        memory  = (operands once + re-reads + C) / memory_bandwidth
        time    = launch + longest + overlap_loss (other two) + store_loss min(C, rest)
                  + split_latency (if s > 1)

    ``unit_rate' = unit_rate / (1 + tile_half (1/a + 1/b))``. The tiles of one wave
    form about a square of C, so A is read ``n min(m, side) / side^2`` times and B
    likewise; re-reads that fit in the cache cost no memory traffic.
    """
    a_bytes = m * k * device.operand_bytes * batch
    b_bytes = n * k * device.operand_bytes * batch
    c_bytes = m * n * output_bytes * batch * (2.0 if accumulate else 1.0)
    partial_bytes = 8.0 * m * n * batch  # one fp32 part written and read again
    store_time = c_bytes / device.memory_bandwidth
    power_time = power_limited_time(2.0 * m * n * k * batch, device)
    missing = max(0.0, 1.0 - device.cache_capacity / (a_bytes + b_bytes))
    steps_of_k = math.ceil(k / device.k_step)

    best = math.inf
    best_traffic = math.nan
    best_tile = 0
    best_split = 1.0
    best_bound = BOUND_LATENCY
    for i in range(tiles.shape[0]):
        a = tiles[i, 0]
        b = tiles[i, 1]
        if a * b > device.max_tile_area:
            continue
        if i >= POWER_OF_TWO_TILES and device.fine_tiles == 0.0:
            continue
        if device.array_side > 0.0:  # panels end at the array's edge, not at their own
            padded_m = device.array_side * math.ceil(m / device.array_side)
            padded_n = device.array_side * math.ceil(n / device.array_side)
            a = min(a, padded_m)
            b = min(b, padded_n)
            count = batch * padded_m * padded_n / (a * b)
        else:
            count = batch * math.ceil(m / a) * math.ceil(n / b)
        rows = min(m, a)
        columns = min(n, b)
        unit_rate = device.unit_rate / (1.0 + device.tile_half * (1.0 / a + 1.0 / b))
        step_bytes = (rows + columns) * device.k_step * device.operand_bytes
        step_time = max(
            2.0 * a * b * device.k_step / unit_rate,
            step_bytes / device.unit_bandwidth,
            device.step_latency,
        )
        shared = (1.0 - 1.0 / device.cluster) * max(rows, columns) / (rows + columns)
        operand_traffic = count * steps_of_k * step_bytes * (1.0 - shared)
        area = device.units * a * b
        side = math.sqrt(area)
        loads = (
            a_bytes
            + b_bytes
            + missing * a_bytes * max(0.0, n * min(m, side) / area - 1.0)
            + missing * b_bytes * max(0.0, m * min(n, side) / area - 1.0)
        )
        load_time = loads / device.memory_bandwidth
        memory_time = load_time + store_time
        for j in range(splits.shape[0]):
            split = splits[j]
            if split > 1.0 and count * (split - 1.0) >= 2.0 * device.units:
                break
            waves = count * split / device.units
            waves = max(1.0, waves) if device.array_side > 0.0 else math.ceil(waves)
            steps = math.ceil(steps_of_k / split)
            unit_time = waves * (steps * step_time + device.tile_latency)
            compute = max(unit_time, power_time)
            reduced = split * partial_bytes if split > 1.0 else c_bytes
            l2_time = (operand_traffic + reduced) / device.l2_bandwidth
            longest = max(compute, l2_time, memory_time)
            time = longest
            time += device.overlap_loss * (compute + l2_time + memory_time - longest)
            time += device.store_loss * min(store_time, max(compute, l2_time, load_time))
            if split > 1.0:
                time += device.split_latency
            if time < best:
                best = time
                best_traffic = loads + c_bytes
                best_tile = i
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
def gemm_columns(
    m, n, k, batch, output_bytes, accumulate, device, tiles, splits,
    time, traffic, tile, split, bound,
):  # fmt: skip
    """Fill columns with `gemm_time`; all arrays have shape (shape,)."""
    for i in range(m.shape[0]):
        time[i], traffic[i], tile[i], split[i], bound[i] = gemm_time(
            m[i], n[i], k[i], batch[i], output_bytes[i], accumulate[i], device, tiles, splits
        )


def evaluate(m, n, k, batch, output_bytes, accumulate, device, tiles, splits):
    """Evaluate equally long float64 columns; see `gemm_time` for meaning and units.

    Returns
    -------
    tuple of ndarray, shape (shape,)
        time [s], traffic [B], tile (row of `tiles`), split, bound.
    """
    count = len(m)
    time, traffic = np.empty(count), np.empty(count)
    tile, split = np.empty(count, np.int64), np.empty(count, np.int64)
    bound = np.empty(count, np.uint8)
    gemm_columns(
        m, n, k, batch, output_bytes, accumulate, device, tiles, splits,
        time, traffic, tile, split, bound,
    )  # fmt: skip
    return time, traffic, tile, split, bound
