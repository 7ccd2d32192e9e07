"""Time of a grouped matrix product: one launch over the tiles of all groups.

Group ``g`` multiplies ``m_g`` rows of A with its own ``B_g[k, n]``, as the experts of a
mixture-of-experts layer do. Groups come compressed: distinct sizes with the number of
groups that have each, load after load in one pair of arrays (``offsets`` of load ``i`` to
``i + 1``), and rows share loads, so that a grid of layers is one call.

All tiles of all groups share the device: a tile that a small group leaves half empty
costs as much as a full one, waves are counted over all tiles together, and each group
that has rows reads its weights once from the device memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.matmul.candidates import (
    BOUND_COMPUTE,
    BOUND_L2,
    BOUND_LATENCY,
    BOUND_MEMORY,
    power_limited_time,
)
from perfmodel.kernels.stream import bytes_between, hit_share


class GroupedDevice(NamedTuple):
    """One device at one precision, all numbers in SI base units.

    Attributes
    ----------
    units : float
        Compute units that take tiles.
    unit_rate : float
        Rate of one unit inside the main loop on an endless tile [FLOP/s].
    tile_half : float
        Side at which a tile's main loop loses half of its rate per operand [elements].
    power_rate : float
        Rate that the whole device keeps up within its power limit [FLOP/s].
    heat_time : float
        Busy time after which the power limit is felt [s].
    l2_bandwidth, unit_bandwidth : float
        Operand traffic: whole device, and port of one unit [B/s].
    memory_bandwidth : float
        Sustained bandwidth of the device memory [B/s].
    cache_capacity : float
        Last shared cache before the device memory [B].
    copies, resident : float
        How soon the same weights come up again (`perfmodel.kernels.stream.bytes_between`).
    operand_bytes, weight_bytes : float
        One element of A, and of B, scale factors included [B].
    resident_bytes : float
        Shared memory of one unit, for the stages of all its tiles [B].
    resident_elements : float
        Accumulators that the registers of one unit hold.
    stages : float
        Most main-loop steps whose operands are on their way at once; no more than
        `resident_bytes` hold count.
    instruction_rows : float
        Rows of the matrix instruction; 0: as many as the tile has.
    full_rate_rows : float
        Rows from which on it keeps the matrix unit busy; fewer take half of its rate.
    swept_tiles : float
        Row tiles that are worked on together while the weights pass by once.
    launch_latency : float
        Start and end of the product [s].
    tile_latency : float
        Start and end of a tile that its neighbours don't hide [s].
    memory_latency, cache_latency : float
        From a load to its data in the device memory, and in the cache [s]; over
        `stages` it is the shortest step.
    overlap_loss : float
        Share of the shorter of compute, L2 and memory time that is not hidden.
    """

    units: float
    unit_rate: float
    tile_half: float
    power_rate: float
    heat_time: float
    l2_bandwidth: float
    unit_bandwidth: float
    memory_bandwidth: float
    cache_capacity: float
    copies: float
    resident: float
    operand_bytes: float
    weight_bytes: float
    resident_bytes: float
    resident_elements: float
    stages: float
    instruction_rows: float
    full_rate_rows: float
    swept_tiles: float
    launch_latency: float
    tile_latency: float
    memory_latency: float
    cache_latency: float
    overlap_loss: float


@jit
def grouped_gemm_time(sizes, counts, n, k, output_bytes, other_bytes, device, tiles, first, last):
    """Time of one grouped product ``C_g[m_g, n] = A_g[m_g, k] B_g[k, n]``.

    Parameters
    ----------
    sizes, counts : ndarray, shape (size,)
        Rows of a group, >= 0, and how many groups have as many.
    n, k : float
        Columns of C and inner size, >= 1.
    output_bytes : float
        One element of C [B].
    other_bytes : float
        What is read between two runs of this product, besides itself [B]; decides
        what of the weights the cache still holds.
    device : GroupedDevice
    tiles : ndarray, shape (tile, 3)
        Rows, columns, and depth of a main-loop step [elements].
    first, last : int
        Candidates are ``tiles[first:last]``; the fastest counts.

    Returns
    -------
    time, traffic : float
        [s], [B]; 0, 0 where no group has rows.
    tile, bound : int

    Notes
    -----
    With ``t = sum(ceil(m_g / a)) ceil(n / b)`` tiles, ``d = ceil(k / step)`` steps and
    ``r`` tiles resident on a unit (shared memory over stages, registers)::

        unit   = max(ceil(t / units) d step_work, ceil(t / (units r)) d latency / stages)
                 + ceil(t / (units r)) tile_latency
        step_work = max(2 a b step / unit_rate', (a + b) step bytes / unit_bandwidth)
        unit_rate' = unit_rate / (1 + tile_half (1/a + 1/b)), half of it where the matrix
                     instruction has less than full_rate_rows
        memory = (weights of groups with rows + A + C) / memory_bandwidth
        time   = launch + longest + overlap_loss (other two)
    """
    rows = 0.0
    active = 0.0
    for i in range(sizes.shape[0]):
        if sizes[i] > 0.0:
            rows += sizes[i] * counts[i]
            active += counts[i]
    if active == 0.0:
        return 0.0, 0.0, first, BOUND_LATENCY
    weights = active * n * k * device.weight_bytes
    streamed = rows * (k * device.operand_bytes + n * output_bytes)
    own = weights + streamed + other_bytes
    kept = hit_share(device, bytes_between(own, device.copies, device.resident))
    group = n * k * device.weight_bytes
    missing = group * max(0.0, 1.0 - device.cache_capacity / group)
    latency = kept * device.cache_latency + (1.0 - kept) * device.memory_latency
    flops = 2.0 * rows * n * k
    power_time = power_limited_time(flops, device)

    best = math.inf
    traffic = 0.0
    best_tile = first
    best_bound = BOUND_LATENCY
    for i in range(first, last):
        a, b, step = tiles[i, 0], tiles[i, 1], tiles[i, 2]
        row_tiles = 0.0
        again = 0.0  # how often weights come in anew
        for j in range(sizes.shape[0]):
            own = math.ceil(sizes[j] / a)
            row_tiles += counts[j] * own
            again += counts[j] * max(0.0, math.ceil(own / device.swept_tiles) - 1.0)
        loads = (weights + streamed) * (1.0 - kept) + again * missing
        memory_time = loads / device.memory_bandwidth
        count = row_tiles * math.ceil(n / b)
        steps = math.ceil(k / step)
        # A ragged group's last tile reads only the rows that it has.
        mean_rows = min(a, rows / row_tiles)
        columns = min(n, b)
        step_bytes = (mean_rows * device.operand_bytes + columns * device.weight_bytes) * step
        stage_bytes = (a * device.operand_bytes + b * device.weight_bytes) * step
        stages = max(1.0, min(device.stages, math.floor(device.resident_bytes / stage_bytes)))
        resident = min(
            device.resident_bytes / (stage_bytes * stages),
            device.resident_elements / (a * b),
        )
        resident = min(max(1.0, math.floor(resident)), 16.0)
        unit_rate = device.unit_rate / (1.0 + device.tile_half * (1.0 / a + 1.0 / b))
        rows_at_once = device.instruction_rows if device.instruction_rows > 0.0 else a
        if rows_at_once < device.full_rate_rows:
            unit_rate *= 0.5
        step_work = max(2.0 * a * b * step / unit_rate, step_bytes / device.unit_bandwidth)
        waves = math.ceil(count / (device.units * resident))
        compute = math.ceil(count / device.units) * steps * step_work
        waiting = waves * steps * latency / stages
        compute = max(compute, waiting, power_time) + waves * device.tile_latency
        l2_time = count * steps * step_bytes / device.l2_bandwidth
        longest = max(compute, l2_time, memory_time)
        time = longest + device.overlap_loss * (compute + l2_time + memory_time - longest)
        if time < best:
            best = time
            best_tile = i
            traffic = loads
            if longest == memory_time:
                best_bound = BOUND_MEMORY
            elif longest == l2_time:
                best_bound = BOUND_L2
            else:
                best_bound = BOUND_COMPUTE
    if device.launch_latency > best:
        best_bound = BOUND_LATENCY
    return device.launch_latency + best, traffic, best_tile, best_bound


@jit
def grouped_gemm_times(
    load, offsets, sizes, counts, n, k, output_bytes, other_bytes, device, tiles, first, last
):
    """Times of equally long columns; see `grouped_gemm_time` for meaning and units.

    Parameters
    ----------
    load : ndarray of int64
        Which of the loads each row has.
    offsets : ndarray of int64, shape (load + 1,)
        Where each load begins in `sizes` and `counts`, shape (size,).

    Returns
    -------
    tuple of ndarray, shape (row,)
        time [s], traffic [B], tile (row of `tiles`), bound.
    """
    rows = n.size
    time, traffic = np.empty(rows), np.empty(rows)
    tile, bound = np.empty(rows, np.int64), np.empty(rows, np.uint8)
    for i in range(rows):
        begin, end = offsets[load[i]], offsets[load[i] + 1]
        time[i], traffic[i], tile[i], bound[i] = grouped_gemm_time(
            sizes[begin:end], counts[begin:end], n[i], k[i], output_bytes[i], other_bytes[i],
            device, tiles, first[i], last[i],
        )  # fmt: skip
    return time, traffic, tile, bound
