"""Parts of a layer on a region of cores: their cycles, and what they hold.

Letters
    R, C  rows and columns of the region; inputs of a product of one token lie over the rows,
          outputs over the columns, and sums are made along the R cores of a column
    b     sequences at once
    c     tokens of context
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.wafer.columns import PREFILL, PRODUCT, ROW, SCORES, SUM, VALUES
from perfmodel.kernels.wafer.products import (
    ALL_GATHER,
    DISTANCE_BLIND,
    MESH_GEMM,
    STATIONARY_INPUTS,
    STATIONARY_WEIGHTS,
    core_cycles,
    mesh_gemm_cycles,
    transposed_product_cycles,
)
from perfmodel.kernels.wafer.reduce import (
    CHAIN,
    all_reduce_counts,
    all_reduce_cycles,
)

# Time of one part of a layer on a region of cores.


@jit_lean
def part_sizes(parts, part, context):
    """Return inputs and outputs of a part, the context put in."""
    seen = context
    if parts.window[part] > 0.0:
        seen = min(context, parts.window[part])
    if parts.kind[part] == SCORES:
        return parts.k[part], seen
    if parts.kind[part] == VALUES:
        return seen, parts.n[part]
    return parts.k[part], parts.n[part]


@jit_lean
def sum_cycles(rows, columns, elements, collective, product, device):
    """All-reduce of elements along the rows of a region: cycles, and those of its busiest link."""
    per_wavelet = max(1.0, device.link_width / device.element)
    if product == DISTANCE_BLIND:
        # To a map that sees no distance all steps look alike: it sums from core to core.
        collective = CHAIN
    taken = all_reduce_cycles(
        collective, rows, elements, per_wavelet, device.hop, device.stage, device.ramp
    )
    return taken, all_reduce_counts(collective, rows, elements, per_wavelet)[0]


@jit_lean
def vector_part(parts, part, rows, columns, context, batch, layout, joined, device):
    """A part on one token of each sequence: cycles of its products, and elements to sum.

    Parameters
    ----------
    parts, part
    rows, columns, context, batch : float
    layout : int
        Of the cache.
    joined : float
        Elements that earlier parts left to sum.
    device : MeshDevice

    Returns
    -------
    busy, sram, issue : float
        Multiply-adds, what SRAM adds, and issue [cycles].
    elements : float
        To sum over the cores of a column.
    macs, useful : float
        Multiply-adds of the busiest core, and of all.
    """
    kind = parts.kind[part]
    each = parts.passes[part] * device.element_cycles
    if kind == SUM:
        issue = batch * math.ceil(parts.k[part] / rows) * each
        return 0.0, 0.0, issue, joined + parts.n[part] * batch, 0.0, 0.0
    k, n = part_sizes(parts, part, context)
    if layout == ROW and kind == SCORES:
        columns_tile = n  # all of the context stands in one row's cores
        rows_tile = math.ceil(k / rows)
    elif layout == ROW and kind == VALUES:
        columns_tile = math.ceil(n / columns)
        rows_tile = k
    else:
        columns_tile = math.ceil(n / columns)
        rows_tile = math.ceil(k / rows)
    runs = 1.0
    tokens = batch
    if parts.copies[part] > 1.0:
        runs = min(parts.copies[part], batch * parts.visited[part])
        tokens = math.ceil(batch * parts.visited[part] / parts.copies[part])
    macs = runs * tokens * rows_tile * columns_tile
    moved = macs * device.element
    # Rows are vectors long enough for the peak; what their starts cost is the issue.
    busy = macs / device.peak
    both = core_cycles(
        macs, 2.0 * moved, moved, 0.0, device.peak, device.sram_read, device.sram_write, 0.0
    )
    issue = runs * tokens * (rows_tile * device.vector_issue + columns_tile * each)
    useful = batch * parts.visited[part] * k * n
    # What several experts make of a token is added up before it leaves the core.
    vectors = batch if parts.merged[part] else runs * tokens
    return busy, both - busy, issue, joined + vectors * columns_tile, macs, useful


@jit_lean
def matrix_part(parts, part, rows, columns, context, batch, collective, product, device):
    """A part on all tokens of prompts.

    Parameters
    ----------
    parts, part
    rows, columns, context, batch : float
    collective, product : int
    device : MeshDevice

    Returns
    -------
    busy, sram, issue, network, link : float
        Multiply-adds, what SRAM adds, issue, exposed network, busiest link [cycles].
    macs, useful : float
        Multiply-adds of the busiest core, and of all.
    """
    kind = parts.kind[part]
    per_wavelet = max(1.0, device.link_width / device.element)
    m = context * batch
    each = parts.passes[part] * device.element_cycles
    if kind == SUM:
        taken, link = sum_cycles(
            rows, columns, parts.n[part] * math.ceil(m / columns), collective, product, device
        )
        issue = math.ceil(m / rows) * math.ceil(parts.k[part] / columns) * each
        return 0.0, 0.0, issue, taken, link, 0.0, 0.0
    k, n = part_sizes(parts, part, context)
    runs = 1.0
    if parts.copies[part] > 1.0:
        runs = min(parts.copies[part], m * parts.visited[part])
        m = math.ceil(m * parts.visited[part] / parts.copies[part])
    elif kind != PRODUCT:
        # Every sequence meets its own keys.
        runs = batch
        m = context
    side = max(rows, columns)
    # Tiles of a rectangle's shorter side are larger, and there are as many steps as on the longer.
    tall = math.ceil(m / rows)
    wide = math.ceil(n / columns)
    deep = math.ceil(k / side)
    # Vectors that fill the lanes run at the peak; others begin out of line.
    vector = wide if product == STATIONARY_WEIGHTS else tall
    rate = device.peak if vector % device.peak == 0.0 else device.rate
    if product == STATIONARY_WEIGHTS:
        # The same product turned over: inputs move to the weights.
        compute, network = transposed_product_cycles(
            collective, wide * side, tall * side, k, side, device.element, rate,
            device.sram_read, device.sram_write, device.loop_issue, per_wavelet, device.hop,
            device.stage, device.ramp,
        )  # fmt: skip
    elif product == STATIONARY_INPUTS or (kind == SCORES and product == MESH_GEMM):
        compute, network = transposed_product_cycles(
            collective, tall * side, wide * side, k, side, device.element, rate,
            device.sram_read, device.sram_write, device.loop_issue, per_wavelet, device.hop,
            device.stage, device.ramp,
        )  # fmt: skip
    else:
        compute, network = mesh_gemm_cycles(
            product, tall * side, wide * side, k, side, device.element, rate,
            device.sram_read, device.sram_write, device.loop_issue, per_wavelet, device.hop,
            device.stage, device.ramp, device.routes,
        )  # fmt: skip
    macs = tall * wide * deep * side
    busy = macs / rate
    issue = side * deep * device.loop_issue
    memory = max(0.0, compute - issue - busy)
    if memory < 1e-9 * compute:  # rounding
        memory = 0.0
    moved = max(tall * deep, deep * wide) if product != DISTANCE_BLIND else tall * deep * side / 4.0
    if product == STATIONARY_WEIGHTS:
        moved = max(tall * deep, tall * wide)
    elif product == STATIONARY_INPUTS:
        moved = max(deep * wide, tall * wide)
    link = math.ceil(moved / per_wavelet) * (side - 1.0 if product == ALL_GATHER else side)
    copies = parts.visited[part] if parts.copies[part] > 1.0 else 1.0
    useful = context * batch * copies * k * n
    return (
        busy * runs,
        memory * runs,
        (issue + tall * wide * each) * runs,
        network * runs,
        link * runs if side > 1.0 else 0.0,
        macs * runs,
        useful,
    )


# Memory of cores: weights, cache, activations, and how many layers a region holds.


@jit_lean
def tile_bytes(parts, part, rows, columns, device):
    """Weights of a part in one core [B]."""
    if parts.kind[part] != PRODUCT:
        return 0.0
    k, n = part_sizes(parts, part, 0.0)
    return math.ceil(k / rows) * math.ceil(n / columns) * parts.copies[part] * device.weight


@jit_lean
def activation_bytes(parts, part, phase, rows, columns, context, batch, product, device):
    """Operands and results of a part in one core [B], weights and cache left out.

    Of a product of matrices what moves twice: the next tiles arrive while these are
    multiplied. An all-gather keeps those of a whole row and column.
    """
    kind = parts.kind[part]
    if kind == SUM:
        return 0.0
    k, n = part_sizes(parts, part, context)
    if phase != PREFILL:
        tokens = batch
        if parts.copies[part] > 1.0:
            tokens = math.ceil(batch * parts.visited[part] / parts.copies[part])
        return tokens * (math.ceil(k / rows) + math.ceil(n / columns)) * device.element
    m = context * batch if kind == PRODUCT else context
    if parts.copies[part] > 1.0:
        m = math.ceil(m * parts.visited[part] / parts.copies[part])
    side = max(rows, columns)
    tall = math.ceil(m / rows)
    wide = math.ceil(n / columns)
    deep = math.ceil(k / side)
    if product == STATIONARY_WEIGHTS:
        # Inputs move, and partial sums arrive beside the core's own.
        return (2.0 * tall * deep + 2.0 * tall * wide) * device.element
    if product == STATIONARY_INPUTS:
        return (tall * deep + 2.0 * tall * wide) * device.element + deep * wide * device.weight
    times = side if product == ALL_GATHER else 2.0
    # The one copy of weights that stays is counted with the weights.
    moving = tall * deep * times * device.element + deep * wide * (times - 1.0) * device.weight
    return moving + tall * wide * device.element


@jit_lean
def layer_weights(parts, layer, rows, columns, device):
    """Weights of a layer in one core [B]."""
    total = 0.0
    for part in range(parts.first[layer], parts.first[layer + 1]):
        total += tile_bytes(parts, part, rows, columns, device)
    return total


@jit_lean
def layer_window(parts, layer):
    """Most tokens whose keys a layer keeps; 0 for all."""
    for part in range(parts.first[layer], parts.first[layer + 1]):
        if parts.kind[part] == VALUES:
            return parts.window[part]
    return 0.0


@jit_lean
def layer_cache(parts, layer, columns, device):
    """Cache of one token of a layer in one core of a row [B]."""
    keys = math.ceil(parts.cache[layer, 0] / columns)
    values = math.ceil(parts.cache[layer, 1] / columns)
    return (keys + values) * device.cache


@jit_lean
def kind_memory(parts, mappings, i, device, table):
    """Fill the memory of a core that one layer of every kind takes, shape (kinds, 3).

    Weights [B]; cache of a token that counts without limit, in a core of its row [B]; cache of
    a layer with a window in the busiest core [B].
    """
    columns = mappings.columns[i]
    for kind in range(table.shape[0]):
        table[kind, 0] = layer_weights(parts, kind, mappings.rows[i], columns, device)
        token = layer_cache(parts, kind, columns, device) * mappings.batch[i]
        window = layer_window(parts, kind)
        table[kind, 1] = 0.0 if window > 0.0 else token
        table[kind, 2] = 0.0
        if window > 0.0:
            seen = min(window, mappings.context[i])
            if mappings.cache_layout[i] != ROW:
                seen = math.ceil(seen / mappings.rows[i])
            table[kind, 2] = token * seen


@jit_lean
def region_memory(layers, held, regions, table):
    """Memory of a core in the fullest of regions: layers are spread in order, evenly.

    Parameters
    ----------
    layers : array of int
        Kind of every layer.
    held : float
        Tokens of the cache in a core's row.
    regions : float
    table : array
        Of `kind_memory`.

    Returns
    -------
    layers : float
        Of a region, at most.
    weights, token, windowed : float
        As the columns of `table`, of all layers of the region.
    """
    count = layers.shape[0]
    most = math.ceil(count / regions)
    best = -1.0
    weights = 0.0
    token = 0.0
    windowed = 0.0
    for begin in range(0, count, int(most)):
        own = 0.0
        tokens = 0.0
        windows = 0.0
        for one in range(begin, min(count, begin + int(most))):
            own += table[layers[one], 0]
            tokens += table[layers[one], 1]
            windows += table[layers[one], 2]
        whole = own + windows + tokens * held
        if whole > best:
            best = whole
            weights = own
            token = tokens
            windowed = windows
    return most, weights, token, windowed


@jit_lean
def meshes_needed(count, room, held, free, table):
    """Meshes whose regions together hold all layers; infinite where a region holds none.

    Counts every layer as the largest, which may overstate by one region.
    """
    largest = 0.0
    for kind in range(table.shape[0]):
        largest = max(largest, table[kind, 0] + table[kind, 1] * held + table[kind, 2])
    if largest > free:
        return math.inf
    if largest <= 0.0:
        return 1.0
    return math.ceil(math.ceil(count / math.floor(free / largest)) / room)


@jit_lean
def most_activations(parts, mappings, i, phase, device):
    """Memory of a core for operands and results of the largest part [B]."""
    most = 0.0
    for part in range(parts.first[parts.first.shape[0] - 2]):
        most = max(
            most,
            activation_bytes(
                parts, part, phase, mappings.rows[i], mappings.columns[i],
                mappings.context[i], mappings.batch[i], mappings.product[i], device,
            ),
        )  # fmt: skip
    return most
