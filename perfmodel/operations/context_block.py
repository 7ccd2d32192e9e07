"""How context ranks share the work of attention, and what they send each other.

Shape letters: S tokens of a sequence, c context ranks, T = S/c tokens of one rank.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.base.strategy_fields import CONTEXT_PARALLEL_KINDS
from perfmodel.model.attention import AttentionSpec
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Communication, LayerKeys, Size, Stream

RING, ALL_TO_ALL, ALL_GATHER = range(len(CONTEXT_PARALLEL_KINDS))


def exchanges_heads(keys: LayerKeys) -> np.ndarray:
    """Tell where heads are exchanged for the sequence (Ulysses), shape (keys,)."""
    kind = keys.columns["context_parallel_kind"]
    return np.asarray((kind == ALL_TO_ALL) & (keys.number("context_parallel") > 1))


def remote_work(
    spec: AttentionSpec, length: Column, local: Column, degree: Column
) -> tuple[Column, Column, Column]:
    """Attention of one rank to keys of other ranks: steps, queries and keys per step.

    All ranks together meet the pairs that one device would: ``S W - W²/2`` of a causal
    sequence S with window W (W = S without one), ``S W / 2`` in chunks of W, ``S²`` where
    attention is not causal. What a rank does not find in its own block is spread over the
    ranks that the window reaches.
    """
    reach = np.minimum(float(spec.window), length) if spec.window else length
    inside = np.minimum(reach, local)
    ranks = np.ceil(reach / local)
    if spec.kind == "chunked":
        pairs = length * reach / 2 / degree - local * inside / 2
        ranks = ranks - 1.0
    elif spec.causal:
        pairs = (length * reach - reach**2 / 2) / degree - (local * inside - inside**2 / 2)
    else:
        pairs = length * reach / degree - local * inside
    steps = np.minimum(degree - 1.0, ranks)
    keys = pairs / np.maximum(steps * inside, 1.0)
    return np.where(keys > 0.5, steps, 0.0), inside, np.maximum(keys, 1.0)


def context_communication(
    ops: OperationList,
    spec: AttentionSpec,
    heads: Column,
    groups: Column,
    hiding: tuple[str, ...],
) -> None:
    """Add what moves keys, values, queries and outputs between context ranks.

    Operations named in `hiding` run while a ring turns.
    """
    keys = ops.keys
    degree = keys.number("context_parallel")
    kind = keys.columns["context_parallel_kind"]
    stride = keys.context_stride
    key_value = keys.tokens * groups * (spec.head_dim + spec.value_head_dim) * 2.0
    query_output = keys.tokens * heads * (spec.head_dim + spec.value_head_dim) * 2.0
    length = keys.number("sequence_length")
    hops, _, _ = remote_work(spec, length, length / degree, degree)
    ring = ((kind == RING) & (degree > 1)) * hops
    exchange = exchanges_heads(keys) * 1.0
    gather = ((kind == ALL_GATHER) & (degree > 1)) * 1.0
    composed = ops.framework.merges_attention == "composed"
    # The slowest hop sets the pace of a ring: over adapters where a node does not hold all of
    # it. Two ranks half the ring apart lie in one node where the whole ring does.
    span = np.maximum(stride, np.ceil(stride * degree / 2.0))
    for phase, volume in (("forward", 1.0), ("backward_input", 3.0 if composed else 2.0)):
        # Backward sends keys, values and their gradients around the ring (composed: in fp32).
        ops.add(
            Communication(
                "attention.ring",
                phase,
                "context",
                "point_to_point",
                key_value * volume,
                2.0,
                span,
                hidden_by=tuple((name, phase) for name in hiding),
                hides=1.0,
                count=ring,
            )
        )
        ops.add(
            Communication(
                "attention.exchange",
                phase,
                "context",
                "all_to_all",
                key_value + query_output,
                degree,
                stride,
                count=exchange,
            )
        )
    if composed:
        _gather_pieces(ops, key_value, span, gather)
    else:
        gather_keys(ops, "attention.gather_keys", key_value * degree, gather)
    merge_pieces(ops, spec, heads, groups, ring + gather * hops * composed)


def _gather_pieces(ops: OperationList, key_value: Column, span: Column, count: Column) -> None:
    """Gather keys while a rank attends to its own; their gradients go hop by hop in fp32.

    The last hop brings gradients home and has nothing beside it (PyTorch,
    `_templated_ring_attention_backward`).
    """
    keys = ops.keys
    degree, stride = keys.number("context_parallel"), keys.context_stride
    for phase in ("forward", "backward_input"):
        ops.add(
            Communication(
                "attention.gather_keys",
                phase,
                "context",
                "all_gather",
                key_value * degree,
                degree,
                stride,
                hidden_by=(("attention.core", phase),),
                hides=1.0,
                count=count,
            )
        )
    ops.add(
        Communication(
            "attention.ring_gradients",
            "backward_input",
            "context",
            "point_to_point",
            key_value * 2.0,
            2.0,
            span,
            hidden_by=(("attention.core_remote", "backward_input"),),
            hides=1.0,
            tail=1.0 / degree,
            count=count * degree,
        )
    )


def merge_pieces(
    ops: OperationList, spec: AttentionSpec, heads: Column, groups: Column, steps: Column
) -> None:
    """Add up the attention of one rank to its own keys and to those of `steps` other ranks.

    With o the sum so far, p a piece and l, m the logarithms of their denominators, o becomes
    ``o - sigmoid(m - l) (o - p)``: in one kernel, which reads o and p and writes o, or operator by
    operator in fp32 (cast, difference, product, difference). Backward adds up gradients of queries
    piece by piece, and those of keys and values as they come around. Counted are the steps of the
    last rank, which has all of its queries in each; the first has half of them.
    """
    if not np.any(steps > 0):
        return
    tokens = ops.keys.tokens
    outputs, queries = tokens * heads * spec.value_head_dim, tokens * heads * spec.head_dim
    moved = tokens * groups * (spec.head_dim + spec.value_head_dim)
    pieces = (steps > 0) * (steps + 1.0)
    forward, added, casts = (4.0, 2.0), (4.0, 2.0), 0.0
    if ops.framework.merges_attention == "composed":
        forward, added, casts = (20.0, 12.0), (6.0, 4.0), 1.0
    small = 4.0 * casts  # of denominators
    for name, phase, size, (read, written), launches, count in (
        ("attention.cast_pieces", "forward", outputs, (2.0, 4.0), 1.0, casts * pieces),
        ("attention.merge_pieces", "forward", outputs, forward, 1.0 + 2.0 * casts + small, steps),
        ("attention.merge_pieces", "backward_input", queries + moved, added, 3.0, pieces),
    ):
        ops.add(Stream(name, phase, size * read, size * written, 0.0, launches, count))


def gather_keys(ops: OperationList, name: str, size: Size, count: Column) -> None:
    """Gather keys and values of all context ranks, of `size` bytes in all.

    Backward gathers them again, because only the local ones are kept, and reduces their
    gradients.
    """
    keys = ops.keys
    degree, stride = keys.number("context_parallel"), keys.context_stride
    for phase, collective in (
        ("forward", "all_gather"),
        ("backward_input", "all_gather"),
        ("backward_input", "reduce_scatter"),
    ):
        ops.add(
            Communication(name, phase, "context", collective, size, degree, stride, count=count)
        )


def pass_to_next_rank(ops: OperationList, name: str, size: Size, hops: Column) -> None:
    """Send something from each context rank to the next, and its gradient back.

    With several hops each waits for the one before; nothing runs beside them.
    """
    keys = ops.keys
    stride = keys.context_stride
    span = np.maximum(stride, np.ceil(stride * keys.number("context_parallel") / 2.0))
    for phase in ("forward", "backward_input"):
        ops.add(
            Communication(name, phase, "context", "point_to_point", size, 2.0, span, count=hops)
        )
