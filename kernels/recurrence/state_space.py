"""Chains of state-space models: SSD of Mamba-2, and the selective scan of Mamba-1.

Mamba-2 (Dao & Gu 2024, arXiv:2405.21060, section 6) as state-spaces/mamba runs it
(``ops/triton/ssd_combined.py``, ``_mamba_chunk_scan_combined_fwd`` and ``_bwd``), read for its
structure: states of all chunks first, each on its own; then one elementwise kernel that adds them
up from chunk to chunk, whose loads nothing fetches ahead; then all outputs.

Mamba-1 (Gu & Dao 2023, arXiv:2312.00752, section 3.3) as ``csrc/selective_scan`` runs it: one block
per channel scans 2,048 tokens at once for every element of its state, on the general cores.

Letters: ``T`` tokens, ``H`` heads (channels), ``G`` groups, ``K`` width of B and C (``d_state``),
``V`` width of a head, ``C`` a chunk.
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit
from perfmodel.kernels.recurrence import SCAN_OPERATIONS, SELECTIVE_CHUNK
from perfmodel.kernels.recurrence.blocks import (
    Block,
    both,
    kernel_cost,
    product_time,
    stream_cost,
)
from perfmodel.kernels.recurrence.delta import WIDE_BYTES, one_step
from perfmodel.kernels.stream import hit_share

TILE = 64.0
"""Side of the tiles that a chunk is cut into: 32 to 256 are tried (``triton.autotune`` of
``ssd_chunk_scan.py`` and ``ssd_chunk_state.py``)."""

PASSED_BLOCK = 1024.0
"""Elements of a state that a block of ``_state_passing_fwd_kernel`` carries: 64 to 2,048 are
tried."""

PASS_OPERATIONS = 4.0
"""Operations of state passing per element and chunk: scale, sum, conversion, address."""


@jit
def tiles(size):
    """Return how many tiles cover a side."""
    return math.ceil(size / TILE)


@jit
def causal_share(C):
    """Share of a chunk's pairs that tiles on and below the diagonal cover."""
    return 0.5 * (1.0 + 1.0 / tiles(C))


@jit
def lost_traffic(device, shared, own, heads, groups):
    """Bytes that heads of a group read again from memory, because the cache has lost them.

    Heads are the slowest axis of these kernels' grids: between two reads of what a group shares,
    all that one head reads and writes passes by.

    Parameters
    ----------
    device : RecurrenceDevice
    shared, own : float
        Bytes of all groups that their heads share, and of all heads that they do not [B].
    heads, groups : float
    """
    distance = shared / groups + own / heads
    return (heads / groups - 1.0) * shared * (1.0 - hit_share(device.stream, distance))


@jit
def sums_cost(device, tokens, heads, backward):
    """Step sizes after softplus, and their sums over a chunk (``_chunk_cumsum_fwd``).

    Backward also sums the gradients of the decays the other way round: four more kernels.
    """
    operations = tokens * heads * (2.0 * device.special_operations + 6.0)
    traffic = tokens * heads * (device.element_bytes + 2.0 * WIDE_BYTES)
    if not backward:
        return stream_cost(device, traffic, operations, 1.0)
    traffic += tokens * heads * 9.0 * WIDE_BYTES
    return stream_cost(device, traffic, 2.0 * operations, 5.0)


@jit
def products_cost(device, chunks, tokens, groups, K, C):
    """``C B^T`` of every chunk and group (``_bmm_chunk_fwd``), kept in single precision."""
    count = chunks * groups * tiles(C) ** 2
    elements = 2.0 * TILE * K + 2.0 * TILE * TILE
    block = one_step(device, count, product_time(device, TILE, TILE, K), 0.0, elements, 0.0)
    traffic = tokens * groups * (2.0 * K * device.element_bytes + C * WIDE_BYTES)
    return kernel_cost(device, block, traffic)


@jit
def chunk_states_cost(device, chunks, tokens, heads, groups, K, V, C):
    """What a chunk adds to the state (``_chunk_state_fwd``); also from dO (``bwd_dstates``)."""
    side = min(TILE, V)
    count = chunks * heads * tiles(V)
    elements = C * (side + K) + 2.0 * side * K
    block = one_step(device, count, product_time(device, side, K, C), C, elements, C * K)
    shared = tokens * groups * K * device.element_bytes
    own = tokens * heads * (V * device.element_bytes + 2.0 * WIDE_BYTES)
    own += chunks * heads * K * V * WIDE_BYTES
    traffic = shared + own + lost_traffic(device, shared, own, heads, groups)
    return kernel_cost(device, block, traffic)


@jit
def passing_cost(device, batch, chunks, heads, K, V, moved_bytes):
    """States added up from chunk to chunk (``_state_passing_fwd``, ``_bwd``): sequential.

    One element per thread or a few; a step waits for its load.

    Parameters
    ----------
    moved_bytes : float
        Read and written per element and chunk [B].
    """
    size = K * V
    count = batch * heads * math.ceil(size / PASSED_BLOCK)
    width = min(size, PASSED_BLOCK)
    block = Block(
        count, chunks / batch, 0.0, width * PASS_OPERATIONS, width * moved_bytes, 0.0, 1.0,
        device.stream_residents, device.portable_bandwidth,
    )  # fmt: skip
    return kernel_cost(device, block, chunks * heads * size * moved_bytes)


@jit
def chunk_outputs_cost(device, chunks, tokens, heads, groups, K, V, C):
    """``C S + (C B^T decays) x`` (``_chunk_scan_fwd``); also the gradient of x.

    A tile of 64 tokens multiplies what is on and below the diagonal.
    """
    side, rows = min(TILE, V), min(TILE, C)
    count = chunks * heads * tiles(C) * tiles(V)
    inner = C * causal_share(C)
    product = product_time(device, rows, side, K) + product_time(device, rows, side, inner)
    elements = rows * K + K * side + inner * (2.0 * rows + side) + 2.0 * rows * side
    block = one_step(device, count, product, rows * inner, elements, 0.0)
    e = device.element_bytes
    shared = tokens * groups * (K * e + inner * WIDE_BYTES)
    own = tokens * heads * 2.0 * (V * e + WIDE_BYTES) + chunks * heads * K * V * e
    traffic = shared + own + lost_traffic(device, shared, own, heads, groups)
    return kernel_cost(device, block, traffic)


@jit
def ssd_forward(device, batch, length, heads, groups, K, V, C, carried):
    """Cost of Mamba-2's forward chain.

    Parameters
    ----------
    device : RecurrenceDevice
    batch, length, heads, groups, K, V, C : float
        Sequences, tokens of each, and the letters of this file.
    carried : bool
        Whether a state is handed in and out (prefill).

    Returns
    -------
    Cost
    """
    tokens = batch * length
    chunks = batch * math.ceil(length / C)
    cost = sums_cost(device, tokens, heads, False)
    cost = both(cost, chunk_states_cost(device, chunks, tokens, heads, groups, K, V, C))
    cost = both(
        cost, passing_cost(device, batch, chunks, heads, K, V, WIDE_BYTES + device.element_bytes)
    )
    if carried:
        state = 2.0 * batch * heads * K * V * WIDE_BYTES
        cost = both(cost, stream_cost(device, state, 0.0, 1.0))
    cost = both(cost, products_cost(device, chunks, tokens, groups, K, C))
    return both(cost, chunk_outputs_cost(device, chunks, tokens, heads, groups, K, V, C))


@jit
def ssd_backward(device, batch, length, heads, groups, K, V, C):
    """Cost of Mamba-2's backward chain, which computes sums, states and ``C B^T`` again.

    Then gradients of the states (``_chunk_scan_bwd_dstates``, ``_state_passing_bwd``), of x
    (``_chunk_scan_chunk_state_bwd_dx``), of B and C through the states and through ``C B^T``
    (``_chunk_state_bwd_db``, ``_chunk_scan_bwd_dC``, ``_chunk_scan_bwd_dcb``,
    ``_bmm_chunk_bwd`` twice), and of the decays (``_chunk_scan_bwd_ddAcs_stable``).
    """
    tokens = batch * length
    chunks = batch * math.ceil(length / C)
    e = device.element_bytes
    cost = sums_cost(device, tokens, heads, False)
    cost = both(cost, products_cost(device, chunks, tokens, groups, K, C))
    states = chunk_states_cost(device, chunks, tokens, heads, groups, K, V, C)
    cost = both(cost, both(states, states))  # states, and gradients of them
    cost = both(cost, passing_cost(device, batch, chunks, heads, K, V, 2.0 * WIDE_BYTES))
    cost = both(cost, passing_cost(device, batch, chunks, heads, K, V, 2.0 * (WIDE_BYTES + e)))
    cost = both(cost, chunk_outputs_cost(device, chunks, tokens, heads, groups, K, V, C))
    cost = both(cost, stream_cost(device, tokens * heads * V * e, 0.0, 1.0))  # x, for dD and ddt

    rows = min(TILE, C)
    kept = chunks * heads * K * V * e
    through = product_time(device, rows, K, V)
    elements = rows * V + K * V + 2.0 * rows * K
    count = chunks * heads * tiles(C)
    block = one_step(device, count, through, rows, elements, rows * K)
    traffic = (
        tokens * (heads * V + groups * K) * e + tokens * (groups * K + 2.0 * heads) * WIDE_BYTES
    )
    one = kernel_cost(device, block, traffic + kept)
    cost = both(cost, both(one, one))  # dB through states, dC through states

    inner = C * causal_share(C)
    product = product_time(device, rows, inner, V)
    elements = rows * V + inner * V + 2.0 * rows * inner
    block = one_step(device, count, product, rows * inner, elements, 0.0)
    shared = tokens * groups * inner * WIDE_BYTES
    own = tokens * heads * 2.0 * (V * e + WIDE_BYTES)
    traffic = shared + own + lost_traffic(device, shared, own, heads, groups)
    one = kernel_cost(device, block, traffic)
    cost = both(cost, both(one, one))  # d(C B^T), and the gradient of the decays

    product = product_time(device, rows, K, C)
    elements = C * K + 2.0 * rows * C + 3.0 * rows * K
    block = one_step(device, chunks * groups * tiles(C), product, 0.0, elements, 0.0)
    traffic = tokens * groups * (C * WIDE_BYTES + K * (2.0 * e + WIDE_BYTES))
    one = kernel_cost(device, block, traffic)
    cost = both(cost, both(one, one))  # dB, dC through C B^T
    return both(cost, sums_cost(device, tokens, heads, True))


@jit
def selective_scan(device, batch, length, channels, K, backward, carried):
    """Cost of Mamba-1's scan: forward, or the whole backward pass.

    Parameters
    ----------
    device : RecurrenceDevice
    batch, length, channels, K : float
        Sequences, tokens of each, channels, elements of the state of one.
    backward : bool
    carried : bool
        Whether a state is handed in and out (prefill).

    Returns
    -------
    Cost

    Notes
    -----
    Forward reads u, delta and z and writes the output before and after the gate; every block
    reads B and C of all tokens anew, from the cache. Backward scans forward again and then the
    other way round, with three times the operations, reads dO and the output, writes du,
    ddelta and dz, and adds the gradients of B and C of all channels up in the cache, in single
    precision.
    """
    e = device.element_bytes
    tokens = batch * length
    steps = math.ceil(length / SELECTIVE_CHUNK)
    own, shared, passes = 5.0, 2.0 * K * e, 1.0
    if backward:
        own, shared, passes = 8.0, 2.0 * K * (e + 2.0 * WIDE_BYTES), 3.0
    width = min(length, SELECTIVE_CHUNK)
    operations = width * K * (SCAN_OPERATIONS + device.special_operations) * passes
    operations += width * (2.0 * device.special_operations + 6.0) * passes  # softplus, gate
    block = Block(
        batch * channels, steps, 0.0, operations, width * (own * e + shared), passes * K, 1.0,
        device.stream_residents, device.stream.bandwidth,
    )  # fmt: skip
    traffic = tokens * (channels * own * e + 2.0 * K * e)
    traffic += batch * channels * steps * 2.0 * K * WIDE_BYTES
    if backward:
        traffic += tokens * 2.0 * K * 2.0 * WIDE_BYTES
    if carried:
        traffic += 2.0 * batch * channels * K * WIDE_BYTES
    return kernel_cost(device, block, traffic)
