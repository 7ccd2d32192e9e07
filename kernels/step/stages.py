"""Sum the parts of every distinct stage once; strategies only look the sums up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.step.sharding import shards_parameters


@jit
def sum_stages(parts, row_key, counts, shared, embedding_part, output_part, sums):
    """Sum the part table over the parts of every stage row.

    Parameters
    ----------
    parts : record array of PART, shape (keys, parts)
    row_key : int64, shape (rows,)
        Layer key of each stage row.
    counts : float64, shape (rows, parts)
        How many of each part the stage holds.
    shared : float64, shape (keys,)
        Parameters that embedding and output share on a stage that holds both (a tied
        table), 0 for none.
    embedding_part, output_part : int
        Which parts those are. Several heads (multi-token prediction) share one output
        matrix in any case.
    sums : record array of STAGE, shape (rows,)
        Result; zeros before.
    """
    for row in range(row_key.size):
        stage = sums[row]
        gemm, attention, attention_backward, moe = 0.0, 0.0, 0.0, 0.0
        for number in range(counts.shape[1]):
            count = counts[row, number]
            if count == 0.0:
                continue
            part = parts[row_key[row], number]
            stage.forward += count * part.forward
            stage.backward += count * part.backward
            stage.recompute += count * part.recompute
            stage.tensor_exposed += count * part.tensor_exposed
            stage.tensor_total += count * part.tensor_total
            stage.context_exposed += count * part.context_exposed
            stage.context_total += count * part.context_total
            stage.expert_exposed += count * part.expert_exposed
            stage.expert_total += count * part.expert_total
            stage.host += count * part.host
            stage.flops += count * part.flops
            stage.activations += count * part.activations
            stage.forward_window += count * part.forward_window
            stage.backward_window += count * part.backward_window
            stage.logits += count * part.logits
            stage.working = max(stage.working, part.working)
            stage.largest = max(stage.largest, part.weights + part.experts)
            kept = min(count, 1.0) if number == output_part else count
            stage.weights += kept * part.weights
            stage.experts += kept * part.experts
            # Parts of one class err together, classes independently.
            gemm += count * part.gemm_width
            attention += count * part.attention_width
            attention_backward += count * part.attention_backward_width
            moe += count * part.moe_width
            stage.stream_width += count * part.stream_width
            stage.collective_width += count * part.collective_width
        stage.compute_width = np.sqrt(gemm**2 + attention**2 + attention_backward**2 + moe**2)
        if counts[row, embedding_part] > 0.0 and counts[row, output_part] > 0.0:
            stage.weights -= shared[row_key[row]]
        stage.busy = (
            stage.forward
            + stage.backward
            + stage.recompute
            + stage.tensor_exposed
            + stage.context_exposed
            + stage.expert_exposed
            + stage.host
        )


@jit
def sum_widths(sums, offset, stages, widths):
    """Sum the half-widths of every stage key over all its stages.

    Parameters
    ----------
    sums : record array of STAGE, shape (rows,)
        Of `sum_stages`.
    offset : int64, shape (stage keys + 1,)
        Rows of stage key j are ``offset[j]:offset[j + 1]``.
    stages : float64, shape (rows,)
        Number of stages of each row's composition.
    widths : float64, shape (stage keys, 3)
        Result: of compute, streams and collectives [s per micro-batch].
    """
    for key in range(offset.size - 1):
        widths[key] = 0.0
        for row in range(offset[key], offset[key + 1]):
            widths[key, 0] += stages[row] * sums[row].compute_width
            widths[key, 1] += stages[row] * sums[row].stream_width
            widths[key, 2] += stages[row] * sums[row].collective_width


class Load(NamedTuple):
    """What the stages of a strategy have to do, per micro-batch."""

    critical: int  # row of the slowest stage, on which the others wait
    slowest: float  # its time [s]
    everything: float  # time of all stages together [s]
    executed: float  # matrix FLOP of all stages
    weights: float  # parameters of the stage that has most: those that all ranks hold
    experts: float  # and those of its experts
    shard_total: float  # ZeRO-3 on the slowest stage: all communication [s],
    shard_exposed: float  # what delays the stage [s],
    shard_width: float  # and its half-width [s]
    shard_widths: float  # half-widths of all stages together [s]


@jit_inline
def stage_load(strategy, stages, shards):
    """Find the slowest stage, all stages together, and the stage with most parameters.

    Parameters
    ----------
    strategy : Strategies
        One of them.
    stages : Stages
    shards : Shards
        Of `price_shards`; read where parameters are sharded (ZeRO-3), and a stage waits
        for those that it gathers.

    Returns
    -------
    Load
    """
    slowest, everything, executed, critical = -1.0, 0.0, 0.0, 0
    weights, experts = 0.0, 0.0
    shard_total, shard_exposed, shard_width, shard_widths = 0.0, 0.0, 0.0, 0.0
    sharded = shards_parameters(strategy.zero)
    key = strategy.stage_key
    for row in range(stages.offset[key], stages.offset[key + 1]):
        total, exposed, width = 0.0, 0.0, 0.0
        if sharded:
            for part in range(stages.counts.shape[1]):
                count = stages.counts[row, part]
                total += count * shards.total[part]
                exposed += count * shards.exposed[part]
                width += count * shards.width[part]
        stage = stages.sums[row]
        copies = stages.stages[row]
        executed += copies * stage.flops
        everything += copies * (stage.busy + exposed)
        shard_widths += copies * width
        if stage.busy + exposed > slowest:
            slowest, critical = stage.busy + exposed, row
            shard_total, shard_exposed, shard_width = total, exposed, width
        if stage.weights + stage.experts > weights + experts:
            weights, experts = stage.weights, stage.experts
    return Load(
        critical,
        slowest,
        everything,
        executed,
        weights,
        experts,
        shard_total,
        shard_exposed,
        shard_width,
        shard_widths,
    )
