"""The best mapping of a model on a mesh: boxes of grids are halved and dropped by their bounds.

A *box* is a range of rows and a range of columns. Products of its largest grid and the hops of
its smallest take no longer than those of any grid between, so a box whose bound exceeds the best
latency found so far holds no better mapping. What the closing kernel says of a single grid is
taken as it is: `perfmodel.kernels.wafer.close` is the only place where mappings are timed.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.wafer.close import close_mappings
from perfmodel.kernels.wafer.columns import (
    CLOSED_ROWS,
    PREFILL,
    PRODUCT,
    SHIFTED,
    SUM,
    VALID,
    MeshMappings,
)
from perfmodel.kernels.wafer.parts import part_sizes, vector_part
from perfmodel.kernels.wafer.products import core_cycles
from perfmodel.kernels.wafer.reduce import step_cycles

LATENCY, REGIONS = 0, CLOSED_ROWS.index("region_count")
ROUNDING = 1.0 - 1e-9  # bounds add up in another order than times
DEEPEST = 4096  # boxes that wait; halving 2^14 x 2^14 grids needs 29


@jit_lean
def sum_bound(rows, device):
    """Least cycles of a sum over a column of cores: to the root and back.

    Whatever the algorithm, the ends are ``rows - 1`` hops apart, and the sum stands somewhere
    between before it goes back to both.
    """
    if rows <= 1.0:
        return 0.0
    return (rows - 1.0) * device.hop + 2.0 * step_cycles(device.ramp, device.stage)


@jit_lean
def matrix_bound(parts, part, rows, columns, context, batch, device):
    """Least cycles of a part's products on prompts, on this many cores or fewer.

    A core has ``ceil(m / rows) ceil(n / columns)`` results, each of at least k products, and
    starts a loop for each of k, however the tiles meet; at most it multiplies at the peak.
    """
    m = context * batch
    k, n = part_sizes(parts, part, context)
    runs = 1.0
    if parts.copies[part] > 1.0:
        runs = min(parts.copies[part], m * parts.visited[part])
        m = math.ceil(m * parts.visited[part] / parts.copies[part])
    elif parts.kind[part] != PRODUCT:
        runs = batch
        m = context
    macs = math.ceil(m / rows) * math.ceil(n / columns) * k
    moved = macs * device.element
    return runs * core_cycles(
        macs,
        2.0 * moved,
        moved,
        k,
        device.peak,
        device.sram_read,
        device.sram_write,
        device.loop_issue,
    )


@jit_lean
def latency_bound(parts, counts, head, low, high, columns, context, batch, phase, device):
    """Least latency of all grids of a box, whatever else is chosen.

    Parameters
    ----------
    parts, counts, head, phase, device
        As of `perfmodel.kernels.wafer.close.close_mappings`.
    low, high : float
        Rows of the smallest and of the largest grid.
    columns : float
        Of the largest grid.
    context, batch : float

    Returns
    -------
    float
        [s].
    """
    kinds = counts.shape[0]
    total = 0.0
    sums = sum_bound(low, device)
    for kind in range(kinds + 1):
        if kind == kinds and not head:
            continue
        times = counts[kind] if kind < kinds else 1.0
        for part in range(parts.first[kind], parts.first[kind + 1]):
            if phase == PREFILL and kind < kinds:
                if parts.kind[part] == SUM:
                    total += times * sums
                else:
                    total += times * matrix_bound(
                        parts, part, high, columns, context, batch, device
                    )
                continue
            busy, sram, issue, _, _, _ = vector_part(
                parts, part, high, columns, context, batch, SHIFTED, 0.0, device
            )
            total += times * (busy + sram + issue)
            if parts.joined[part] == 0:
                total += times * sums
    return total / device.clock * ROUNDING


@jit
def search_boxes(
    parts,
    counts,
    head,
    rows,
    columns,
    square,
    collectives,
    products,
    layouts,
    longest,
    most_regions,
    context,
    batch,
    phase,
    device,
    best,
):
    """Find the mapping with the least latency among those that fit.

    Parameters
    ----------
    parts, counts, head, phase, device
        As of `perfmodel.kernels.wafer.close.close_mappings`.
    rows, columns : ndarray of float64, shapes (rows,) and (columns,)
        Sides of grids to choose from, ascending.
    square : bool
        Whether grids have as many rows as columns; then both lists are the same.
    collectives, products, layouts : ndarray of int64, shape (choices,)
        What else is chosen together.
    longest : ndarray of float64, shape (choices,)
        Longest side of a grid whose routes a router holds.
    most_regions : float
    context, batch : float
    best : ndarray of float64, shape (5,)
        Result: latency [s], rows, columns, regions, and place of the choice; infinite and -1
        where nothing fits. Of equals that with the fewest cores.

    Returns
    -------
    timed : int
        Mappings whose time was closed.
    grids : int
        Grids that were looked at one by one.
    """
    count = collectives.shape[0]
    best[0] = math.inf
    best[1:] = -1.0
    ones = np.ones(count)
    mappings = MeshMappings(
        ones.copy(),
        ones.copy(),
        ones.copy(),
        ones * context,
        ones * batch,
        collectives,
        products,
        layouts,
    )
    found = np.empty((len(CLOSED_ROWS), count))
    status = np.zeros(count, dtype=np.int64)
    done = np.zeros(count, dtype=np.bool_)
    layers = float(parts.layers.shape[0])
    boxes = np.empty((DEEPEST, 4), dtype=np.int64)
    bounds = np.empty(DEEPEST)
    halves = np.empty((2, 4), dtype=np.int64)
    boxes[0, 0] = 0
    boxes[0, 1] = rows.shape[0]
    boxes[0, 2] = 0
    boxes[0, 3] = columns.shape[0]
    bounds[0] = 0.0
    waiting = 1
    timed = 0
    grids = 0
    while waiting > 0:
        waiting -= 1
        if bounds[waiting] > best[0]:
            continue
        r0 = boxes[waiting, 0]
        r1 = boxes[waiting, 1]
        c0 = boxes[waiting, 2]
        c1 = boxes[waiting, 3]
        if square:
            c0 = r0
            c1 = r1
        if r1 - r0 == 1 and c1 - c0 == 1:
            timed += search_regions(
                parts,
                counts,
                head,
                rows[r0],
                columns[c0],
                mappings,
                longest,
                most_regions,
                layers,
                phase,
                device,
                found,
                status,
                done,
                best,
            )
            grids += 1
            continue
        halves[:] = boxes[waiting]
        if r1 - r0 >= c1 - c0:
            halves[0, 1] = (r0 + r1) // 2
            halves[1, 0] = (r0 + r1) // 2
        else:
            halves[0, 3] = (c0 + c1) // 2
            halves[1, 2] = (c0 + c1) // 2
        if square:
            halves[:, 2:] = halves[:, :2]
        half_bounds = (
            _box_bound(
                halves[0], parts, counts, head, rows, columns, context, batch, phase, device
            ),
            _box_bound(
                halves[1], parts, counts, head, rows, columns, context, batch, phase, device
            ),
        )
        later = 0 if half_bounds[0] > half_bounds[1] else 1
        for half in (later, 1 - later):  # what was pushed last is looked at first
            boxes[waiting] = halves[half]
            bounds[waiting] = half_bounds[half]
            waiting += 1
    return timed, grids


@jit_lean
def _box_bound(box, parts, counts, head, rows, columns, context, batch, phase, device):
    return latency_bound(
        parts,
        counts,
        head,
        rows[box[0]],
        rows[box[1] - 1],
        columns[box[3] - 1],
        context,
        batch,
        phase,
        device,
    )


@jit
def search_regions(
    parts,
    counts,
    head,
    rows,
    columns,
    mappings,
    longest,
    most_regions,
    layers,
    phase,
    device,
    found,
    status,
    done,
    best,
):
    """Try all choices on one grid, each with the fewest regions that hold the model.

    More regions add transfers and nothing else, so the fewest that fit are the best; and of
    those whose fullest region has as many layers, the fewest leave the most room.

    Parameters
    ----------
    parts, counts, head, phase, device, longest, most_regions, best
        As `search_boxes`.
    rows, columns : float
    mappings : MeshMappings
        Choices, whose grid and regions are overwritten.
    layers : float
    found, status : ndarray
        Scratch for `perfmodel.kernels.wafer.close.close_mappings`.
    done : ndarray of bool, shape (choices,)
        Scratch.

    Returns
    -------
    int
        Mappings closed.
    """
    timed = 0
    left = 0
    for choice in range(done.shape[0]):
        done[choice] = max(rows, columns) > longest[choice]
        if not done[choice]:
            left += 1
    mappings.rows[:] = rows
    mappings.columns[:] = columns
    room = device.chips * max(1.0, math.floor(device.cores / (rows * columns)))
    most = min(most_regions, layers, room)
    regions = 1.0
    while left > 0 and regions <= most:
        mappings.regions[:] = regions
        close_mappings(parts, counts, head, mappings, phase, device, found, status)
        timed += done.shape[0]
        for choice in range(done.shape[0]):
            if done[choice]:
                continue
            latency = found[LATENCY, choice]
            # Beyond the mesh it is no number, and with more regions it gets no shorter.
            if not latency <= best[0]:
                done[choice] = True
                left -= 1
                continue
            if status[choice] != VALID:
                continue
            done[choice] = True
            left -= 1
            cores = rows * columns * found[REGIONS, choice]
            if latency < best[0] or cores < best[1] * best[2] * best[3]:
                best[0] = latency
                best[1] = rows
                best[2] = columns
                best[3] = found[REGIONS, choice]
                best[4] = choice
        each = math.ceil(layers / regions)
        if each <= 1.0:
            break
        regions = math.ceil(layers / (each - 1.0))
    return timed
