"""Communication under way at the same time, which shares the ports of its devices.

A communication first takes what its time alone has beyond its transfer; then its bytes
flow. Its speed is 1 as long as every port that it crosses has room for all that flow there,
and otherwise the max-min fair share (`kernels.links.fair_share`).

Letters
    f   flows: communications of several devices
    u   uses: what a flow takes of one port
    r   ports, and links that make up a part of one
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.events import TIME, WAITING, schedule
from perfmodel.kernels.fair_share import weighted_max_min_rates

SAME_TIME = 1e-9  # relative to the transfer: slowed flows this close end together
FULL = 1.0 + 1e-9  # a port with more on it has no room for all

# Entries of `Sharing.state`.
ACTIVE = 0
STALE = 1


class Flows(NamedTuple):
    """Communication that may meet other communication; all empty where none is to."""

    first: np.ndarray  # int64[f + 1] where a flow's uses begin
    port: np.ndarray  # int64[u]
    use: np.ndarray  # float64[u] of the port, while the flow's bytes flow at full speed
    transfer: np.ndarray  # float64[f] time alone in which bytes flow; 0: shares nothing
    event: np.ndarray  # int64[f] what happens when it ends
    of_send: np.ndarray  # int64[dynamic] flow of a message, by the node that sends it
    ports: int  # r


class Sharing(NamedTuple):
    """Flows under way."""

    state: np.ndarray  # int64[2] flows whose bytes flow; whether their speeds are out of date
    active: np.ndarray  # int64[f] these flows
    finish: np.ndarray  # float64[f] end of a flow at its present speed
    speed: np.ndarray  # float64[f] 0 … 1
    slowed: np.ndarray  # bool[f] whether it ever was below 1
    earliest: np.ndarray  # float64[1] next finish
    demand: np.ndarray  # float64[r] all 0 between calls
    number: np.ndarray  # int64[r] all -1 between calls


@jit
def new_sharing(flows):
    """No flow under way."""
    count = flows.transfer.shape[0]
    return Sharing(
        np.zeros(2, np.int64),
        np.empty(count, np.int64),
        np.empty(count),
        np.empty(count),
        np.zeros(count, np.bool_),
        np.full(1, math.inf),
        np.zeros(flows.ports),
        np.full(flows.ports, -1, np.int64),
    )


@jit
def begin_flow(sharing, flow):
    """Let the bytes of a flow, whose finish alone is set, flow from now on."""
    sharing.active[sharing.state[ACTIVE]] = flow
    sharing.state[ACTIVE] += 1
    sharing.state[STALE] = 1
    sharing.speed[flow] = 1.0


@jit
def set_speeds(flows, sharing, now):
    """Give all flows their fair speeds if some began or ended; a speed kept keeps the finish."""
    if sharing.state[STALE] == 0:
        return
    sharing.state[STALE] = 0
    active = sharing.active[: sharing.state[ACTIVE]]
    demand = sharing.demand
    for flow in active:
        for entry in range(flows.first[flow], flows.first[flow + 1]):
            demand[flows.port[entry]] += flows.use[entry]
    crowded, speeds = _crowded_speeds(flows, sharing, active)
    place = 0
    sharing.earliest[0] = math.inf
    for flow in active:
        speed = 1.0
        if place < crowded.shape[0] and crowded[place] == flow:
            speed = min(1.0, speeds[place])
            place += 1
        if speed != sharing.speed[flow]:
            left = (sharing.finish[flow] - now) * sharing.speed[flow]
            sharing.finish[flow] = now + left / speed
            sharing.speed[flow] = speed
            sharing.slowed[flow] = True
        sharing.earliest[0] = min(sharing.earliest[0], sharing.finish[flow])
        for entry in range(flows.first[flow], flows.first[flow + 1]):
            demand[flows.port[entry]] = 0.0


@jit
def _crowded_speeds(flows, sharing, active):
    """Flows on ports without room for all, in the order of `active`, and their speeds.

    Only such ports can slow a flow, so no others are looked at.
    """
    crowded = np.empty(active.shape[0], np.int64)
    count = 0
    entries = 0
    for flow in active:
        before = entries
        for entry in range(flows.first[flow], flows.first[flow + 1]):
            entries += sharing.demand[flows.port[entry]] > FULL
        if entries > before:
            crowded[count] = flow
            count += 1
    if count == 0:
        return crowded[:0], np.empty(0)
    offsets = np.zeros(count + 1, np.int64)
    ports = np.empty(entries, np.int64)
    use = np.empty(entries)
    seen = np.empty(entries, np.int64)
    used = 0
    end = 0
    for place in range(count):
        flow = crowded[place]
        for entry in range(flows.first[flow], flows.first[flow + 1]):
            port = flows.port[entry]
            if sharing.demand[port] > FULL:
                if sharing.number[port] < 0:
                    sharing.number[port] = used
                    seen[used] = port
                    used += 1
                ports[end] = sharing.number[port]
                use[end] = flows.use[entry]
                end += 1
        offsets[place + 1] = end
    for place in range(used):
        sharing.number[seen[place]] = -1
    ones = np.ones(count)
    return crowded[:count], weighted_max_min_rates(offsets, ports, use, np.ones(used), ones, ones)


@jit
def end_flows(flows, sharing, calendar, now):
    """Put what ends next into the calendar, if nothing there comes before it."""
    earliest = sharing.earliest[0]
    if earliest == math.inf:
        return
    if calendar[0, WAITING] > 0 and calendar[1, TIME] < earliest:
        return
    kept = 0
    for place in range(sharing.state[ACTIVE]):
        flow = sharing.active[place]
        late = sharing.finish[flow] - earliest
        if late <= (SAME_TIME * flows.transfer[flow] if sharing.slowed[flow] else 0.0):
            schedule(calendar, earliest, now, flows.event[flow])
        else:
            sharing.active[kept] = flow
            kept += 1
    sharing.state[ACTIVE] = kept
    sharing.state[STALE] = 1
    sharing.earliest[0] = math.inf
