"""Memory of cores: weights, cache, activations, and how many layers a region holds."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.wafer.columns import PREFILL, PRODUCT, ROW, SUM, VALUES
from perfmodel.kernels.wafer.parts import part_sizes
from perfmodel.kernels.wafer.products import (
    ALL_GATHER,
    STATIONARY_INPUTS,
    STATIONARY_WEIGHTS,
)


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
    for part in range(parts.first[parts.first.shape[0] - 2]):
        most = max(
            most,
            activation_bytes(
                parts, part, phase, mappings.rows[i], mappings.columns[i],
                mappings.context[i], mappings.batch[i], mappings.product[i], device,
            ),
        )  # fmt: skip
    return most
