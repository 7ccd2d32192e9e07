"""What passes through a cache until a call's data come up again."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit


@jit
def bytes_between(own, copies, resident):
    """Bytes that a cache sees from one use of some data to the next, these included.

    Parameters
    ----------
    own : float
        Of one call [B].
    copies : float
        Calls until the same data come up again: 1 where a call is replayed; 0: never.
    resident : float
        All bytes that are in use from call to call, other kernels' too [B]; 0: not stated.

    Returns
    -------
    float
        [B]; infinite where the data come from memory.
    """
    if resident > 0.0:
        return max(own, resident)
    return own * copies if copies > 0.0 else math.inf
