"""Operations of attention to chosen or compressed keys, and of the indexer that chooses.

Tensor parallelism shards query heads. Every tensor rank repeats the indexer for all tokens, as
Megatron-Core's sparse attention does, which gathers its inputs ahead of it; projections that
only need a token itself run where it lies. Context ranks gather keys, whatever their kind: every
token may choose any key.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.operations.context_block import gather_keys, pass_to_next_rank
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Indexer, LayerKeys, Size, SparseAttention

PASSES = (("forward", False), ("backward_input", True))


def absorbs_keys(spec: AttentionSpec) -> bool:
    """Tell whether latent attention stays in latent space: one key for all heads to gather."""
    return spec.kind == "mla" and spec.sparse


def add_indexer(
    ops: OperationList, hidden: float, spec: AttentionSpec, indexer: IndexerSpec
) -> None:
    """Add an indexer's projections, its scores of all keys and the choice of the best.

    Backward is that of the loss that trains it, over chosen keys (DeepSeek-V3.2,
    arXiv:2512.02556, section 2.1.1).
    """
    keys = ops.keys
    width = float(indexer.heads * indexer.head_dim)
    pieces = indexer.pieces(int(hidden), spec.compression)
    ops.products("attention", pieces[:1])
    ops.products("attention", pieces[1:], own=True)
    ratio = 1.0 if spec.compression is None else float(spec.compression.ratio)
    if indexer.compressed and spec.compression is not None:
        _pool(ops, "attention.index_pool", indexer.head_dim, spec.compression)
    gathered = indexer.head_dim / ratio + (indexer.heads if indexer.head_weights else 0.0)
    ops.enter_tensor_parallel("attention.index_input", gathered, "attention.index_query")
    # Rotated and cast to fp8 for the scores.
    ops.stream("attention.index_rotate", keys.tokens * width, (2, 1), (2, 2), flops=8.0)
    degree = keys.number("context_parallel")
    if np.any(degree > 1):
        size = keys.tokens * degree * (indexer.head_dim / ratio) * 2.0
        gather_keys(ops, "attention.gather_index", size, (degree > 1) * 1.0)
    for phase, backward in PASSES:
        ops.add(
            Indexer(
                "attention.index",
                phase,
                keys.number("micro_batch_size"),
                *_lengths(keys),
                float(indexer.heads),
                float(indexer.head_dim),
                _whole_blocks(indexer),
                ratio,
                float(indexer.block),
                backward,
            )
        )


def add_compression(
    ops: OperationList, hidden: float, spec: AttentionSpec, compression: CompressionSpec
) -> None:
    """Add what makes compressed keys: projections of every token, and sums over groups."""
    ops.products("attention", compression.pieces(int(hidden), spec.head_dim), own=True)
    _pool(ops, "attention.compress_pool", spec.head_dim, compression)
    entry = spec.head_dim / compression.ratio
    ops.enter_tensor_parallel("attention.compressed", entry, "attention.compress_key")


def _pool(ops: OperationList, name: str, head_dim: int, compression: CompressionSpec) -> None:
    """Sum groups of tokens, weighted by the softmax of their gates; read once, few written."""
    overlap = 2.0 if compression.overlap else 1.0
    elements = ops.keys.stream_tokens * 2.0 * overlap * head_dim
    few = 1.0 / (compression.ratio * overlap)
    ops.stream(name, elements, (2.0, few), (2.0 + few, 2.0), flops=6.0)


def add_sparse_core(ops: OperationList, spec: AttentionSpec, heads: Column, groups: Column) -> None:
    """Add attention of every query to the keys of its window and to chosen or compressed ones."""
    keys = ops.keys
    latent = absorbs_keys(spec)
    dims = float(spec.head_dim), float(spec.value_head_dim)
    if latent:
        dims = float(spec.kv_lora_rank + spec.qk_rope_head_dim), float(spec.kv_lora_rank)
        groups = np.ones_like(groups)
    compression = 1.0
    if spec.compression is not None:
        compression = float(spec.compression.ratio)
    elif spec.indexer is None:
        compression = 0.0  # a window alone
    indexer = spec.indexer
    for phase, backward in PASSES:
        ops.add(
            SparseAttention(
                "attention.core",
                phase,
                keys.number("micro_batch_size"),
                *_lengths(keys),
                heads,
                groups,
                *dims,
                0.0 if indexer is None else _whole_blocks(indexer),
                float(spec.window),
                compression,
                1.0 if indexer is None else float(indexer.block),
                latent or spec.key_is_value,
                backward,
            )
        )
    numbers = groups * (dims[0] if latent or spec.key_is_value else sum(dims))
    _share_keys(ops, spec, numbers, compression)
    if latent:
        # From latent space back to values, head by head.
        ops.linear(
            "attention.value_up", keys.tokens, dims[1], float(spec.value_head_dim), batch=heads
        )


def _share_keys(ops: OperationList, spec: AttentionSpec, numbers: Size, ratio: float) -> None:
    """Gather keys of `numbers` per token from context ranks; windows come from the neighbour."""
    keys = ops.keys
    degree = keys.number("context_parallel")
    if not np.any(degree > 1):
        return
    beyond = (degree > 1) * 1.0
    if ratio:
        size = keys.tokens * degree * numbers * (2.0 / ratio)
        gather_keys(ops, "attention.gather_keys", size, beyond)
    if spec.window:
        local = keys.number("sequence_length") / degree
        reach = np.minimum(float(spec.window), local)
        last = keys.number("micro_batch_size") * reach * numbers * 2.0
        hops = np.minimum(np.ceil(spec.window / local), degree - 1.0)
        pass_to_next_rank(ops, "attention.window", last, hops)


def _lengths(keys: LayerKeys) -> tuple[Column, Column]:
    """Return the queries of a context rank, and the keys up to their end.

    Ranks share early and late tokens so that all have as much to do ("zigzag"). Queries in
    the middle of the sequence meet as many keys as a rank's queries on average.
    """
    length, degree = keys.document, keys.number("context_parallel")
    return length / degree, np.ceil(length * (1.0 + 1.0 / degree) / 2.0)


def _whole_blocks(indexer: IndexerSpec) -> float:
    """Return the keys that are chosen, in whole blocks."""
    return float(-(-indexer.top_k // indexer.block) * indexer.block)
