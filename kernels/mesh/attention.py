"""Attention of one token per sequence on a region of cores, and where its cache lies.

Letters
    R, K  rows and columns of the region
    c     tokens of context
    d     width of the query or of the output that the region holds
    v     width of keys, and of values, of a token
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.mesh.phases import message_cycles, wavelets_of
from perfmodel.kernels.mesh.products import tile_cycles
from perfmodel.kernels.mesh.reduce import all_reduce_cycles

LAYOUTS = ("row", "shifted")
"""By code."""

ROW = 0  # every new token's keys and values join those on one row of cores
SHIFTED = 1  # as each row has one more than the next, it hands one on: all rows hold as many


@jit_lean
def cache_bytes(layout, rows, columns, context, key_value_width, element_bytes):
    """Cache of one layer and sequence in the fullest core [B].

    Parameters
    ----------
    layout : int
        Place in `LAYOUTS`.
    rows, columns : float
        R, K.
    context : float
        c.
    key_value_width : float
        v, of keys; values have as many.
    element_bytes : float
        [B].
    """
    tokens = context if layout == ROW else math.ceil(context / rows)
    return 2.0 * math.ceil(key_value_width / columns) * element_bytes * tokens


@jit_lean
def cache_tokens(layout, rows, columns, free_bytes, key_value_width, layers, element_bytes):
    """Tokens whose keys and values the cores of a region can hold.

    Parameters
    ----------
    layout, rows, columns, key_value_width, element_bytes
        As `cache_bytes`.
    free_bytes : float
        Of a core, beside weights and activations [B].
    layers : float
        Layers whose cache the region holds.

    Returns
    -------
    float
        Whole tokens: ``free / (2 ceil(v / K) b layers)`` of one row, R times as many of all
        (He et al., OSDI 2025, table 5: 382 and 137,548 = 360 x 382.1 on 360 x 360).
    """
    if free_bytes <= 0.0:
        return 0.0
    token = 2.0 * math.ceil(key_value_width / columns) * element_bytes * layers
    held = free_bytes / token
    return float(math.floor(held if layout == ROW else held * rows))


@jit_lean
def append_cycles(
    layout,
    rows,
    columns,
    key_value_width,
    elements_per_wavelet,
    hop_cycles,
    stage_cycles,
    ramp_cycles,
):
    """Time to put one token's keys and values where they belong [cycles].

    They go to the row where tokens join, over half of the rows on the average; `SHIFTED` also
    hands a token on from every row to the next, all rows at once.

    Parameters
    ----------
    layout, rows, columns, key_value_width
        As `cache_bytes`.
    elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles : float
        As `perfmodel.kernels.mesh.reduce.all_reduce_cycles`.
    """
    if rows <= 1.0:
        return 0.0
    moved = wavelets_of(2.0 * math.ceil(key_value_width / columns), elements_per_wavelet)
    there = message_cycles(moved, 0.5 * rows, hop_cycles, ramp_cycles, stage_cycles)
    if layout == ROW:
        return there
    return there + message_cycles(moved, 1.0, hop_cycles, ramp_cycles, stage_cycles)


@jit_lean
def decode_attention_cycles(
    layout,
    rows,
    columns,
    context,
    query_width,
    key_value_width,
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
    """Scores, softmax and weighted values of one token of one sequence.

    Parameters
    ----------
    layout, rows, columns, context
        As `cache_bytes`.
    query_width : float
        Of all query heads: each meets the keys of its group, so that scores and values take
        ``context x query_width`` multiply-adds each.
    key_value_width : float
        v.
    algorithm : int
        Of the sums (`perfmodel.kernels.mesh.reduce.ALGORITHMS`).
    element_bytes, macs_per_cycle, sram_read, sram_write, issue_cycles, elements_per_wavelet,
    hop_cycles, stage_cycles, ramp_cycles : float
        As `perfmodel.kernels.mesh.products.gemv_cycles`.

    Returns
    -------
    compute, network : float
        [cycles].

    Notes
    -----
    Heads lie over the columns, tokens over the rows that hold them: a core multiplies
    ceil(d / K) of the query by its tokens' keys, scores are summed over the columns of a head's
    width, softmax takes the largest and the sum over the rows, and values are summed over the
    rows. With all tokens on one row its cores do the work of R.
    """
    tokens = context if layout == ROW else math.ceil(context / rows)
    width = math.ceil(query_width / columns)
    core = (element_bytes, macs_per_cycle, sram_read, sram_write, issue_cycles)
    links = (elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles)
    scores = tile_cycles(1.0, tokens, width, *core)
    values = tile_cycles(1.0, width, tokens, *core)
    network = all_reduce_cycles(algorithm, columns, tokens, *links)
    if layout == SHIFTED:
        network += 2.0 * all_reduce_cycles(algorithm, rows, 1.0, *links)
        network += all_reduce_cycles(algorithm, rows, width, *links)
    appended = append_cycles(layout, rows, columns, key_value_width, *links)
    return scores + values, network + appended
