"""Decode and windows of attention kernels in a portable language (Triton).

Letters in `columns`. What such kernels do differently from the vendor's and
FlashAttention's (SGLang ``triton_ops/decode_attention.py``, ``extend_attention.py`` and
``metadata.py``, read for their structure):

- decode is two kernels: one block per sequence, group of up to 16 heads that share keys,
  and part of the keys; then one block per head that combines the parts;
- the grid always has the most parts; blocks whose part is empty start and end;
- nothing overlaps inside a block: gather 32 keys, multiply, gather their values, multiply. The
  gathers' latency sets the pace of a block, so that only more blocks on a unit help;
- a head that shares its keys with no other has no matrix to multiply: its products run on the
  general cores;
- narrow keys are widened on the general cores, element by element;
- in prefill a window masks the tiles outside of it but the block walks over them.

Decode over a latent cache where the library has no pipelined kernel for it.

TensorRT-LLM on Ampere and Ada walks all keys of a sequence in one block: parts of the keys would
fill the units, but it does not split them. Measured (aiconfigurator 095f58a, A100; L40S alike):
the time is proportional to the keys, the same for bf16 and fp8, the same from 1 to 64 heads,
doubled at 128; and steps at 32, 108 and 216 sequences show two blocks per sequence (halves of the
values) and two blocks side by side on a unit.
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit

PARTIAL_BYTES = 4.0
"""Element of a partial result, single precision [B]."""


@jit
def portable_splits(units, keys, blocks, most, unit_keys):
    """Parts of the keys of each sequence.

    Parameters
    ----------
    units : float
        Compute units.
    keys : float
        Keys of a sequence.
    blocks : float
        Sequences times groups of heads.
    most : float
        Parts at most.
    unit_keys : float
        Parts grow with the logarithm of `keys` in these.

    Returns
    -------
    float
        Number of parts, at least 1: as many as fill the units, more for longer sequences
        (SGLang ``get_num_kv_splits_triton``).
    """
    wanted = math.floor(units * max(math.log2(keys / unit_keys), 1.0))
    return max(1.0, min(math.ceil(wanted / blocks), most))


@jit
def portable_decode_time(device, batch, keys, heads, key_value_heads, stored, width_v, hit):
    """Time of one query per sequence, both kernels.

    Parameters
    ----------
    device : AttentionDevice
        Device at one precision.
    batch, keys, heads, key_value_heads : int
        B, keys that a query sees, H and G.
    stored : int
        Elements of one key and its value.
    width_v : int
        Elements of a value.
    hit : float
        Share of the traffic that is in the last shared cache.

    Returns
    -------
    time, traffic, memory : float
        [s], [B], and the part of the time that memory alone would take [s].
    """
    units, kernel = device.units, device.portable_kernel
    group = heads // key_value_heads
    rows = min(device.smallest_query_tile, float(group))
    blocks = float(batch) * math.ceil(heads / rows)
    splits = portable_splits(units, keys, blocks, device.most_splits, kernel.split_unit_keys)
    part = math.ceil(math.ceil(keys / splits) / kernel.key_step) * kernel.key_step
    parts = math.ceil(keys / part)
    tile = kernel.alone_key_tile if group == 1 else device.decode_key_tile
    tiles = math.ceil(min(part, float(keys)) / tile)

    tile_bytes = tile * stored * device.key_bytes
    load = (1.0 - hit) * tile_bytes / (device.bandwidth * device.unit_bandwidth)
    load += hit * tile_bytes / (device.cache_bandwidth * device.cache_port)
    operations = device.product_operations if group == 1 else 0.0
    if device.key_bytes < 2.0:
        operations = max(operations, device.conversion_operations)
    vector = operations * tile * stored / device.vector_rate
    block = tiles * (load + vector) * units
    room = device.scratchpad / (device.decode_key_tile * stored * device.query_bytes)
    residents = max(1.0, min(math.floor(room), kernel.register_residents))
    starts = blocks * device.most_splits * device.decode_latency / units
    latency = max(block, block * blocks * parts / (units * residents) + starts)
    compute = max(latency, blocks * parts * tiles * vector)

    traffic = float(batch) * keys * key_value_heads * stored * device.key_bytes
    partial = 2.0 * device.most_splits * batch * heads * width_v * PARTIAL_BYTES
    memory = traffic * (1.0 - hit) / (device.bandwidth * device.memory_efficiency)
    memory += (traffic * hit + partial) / device.cache_bandwidth
    time = device.launch_latency + device.split_latency + max(compute, memory)
    return time, traffic, memory


@jit
def masked_tiles(device, inside, walked):
    """Tiles that a windowed block is worth.

    Parameters
    ----------
    device : AttentionDevice
    inside, walked : float
        Tiles that the window leaves, and that the block walks over.

    Returns
    -------
    float
        In tiles of a block without a window.
    """
    return inside * device.windowed_tile + (walked - inside) * device.masked_tile


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
