"""What the attention kernels need to know of a device."""

from __future__ import annotations

from typing import NamedTuple

NO_SPLIT = 0.0
"""`AttentionDevice.split_rule`: keys are never split."""

SPREAD_SPLIT = 1.0
"""Key tiles are spread evenly over the units, with a tenth to spare, whether or not the
parts then fill whole waves; the kernel writes partial results as soon as it may split
(FlashAttention-3, ``prepare_varlen_num_blocks_kernel`` and ``num_splits_heuristic``)."""

ONE_WAVE_SPLIT = 2.0
"""As many parts as fit one wave of blocks: in decode (TensorRT-LLM, ``multi_ctas_kv``), and where
one kernel serves both in prefill too (FlashInfer, ``PrefillBinarySearchKVChunkSize``)."""


class PortableKernel(NamedTuple):
    """How a library in a portable language cuts calls; all floats."""

    alone_key_tile: float  # keys of a decode tile where a head shares them with no other
    key_step: float  # parts of the keys are multiples of this
    split_unit_keys: float  # parts grow with the logarithm of the length in these
    register_residents: float  # blocks that the registers of a unit hold at most
    wide_head: float  # width above which a prefill block has fewer rows
    wide_rows: float  # rows of those


class SerialKernel(NamedTuple):
    """How a library without a pipelined kernel walks over a latent cache; all floats."""

    heads: float  # of one block
    parts: float  # blocks that share the values of a sequence
    residents: float  # blocks side by side on a unit
    shared: float  # time of a block that shares its unit, relative to one alone
    keys: float  # of a tile


class AttentionDevice(NamedTuple):
    """One device at one precision of queries and of the key-value cache; floats but for two."""

    matrix_rate: float  # at the precision, whole device [FLOP/s]
    exponential_rate: float  # whole device [1/s]
    head_step: float  # widths are padded to multiples of it
    vector_rate: float  # single precision on the general cores [FLOP/s]
    units: float  # compute units
    bandwidth: float  # device memory [B/s]
    cache_bandwidth: float  # sustained, last shared cache [B/s]
    cache_capacity: float  # last shared cache [B]
    scratchpad: float  # of one unit [B]
    scratchpad_bandwidth: float  # of all units together [B/s]
    power_limit: float  # of the board [W]; 0 where not stated
    query_bytes: float  # an element of Q, dO [B]
    key_bytes: float  # an element of K, V [B]
    output_bytes: float  # an element of O, dQ, dK, dV [B]
    # how the library cuts a call
    query_tile: float  # rows M of a forward block
    narrow_query_tile: float  # the same with narrow heads
    smallest_query_tile: float  # rows of the smallest
    key_tile: float  # keys N of a forward tile
    decode_key_tile: float  # the same where few queries meet a long cache
    smallest_key_tile: float  # keys that a tile keeps where the scratchpad is short
    doubled_tiles: float  # 1: tiles that the scratchpad limits have powers of two of keys
    key_stages: float  # tiles of K and of V that wait in the scratchpad
    tile_readers: float  # groups of rows that each read a tile into registers; 0: none has to
    accumulators: float  # elements of O that a block holds at most
    packs_groups: float  # 1: heads that share keys fill a tile together, else in decode only
    packs_always: float  # 0: only heads that share keys, without a window; others are not split
    pairs_units: float  # 1: two units share a head whose O is wider than `accumulators` allow
    split_rule: float  # one of the rules of this file
    most_splits: float  # parts of the keys at most
    smallest_part: float  # keys of one part at least
    latent_splits: float  # the same for a latent cache
    residents: float  # blocks side by side on a unit, prefill
    decode_residents: float  # the same, decode with heads up to 128 wide
    backward_query_tile: float  # rows M of a backward tile
    backward_key_tile: float  # keys N owned by a backward block
    backward_wide_key_tile: float  # the same where width_qk > 128: sums of dK, dV take more room
    portable: float  # 1: kernels of `kernels.attention.portable`
    portable_kernel: PortableKernel
    serial_kernel: SerialKernel
    masked_tile: float  # tile outside a window that a block walks over, relative; 0: not walked
    windowed_tile: float  # tile inside a window, relative to one without
    cache_port: float  # most that one unit draws from the last shared cache, relative
    # fitted
    matrix_efficiency: float  # sustained share of matrix_rate, forward
    backward_matrix_efficiency: float  # the same, backward
    wide_backward: float  # factor on that where width_qk > 128: tiles outgrow the scratchpad
    latent_efficiency: float  # factor on the matrix rate with a shared latent cache
    latent_memory: float  # the same on the memory rate
    latent_key_time: float  # of one key in a kernel that neither splits nor pipelines [s]; 0: none
    softmax_operations: float  # vector FLOP per element of S, forward
    backward_operations: float  # vector FLOP per element of S, backward
    conversion_operations: float  # vector FLOP per element of a narrow V, transposed or widened
    product_operations: float  # vector FLOP per element of K and V where no matrix unit serves
    overlap: float  # 0: products and softmax in turn; 1: fully overlapped
    backward_overlap: float
    lone_tile: float  # time of a tile where one block has the unit for itself, relative
    tail: float  # share of a block idle at the end of the last wave
    memory_efficiency: float  # sustained share of bandwidth
    unit_bandwidth: float  # most that one unit draws from memory, relative to its even share
    cache_share: float  # share of cache_capacity that stays from call to call
    block_latency: float  # start and end of a block: load Q, first K, store O [s]
    decode_latency: float  # the same, decode [s]
    width_latency: float  # how that grows with the width of a head, relative
    exposed_latency: float  # share of the shorter of block starts and memory time not hidden
    split_latency: float  # preparing a split and combining its parts [s]
    split_block_latency: float  # partial result of one block [s]
    launch_latency: float  # of a kernel inside a stream [s]
    energy_per_flop: float  # of the whole device under attention [J]
    power_exponent: float  # rate at the power limit ~ power ** this
    heat_time: float  # after which the power limit is felt [s]; 0 under a steady load
    # how soon the same data come up again (`kernels.stream.bytes_between`)
    copies: float = 0.0
    resident: float = 0.0
