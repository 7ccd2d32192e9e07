"""What it takes to gather and reduce sharded parameters (ZeRO-3), once for all strategies alike.

Apart from the closing pass, which only looks them up: collectives are compiled once for all of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.plain import plain
from perfmodel.kernels.step.data_parallel import (
    copies_time,
    gradients,
    moved,
    on_other_links,
    parameters,
    transfer_time,
)
from perfmodel.kernels.step.memo import MEMO_SLOTS, TIME
from perfmodel.kernels.step.overlap import hidden_width, hide, overlap_tax, width_of
from perfmodel.kernels.step.placement import data_groups
from perfmodel.kernels.step.sharding import shards_parameters

SLOTS = 4096
"""A power of two: the last questions that are remembered."""
ASKED = 9
"""Numbers of a question."""


SHARD = np.dtype(
    [
        ("total", np.float64),
        ("exposed", np.float64),
        ("ahead", np.float64),  # of exposed: what delays forward passes
        ("width", np.float64),  # half-width of exposed
        ("first", np.float64),  # more of its gather that shows where nothing goes ahead of the part
        ("last", np.float64),  # and of its reduction where nothing follows
    ],
    align=True,
)
"""What moving the parameters of a part takes per micro-batch (ZeRO-3) [s]."""


class Shards(NamedTuple):
    """The same of every part of all strategies with sharded parameters."""

    row: np.ndarray  # int64[strategies]: of what follows; -1 where parameters are not sharded
    parts: np.ndarray  # of SHARD, shape (rows, parts)


def shard_prices(strategies, layer_key, keys, settings, network):
    """Return what sharded parameters take of every strategy.

    Parameters
    ----------
    strategies : record array of STRATEGY, shape (strategies,)
    layer_key : int64, shape (strategies,)
    keys : KeyTables
    settings : record of SETTINGS
    network : Network

    Returns
    -------
    Shards
    """
    row, leader = _distinct(plain(strategies), plain(layer_key))
    shards = np.zeros((leader.size, keys.parts.shape[1]), SHARD).view(np.recarray)
    if leader.size:
        chosen = strategies[leader], layer_key[leader]
        _price(*map(plain, (*chosen, keys.parts, settings, network)), shards)
    return Shards(row, shards)


@jit
def _price(strategies, layer_key, parts, settings, network, shards):
    """Fill a row of shards, record array of SHARD, for every strategy."""
    memo = np.zeros((MEMO_SLOTS, TIME + 1))
    for number in range(layer_key.size):
        strategy = strategies[number]
        groups = data_groups(strategy, network)
        own = parts[layer_key[number]]
        price_shards(strategy.zero, own, groups, settings, network, memo, shards[number])


@jit
def _distinct(strategies, layer_key):
    """Number strategies with sharded parameters by what these cost, and return one of each."""
    count = layer_key.size
    row, leader = np.full(count, -1), np.empty(count, np.int64)
    asked, found = np.full((SLOTS, ASKED), -1), np.empty(SLOTS, np.int64)
    now = np.empty(ASKED, np.int64)
    rows = 0
    for i in range(count):
        one = strategies[i]
        if not shards_parameters(one.zero):
            continue
        now[0], now[1], now[2] = layer_key[i], one.mapping, one.tensor
        now[3], now[4], now[5] = one.context, one.pipeline, one.data_ranks
        now[6], now[7], now[8] = one.shard_group, one.expert, one.expert_tensor
        mixed = (
            2654435761 * now[0]
            + 7919 * one.mapping
            + 104729 * one.data_ranks
            + 31 * one.shard_group
        )
        slot = mixed // 128 & (SLOTS - 1)
        known = True
        for number in range(ASKED):
            known = known and asked[slot, number] == now[number]
        if not known:
            for number in range(ASKED):
                asked[slot, number] = now[number]
            found[slot], leader[rows] = rows, i
            rows += 1
        row[i] = found[slot]
    return row, leader[:rows].copy()


@jit_lean
def price_shards(zero, parts, groups, settings, network, memo, shards):
    """Write the times to gather and reduce each sharded part.

    A part is gathered one ahead, in forward and again in backward, where its gradients
    are reduced as well; what outlasts the part's own pass is exposed, and so is all that the
    software does not overlap. Copies out of and into the buffers run among the products.
    """
    dense_tax = overlap_tax(groups, False, settings)
    experts_tax = overlap_tax(groups, True, settings)
    for number in range(shards.size):
        part, shard = parts[number], shards[number]
        tax = experts_tax if part.experts > 0.0 else dense_tax
        dense, sparse = parameters(part.weights, part.experts, groups, settings)
        gather = transfer_time(dense, sparse, network, memo)
        dense, sparse = gradients(zero, part.trained, part.trained_experts, groups, settings)
        reduce = transfer_time(dense, sparse, network, memo)
        behind, beside = 0.0, 0.0  # among copies: once all of backward has run, or on other links
        if not settings.overlap_copies:
            behind = copies_time(dense, sparse, network, memo)
        elif settings.overlap_reduce and on_other_links(groups.dense, settings):
            beside = copies_time(dense, sparse, network, memo)
        reduce -= behind
        size = (part.weights + part.experts) * settings.gather_bytes
        relative = width_of(size, settings.collective_widths)
        early = gather if settings.overlap_gather else 0.0
        late = early
        shown = behind + 2.0 * (gather - early)  # beside nothing
        if settings.overlap_reduce:
            late = max(early + reduce - beside, beside)
        else:
            shown += reduce
        forward = hide(early, part.forward_window, 0.0, tax)
        backward = hide(late, part.backward_window, 0.0, tax)
        forward_width = hidden_width(early, part.forward_window, 0.0, tax, relative)
        backward_width = hidden_width(late, part.backward_window, 0.0, tax, relative)
        whole = moved(part.weights, part.experts, groups)
        copies = (2.0 * settings.gather_copy_time + settings.reduce_copy_time) * whole
        frozen = whole - moved(part.trained, part.trained_experts, groups)
        copies -= settings.reduce_copy_time * frozen
        shard.ahead = forward + gather - early + settings.gather_copy_time * whole
        shard.total = 2.0 * gather + reduce + behind + copies
        shard.exposed = forward + backward + shown + copies
        shard.width = forward_width + backward_width + relative * shown
        shard.first = early - forward
        reduced = (late - early) / late if late > 0.0 else 0.0
        shard.last = reduced * (late - backward)
