"""Times of the steps of an explicit schedule on a network.

Letters
    m   messages
    r   distinct routes
    l   links
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit


@jit
def step_times(step, size, route, offsets, links, bandwidth, latency):
    """Time of the busiest link and of the longest route of every step.

    Parameters
    ----------
    step : int64[m]
        From 0, ascending.
    size : float64[m]
        [B].
    route : int64[m]
        Route of each message.
    offsets : int64[r + 1]
        Route i passes ``links[offsets[i]:offsets[i + 1]]``.
    links : int64[...]
    bandwidth : float64[l]
        [B/s].
    latency : float64[r]
        Of all hops of a route [s].

    Returns
    -------
    transfer : float64[steps]
        ``max(load / bandwidth)`` over the links [s].
    longest : float64[steps]
        Longest latency of the step's routes [s].
    """
    count = step[-1] + 1 if step.shape[0] else 0
    transfer = np.zeros(count)
    longest = np.zeros(count)
    load = np.zeros(bandwidth.shape[0])
    first = 0
    while first < step.shape[0]:
        now = step[first]
        last = first
        while last < step.shape[0] and step[last] == now:
            taken = route[last]
            longest[now] = max(longest[now], latency[taken])
            for entry in range(offsets[taken], offsets[taken + 1]):
                link = links[entry]
                load[link] += size[last]
                transfer[now] = max(transfer[now], load[link] / bandwidth[link])
            last += 1
        for message in range(first, last):  # only what was touched
            taken = route[message]
            for entry in range(offsets[taken], offsets[taken + 1]):
                load[links[entry]] = 0.0
        first = last
    return transfer, longest
