"""A model on mappings of a mesh: latency, what it is made of, memory, regions."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.mesh.columns import (
    BEYOND_MESH,
    BEYOND_SRAM,
    CACHE_BEYOND_SRAM,
    PREFILL,
    REGIONS_BEYOND_MESH,
    ROW,
    ROWS,
    VALID,
    VALUES,
)
from perfmodel.kernels.mesh.parts import (
    activation_bytes,
    matrix_part,
    part_sizes,
    sum_cycles,
    tile_bytes,
    vector_part,
)
from perfmodel.kernels.mesh.phases import message_cycles


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
    chips = device.chip_rows * device.chip_columns
    collective = mappings.collective[i]
    product = mappings.product[i]
    together = found.shape[0] == 1
    joined = 0.0
    last = layer == parts.first.shape[0] - 2
    for part in range(parts.first[layer], parts.first[layer + 1]):
        if phase == PREFILL and not last:
            busy, sram, issue, network, link, macs, useful = matrix_part(
                parts, part, chips, rows, columns, context, batch, collective, product, device
            )
        else:
            busy, sram, issue, joined, macs, useful = vector_part(
                parts, part, chips, rows, columns, context, batch, mappings.cache_layout[i],
                joined, device,
            )  # fmt: skip
            network = 0.0
            link = 0.0
            if parts.joined[part] == 0:
                network, link = sum_cycles(rows, columns, joined, collective, product, device)
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
def layer_chip_bytes(parts, layer, tokens, device):
    """What chips sum up of a layer [B]: the outputs of products whose inputs they share."""
    total = 0.0
    for part in range(parts.first[layer], parts.first[layer + 1]):
        if parts.split[part] == ROWS:
            copies = parts.visited[part] if parts.copies[part] > 1.0 else 1.0
            total += parts.n[part] * tokens * min(copies, 1.0) * device.element
    return total


@jit_lean
def layer_chip_sums(parts, layer):
    """How often chips sum in a layer: products of all experts are summed together."""
    count = 0.0
    for part in range(parts.first[layer], parts.first[layer + 1]):
        if parts.split[part] == ROWS:
            count += 1.0
    return count


@jit_lean
def chip_sum_time(count, volume, device):
    """Ring all-reduces over the rows of chips, then over the columns [s]."""
    total = 0.0
    for side in (device.chip_rows, device.chip_columns):
        if side > 1.0:
            total += 2.0 * (side - 1.0) * count * device.chip_latency
            total += 2.0 * (side - 1.0) / side * volume / device.chip_bandwidth
    return total


@jit_lean
def layer_weights(parts, layer, rows, columns, chips, device):
    """Weights of a layer in one core [B]."""
    total = 0.0
    for part in range(parts.first[layer], parts.first[layer + 1]):
        total += tile_bytes(parts, part, chips, rows, columns, device)
    return total


@jit_lean
def layer_window(parts, layer):
    """Most tokens whose keys a layer keeps; 0 for all."""
    for part in range(parts.first[layer], parts.first[layer + 1]):
        if parts.kind[part] == VALUES:
            return parts.window[part]
    return 0.0


@jit_lean
def layer_cache(parts, layer, columns, chips, device):
    """Cache of one token of a layer in one core of a row [B]."""
    keys = math.ceil(math.ceil(parts.cache[layer, 0] / chips) / columns)
    values = math.ceil(math.ceil(parts.cache[layer, 1] / chips) / columns)
    return (keys + values) * device.cache


@jit_lean
def streamed_bytes(parts, layer, context, batch, tokens, chips, device):
    """Weights and cache that a layer reads from memory beside the mesh, of one chip [B]."""
    total = 0.0
    for part in range(parts.first[layer], parts.first[layer + 1]):
        if parts.kind[part] == 0:
            k, n = part_sizes(parts, part, chips, context)
            runs = 1.0
            if parts.copies[part] > 1.0:
                runs = min(parts.copies[part], tokens * parts.visited[part])
            total += k * n * runs * device.weight
    if layer < parts.cache.shape[0]:
        window = layer_window(parts, layer)
        seen = min(context, window) if window > 0.0 else context
        width = parts.cache[layer, 0] + parts.cache[layer, 1]
        total += width / chips * seen * batch * device.cache
    return total


@jit_lean
def kind_memory(parts, mappings, i, device, table):
    """Fill the memory of a core that one layer of every kind takes, shape (kinds, 3).

    Weights [B]; cache of a token that counts without limit, in a core of its row [B]; cache of
    a layer with a window in the busiest core [B].
    """
    columns = mappings.columns[i]
    chips = device.chip_rows * device.chip_columns
    for kind in range(table.shape[0]):
        table[kind, 0] = layer_weights(parts, kind, mappings.rows[i], columns, chips, device)
        token = layer_cache(parts, kind, columns, chips, device) * mappings.batch[i]
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
    """Memory of a core in the fullest of regions: layers are dealt in order, evenly.

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
    chips = device.chip_rows * device.chip_columns
    for part in range(parts.first[parts.first.shape[0] - 2]):
        most = max(
            most,
            activation_bytes(
                parts, part, phase, chips, mappings.rows[i], mappings.columns[i],
                mappings.context[i], mappings.batch[i], mappings.product[i], device,
            ),
        )  # fmt: skip
    return most


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
    chips = device.chip_rows * device.chip_columns
    total_cores = device.cores
    kinds = counts.shape[0]
    sums = np.zeros(7)
    scratch = np.zeros((1, 7))
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
        layers = float(parts.layers.shape[0])
        room = max(1.0, math.floor(total_cores / area))
        regions = mappings.regions[i]
        if regions > room:
            status[i] = REGIONS_BEYOND_MESH
            found[:, i] = math.nan
            continue
        if regions <= 0.0:
            regions = min(room, layers)
        if device.dram_bandwidth > 0.0:
            regions = 1.0
        context = mappings.context[i]
        batch = mappings.batch[i]
        tokens = batch * (context if phase == PREFILL else 1.0)
        sums[:] = 0.0
        memory_time = 0.0
        chip_time = 0.0
        layer_cycles = 0.0
        for kind in range(kinds + 1):
            times = counts[kind] if kind < kinds else 1.0
            if kind == kinds and not head:
                continue
            scratch[:] = 0.0
            time_layer(parts, kind, mappings, i, phase, device, scratch)
            on_mesh = scratch[0, 0] + scratch[0, 1] + scratch[0, 2] + scratch[0, 3]
            for row in range(7):
                sums[row] += times * scratch[0, row]
            if kind < kinds:
                layer_cycles += times * on_mesh
            own_tokens = tokens if kind < kinds else batch
            if device.dram_bandwidth > 0.0:
                read = streamed_bytes(parts, kind, context, batch, own_tokens, chips, device)
                stall = read / device.dram_bandwidth - on_mesh / device.clock
                memory_time += times * max(0.0, stall)
            if chips > 1.0:
                volume = layer_chip_bytes(parts, kind, own_tokens, device)
                chip_time += times * chip_sum_time(layer_chip_sums(parts, kind), volume, device)
        per_wavelet = max(1.0, device.link_width / device.element)
        # Tokens between regions go over all links of a side, half a region and half the next.
        moved = math.ceil(math.ceil(tokens * parts.hidden / max(rows, columns)) / per_wavelet)
        transfer = (regions - 1.0) * message_cycles(
            moved, max(rows, columns), device.hop, device.ramp, device.stage
        )
        host = layers * device.layer_latency if phase == PREFILL else 0.0
        on_mesh = sums[0] + sums[1] + sums[2] + sums[3]
        latency = (on_mesh + transfer) / device.clock + memory_time + chip_time + host
        row_layout = mappings.cache_layout[i] == ROW
        held = context if row_layout else math.ceil(context / rows)
        kind_memory(parts, mappings, i, device, memory)
        most, weights, token, windowed = region_memory(parts.layers, held, regions, memory)
        activations = most_activations(parts, mappings, i, phase, device)
        # Tables stand in cores beside the regions, and in the regions where those are full.
        beside = max(
            0.0, parts.beside * device.weight / chips - (total_cores - regions * area) * device.sram
        )
        weights += beside / (regions * area)
        cache = token * held + windowed
        sram = activations
        fits = sram <= device.sram
        if device.dram_bandwidth <= 0.0:
            sram += weights + cache
            free = device.sram - weights - activations - windowed
            fits = sram <= device.sram
            one_row = math.floor(max(0.0, free) / token) if token > 0.0 else math.inf
            all_rows = one_row * rows
            needed = meshes_needed(layers, room, held, device.sram - activations, memory)
        else:
            stored = parts.beside * device.weight / chips
            width = 0.0
            for kind in range(kinds):
                stored += counts[kind] * _stored(parts, kind, chips, device)
                window = layer_window(parts, kind)
                if window <= 0.0:
                    width += counts[kind] * (parts.cache[kind, 0] + parts.cache[kind, 1]) / chips
            width *= batch * device.cache
            one_row = (
                math.floor(max(0.0, device.dram_capacity - stored) / width)
                if width > 0.0
                else math.inf
            )
            all_rows = one_row
            weights = stored
            cache = width * context
            fits = fits and stored + cache <= device.dram_capacity
            needed = max(1.0, (stored + cache) / device.dram_capacity)
        status[i] = VALID
        if not fits:
            status[i] = BEYOND_SRAM
            if weights + activations <= device.sram and device.dram_bandwidth <= 0.0:
                status[i] = CACHE_BEYOND_SRAM
        found[0, i] = latency
        found[1, i] = layer_cycles / device.clock / layers
        for row in range(4):
            found[2 + row, i] = sums[row] / device.clock
        found[6, i] = transfer / device.clock
        found[7, i] = chip_time
        found[8, i] = memory_time
        found[9, i] = host
        found[10, i] = sums[4] / device.clock
        found[11, i] = sums[6] / (area * device.peak * latency * device.clock)
        found[12, i] = regions
        found[13, i] = most
        found[14, i] = weights
        found[15, i] = cache
        found[16, i] = activations
        found[17, i] = sram
        found[18, i] = one_row
        found[19, i] = all_rows
        found[20, i] = needed


@jit_lean
def _stored(parts, layer, chips, device):
    total = 0.0
    for part in range(parts.first[layer], parts.first[layer + 1]):
        if parts.kind[part] == 0:
            k, n = part_sizes(parts, part, chips, 0.0)
            total += k * n * parts.copies[part] * device.weight
    return total
