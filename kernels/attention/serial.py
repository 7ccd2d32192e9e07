"""Decode over a latent cache where the library has no pipelined kernel for it.

TensorRT-LLM on Ampere and Ada walks all keys of a sequence in one block: parts of the keys would
fill the units, but it does not split them. Measured (aiconfigurator 095f58a, A100; L40S alike):
the time is proportional to the keys, the same for bf16 and fp8, the same from 1 to 64 heads,
doubled at 128; and steps at 32, 108 and 216 sequences show two blocks per sequence (halves of the
values) and two blocks side by side on a unit.
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit


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
    kernel = device.serial_kernel
    blocks = sequences * math.ceil(heads / kernel.heads) * kernel.parts
    tile = kernel.keys * device.latent_key_time
    alone = device.decode_latency + math.ceil(most_keys / kernel.keys) * tile
    mean = device.decode_latency + math.ceil(mean_keys / kernel.keys) * tile
    slots = kernel.residents * device.units
    full = math.floor(blocks / slots)
    rest = blocks - full * slots
    waves = full * kernel.shared
    if rest > device.units:
        waves += kernel.shared
    elif rest > 0.0:
        waves += 1.0
    return device.launch_latency + max(alone, mean * waves)
