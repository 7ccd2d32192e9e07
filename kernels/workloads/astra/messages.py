"""Times of messages between ranks as ASTRA-sim's congestion-unaware backend has them."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.workloads.astra.phase import (
    BYTES_PER_NANOSECOND,
    LATENCY,
    SIZE,
    TOPOLOGY,
    hops,
    message_time,
)
from perfmodel.kernels.workloads.astra.ranks import distance_offset


@jit
def message_times(sources, destinations, sizes, network):
    """Times of messages, each on idle links.

    Parameters
    ----------
    sources, destinations : int64[rows]
        Device ids.
    sizes : int64[rows]
        [B].
    network : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    int64[rows]
        [ns]; 0 for a message to oneself, ``ABORTED`` (-1) for an empty one.
    """
    times = np.zeros(sizes.shape[0], np.int64)
    for row in range(sizes.shape[0]):
        if sources[row] != destinations[row]:
            offset = distance_offset(sources[row], destinations[row], network)
            times[row] = message_time(sizes[row], offset, network)
    return times


@jit
def pair_links(members, network, latency, bandwidth):
    """Set what a message from each member to each other one pays for.

    Parameters
    ----------
    members : int64[members]
        Device ids.
    network : float64[dimensions, NETWORK_COLUMNS]
    latency, bandwidth : float64[members * (members - 1)]
        Result [ns], [B/ns]: of the first dimension in which the two differ, as
        :func:`perfmodel.kernels.workloads.astra.phase.message_time` has it.
    """
    pair = 0
    for source in members:
        for target in members:
            if source == target:
                continue
            stride = 1
            for dimension in range(network.shape[0]):
                row = network[dimension]
                size = int(row[SIZE])
                apart = abs(source // stride % size - target // stride % size)
                if apart > 0:
                    latency[pair] = hops(int(row[TOPOLOGY]), size, apart) * row[LATENCY]
                    bandwidth[pair] = row[BYTES_PER_NANOSECOND]
                    break
                stride *= size
            pair += 1
