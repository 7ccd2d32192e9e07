"""Time of matrix products on a square of cores.

Letters
    m, n, k   the product: (m, k) times (k, n)
    N         cores along a side; a core has tiles of m/N, n/N and k/N, the largest counts
    h, s      cycles of a hop, and of one dependent message beside its way

A core takes as long as the slower of its multiply-adds and its memory, and issues a loop or a
vector instruction beside them. Constants of a device stand in its profile.
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.wafer.reduce import (
    all_reduce_cycles,
    grid_all_reduce_cycles,
    step_cycles,
    wavelets_of,
)

PRODUCTS = (
    "mesh_gemm",
    "cannon",
    "summa",
    "all_gather",
    "distance_blind",
    "stationary_weights",
    "stationary_inputs",
)
"""By code."""

MESH_GEMM = 0  # tiles shifted over a folded ring: two hops a step (He et al., OSDI 2025)
CANNON = 1  # tiles shifted over the row, the last back to the first (Cannon 1969)
SUMMA = 2  # each step's tiles copied along the row and the column (van de Geijn & Watts 1997)
ALL_GATHER = 3  # all tiles of the row and the column first
DISTANCE_BLIND = 4  # tiles fetched from wherever they are, as through a crossbar
# All so far keep results in place. Here another operand stays: one moves, partial sums are added.
STATIONARY_WEIGHTS = 5
STATIONARY_INPUTS = 6


@jit_lean
def core_cycles(
    macs, read_bytes, write_bytes, issues, macs_per_cycle, sram_read, sram_write, issue_cycles
):
    """Time of a core's own work.

    Parameters
    ----------
    macs : float
        Multiply-adds.
    read_bytes, write_bytes : float
        Between the core and its memory [B].
    issues : float
        Loops or instructions started one after the other.
    macs_per_cycle : float
        What the core sustains.
    sram_read, sram_write : float
        [B/cycle].
    issue_cycles : float
        Of one start.

    Returns
    -------
    float
        ``max(macs / rate, reads / width, writes / width) + issues x issue`` [cycles].
    """
    busy = macs / macs_per_cycle
    busy = max(busy, read_bytes / sram_read, write_bytes / sram_write)
    return busy + issues * issue_cycles


@jit_lean
def tile_cycles(m, n, k, element_bytes, macs_per_cycle, sram_read, sram_write, issue_cycles):
    """Time of a product of a core's tiles, (m, k) times (k, n), each of k a loop of its own.

    A multiply-add of a vector reads a factor and the sum and writes the sum.
    """
    macs = m * n * k
    moved = macs * element_bytes
    return core_cycles(
        macs, 2.0 * moved, moved, k, macs_per_cycle, sram_read, sram_write, issue_cycles
    )


@jit_lean
def gemv_cycles(
    k,
    n,
    row_cores,
    column_cores,
    algorithm,
    element_bytes,
    macs_per_cycle,
    sram_read,
    sram_write,
    issue_cycles,
    elements_per_wavelet,
    hop_cycles,
    stage_cycles,
    ramp_cycles,
):
    """A vector of k times a matrix (k, n): tiles by core, then sums over the cores that share n.

    Parameters
    ----------
    k, n : float
        The product.
    row_cores, column_cores : float
        Cores over which n, and k, are split.
    algorithm : int
        Of the all-reduce (`perfmodel.kernels.wafer.reduce.ALGORITHMS`).
    element_bytes : float
        [B].
    macs_per_cycle : float
        What a core sustains.
    sram_read, sram_write : float
        [B/cycle].
    issue_cycles : float
        Of one vector instruction: one for each of a core's elements of k.
    elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles : float
        As `all_reduce_cycles`.

    Returns
    -------
    compute, network : float
        One after the other [cycles].
    """
    rows = math.ceil(k / column_cores)
    columns = math.ceil(n / row_cores)
    compute = tile_cycles(
        1.0, columns, rows, element_bytes, macs_per_cycle, sram_read, sram_write, issue_cycles
    )
    network = all_reduce_cycles(
        algorithm,
        column_cores,
        columns,
        elements_per_wavelet,
        hop_cycles,
        stage_cycles,
        ramp_cycles,
    )
    return compute, network


@jit_lean
def shift_cycles(algorithm, side, moved, hop_cycles, step):
    """One step's messages of a product: how far its tiles go at a time [cycles].

    Parameters
    ----------
    algorithm : int
        `MESH_GEMM` ... `SUMMA`.
    side : float
        N.
    moved : float
        Wavelets of both tiles: a core sends them through one ramp, and takes them from it.
    hop_cycles, step : float
        h, s.
    """
    if side <= 1.0:
        return 0.0
    way = 2.0 if algorithm == MESH_GEMM else side - 1.0
    return moved + min(way, side - 1.0) * hop_cycles + step


@jit_lean
def product_prologue_cycles(algorithm, side, first, second, hop_cycles, step):
    """What a product sends before its first step [cycles].

    Parameters
    ----------
    algorithm : int
        Place in `PRODUCTS`.
    side : float
        N.
    first, second : float
        Wavelets of a tile of either factor: one goes along rows, the other along columns.
    hop_cycles, step : float
        h, s.

    Notes
    -----
    MeshGEMM aligns its tiles by N / 2 shifts. Cannon skews row r by r in one message, or by N - r
    the other way, so that the busiest link of a line carries N / 2 tiles. An all-gather takes the
    tiles of a whole row and column through each core's ramp.
    """
    if side <= 1.0:
        return 0.0
    half = math.floor(side / 2.0)
    if algorithm == MESH_GEMM:
        return half * shift_cycles(algorithm, side, first + second, hop_cycles, step)
    if algorithm == CANNON:
        return max(first, second) * half + (side - 1.0) * hop_cycles + step
    if algorithm == ALL_GATHER:
        return (first + second) * (side - 1.0) + (side - 1.0) * hop_cycles + step
    return 0.0


@jit_lean
def mesh_gemm_cycles(
    algorithm,
    m,
    n,
    k,
    side,
    element_bytes,
    macs_per_cycle,
    sram_read,
    sram_write,
    loop_cycles,
    elements_per_wavelet,
    hop_cycles,
    stage_cycles,
    ramp_cycles,
    routes=0.0,
):
    """A matrix product on a square of cores, in N steps.

    Parameters
    ----------
    algorithm : int
        Place in `PRODUCTS`.
    m, n, k : float
        The product.
    side : float
        N.
    element_bytes : float
        [B].
    macs_per_cycle : float
        What a core sustains.
    sram_read, sram_write : float
        [B/cycle].
    loop_cycles : float
        Of the loop over vectors that each of a tile's elements of k starts.
    elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles : float
        As `all_reduce_cycles`.
    routes : float
        That a router holds, which `DISTANCE_BLIND` exceeds; 0: any number.

    Returns
    -------
    compute, exposed : float
        Of all steps, and what the network adds to it [cycles]. Steps take the longer of compute
        and messages (the next tiles travel while these are multiplied); what comes before the
        first step is exposed.
    """
    rows = math.ceil(m / side)
    columns = math.ceil(n / side)
    depth = math.ceil(k / side)
    step = step_cycles(ramp_cycles, stage_cycles)
    one = tile_cycles(
        rows, columns, depth, element_bytes, macs_per_cycle, sram_read, sram_write, loop_cycles
    )
    first = wavelets_of(rows * depth, elements_per_wavelet)
    second = wavelets_of(depth * columns, elements_per_wavelet)
    moved = first + second
    prologue = product_prologue_cycles(algorithm, side, first, second, hop_cycles, step)
    compute = one * side
    if algorithm == ALL_GATHER:
        return compute, prologue
    if algorithm == DISTANCE_BLIND:
        messages = blind_fetch_cycles(side, moved, hop_cycles, step, routes)
    else:
        messages = shift_cycles(algorithm, side, moved, hop_cycles, step)
    return compute, prologue + side * max(0.0, messages - one)


@jit_lean
def blind_fetch_cycles(side, wavelets, hop_cycles, step, routes):
    """All cores of a square fetch from cores that a map without distance chose.

    Parameters
    ----------
    side, wavelets, hop_cycles, step : float
        N; wavelets that each core fetches; h, s.
    routes : float
        That a router holds; 0: any number.

    Returns
    -------
    float
        [cycles] until the farthest has arrived, after ``2 (N - 1)`` hops.

    Notes
    -----
    Of N^2 messages between random cores half cross the middle of the square, N links a
    direction: N / 4 messages each (Dally & Towles 2004, section 3.3). Through the router in the
    middle go those of its four links, N routes. Where it holds fewer, its core takes every
    message from the ramp and sends it on: N W wavelets, and every hop is a dependent message
    (the limit R of routes of He et al., OSDI 2025).
    """
    if side <= 1.0:
        return 0.0
    farthest = 2.0 * (side - 1.0)
    if 0.0 < routes < side:
        return wavelets * side + farthest * (hop_cycles + step)
    return wavelets * max(1.0, side / 4.0) + farthest * hop_cycles + step


@jit_lean
def transposed_product_cycles(
    algorithm,
    m,
    n,
    k,
    side,
    element_bytes,
    macs_per_cycle,
    sram_read,
    sram_write,
    loop_cycles,
    elements_per_wavelet,
    hop_cycles,
    stage_cycles,
    ramp_cycles,
):
    """A product with a transposed factor, (m, k) times (n, k): scores of attention.

    Nothing is transposed over the mesh: the second factor moves along its column, and each
    step's partial sums over k are added along the rows (MeshGEMM-T of He et al., OSDI 2025).

    Parameters
    ----------
    algorithm : int
        Of the sum along the rows (`perfmodel.kernels.wafer.reduce.ALGORITHMS`).
    m, n, k, side, element_bytes, macs_per_cycle, sram_read, sram_write, loop_cycles,
    elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles
        As `mesh_gemm_cycles`.

    Returns
    -------
    compute, exposed : float
        [cycles]. Of each step's sum, its wavelets pass while the next tiles are multiplied; the
        stages of the first, and what sums and shifts take beyond the products, are exposed.
    """
    rows = math.ceil(m / side)
    columns = math.ceil(n / side)
    depth = math.ceil(k / side)
    step = step_cycles(ramp_cycles, stage_cycles)
    one = tile_cycles(
        rows, columns, depth, element_bytes, macs_per_cycle, sram_read, sram_write, loop_cycles
    )
    moved = wavelets_of(depth * columns, elements_per_wavelet)
    summed = wavelets_of(rows * columns, elements_per_wavelet)
    shift = shift_cycles(MESH_GEMM, side, moved, hop_cycles, step)
    whole = grid_all_reduce_cycles(
        algorithm,
        1.0,
        side,
        rows * columns,
        elements_per_wavelet,
        hop_cycles,
        stage_cycles,
        ramp_cycles,
    )
    busy = max(one, shift, summed if side > 1.0 else 0.0)
    return one * side, side * (busy - one) + whole
