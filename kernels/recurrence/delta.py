"""Chains of the gated delta rule: Gated DeltaNet and Kimi Delta Attention (KDA).

The chunked algorithm in the WY representation (Yang et al. 2024, arXiv:2412.06464, section 3),
as flash-linear-attention runs it (``ops/gated_delta_rule/chunk.py`` and ``chunk_fwd.py``,
``ops/common/chunk_delta_h.py`` and ``chunk_o.py``; KDA: ``ops/kda/chunk_fwd.py``,
``chunk_intra.py``, ``chunk_bwd.py``), read for its structure. All kernels but two are parallel
over chunks and heads. Those two carry the state, or its gradient, from chunk to chunk: blocks of
them own 64 columns of one head's state, so that few heads leave units idle.

Letters: ``T`` tokens, ``H`` value heads, ``G`` key heads, ``K``, ``V`` widths, ``C`` a chunk.

Chain of lightning attention: linear attention with a fixed decay per head.

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
    DECAY_OPERATIONS,
    ELEMENT_OPERATIONS,
    WIDE,
    Block,
    both,
    kernel_cost,
    product_time,
    stream_cost,
)

VALUE_BLOCK = 64.0
"""Columns of a state that a block of the sequential kernels owns: 32 or 64 are tried
(``chunk_delta_h.py``)."""

KEY_BLOCK = 64.0
"""Channels of keys of a block of ``chunk_bwd_dqkwg`` (``chunk_o.py``, ``CONST_TILING``)."""

SUB_CHUNK = 16.0
"""Tokens of a block on the diagonal of a chunk: inverted row by row, and with decays per channel
computed pair by pair (``BC`` of the sources)."""

WIDE_BYTES = 4.0
"""A number in single precision: gates, sums of gates, gradients of them [B]."""

PAIR_OPERATIONS = 6.0
"""Operations per pair of tokens and channel on a diagonal of KDA, apart from the exponential:
difference of the gates, product with k, two products and sums (``chunk_intra_token_parallel``)."""

INVERSE_OPERATIONS = 4.0
"""Operations per element and row of the forward substitution: select, product, sum, insert."""


@jit
def one_step(device, count, product, pairs, elements, operations):
    """Return blocks that are parallel over chunks: one step, products after loads.

    Parameters
    ----------
    device : RecurrenceDevice
    count, product : float
        Blocks, and their products [s].
    pairs : float
        Pairs of tokens whose decay is computed, per block.
    elements : float
        Elements that pass the port of the unit, per block.
    operations : float
        What else the general cores do, per block [FLOP].
    """
    operations += elements * ELEMENT_OPERATIONS
    operations += pairs * (device.special_operations + DECAY_OPERATIONS)
    moved = elements * device.element_bytes
    return Block(
        count,
        1.0,
        product,
        operations,
        moved,
        1.0,
        0.0,
        device.residents,
        device.portable_bandwidth,
    )


@jit
def norms_cost(device, tokens, key_heads, K, backward):
    """L2 norms of queries and keys: two kernels (``modules/l2norm.py``)."""
    passes = 3.0 if backward else 2.0
    elements = 2.0 * tokens * key_heads * K
    traffic = passes * elements * device.element_bytes + 2.0 * tokens * key_heads * WIDE_BYTES
    return stream_cost(device, traffic, elements * 4.0 * (passes - 1.0), 2.0)


@jit
def gates_cost(device, tokens, heads, K, channel, backward):
    """Sums of the log decays over a chunk, per head or (KDA) per head and channel.

    KDA makes its decays of raw gates in the same kernel (``ops/kda/gate.py``); backward sums
    their gradients the other way round and goes through the gate.
    """
    if channel == 0.0:
        return stream_cost(device, tokens * heads * 2.0 * WIDE_BYTES, tokens * heads, 1.0)
    elements = tokens * heads * K
    operations = elements * (2.0 * device.special_operations + 4.0)
    traffic = elements * (device.element_bytes + WIDE_BYTES)
    if not backward:
        return stream_cost(device, traffic, operations, 1.0)
    return stream_cost(device, traffic + elements * 3.0 * WIDE_BYTES, operations, 2.0)


@jit
def inverse_cost(device, chunks, tokens, heads, key_heads, K, C, channel):
    """``A = (1 + tril(beta K K^T))^-1`` of every chunk and head; KDA: also ``Q K^T``.

    One kernel for the products and the inverse (``chunk_gated_delta_rule_fwd_kkt_solve_kernel``):
    rows of the diagonal blocks one after the other, then the blocks below. KDA takes the
    diagonal pair by pair on the general cores, because every channel has its own decay, and
    the rest in single precision (``chunk_kda_fwd_kernel_inter_solve_fused``).
    """
    e = device.element_bytes
    count = chunks * heads
    rows = C * SUB_CHUNK * SUB_CHUNK * INVERSE_OPERATIONS
    merge = WIDE * product_time(device, C, C, SUB_CHUNK)
    keys = tokens * key_heads * K * e
    if channel == 0.0:
        product = product_time(device, C, C, K) + merge
        block = one_step(device, count, product, C * C, C * K + C * C, rows)
        traffic = keys + tokens * heads * (C * e + 2.0 * WIDE_BYTES)
        return kernel_cost(device, block, traffic)
    pairs = 0.5 * C * min(SUB_CHUNK, C) * K
    gates = tokens * heads * K * WIDE_BYTES
    diagonal = Block(
        count, 1.0, 0.0, pairs * (device.special_operations + PAIR_OPERATIONS),
        C * K * (2.0 * e + WIDE_BYTES) + 2.0 * C * SUB_CHUNK * WIDE_BYTES, 1.0, 0.0,
        device.residents, device.portable_bandwidth,
    )  # fmt: skip
    between = tokens * heads * 2.0 * SUB_CHUNK * WIDE_BYTES
    cost = kernel_cost(device, diagonal, 2.0 * keys + gates + between)
    product = WIDE * product_time(device, C, C, K) + merge  # two products, half of the blocks
    block = one_step(device, count, product, 2.0 * C * K, 4.0 * C * K + 2.0 * C * C, rows)
    traffic = 2.0 * keys + gates + between + tokens * heads * 2.0 * C * e
    return both(cost, kernel_cost(device, block, traffic))


@jit
def values_cost(device, chunks, tokens, heads, key_heads, K, V, C, channel, again):
    """``W = A beta K`` and ``U = A beta V`` (``recompute_w_u_fwd``).

    KDA: decayed keys too, and `again` in backward decayed queries.
    """
    e = device.element_bytes
    product = product_time(device, C, V, C) + product_time(device, C, K, C)
    elements = 2.0 * C * (K + V) + C * C + (3.0 * C * K if channel > 0.0 else 0.0)
    block = one_step(device, chunks * heads, product, 0.0, elements, 0.0)
    traffic = tokens * (key_heads * K + heads * (2.0 * V + K + C)) * e
    if channel > 0.0:
        traffic += tokens * heads * K * (WIDE_BYTES + e)
        if again:
            traffic += tokens * (key_heads + heads) * K * e
    return kernel_cost(device, block, traffic)


@jit
def states_cost(device, batch, chunks, tokens, heads, key_heads, K, V, C, channel, carried):
    """States of all chunks and the new values (``chunk_gated_delta_rule_fwd_h``): sequential.

    Per chunk ``v' = u - w S`` and ``S = decay S + k^T v'``, the second product waiting for the
    first. `carried`: a state comes in and goes out.
    """
    e = device.element_bytes
    width = min(VALUE_BLOCK, V)
    count = batch * heads * math.ceil(V / VALUE_BLOCK)
    steps = chunks / batch
    product = product_time(device, C, width, K) + product_time(device, K, width, C)
    elements = 2.0 * C * K + 2.0 * C * width + K * width
    block = Block(
        count, steps, product, elements * ELEMENT_OPERATIONS, elements * e, 2.0, 0.0,
        device.residents, device.portable_bandwidth,
    )  # fmt: skip
    keys = heads * K if channel > 0.0 else key_heads * K
    traffic = tokens * (keys + heads * (K + 2.0 * V)) * e + chunks * heads * K * V * e
    if carried:
        traffic += 2.0 * batch * heads * K * V * WIDE_BYTES
    return kernel_cost(device, block, traffic)


@jit
def outputs_cost(device, chunks, tokens, heads, key_heads, K, V, C, channel):
    """``O = Q S + tril(Q K^T) V'`` (``chunk_fwd_o``); KDA has ``Q K^T`` from before."""
    e = device.element_bytes
    product = product_time(device, C, V, K) + product_time(device, C, V, C)
    traffic = tokens * heads * 2.0 * V * e + chunks * heads * K * V * e
    if channel == 0.0:
        product += product_time(device, C, C, K)
        elements = 2.0 * C * K + 2.0 * C * V + K * V
        traffic += tokens * (2.0 * key_heads * K * e + heads * WIDE_BYTES)
        block = one_step(device, chunks * heads, product, C * C, elements, 0.0)
    else:
        elements = 3.0 * C * K + 2.0 * C * V + K * V + C * C
        traffic += tokens * (key_heads * K * e + heads * (C * e + K * WIDE_BYTES))
        block = one_step(device, chunks * heads, product, C * K, elements, 0.0)
    return kernel_cost(device, block, traffic)


@jit
def delta_forward(device, batch, length, heads, key_heads, K, V, C, channel, carried):
    """Cost of the forward chain.

    Parameters
    ----------
    device : RecurrenceDevice
    batch, length, heads, key_heads, K, V, C : float
        Sequences, tokens of each, and the letters of this file.
    channel : float
        1: a decay per channel (KDA); 0: one per head.
    carried : bool
        Whether a state is handed in and out (prefill).

    Returns
    -------
    Cost
    """
    tokens = batch * length
    chunks = batch * math.ceil(length / C)
    cost = norms_cost(device, tokens, key_heads, K, False)
    cost = both(cost, gates_cost(device, tokens, heads, K, channel, False))
    inverse = inverse_cost(device, chunks, tokens, heads, key_heads, K, C, channel)
    cost = both(cost, inverse)
    values = values_cost(device, chunks, tokens, heads, key_heads, K, V, C, channel, False)
    cost = both(cost, values)
    states = states_cost(
        device, batch, chunks, tokens, heads, key_heads, K, V, C, channel, carried
    )  # fmt: skip
    cost = both(cost, states)
    return both(cost, outputs_cost(device, chunks, tokens, heads, key_heads, K, V, C, channel))


@jit
def local_gradients_cost(device, chunks, tokens, heads, key_heads, K, V, C, channel):
    """Gradient of the new values within a chunk (``chunk_bwd_dv_local``, ``chunk_kda_bwd_dAv``)."""
    e = device.element_bytes
    traffic = tokens * heads * 2.0 * V * e
    product = product_time(device, C, V, C)
    if channel == 0.0:
        product += product_time(device, C, C, K)
        block = one_step(device, chunks * heads, product, C * C, 2.0 * C * (K + V), 0.0)
        traffic += tokens * 2.0 * key_heads * K * e
    else:
        product += product_time(device, C, C, V)
        block = one_step(device, chunks * heads, product, 0.0, 3.0 * C * V + 3.0 * C * C, 0.0)
        traffic += tokens * heads * (V * e + C * (e + WIDE_BYTES))
    return kernel_cost(device, block, traffic)


@jit
def state_gradients_cost(device, batch, chunks, tokens, heads, key_heads, K, V, C, channel):
    """Gradients of all states, last chunk first (``chunk_gated_delta_rule_bwd_dhu``): sequential.

    Per chunk ``dv' = dv + k dS``, then ``dS = decay dS + q^T do - w^T dv'``.
    """
    e = device.element_bytes
    width = min(VALUE_BLOCK, V)
    count = batch * heads * math.ceil(V / VALUE_BLOCK)
    product = product_time(device, C, width, K) + 2.0 * product_time(device, K, width, C)
    elements = 3.0 * C * K + 3.0 * C * width + K * width
    block = Block(
        count, chunks / batch, product, elements * ELEMENT_OPERATIONS, elements * e, 2.0, 0.0,
        device.residents, device.portable_bandwidth,
    )  # fmt: skip
    keys = 2.0 * (heads if channel > 0.0 else key_heads) * K
    traffic = tokens * (keys + heads * (K + 3.0 * V)) * e + chunks * heads * K * V * e
    return kernel_cost(device, block, traffic)


@jit
def input_gradients_cost(device, chunks, tokens, heads, key_heads, K, V, C, channel):
    """Gradients of q, k, v, the gates and beta, from those of states and outputs.

    Gated DeltaNet: ``chunk_bwd_dqkwg``, then ``prepare_wy_repr_bwd`` through W, U and the inverse,
    then the sum of both parts of dk. KDA: one kernel for both
    (``chunk_kda_bwd_wy_dqkg_fused``), and one for pairs within chunks (``chunk_kda_bwd_intra``).
    """
    e = device.element_bytes
    count = chunks * heads
    through = (
        2.0 * product_time(device, C, C, K)
        + 2.0 * product_time(device, C, C, V)
        + 2.0 * product_time(device, C, C, C)
    )
    states = 2.0 * chunks * heads * K * V * e
    if channel == 0.0:
        parts = math.ceil(K / KEY_BLOCK)
        side = min(KEY_BLOCK, K)
        product = product_time(device, C, C, V) + 3.0 * product_time(device, C, side, V)
        product += 3.0 * product_time(device, C, C, side)
        elements = 3.0 * C * V + 2.0 * side * V + 5.0 * C * side
        block = one_step(device, count * parts, product, C * C, elements, 0.0)
        traffic = tokens * (2.0 * key_heads * K + heads * (3.0 * V + 3.0 * K)) * e + states
        cost = kernel_cost(device, block, traffic)
        product = through + 3.0 * product_time(device, C, C, K)
        elements = 4.0 * C * K + 3.0 * C * V + C * C
        block = one_step(device, count, product, C * C, elements, 0.0)
        traffic = tokens * (key_heads * K + heads * (3.0 * V + 2.0 * K + C)) * e
        cost = both(cost, kernel_cost(device, block, traffic))
        summed = tokens * heads * K
        return both(cost, stream_cost(device, 3.0 * summed * e, summed, 1.0))
    product = through + 3.0 * product_time(device, C, K, V)
    wide = 3.0 * heads * K * WIDE_BYTES + heads * K * WIDE_BYTES + heads * C * WIDE_BYTES
    elements = 5.0 * C * V + 2.0 * K * V + 10.0 * C * K + 3.0 * C * C
    block = one_step(device, count, product, C * K, elements, 0.0)
    traffic = tokens * ((2.0 * key_heads * K + heads * (5.0 * V + C)) * e + wide) + states
    cost = kernel_cost(device, block, traffic)
    product = WIDE * 2.0 * product_time(device, C, K, C)  # four products, half of the blocks
    pairs = 2.0 * C * min(SUB_CHUNK, C) * K  # rows, then columns, masked
    diagonal = pairs * (device.special_operations + PAIR_OPERATIONS)
    block = one_step(device, count, product, 0.0, 24.0 * C * K + 4.0 * C * C, diagonal)
    wide = heads * (7.0 * K + 2.0 * C) * WIDE_BYTES  # g; dq, dk, dg in and out; dAqk, dAkk
    cost = both(cost, kernel_cost(device, block, tokens * (2.0 * key_heads * K * e + wide)))
    return cost


@jit
def delta_backward(device, batch, length, heads, key_heads, K, V, C, channel):
    """Cost of the backward chain, which computes W, U and the states again.

    Parameters
    ----------
    device, batch, length, heads, key_heads, K, V, C, channel
        See `delta_forward`.

    Returns
    -------
    Cost
    """
    tokens = batch * length
    chunks = batch * math.ceil(length / C)
    cost = values_cost(device, chunks, tokens, heads, key_heads, K, V, C, channel, True)
    if channel > 0.0:
        cost = both(cost, gates_cost(device, tokens, heads, K, channel, False))
    states = states_cost(
        device, batch, chunks, tokens, heads, key_heads, K, V, C, channel, False
    )  # fmt: skip
    cost = both(cost, states)
    local = local_gradients_cost(device, chunks, tokens, heads, key_heads, K, V, C, channel)
    cost = both(cost, local)
    gradients = state_gradients_cost(
        device, batch, chunks, tokens, heads, key_heads, K, V, C, channel
    )  # fmt: skip
    cost = both(cost, gradients)
    inputs = input_gradients_cost(device, chunks, tokens, heads, key_heads, K, V, C, channel)
    cost = both(cost, inputs)
    cost = both(cost, gates_cost(device, tokens, heads, K, channel, True))
    if heads > key_heads:  # gradients of queries and keys come per value head
        shared = 2.0 * tokens * (heads + key_heads) * K
        cost = both(cost, stream_cost(device, shared * device.element_bytes, shared, 2.0))
    return both(cost, norms_cost(device, tokens, key_heads, K, True))


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
