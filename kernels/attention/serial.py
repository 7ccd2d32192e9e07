"""Decode over a latent cache where the library has no pipelined kernel for it.

TensorRT-LLM on Ampere walks all keys of a sequence in one block: parts of the keys would fill
the units, but it does not split them. Measured (aiconfigurator 095f58a, A100): the time is
proportional to the keys, the same for bf16 and fp8, the same from 1 to 64 heads, doubled at 128;
and steps at 32, 108 and 216 sequences show two blocks per sequence (halves of the values) and two
blocks side by side on a unit.
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit

HEADS = 64
"""Heads of one block."""

PARTS = 2.0
"""Blocks that share the values of a sequence."""

RESIDENTS = 2.0
"""Blocks side by side on a unit."""

SHARED = 1.42
"""Time of a block that shares its unit, relative to one alone."""

KEYS = 64.0
"""Keys of a tile."""


@jit
def serial_latent_time(device, sequences, heads, mean_keys, most_keys):
    """Time of one query per sequence.

    Parameters
    ----------
    device : AttentionDevice
        ``latent_key_time`` is that of one key in a block that has a unit for itself [s].
    sequences : float
        B.
    heads : int
        Query heads that share the cache.
    mean_keys, most_keys : float
        Keys of a sequence, on average and of the longest.

    Returns
    -------
    float
        [s]
    """
    blocks = sequences * math.ceil(heads / HEADS) * PARTS
    tile = KEYS * device.latent_key_time
    alone = device.decode_latency + math.ceil(most_keys / KEYS) * tile
    mean = device.decode_latency + math.ceil(mean_keys / KEYS) * tile
    slots = RESIDENTS * device.units
    full = math.floor(blocks / slots)
    rest = blocks - full * slots
    waves = full * SHARED
    if rest > device.units:
        waves += SHARED
    elif rest > 0.0:
        waves += 1.0
    return device.launch_latency + max(alone, mean * waves)
