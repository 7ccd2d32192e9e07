"""Close strategies: from tables of parts and stages to step time and memory.

One fused pass over strategies. Everything that needs a tile-level model is already
in the part table; here a strategy only adds up parts per stage, finds the slowest
stage, lets the pipeline, the data-parallel group and the host have their share,
and finds the peak of memory. Letters in formulas: m micro-batches, p stages, v chunks per
stage, t_s time of one micro-batch on stage s.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.step.data_parallel import data_parallel_time
from perfmodel.kernels.step.memo import MEMO_SLOTS, TIME
from perfmodel.kernels.step.offload import update_exposed
from perfmodel.kernels.step.optimizer import optimizer_time
from perfmodel.kernels.step.peaks import no_peaks, remembered_memory
from perfmodel.kernels.step.pipeline import alone_share, pipeline_time, waited_pipeline
from perfmodel.kernels.step.placement import data_groups
from perfmodel.kernels.step.stages import stage_load
from perfmodel.kernels.step.tables import DUALPIPE, INTERLEAVED, ROW, strategy_at

WIDEST = 700.0
"""Logarithm of the widest band that float64 can hold."""


@jit
def close_strategies(
    strategies, keys, stages, waits, shards, settings, stream_device, network, first, out
):
    """Fill the result rows of every strategy.

    Parameters
    ----------
    strategies : Strategies
    keys : KeyTables
    stages : Stages
    waits : Waits
        Of the strategies whose passes ran one by one.
    shards : Shards
        Of these strategies (`perfmodel.kernels.step.shards.shard_prices`).
    settings : Settings
    stream_device : StreamDevice
        For the optimizer, which streams its state.
    network : Network
        Of `perfmodel.network.table.network_table`.
    first : int
        Column of the first strategy in the result.
    out : ndarray of float64 or float32, shape (len(ROW), n)
        Result, rows as in `ROW`; all of a strategy NaN where the device lacks its precision.
    """
    memo, peaks = np.zeros((MEMO_SLOTS, TIME + 1)), no_peaks(stages)
    for i in range(strategies.stage_key.size):
        strategy = strategy_at(strategies, i)
        if i == 0 or not same_placement(strategy, strategy_at(strategies, i - 1)):
            groups = data_groups(strategy, network)
        key = stages.layer_key[strategy.stage_key]
        column = first + i
        peak = keys.peak[key]
        if not peak > 0.0:  # the device lacks the precision
            out[:, column] = np.nan
            continue
        p, v = strategy.pipeline, strategy.virtual
        batches = strategy.global_batch // (strategy.data * strategy.micro_batch)
        m = float(batches)
        if strategy.schedule == DUALPIPE and p > 1:
            m *= 0.5  # either copy of the model takes half of them

        # 1. What the stages have to do: the slowest of them, and all together.
        slot = shards.row[i]
        load = stage_load(strategy, batches, stages, shards, slot, groups, settings, network, memo)
        stage = stages.sums[load.critical]

        # 2. The pipeline: waiting for other stages, and sends between them.
        boundary = keys.boundary_bytes[key], keys.boundary_gather[key]
        row = strategy.waits
        if row >= 0:
            passes = float(batches) * v
            pipeline = waited_pipeline(
                m, passes, p, v, load, groups, boundary, waits, row, settings, network, memo
            )
        else:
            pipeline = pipeline_time(
                strategy.schedule, m, p, v, load, groups, boundary, settings, network, memo
            )

        # 3. The update of the parameters.
        optimizer = optimizer_time(strategy, load, groups, settings, stream_device)
        copies = m * load.offload_exposed
        copies += update_exposed(strategy, load, stage, groups, settings, optimizer.time)

        # 4. The data-parallel group: gradients out, parameters in.
        update, table, scales = optimizer.time, keys.trained_table[key], keys.scale_bytes[key]
        data = data_parallel_time(
            strategy,
            m,
            load,
            groups,
            stage,
            pipeline,
            update,
            table,
            scales,
            settings,
            network,
            memo,
        )

        # 5. Memory of the stage that needs most.
        sizes = keys.weight_bytes[key], keys.boundary_bytes[key]
        remembered_memory(
            strategy, batches, stages, waits, groups, sizes, settings, out, column, peaks
        )

        # All that shows adds up to the step.
        alone = alone_share(m, p, v)
        if row >= 0 and strategy.schedule > INTERLEAVED:
            alone = waits.alone[row]
        step = write_times(
            m, alone, stage, pipeline, data, optimizer, copies, settings, out, column
        )
        widths = stages.widths[strategy.stage_key]
        width = band_width(m, v, step, stage, load, widths, pipeline, data, optimizer, settings)
        # No run is faster than its matrix FLOP at the datasheet's rate.
        limit = load.executed * m / (p * peak)
        out[ROW.step_time_low, column] = max(step / width, min(limit, step))
        out[ROW.step_time_high, column] = step * width
        tokens = float(strategy.global_batch) * float(strategy.sequence)
        tokens *= 1.0 - strategy.padding
        rate = tokens / (step * settings.devices)
        out[ROW.tokens_per_second_per_device, column] = rate
        out[ROW.model_flops_utilization, column] = rate * keys.flops_causal[key] / peak
        out[ROW.model_flops_utilization_non_causal, column] = (
            rate * keys.flops_non_causal[key] / peak
        )
        out[ROW.hardware_flops_utilization, column] = limit / step


@jit_inline
def same_placement(one, other):
    """Tell whether two strategies have the same `data_groups`."""
    return (
        one.mapping == other.mapping
        and one.tensor == other.tensor
        and one.context == other.context
        and one.pipeline == other.pipeline
        and one.data == other.data
        and one.shard_group == other.shard_group
        and one.expert == other.expert
        and one.expert_tensor == other.expert_tensor
    )


@jit_inline
def write_times(m, alone, stage, pipeline, data, optimizer, copies, settings, out, column):
    """Write the time of the step [s] and its components, and return it."""
    exposed = pipeline.exposed + data.waits
    exchange = m * stage.expert_exposed
    if settings.pairs:
        hidden = m * (stage.expert_total - stage.expert_exposed)
        exchange += alone * hidden
    step = m * stage.busy + settings.step_overhead + optimizer.time
    step += exposed + data.exposed + pipeline.bubble + exchange - m * stage.expert_exposed
    step += copies
    out[ROW.step_time, column] = step
    out[ROW.forward_time, column] = m * stage.forward
    out[ROW.backward_time, column] = m * stage.backward
    out[ROW.recompute_time, column] = m * stage.recompute
    out[ROW.optimizer_time, column] = optimizer.time
    out[ROW.host_time, column] = m * stage.host + settings.step_overhead
    out[ROW.tensor_parallel_exposed, column] = m * stage.tensor_exposed
    out[ROW.context_parallel_exposed, column] = m * stage.context_exposed
    out[ROW.expert_parallel_exposed, column] = exchange
    out[ROW.pipeline_exposed, column] = exposed
    out[ROW.data_parallel_exposed, column] = data.exposed
    out[ROW.offload_exposed, column] = copies
    out[ROW.pipeline_bubble, column] = pipeline.bubble
    out[ROW.tensor_parallel_total, column] = m * stage.tensor_total
    out[ROW.context_parallel_total, column] = m * stage.context_total
    out[ROW.expert_parallel_total, column] = m * stage.expert_total
    out[ROW.pipeline_total, column] = pipeline.total + data.waits
    out[ROW.data_parallel_total, column] = data.total
    return step


@jit_inline
def band_width(m, v, step, stage, load, widths, pipeline, data, optimizer, settings):
    """Return the 90th percentile of the step time over the projected one [1].

    Half-widths: of the slowest stage m times, but for its share of the bubble, and of all
    stages (`widths`) once through the bubble. Independent classes, and what no kernel
    explains: in quadrature. The band is even in the logarithm, in which the errors were found.
    """
    ahead = m - 1.0 / v
    compute = ahead * stage.compute_width + widths[0] / v
    stream = ahead * stage.stream_width + widths[1] / v
    stream += optimizer.width
    collective = ahead * (stage.collective_width + load.shard_width)
    collective += (widths[2] + load.shard_widths) / v
    collective += pipeline.width
    collective += data.width
    collective += data.table_width
    unexplained = settings.step_width * step
    variance = unexplained * unexplained
    variance += compute * compute + stream * stream + collective * collective
    return math.exp(min(math.sqrt(variance) / step, WIDEST))
