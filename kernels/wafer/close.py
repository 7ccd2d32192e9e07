"""A model on mappings of a mesh: latency, what it is made of, memory, regions."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.wafer.columns import (
    BEYOND_MESH,
    BEYOND_SRAM,
    CACHE_BEYOND_SRAM,
    PREFILL,
    REGIONS_BEYOND_MESH,
    ROW,
    VALID,
)
from perfmodel.kernels.wafer.parts import (
    kind_memory,
    matrix_part,
    meshes_needed,
    most_activations,
    region_memory,
    sum_cycles,
    vector_part,
)
from perfmodel.kernels.wafer.reduce import message_cycles


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
