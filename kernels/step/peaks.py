"""Memory at the peak that neighbouring strategies share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit_inline, jit_lean_inline
from perfmodel.kernels.step.memory import heads_kept, in_flight, stage_flight, stage_memory
from perfmodel.kernels.step.tables import GPIPE, ROW

SLOTS = 4096
"""A power of two."""
STATED = 18
"""Numbers of a question ahead of the flights of its stages."""
FIRST, LAST = ROW.memory_parameters, ROW.memory_nvme
"""Rows of the result that are memory."""


class Peaks(NamedTuple):
    """The last answers of `stage_memory`, and what was asked."""

    asked: np.ndarray  # float64[SLOTS, STATED + rows of a stage key]; a stage key of -1: nothing
    found: np.ndarray  # float64[SLOTS, rows of the result from FIRST to LAST]
    now: np.ndarray  # float64[STATED + rows of a stage key]: a question


@jit_inline
def no_peaks(stages):
    """Return `Peaks` without an answer."""
    most = 0
    for number in range(stages.of.size):
        most = max(most, stages.of[number].behind - stages.of[number].first)
    asked = np.zeros((SLOTS, STATED + most))
    asked[:, 0] = -1.0
    return Peaks(asked, np.zeros((SLOTS, LAST - FIRST + 1)), np.zeros(STATED + most))


@jit_lean_inline
def holds_alike(strategy, batches, before, stages, waits, settings):
    """Tell whether other micro-batches of a strategy keep the same on all of its stages.

    Where a pipeline is full, more of them make no difference, unless all of them are kept.
    """
    if batches.micro == before.micro:
        return True
    parks = strategy.offload_activations > 0.0
    if strategy.pipeline_parallel > 1 and (settings.memory.receives_ahead or parks):
        return False
    most = 0.0
    if batches.waits >= 0:
        if waits.of[batches.waits].heads != waits.of[before.waits].heads:
            return False
        key = stages.of[strategy.stage_key]
        for row in range(key.behind - key.first):
            flight = waits.flight[batches.waits, row]
            if flight != waits.flight[before.waits, row]:
                return False
            most = max(most, flight)
    else:
        if strategy.schedule & GPIPE and strategy.pipeline_parallel > 1:
            return False
        every = 1 << 60  # all that there can be
        most = in_flight(
            strategy.schedule, 0, every, strategy.pipeline_parallel, strategy.virtual_pipeline
        )
    return min(batches.micro, before.micro) > most


@jit_lean_inline
def memoised_memory(strategy, batches, stages, waits, groups, sizes, settings, out, peaks):
    """Write what `stage_memory` does, from memory where all that it depends on is alike.

    That is what neighbours in a grid share that differ in nothing but the batch or the mapping. Of
    micro-batches only matter how many are in flight, whether there are more, and where buffers for
    all of them are kept.

    Parameters
    ----------
    strategy, batches, stages, waits, groups, sizes, settings, out
        As of `perfmodel.kernels.step.memory.stage_memory`.
    peaks : Peaks
    """
    now, key = peaks.now, strategy.stage_key
    now[0], now[1], now[2], now[3] = (
        key,
        strategy.zero_stage,
        strategy.data_parallel,
        strategy.shard_group,
    )
    now[4] = heads_kept(strategy, batches, waits)
    now[5], now[6] = strategy.offload_activations, strategy.offload_activations_to
    now[7], now[8] = strategy.offload_optimizer, strategy.offload_optimizer_to
    now[9], now[10] = strategy.offload_parameters, strategy.offload_parameters_to
    now[11] = batches.micro if settings.memory.receives_ahead else 0.0
    now[12], now[13], now[14] = (
        strategy.tensor_parallel,
        strategy.context_parallel,
        strategy.pipeline_parallel,
    )
    now[15], now[16] = strategy.expert_parallel, strategy.expert_tensor_parallel
    mixed = (
        31.0 * key + 7.0 * strategy.zero_stage + 3.0 * strategy.data_parallel + strategy.shard_group
    )
    first, more = stages.of[key].first, 0.0
    rows = stages.of[key].behind - first
    for row in range(rows):
        flight = stage_flight(strategy, batches, stages, waits, first + row)
        now[STATED + row] = flight
        more = 2.0 * more + (1.0 if batches.micro > flight else 0.0)
        mixed += (row + 5.0) * flight
    now[17] = more
    slot = int(mixed) & (SLOTS - 1)
    asked, found = peaks.asked[slot], peaks.found[slot]
    known = True
    for number in range(STATED + rows):
        known = known and asked[number] == now[number]
    if known:
        for number in range(found.size):
            out[FIRST + number] = found[number]
        return
    stage_memory(strategy, batches, stages, waits, groups, sizes, settings, out)
    for number in range(STATED + rows):
        asked[number] = now[number]
    for number in range(found.size):
        found[number] = out[FIRST + number]
