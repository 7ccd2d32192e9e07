"""Chain of lightning attention: linear attention with a fixed decay per head.

Qin et al. 2024 (arXiv:2401.04658; MiniMax-01, arXiv:2501.08313) as flash-linear-attention runs it
(``ops/lightning_attn/chunk.py`` over ``ops/simple_gla/chunk.py``, ``ops/common/chunk_h.py`` and
``chunk_o.py``), read for its structure. A kernel carries blocks of the state of 64 x 64 from
chunk to chunk; the others are parallel over chunks.

Letters: ``T`` tokens, ``H`` heads, ``G`` key heads, ``K``, ``V`` widths, ``C`` a chunk.
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit
from perfmodel.kernels.recurrence.blocks import (
    ELEMENT_OPERATIONS,
    Block,
    both,
    kernel_cost,
    product_time,
)
from perfmodel.kernels.recurrence.delta import KEY_BLOCK, VALUE_BLOCK, WIDE_BYTES, one_step


@jit
def carried_cost(device, batch, chunks, tokens, heads, key_heads, K, V, C, state_bytes, carried):
    """States of all chunks, or gradients of them (``chunk_fwd_h``, ``chunk_bwd_dh``): sequential.

    Per chunk ``S = decay S + k^T v``; operands are fetched ahead, and sums stay in registers.
    `state_bytes` is what an element of a state is stored in; `carried` as in
    `delta.states_cost`.
    """
    e = device.element_bytes
    rows, columns = min(KEY_BLOCK, K), min(VALUE_BLOCK, V)
    count = batch * heads * math.ceil(K / KEY_BLOCK) * math.ceil(V / VALUE_BLOCK)
    elements = C * (rows + columns) + rows * columns
    block = Block(
        count, chunks / batch, product_time(device, rows, columns, C),
        elements * ELEMENT_OPERATIONS,
        (elements - rows * columns) * e + rows * columns * state_bytes, 1.0, 0.0,
        device.residents, device.portable_bandwidth,
    )  # fmt: skip
    traffic = tokens * (key_heads * K + heads * V) * e + chunks * heads * K * V * state_bytes
    if carried:
        traffic += 2.0 * batch * heads * K * V * WIDE_BYTES
    return kernel_cost(device, block, traffic)


@jit
def lightning_forward(device, batch, length, heads, key_heads, K, V, C, carried):
    """Cost of the forward chain; arguments as those of `delta.delta_forward`."""
    e = device.element_bytes
    tokens = batch * length
    chunks = batch * math.ceil(length / C)
    cost = carried_cost(device, batch, chunks, tokens, heads, key_heads, K, V, C, e, carried)
    product = product_time(device, C, V, K) + product_time(device, C, V, C)
    product += product_time(device, C, C, K)
    elements = 2.0 * C * K + 2.0 * C * V + K * V
    block = one_step(device, chunks * heads, product, C * C, elements, 0.0)
    traffic = tokens * 2.0 * (key_heads * K + heads * V) * e + chunks * heads * K * V * e
    return both(cost, kernel_cost(device, block, traffic))


@jit
def lightning_backward(device, batch, length, heads, key_heads, K, V, C):
    """Cost of the backward chain: states again, their gradients, then those of q, k and v.

    States and their gradients are kept in single precision here (``states_in_fp32=True`` of
    ``chunk_simple_gla_bwd``).
    """
    e = device.element_bytes
    tokens = batch * length
    chunks = batch * math.ceil(length / C)
    one = carried_cost(
        device, batch, chunks, tokens, heads, key_heads, K, V, C, WIDE_BYTES, False
    )  # fmt: skip
    cost = both(one, one)
    parts = math.ceil(K / KEY_BLOCK)
    side = min(KEY_BLOCK, K)
    product = product_time(device, C, C, V) + 2.0 * product_time(device, C, side, V)
    product += 2.0 * product_time(device, C, C, side)
    elements = 2.0 * C * V + 4.0 * side * V + 4.0 * C * side
    block = one_step(device, chunks * heads * parts, product, C * C, elements, 0.0)
    states = chunks * heads * K * V * WIDE_BYTES
    traffic = tokens * (2.0 * key_heads * K + heads * 2.0 * (K + V)) * e + 2.0 * states
    cost = both(cost, kernel_cost(device, block, traffic))
    product = product_time(device, C, C, K) + product_time(device, C, V, K)
    product += product_time(device, C, V, C)
    elements = 2.0 * C * (K + V) + 2.0 * K * V
    block = one_step(device, chunks * heads, product, C * C, elements, 0.0)
    traffic = tokens * 2.0 * (key_heads * K + heads * V) * e + states
    return both(cost, kernel_cost(device, block, traffic))
