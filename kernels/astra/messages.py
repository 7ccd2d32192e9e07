"""Times of messages between ranks as ASTRA-sim's congestion-unaware backend has them."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.astra.phase import message_time
from perfmodel.kernels.astra.ranks import distance_offset


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
