"""Tokens brought into the order of their experts on a device, and results back.

Three ways, by the software's facts: kernels that copy each token once per expert and add its
results up; gathers, with passes of their own ahead and behind (``gathers_alone``); products with a
mask over tokens and places (``einsum``; GShard, arXiv:2006.16668, algorithm 2).

Lengths: T tokens on this device, k experts per token, S tokens of a sequence, h what travels.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.compute.stream_catalogue import ROW_GATHER
from perfmodel.model.build import MlpSpec
from perfmodel.operations.expert_exchange import dispatch_copies
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Gemm, Stream

COMPARISON = 6.0
"""Vector operations per element and stage of a sorting network that carries an index along:
partners are fetched and compared, key and index chosen. An estimate."""


def add_permutation(ops: OperationList, mlp: MlpSpec, hidden: float) -> Column:
    """Add what brings tokens into the order of their experts.

    Sent once per expert, tokens are first copied in that order; a deduplicating dispatcher reads
    them where they are.

    Returns
    -------
    ndarray, shape (keys,)
        1 where tokens are copied ahead of the dispatch.
    """
    if ops.framework.expert_dispatch == "einsum":
        _add_masked(ops, mlp, hidden, "mlp.permute")
        return np.ones(ops.keys.stream_tokens.shape)
    copied: Column = (dispatch_copies(ops, mlp) >= mlp.experts_per_token) * 1.0
    elements = _routed(ops, mlp) * hidden * copied
    own = 2.0 / mlp.experts_per_token
    if ops.framework.gathers_alone:
        ops.stream("mlp.repeat", elements, (own, 2.0), (2.0, own))
        _add_order(ops, mlp)
        ops.stream("mlp.permute", elements * ROW_GATHER, (2.0, 2.0), (2.0, 2.0))
    else:
        ops.stream("mlp.permute", elements * ROW_GATHER, (own, 2.0), (2.0, own))
    return copied


def add_unpermutation(ops: OperationList, mlp: MlpSpec, hidden: float) -> None:
    """Add what brings results back to their tokens and adds them up, weighted."""
    if ops.framework.expert_dispatch == "einsum":
        _add_masked(ops, mlp, hidden, "mlp.unpermute")
        return
    copied: Column = (dispatch_copies(ops, mlp) >= mlp.experts_per_token) * 1.0
    elements = _routed(ops, mlp) * hidden * copied
    own = 2.0 / mlp.experts_per_token
    weighted = ((2.0, own), (2.0 + own, 2.0))  # backwards results are read for the weights, too
    if ops.framework.gathers_alone:
        ops.stream("mlp.unpermute", elements * ROW_GATHER, (2.0, 2.0), (2.0, 2.0))
        ops.stream("mlp.weigh", elements, *weighted)
    else:
        ops.stream("mlp.unpermute", elements * ROW_GATHER, *weighted)


def _routed(ops: OperationList, mlp: MlpSpec) -> Column:
    return ops.keys.stream_tokens * mlp.experts_per_token


def _add_order(ops: OperationList, mlp: MlpSpec) -> None:
    """Sort the chosen experts, and invert that order by another sort, in each direction.

    MaxText's moe.py: ``permute`` and ``unpermute`` call ``argsort``, and so do the gradients of
    both gathers. Prior: a bitonic network, ``log2(n) (log2(n) + 1) / 2`` stages over n elements.
    """
    routed = _routed(ops, mlp)
    depth = np.log2(np.maximum(routed, 2.0))
    work = routed * depth * (depth + 1.0) / 2.0 * COMPARISON
    for phase in ("forward", "backward_input"):
        ops.add(Stream("mlp.order", phase, 16.0 * routed, 16.0 * routed, 2.0 * work, launches=2.0))


def _add_masked(ops: OperationList, mlp: MlpSpec, hidden: float, name: str) -> None:
    """Add the product of a sequence with its mask of places: ``S x (S k c) x h`` each way.

    The mask that fills places is no number that learns; the one that empties them holds the
    router's weights. Where every expert takes every token there is nothing to choose, and no mask.
    """
    keys, capacity = ops.keys, ops.framework.capacity_factor
    if not 0.0 < capacity < mlp.experts / mlp.experts_per_token:
        return
    batch = keys.number("micro_batch_size")
    places = keys.number("sequence_length") * mlp.experts_per_token * capacity
    length = keys.stream_tokens / batch
    fills = ("forward", "backward_input")
    if name == "mlp.unpermute":
        fills = ("backward_input", "forward")
        ops.add(Gemm(name, "backward_input", length, places, hidden, batch))
    ops.add(Gemm(name, fills[0], places, hidden, length, batch))
    ops.add(Gemm(name, fills[1], length, hidden, places, batch))
