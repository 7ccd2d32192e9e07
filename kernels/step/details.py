"""What the closing pass knows of one strategy beyond its results: what happens when in a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.step.close import batches_at, family_of
from perfmodel.kernels.step.memo import MEMO_SLOTS, TIME
from perfmodel.kernels.step.offload import offloads, parked, pass_exposed
from perfmodel.kernels.step.placement import data_groups
from perfmodel.kernels.step.sharding import shards_parameters


class DetailRows(NamedTuple):
    """Which place of the result holds what, all times in seconds."""

    critical: int  # the slowest stage: a row of `Stages.sums`
    send: int  # what a send between stages takes
    gather: int  # data parallel, ahead of the first pass: what shows, and all of it
    gather_total: int
    reduce: int  # behind the last one
    reduce_total: int
    each: int  # for each micro-batch
    each_total: int
    sharded: int  # of each, what sharded parameters take (ZeRO-3), which is part of passes
    copies: int  # offload: behind the update; each micro-batch's are of the stages


DETAIL = DetailRows(*range(len(DetailRows._fields)))


@jit
def step_details(
    families, batch, keys, stages, waits, shards, settings, stream_device, network, out, copies
):
    """Write what `close_strategies` adds up for the first strategy of one family.

    Parameters
    ----------
    families, batch, keys, stages, waits, shards, settings, stream_device, network
        As of `perfmodel.kernels.step.close.close_strategies`.
    out : float64[len(DETAIL)]
        Result.
    copies : float64[rows of the stage key]
        Result: what copies of what waits elsewhere add to both passes of a micro-batch, of every
        distinct stage [s].
    """
    strategy = families[0]
    of = stages.of[strategy.stage_key]
    groups = data_groups(strategy, network)
    batches = batches_at(strategy, batch, 0)
    tables = keys, stages, waits, shards, settings, stream_device, network
    memo = np.zeros((MEMO_SLOTS, TIME + 1))
    key, slot = keys.of[of.layer_key], shards.row[0]
    family = family_of(strategy, batches.micro, key, slot, groups, tables, memo)
    once, each, ahead = family.data.once, family.data.each, family.data.ahead
    out[DETAIL.critical] = family.load.critical
    out[DETAIL.send] = family.sends.time
    out[DETAIL.gather] = ahead.exposed
    out[DETAIL.gather_total] = ahead.total
    out[DETAIL.reduce] = once.exposed - ahead.exposed
    out[DETAIL.reduce_total] = once.total - ahead.total
    out[DETAIL.each] = each.exposed
    out[DETAIL.each_total] = each.total
    out[DETAIL.sharded] = family.load.shard_exposed if shards_parameters(strategy.zero) else 0.0
    out[DETAIL.copies] = family.copies
    if offloads(strategy):
        for row in range(of.first, of.behind):
            leaves, _ = parked(strategy, batches.micro, stages, row)
            copies[row - of.first] = pass_exposed(
                strategy, stages.sums[row], leaves > 0.0, groups, settings, network, memo
            )
