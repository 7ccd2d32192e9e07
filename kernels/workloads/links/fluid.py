"""Flows that begin in stages, share links max-min fairly and finish, like fluids.

Letters
    f   flows
    l   links
    k   stages: flows that begin together, once the stage before is over
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.fair_share import weighted_max_min_rates

SAME_TIME = 1e-9  # relative to the step of time: flows this close finish together


@jit
def fluid_finish_times(size, stage, offsets, links, capacity, cap, weight, ready, after, delay):
    """Finish times of flows that share links max-min fairly, like a fluid.

    Parameters
    ----------
    size : float64[f]
        [B].
    stage : int64[f]
        Stage of every flow, ascending.
    offsets, links, capacity, cap, weight
        As for :func:`perfmodel.kernels.fair_share.weighted_max_min_rates`.
    ready : float64[k]
        Earliest begin of a stage [s].
    after : int64[k]
        Stage that has to be over before; -1: none. ``after[i] < i``.
    delay : float64[k]
        From the begin of a stage to its first byte [s].

    Returns
    -------
    flow_finish : float64[f]
        [s].
    stage_begin, stage_finish : float64[k]
        [s]; a stage is over with its last flow, an empty one after its delay.

    Notes
    -----
    Rates are computed anew whenever a stage begins or a flow ends, so the work is that of
    one :func:`weighted_max_min_rates` of the active flows per event.
    """
    flow_count = size.shape[0]
    stage_count = ready.shape[0]
    left = size.copy()
    flow_finish = np.full(flow_count, math.inf)
    stage_begin = np.full(stage_count, math.inf)
    stage_finish = np.full(stage_count, math.inf)
    first_flow = np.searchsorted(stage, np.arange(stage_count + 1))
    unfinished = first_flow[1:] - first_flow[:-1]
    flowing_at = np.full(stage_count, math.inf)  # when a stage's bytes begin to flow
    successors, next_of = _successors(after)
    # Stages that wait for their first byte, a plain list: few at any time.
    waiting = np.empty(stage_count, dtype=np.int64)
    waits = 0
    for index in range(stage_count):
        if after[index] < 0:
            stage_begin[index] = ready[index]
            flowing_at[index] = ready[index] + delay[index]
            waiting[waits] = index
            waits += 1
    over = np.empty(stage_count, dtype=np.int64)  # stages that ended now
    active = np.empty(flow_count, dtype=np.int64)
    actives = 0
    now = -math.inf
    rate = np.empty(0)
    stale = False
    while waits > 0 or actives > 0:
        if stale:
            rate = _active_rates(active[:actives], offsets, links, capacity, cap, weight)
            stale = False
        step = math.inf
        for place in range(actives):
            step = min(step, left[active[place]] / rate[place])
        arrival = math.inf
        for place in range(waits):
            arrival = min(arrival, flowing_at[waiting[place]])
        if step == math.inf and arrival == math.inf:
            break  # flows without any rate: their links have no capacity
        overs = 0
        if arrival <= now + step or actives == 0:
            passed = arrival - now if actives > 0 else 0.0
            now = arrival
            ends = -1.0  # nothing ends by this event unless it is done anyhow
        else:
            passed = step
            now += step
            ends = step * (1.0 + SAME_TIME)
        kept = 0
        for place in range(actives):
            flow = active[place]
            if left[flow] <= rate[place] * ends:
                flow_finish[flow] = now
                unfinished[stage[flow]] -= 1
                if unfinished[stage[flow]] == 0:
                    over[overs] = stage[flow]
                    overs += 1
            else:
                left[flow] = max(left[flow] - rate[place] * passed, 0.0)
                active[kept] = flow
                rate[kept] = rate[place]
                kept += 1
        stale = kept != actives
        actives = kept

        # Begin what is due; stages that end at once may let others begin at once.
        while True:
            for place in range(overs):
                index = over[place]
                stage_finish[index] = now
                follower = successors[index]
                while follower >= 0:
                    stage_begin[follower] = max(now, ready[follower])
                    flowing_at[follower] = stage_begin[follower] + delay[follower]
                    waiting[waits] = follower
                    waits += 1
                    follower = next_of[follower]
            overs = 0
            still = 0
            for place in range(waits):
                index = waiting[place]
                if flowing_at[index] > now:
                    waiting[still] = index
                    still += 1
                    continue
                for flow in range(first_flow[index], first_flow[index + 1]):
                    endless = offsets[flow + 1] == offsets[flow] and cap[flow] == math.inf
                    if left[flow] <= 0.0 or endless:
                        flow_finish[flow] = now
                        unfinished[index] -= 1
                    else:
                        active[actives] = flow
                        actives += 1
                        stale = True
                if unfinished[index] == 0:
                    over[overs] = index
                    overs += 1
            waits = still
            if overs == 0:
                break
    return flow_finish, stage_begin, stage_finish


@jit
def _successors(after):
    """First stage that waits for each stage, and the next one that waits for the same."""
    successors = np.full(after.shape[0], -1, dtype=np.int64)
    next_of = np.full(after.shape[0], -1, dtype=np.int64)
    for index in range(after.shape[0] - 1, -1, -1):
        if after[index] >= 0:
            next_of[index] = successors[after[index]]
            successors[after[index]] = index
    return successors, next_of


@jit
def _active_rates(active, offsets, links, capacity, cap, weight):
    """Rates of some flows, with the links that they use numbered anew."""
    count = active.shape[0]
    active_offsets = np.zeros(count + 1, dtype=np.int64)
    for place in range(count):
        flow = active[place]
        active_offsets[place + 1] = active_offsets[place] + offsets[flow + 1] - offsets[flow]
    active_links = np.empty(active_offsets[-1], dtype=np.int64)
    number = np.full(capacity.shape[0], -1, dtype=np.int64)
    active_capacity = np.empty(min(capacity.shape[0], active_offsets[-1]))
    used = 0
    entry = 0
    for place in range(count):
        flow = active[place]
        for source in range(offsets[flow], offsets[flow + 1]):
            link = links[source]
            if number[link] < 0:
                number[link] = used
                active_capacity[used] = capacity[link]
                used += 1
            active_links[entry] = number[link]
            entry += 1
    return weighted_max_min_rates(
        active_offsets,
        active_links,
        np.ones(entry),
        active_capacity[:used],
        cap[active],
        weight[active],
    )
