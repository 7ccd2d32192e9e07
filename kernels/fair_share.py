"""Max-min fair rates of flows on shared links, and fair shares of one resource.

Routes are compressed rows: flow f uses ``links[offsets[f]:offsets[f + 1]]``, each as often as
``use`` says. A flow without links is limited by its cap only.

Letters
    f   flows
    l   links
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit

TIE = 1e-12  # relative: links this close to the bottleneck are bottlenecks too


@jit
def flows_of_links(offsets, links, link_count):
    """Turn routes round: the flows of every link.

    Parameters
    ----------
    offsets : int64[f + 1]
    links : int64[...]
    link_count : int
        l.

    Returns
    -------
    first : int64[l + 1]
    flows, entries : int64[...]
        Link i is used by ``flows[first[i]:first[i + 1]]``, as `entries` of `links` say.
    """
    first = np.zeros(link_count + 1, dtype=np.int64)
    for entry in range(offsets[0], offsets[-1]):
        first[links[entry] + 1] += 1
    for link in range(link_count):
        first[link + 1] += first[link]
    flows = np.empty(first[-1], dtype=np.int64)
    entries = np.empty(first[-1], dtype=np.int64)
    place = first[:-1].copy()
    for flow in range(offsets.shape[0] - 1):
        for entry in range(offsets[flow], offsets[flow + 1]):
            link = links[entry]
            flows[place[link]] = flow
            entries[place[link]] = entry
            place[link] += 1
    return first, flows, entries


@jit
def weighted_max_min_rates(offsets, links, use, capacity, cap, weight):
    """Max-min fair rates by progressive filling.

    Parameters
    ----------
    offsets : int64[f + 1]
    links : int64[...]
    use : float64[...]
        Bytes on the link per byte of the flow, > 0; 1 on a route.
    capacity : float64[l]
        [B/s], > 0.
    cap : float64[f]
        Largest rate of a flow [B/s]; inf: none.
    weight : float64[f]
        > 0; flows of one bottleneck get rates in proportion to their weights.

    Returns
    -------
    float64[f]
        [B/s]; inf without links and cap.

    Notes
    -----
    All rates grow together, in proportion to their weights, until a link is full or a cap
    is reached; those flows are frozen, the others go on (Bertsekas & Gallager 1992, "Data
    Networks", §6.5.2). O(links x bottlenecks + entries of the routes): links that fill up
    at the same level are frozen in one pass, links without moving flows are dropped.
    """
    flow_count = offsets.shape[0] - 1
    link_count = capacity.shape[0]
    first, flows, entries = flows_of_links(offsets, links, link_count)
    rate = np.full(flow_count, math.inf)
    moving = np.ones(flow_count, dtype=np.bool_)

    level = cap / weight  # at which a cap is reached
    by_cap = np.argsort(level, kind="mergesort")
    next_cap = 0

    free = capacity.copy()  # what frozen flows leave
    grows = np.zeros(link_count)  # weight of the moving flows, as they use the link
    count = np.zeros(link_count, dtype=np.int64)  # moving entries
    open_links = np.empty(link_count, dtype=np.int64)
    opened = 0
    for link in range(link_count):
        count[link] = first[link + 1] - first[link]
        for entry in range(first[link], first[link + 1]):
            grows[link] += weight[flows[entry]] * use[entries[entry]]
        if count[link] > 0:
            open_links[opened] = link
            opened += 1

    while True:
        lowest = math.inf
        kept = 0
        for index in range(opened):
            link = open_links[index]
            if count[link] > 0:
                open_links[kept] = link
                kept += 1
                lowest = min(lowest, free[link] / grows[link])
        opened = kept
        while next_cap < flow_count and not moving[by_cap[next_cap]]:
            next_cap += 1
        if next_cap < flow_count:
            lowest = min(lowest, level[by_cap[next_cap]])
        if lowest == math.inf:
            return rate
        lowest = max(lowest, 0.0)
        reached = lowest * (1.0 + TIE)

        # Caps first: a flow at its cap is frozen there even if its link is just full.
        while next_cap < flow_count and level[by_cap[next_cap]] <= reached:
            flow = by_cap[next_cap]
            if moving[flow]:
                _freeze(
                    flow, cap[flow], offsets, links, use, weight, rate, moving, free, grows, count
                )
            next_cap += 1
        for index in range(opened):
            link = open_links[index]
            if count[link] == 0 or free[link] > reached * grows[link]:
                continue
            for entry in range(first[link], first[link + 1]):
                flow = flows[entry]
                if moving[flow]:
                    share = lowest * weight[flow]
                    _freeze(
                        flow, share, offsets, links, use, weight, rate, moving, free, grows, count
                    )


@jit
def _freeze(flow, share, offsets, links, use, weight, rate, moving, free, grows, count):
    """Give a flow its rate and take it off its links."""
    rate[flow] = share
    moving[flow] = False
    for entry in range(offsets[flow], offsets[flow + 1]):
        link = links[entry]
        free[link] = max(free[link] - share * use[entry], 0.0)
        grows[link] -= weight[flow] * use[entry]
        count[link] -= 1


@jit
def shared_time(own, other):
    """Finish time of one of two classes that begin together on one saturated resource.

    Parameters
    ----------
    own, other : float
        Times alone [s], >= 0.

    Returns
    -------
    float
        ``own + min(own, other)`` [s]: both get half until the shorter one is done.
    """
    return own + min(own, other)
