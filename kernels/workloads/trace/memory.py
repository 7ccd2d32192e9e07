"""Memory that the tensors of one rank need at most while its operations run."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit

FOR_EVER = np.inf


@jit
def peak_memory(order, start, end, input_first, inputs, output_first, outputs, key, size, keys):
    """Return the most bytes that live at one time.

    Parameters
    ----------
    order : int64[nodes]
        Nodes in the order in which they ended.
    start, end : float64[nodes]
        In any unit.
    input_first, output_first : int64[nodes + 1]
        Where a node's tensors begin in `inputs` and `outputs`.
    inputs, outputs : int64[items]
        Rows of `key` and `size`.
    key : int64[tensors]
        Which name a tensor has.
    size : int64[tensors]
        [B].
    keys : int
        Number of names.

    Returns
    -------
    float
        [B].

    Notes
    -----
    LocalMemUsageTracker.cc: a tensor lives from the start of the node that writes it, or
    from 0 where a node reads it before any has written it, to the end of the node that
    reads it last; what is never read lives for ever. Every moment counts what is left
    after the tensors of that moment have come and gone. The first size of a name counts.
    """
    born = np.full(keys, -1.0)
    dead = np.full(keys, FOR_EVER)
    amount = np.zeros(keys)
    for node in order:
        for item in range(input_first[node], input_first[node + 1]):
            name = key[inputs[item]]
            if born[name] < 0.0:
                born[name] = 0.0
                amount[name] = size[inputs[item]]
            dead[name] = end[node]
        for item in range(output_first[node], output_first[node + 1]):
            name = key[outputs[item]]
            if born[name] < 0.0:
                born[name] = start[node]
                amount[name] = size[outputs[item]]
    seen = np.flatnonzero(born >= 0.0)
    births = seen[np.argsort(born[seen], kind="mergesort")]
    deaths = seen[np.argsort(dead[seen], kind="mergesort")]
    alive = 0.0
    peak = 0.0
    gone = 0
    item = 0
    while item < births.shape[0]:
        now = born[births[item]]
        while gone < deaths.shape[0] and dead[deaths[gone]] < now:
            alive -= amount[deaths[gone]]
            gone += 1
        while item < births.shape[0] and born[births[item]] == now:
            alive += amount[births[item]]
            item += 1
        while gone < deaths.shape[0] and dead[deaths[gone]] <= now:
            alive -= amount[deaths[gone]]
            gone += 1
        peak = max(peak, alive)
    return peak
