"""A device and calls that the tests of attention kernels price."""

from __future__ import annotations

from hypothesis import strategies as st

from perfmodel.kernels.attention.backward import attention_backward
from perfmodel.kernels.attention.device import (
    ONE_WAVE_SPLIT,
    SPREAD_SPLIT,
    AttentionDevice,
    PortableKernel,
    SerialKernel,
)
from perfmodel.kernels.attention.forward import attention_forward

# round numbers of an H100-like device
DEVICE = AttentionDevice(
    matrix_rate=1e15,
    exponential_rate=3.9e12,
    vector_rate=67e12,
    units=132.0,
    bandwidth=3.35e12,
    cache_bandwidth=4e12,
    cache_capacity=50e6,
    scratchpad=228.0 * 1024,
    scratchpad_bandwidth=132.0 * 128.0 * 1.98e9,
    power_limit=0.0,
    query_bytes=2.0,
    key_bytes=2.0,
    output_bytes=2.0,
    query_tile=128.0,
    narrow_query_tile=128.0,
    smallest_query_tile=64.0,
    key_tile=128.0,
    decode_key_tile=128.0,
    smallest_key_tile=64.0,
    doubled_tiles=0.0,
    key_stages=2.0,
    tile_readers=0.0,
    accumulators=32768.0,
    packs_groups=1.0,
    packs_always=1.0,
    pairs_units=0.0,
    split_rule=SPREAD_SPLIT,
    most_splits=128.0,
    smallest_part=0.0,
    residents=1.0,
    decode_residents=1.0,
    backward_query_tile=64.0,
    backward_key_tile=128.0,
    backward_wide_key_tile=64.0,
    matrix_efficiency=0.8,
    backward_matrix_efficiency=0.7,
    wide_backward=0.65,
    latent_efficiency=0.9,
    latent_memory=0.9,
    latent_splits=128.0,
    head_step=32.0,
    latent_key_time=0.0,
    portable=0.0,
    portable_kernel=PortableKernel(64.0, 32.0, 64.0, 4.0, 256.0, 32.0),
    serial_kernel=SerialKernel(64.0, 2.0, 2.0, 1.42, 64.0),
    masked_tile=0.0,
    windowed_tile=1.0,
    cache_port=2.0,
    product_operations=0.0,
    softmax_operations=6.0,
    backward_operations=10.0,
    conversion_operations=0.0,
    overlap=0.7,
    backward_overlap=0.4,
    lone_tile=1.1,
    tail=0.9,
    memory_efficiency=0.88,
    unit_bandwidth=1.5,
    cache_share=0.5,
    block_latency=2.5e-6,
    decode_latency=2e-6,
    width_latency=0.2,
    exposed_latency=0.5,
    split_latency=2e-6,
    split_block_latency=0.0,
    launch_latency=2e-6,
    energy_per_flop=1e-12,
    power_exponent=0.55,
    heat_time=1e-3,
)

ONE_WAVE = DEVICE._replace(
    split_rule=ONE_WAVE_SPLIT, packs_groups=0.0, pairs_units=1.0, query_tile=256.0
)


def forward(device, *call, latent=False, copies=0.0, prefill=False):
    """Forward pass of a plain call."""
    return attention_forward(device._replace(copies=copies), *call, latent, prefill)


lengths = st.integers(1, 48)

calls = st.tuples(
    st.integers(1, 16),  # batch
    st.integers(1, 6000),  # queries
    st.integers(0, 4000),  # cached keys
    st.integers(1, 8),  # key-value heads
    st.sampled_from([1, 2, 4, 8]),  # group
    st.sampled_from([(64, 64), (128, 128), (192, 128), (256, 256)]),
    st.booleans(),
    st.sampled_from([0, 0, 128, 1024]),
)


def priced(call, device=DEVICE, backward=False, **changes):
    """Result of a call with some of its parts changed."""
    names = ("batch", "queries", "cached", "kv_heads", "group", "widths", "causal", "window")
    part = dict(zip(names, call, strict=True)) | changes
    kernel = attention_backward if backward else forward
    return kernel(
        device,
        part["batch"],
        part["queries"],
        part["queries"] + part["cached"],
        part["kv_heads"] * part["group"],
        part["kv_heads"],
        *part["widths"],
        part["causal"],
        part["window"],
    )
