"""Sum the parts of every distinct stage once, in NumPy; strategies only look the sums up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit_lean_inline
from perfmodel.kernels.pipeline.closed import Ends
from perfmodel.kernels.step.offload import offloads, parked, pass_exposed
from perfmodel.kernels.step.sharding import shards_parameters

# What the parts of a stage add up to, `count` times each.
ADDED = (
    *("forward", "backward", "recompute", "tensor_exposed", "tensor_total"),
    *("context_exposed", "context_total", "expert_exposed", "expert_total", "host", "flops"),
    *("activations", "forward_window", "backward_window", "logits"),
    *("loss", "loss_idle", "logits_held"),
    *("stream_width", "collective_width", "forward_pass", "weight_pass"),
    "offloadable",
)
# Parts of one class err together, classes independently.
WIDTHS = (
    *("gemm_width", "attention_width", "attention_backward_width", "moe_width"),
    *("recurrence_width", "sparse_width"),
)
BUSY = (
    *("forward", "backward", "recompute"),
    *("tensor_exposed", "context_exposed", "expert_exposed", "host"),
)


def sum_stages(parts, row_key, counts, keys, embedding_part, output_part, sums):
    """Sum the part table over the parts of every stage row, one part after the other.

    Parameters
    ----------
    parts : record array of PART, shape (keys, parts)
    row_key : int64, shape (rows,)
        Layer key of each stage row.
    counts : float64, shape (rows, parts)
        How many of each part the stage holds.
    keys : record array of KEY, shape (keys,)
        Says which parameters embedding and output share on a stage that holds both.
    embedding_part, output_part : int
        Which parts those are. Several heads (multi-token prediction) share one output
        matrix in any case.
    sums : record array of STAGE, shape (rows,)
        Result; zeros before.
    """
    widths = np.zeros((len(WIDTHS), row_key.size))
    for number in range(counts.shape[1]):
        rows = np.flatnonzero(counts[:, number])
        count, key = counts[rows, number], row_key[rows]
        part = {name: parts[name][key, number] for name in parts.dtype.names}
        for name in ADDED:
            sums[name][rows] += count * part[name]
        for width, name in zip(widths, WIDTHS, strict=True):
            width[rows] += count * part[name]
        sums["working"][rows] = np.maximum(sums["working"][rows], part["working"])
        size = part["weights"] + part["experts"]
        own = part["trained"] + part["trained_experts"]
        sums["widest_part"][rows] = np.maximum(sums["widest_part"][rows], part["offloadable"])
        if number in (embedding_part, output_part):
            sums["ends"][rows] += size
            sums["ends_trained"][rows] += own
        else:
            sums["layer"][rows] = np.maximum(sums["layer"][rows], size)
            sums["layer_trained"][rows] = np.maximum(sums["layer_trained"][rows], own)
        if number == output_part:
            sums["head"][rows] = size
        kept = np.minimum(count, 1.0) if number == output_part else count
        for name in ("weights", "experts", "trained", "trained_experts"):
            sums[name][rows] += kept * part[name]
    sums["compute_width"] = np.sqrt(np.sum(widths * widths, axis=0))
    both = (counts[:, embedding_part] > 0.0) & (counts[:, output_part] > 0.0)
    for name in ("weights", "ends"):
        sums[name][both] -= keys.shared_table[row_key[both]]
    for name in ("trained", "ends_trained"):
        sums[name][both] -= keys.trained_table[row_key[both]]
    for name in BUSY:
        sums["busy"] += sums[name]


def sum_widths(sums, of):
    """Sum the half-widths of every stage key over all its stages, first to last.

    Parameters
    ----------
    sums : record array of STAGE, shape (rows,)
        Of `sum_stages`.
    of : record array of STAGE_KEY, shape (stage keys,)
        Result in `WIDTH_SUMS` [s per micro-batch].
    """
    count = of.behind - of.first
    for place in range(count.max(initial=0)):
        keys = np.flatnonzero(count > place)
        rows = of.first[keys] + place
        for name in WIDTH_SUMS:
            of[name][keys] += sums.stages[rows] * sums[name][rows]


WIDTH_SUMS = ("compute_width", "stream_width", "collective_width")


class Load(NamedTuple):
    """What the stages of a strategy have to do, per micro-batch."""

    critical: int  # row of the slowest stage, on which the others wait
    slowest: float  # its time [s]
    ends: Ends  # what passes of its chunks take, where all hold equal layers [s]
    executed: float  # matrix FLOP of all stages
    weights: float  # trained parameters of the stage that has most: those that all ranks hold
    experts: float  # and those of its experts
    shard_total: float  # ZeRO-3 on the slowest stage: all communication [s],
    shard_exposed: float  # what delays the stage [s],
    shard_width: float  # and its half-width [s]
    shard_widths: float  # half-widths of all stages together [s]
    shard_first: float  # what the first gather of a step delays the slowest stage by [s]
    offload_exposed: float  # copies of what waits elsewhere on the slowest stage [s]


@jit_lean_inline
def stage_load(strategy, batches, stages, shards, slot, groups, settings, network, memo):
    """Find the slowest stage, what it waits for, and the stage with most parameters.

    Parameters
    ----------
    strategy : record of STRATEGY
    batches : int
        Micro-batches.
    stages : Stages
    shards : Shards
    slot : int
        Row of `shards`; read where parameters are sharded (ZeRO-3), and a stage waits
        for those that it gathers.
    groups : Groups
    settings, network, memo

    Returns
    -------
    Load

    Notes
    -----
    A stage has nothing to do beside the first gather of a step, nor beside the last reduction of
    a micro-batch, for which the next one waits (PyTorch's FSDP, at the end of every backward). Of
    its parts the one counts that has most to lose: its layers, mostly. What shows of gathers and
    copies on all stages alike, all chunks share evenly; what the first or last stage has beyond it
    is of its embedding or output, and so of its first or last chunk.
    """
    slowest, executed, critical = -1.0, 0.0, 0
    weights, experts = 0.0, 0.0
    shard_total, shard_exposed, shard_width, shard_widths = 0.0, 0.0, 0.0, 0.0
    shard_first, copies_exposed = 0.0, 0.0
    first_ahead, first_shown, last_ahead, last_shown = 0.0, 0.0, 0.0, 0.0
    least_ahead, least_shown = np.inf, np.inf  # in forward and in backward passes, on any stage
    sharded = shards_parameters(strategy.zero_stage)
    copied = offloads(strategy)
    key = stages.of[strategy.stage_key]
    for row in range(key.first, key.behind):
        total, exposed, width, first, last, ahead = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        if sharded:
            held, prices = stages.counts[row], shards.parts[slot]
            for part in range(held.size):
                count, price = held[part], prices[part]
                if count > 0.0:
                    first = max(first, price.first)
                    last = max(last, price.last)
                total += count * price.total
                exposed += count * price.exposed
                ahead += count * price.ahead
                width += count * price.width
        exposed += last
        stage = stages.sums[row]
        beside = 0.0
        if copied:
            leaves, _ = parked(strategy, batches, stages, row)
            moves = leaves > 0.0
            beside = pass_exposed(strategy, stage, moves, groups, settings, network, memo)
            exposed += beside
        copies = stage.stages
        least_ahead, least_shown = min(least_ahead, ahead), min(least_shown, exposed - ahead)
        if stage.first_stage == 0:
            first_ahead, first_shown = ahead, exposed - ahead
        elif stage.first_stage == strategy.pipeline_parallel - 1:
            last_ahead, last_shown = ahead, exposed - ahead
        executed += copies * stage.flops
        shard_widths += copies * width
        if stage.busy + exposed > slowest:
            slowest, critical = stage.busy + exposed, row
            shard_total, shard_exposed, shard_width = total, exposed - beside, width
            shard_first, copies_exposed = first, beside
        if stage.trained + stage.trained_experts > weights + experts:
            weights, experts = stage.trained, stage.trained_experts
    ends = Ends(
        key.forward + least_ahead / strategy.virtual_pipeline,
        key.backward + least_shown / strategy.virtual_pipeline,
        key.first_forward + first_ahead - least_ahead,
        key.first_backward + first_shown - least_shown,
        key.last_forward + max(0.0, last_ahead - least_ahead),
        key.last_backward + max(0.0, last_shown - least_shown),
    )
    return Load(
        critical,
        slowest,
        ends,
        executed,
        weights,
        experts,
        shard_total,
        shard_exposed,
        shard_width,
        shard_widths,
        shard_first,
        copies_exposed,
    )
