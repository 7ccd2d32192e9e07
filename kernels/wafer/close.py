"""A model on mappings of a mesh: latency, memory and regions of each, and the best of them.

A *box* of grids is a range of rows and a range of columns. Products of its largest grid and the
hops of its smallest take no longer than those of any grid between, so a box whose bound exceeds
the best latency found so far holds no better mapping: boxes are halved and dropped by their
bounds. What `close_mappings` says of a single grid is taken as it is: nothing else times mappings.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.wafer.columns import (
    BEYOND_MESH,
    BEYOND_SRAM,
    CACHE_BEYOND_SRAM,
    CLOSED_ROWS,
    PREFILL,
    PRODUCT,
    REGIONS_BEYOND_MESH,
    ROW,
    SHIFTED,
    SUM,
    VALID,
    MeshMappings,
)
from perfmodel.kernels.wafer.parts import (
    kind_memory,
    matrix_part,
    meshes_needed,
    most_activations,
    part_sizes,
    region_memory,
    sum_cycles,
    vector_part,
)
from perfmodel.kernels.wafer.products import core_cycles
from perfmodel.kernels.wafer.reduce import message_cycles, step_cycles


@jit_lean
def time_layer(parts, layer, mappings, i, phase, device, found):
    """Add up the cycles of one kind of layer.

    Parameters
    ----------
    parts : MeshParts
    layer : int
        Kind of layer.
    mappings : MeshMappings
    i : int
        Which of them.
    phase : int
        `DECODE` or `PREFILL`; what follows the layers takes one token of each sequence in both.
    device : MeshDevice
    found : array of float, shape (parts, 7) or (1, 7)
        Where `PART_ROWS` go, by part, or added up where there is one row.
    """
    rows = mappings.rows[i]
    columns = mappings.columns[i]
    context = mappings.context[i]
    batch = mappings.batch[i]
    collective = mappings.collective[i]
    product = mappings.product[i]
    together = found.shape[0] == 1
    joined = 0.0
    # Norms and softmax sum equally many elements: made once.
    known = 0.0
    known_network = 0.0
    known_link = 0.0
    last = layer == parts.first.shape[0] - 2
    for part in range(parts.first[layer], parts.first[layer + 1]):
        if phase == PREFILL and not last:
            busy, sram, issue, network, link, macs, useful = matrix_part(
                parts, part, rows, columns, context, batch, collective, product, device
            )
        else:
            busy, sram, issue, joined, macs, useful = vector_part(
                parts, part, rows, columns, context, batch, mappings.cache_layout[i],
                joined, device,
            )  # fmt: skip
            network = 0.0
            link = 0.0
            if parts.joined[part] == 0:
                if joined != known:
                    known_network, known_link = sum_cycles(
                        rows, columns, joined, collective, product, device
                    )
                    known = joined
                network = known_network
                link = known_link
                joined = 0.0
        at = 0 if together else part
        found[at, 0] += busy
        found[at, 1] += sram
        found[at, 2] += issue
        found[at, 3] += network
        found[at, 4] += link
        found[at, 5] += macs
        found[at, 6] += useful


@jit_lean
def transfer_time(parts, rows, columns, regions, tokens, device):
    """From region to region, and from chip to chip [s].

    What passes between layers goes over all links of a side of a region, as far as a side.
    """
    if regions <= 1.0:
        return 0.0
    side = max(rows, columns)
    per_wavelet = max(1.0, device.link_width / device.element)
    moved = math.ceil(math.ceil(tokens * parts.hidden / side) / per_wavelet)
    one = message_cycles(moved, side, device.hop, device.ramp, device.stage) / device.clock
    crossed = min(regions, device.chips) - 1.0
    between = 0.0
    if crossed > 0.0:
        volume = tokens * parts.hidden * device.element
        between = device.chip_latency + volume / device.chip_bandwidth
    return (regions - 1.0 - crossed) * one + crossed * between


@jit
def close_mappings(parts, counts, head, mappings, phase, device, found, status):
    """Close a model on all mappings of one mesh in one phase.

    Parameters
    ----------
    parts : MeshParts
    counts : array of float, shape (kinds of layers,)
        Layers of every kind, without what follows them.
    head : bool
        Whether what follows the layers is timed.
    mappings : MeshMappings
    phase : int
        `DECODE` or `PREFILL`.
    device : MeshDevice
    found : array of float, shape (len(CLOSED_ROWS), mappings)
        Where results go [s, B, 1]; NaN where the mesh is too small.
    status : array of int, shape (mappings,)
        `VALID` ...
    """
    kinds = counts.shape[0]
    layers = float(parts.layers.shape[0])
    scratch = np.zeros((1, 7))
    sums = np.zeros(7)
    memory = np.zeros((kinds, 3))
    for i in range(status.shape[0]):
        rows = mappings.rows[i]
        columns = mappings.columns[i]
        area = rows * columns
        # A mesh may be turned.
        short = min(device.rows, device.columns)
        if min(rows, columns) > short or max(rows, columns) > max(device.rows, device.columns):
            status[i] = BEYOND_MESH
            found[:, i] = math.nan
            continue
        room = device.chips * max(1.0, math.floor(device.cores / area))
        regions = mappings.regions[i]
        if regions > room or regions > layers:
            status[i] = REGIONS_BEYOND_MESH
            found[:, i] = math.nan
            continue
        if regions <= 0.0:
            regions = min(room, layers)
        context = mappings.context[i]
        batch = mappings.batch[i]

        sums[:] = 0.0
        layer_cycles = 0.0
        for kind in range(kinds + 1 if head else kinds):
            times = counts[kind] if kind < kinds else 1.0
            scratch[:] = 0.0
            time_layer(parts, kind, mappings, i, phase, device, scratch)
            for row in range(7):
                sums[row] += times * scratch[0, row]
            if kind < kinds:
                layer_cycles += times * (
                    scratch[0, 0] + scratch[0, 1] + scratch[0, 2] + scratch[0, 3]
                )
        tokens = batch * (context if phase == PREFILL else 1.0)
        transfer = transfer_time(parts, rows, columns, regions, tokens, device)
        latency = (sums[0] + sums[1] + sums[2] + sums[3]) / device.clock + transfer

        held = context if mappings.cache_layout[i] == ROW else math.ceil(context / rows)
        kind_memory(parts, mappings, i, device, memory)
        most, weights, token, windowed = region_memory(parts.layers, held, regions, memory)
        activations = most_activations(parts, mappings, i, phase, device)
        # Tables stand in cores beside the regions, and in the regions where those are full.
        idle = max(0.0, device.chips * device.cores - regions * area)
        tables = max(0.0, parts.beside * device.weight - idle * device.sram) / (regions * area)
        weights += tables
        cache = token * held + windowed
        used = weights + cache + activations
        status[i] = VALID
        if weights + activations > device.sram:
            status[i] = BEYOND_SRAM
        elif used > device.sram:
            status[i] = CACHE_BEYOND_SRAM
        free = max(0.0, device.sram - weights - activations - windowed)
        longest = math.floor(free / token) if token > 0.0 else math.inf
        room_one = device.sram - activations - tables

        found[0, i] = latency
        found[1, i] = layer_cycles / device.clock / layers
        for row in range(4):
            found[2 + row, i] = sums[row] / device.clock
        found[6, i] = transfer
        found[7:10, i] = 0.0
        found[10, i] = sums[4] / device.clock
        found[11, i] = sums[6] / (area * device.peak * latency * device.clock)
        found[12, i] = regions
        found[13, i] = most
        found[14, i] = weights
        found[15, i] = cache
        found[16, i] = activations
        found[17, i] = used
        found[18, i] = longest
        found[19, i] = longest * rows
        found[20, i] = meshes_needed(layers, room / device.chips, held, room_one, memory)


# The best mapping: boxes of grids, their bounds, and the choices on a single grid.

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
