"""The attention of a layer as operations of a node: projections, attention, sums over nodes."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.model.attention import AttentionSpec
from perfmodel.wafer.cores.attention import (
    STATISTICS,
    AttentionSizes,
    Part,
    decode_attention,
    prompt_attention,
)
from perfmodel.wafer.cores.layout import Layout, chosen_rows, even_layout
from perfmodel.wafer.cores.node import CoreOperation, Node
from perfmodel.wafer.cores.setting import ceiling, key_starts

Made = Iterator[tuple[CoreOperation, Layout]]


def attention_operations(
    node: Node, prefix: str, attention: AttentionSpec, hidden: Layout, step: int
) -> Made:
    """Yield the operations of an attention, each with where its result lies.

    Latent attention works on latents in decode ("absorbed") and on the keys and values of all
    heads in prefill ("naive").

    Parameters
    ----------
    node : Node
    prefix : str
        What names begin with, such as ``decode10_attn``.
    attention : AttentionSpec
    hidden : Layout
        Of the input.
    step : int
        Of decode, from 0.
    """
    heads = ceiling(attention.heads, node.setting.system.tensor_parallel)
    if attention.kind != "mla":
        yield from _grouped(node, prefix, attention, hidden, step, heads)
    elif node.setting.phase == "decode":
        yield from _absorbed(node, f"{prefix}_absorb", attention, hidden, step, heads)
    else:
        yield from _naive(node, f"{prefix}_naive", attention, hidden, heads)


def _latent_queries(
    node: Node, prefix: str, attention: AttentionSpec, hidden: Layout, heads: int
) -> Made:
    tokens, size = node.tokens, hidden.shape[1]
    latent = attention.kv_lora_rank + attention.qk_rope_head_dim
    width = heads * attention.head_dim
    yield node.linear(f"{prefix}_wkva", hidden, (tokens, size, latent))
    if attention.q_lora_rank:
        made, low = node.linear(f"{prefix}_wqa", hidden, (tokens, size, attention.q_lora_rank))
        yield made, low
        yield node.linear(f"{prefix}_wqb", low, (tokens, attention.q_lora_rank, width))
    else:
        yield node.linear(f"{prefix}_wq", hidden, (tokens, size, width))


def _absorbed(
    node: Node, prefix: str, attention: AttentionSpec, hidden: Layout, step: int, heads: int
) -> Made:
    setting, tokens = node.setting, node.tokens
    rank, nope = attention.kv_lora_rank, attention.qk_nope_head_dim
    rope, depth, value = (
        attention.qk_rope_head_dim,
        attention.head_dim,
        attention.value_head_dim,
    )
    made = list(_latent_queries(node, prefix, attention, hidden, heads))
    yield from made
    latent, queries = made[0][1], made[-1][1]
    operation, absorbed = node.linear(
        f"{prefix}_wkvb1", queries, (tokens, nope, rank), heads, (0, depth, nope)
    )
    yield operation, absorbed
    keys, added = _cached(node, step, attention)
    sizes = AttentionSizes(
        sequences=node.sequences,
        queries=setting.length,
        keys=keys,
        heads=heads,
        key_heads=1,
        depth=rank + rope,
        values=rank,
        shared_values=True,
        stored=rank + rope,
        activation_bytes=setting.activation_bytes,
        cache_bytes=setting.cache_bytes,
    )
    whole = setting.system.sequence_parallel == 1
    instructions, layout = decode_attention(
        (Part(absorbed, 0, rank, rank), Part(queries, nope, depth, rope)),
        (Part(latent, 0, 0, rank + rope),) if added else (),
        sizes,
        node.grid,
        whole,
    )
    macs = sizes.sequences * sizes.queries * keys * heads * (2 * rank + rope)
    name = f"{prefix}_absorbattn"
    yield node.alone(name, "MLAAbsorbAttention", macs, instructions), layout
    if not whole:
        operation, layout = _summed(node, prefix, layout, heads, rank)
        yield operation, layout
    made_values = node.linear(f"{prefix}_wkvb2", layout, (tokens, rank, value), heads)
    yield made_values
    yield from _output(node, prefix, made_values[1], heads * value, hidden.shape[1])


def _naive(node: Node, prefix: str, attention: AttentionSpec, hidden: Layout, heads: int) -> Made:
    tokens = node.tokens
    rank, nope = attention.kv_lora_rank, attention.qk_nope_head_dim
    rope, depth, value = (
        attention.qk_rope_head_dim,
        attention.head_dim,
        attention.value_head_dim,
    )
    made = list(_latent_queries(node, prefix, attention, hidden, heads))
    yield from made
    latent, queries = made[0][1], made[-1][1]
    operation, keys = node.linear(f"{prefix}_wkvb", latent, (tokens, rank, heads * (nope + value)))
    yield operation, keys
    parts = (Part(keys, 0, nope + value, nope + value), Part(latent, rank, 0, rope))
    sizes = _prompt_sizes(node, attention, heads, heads, rank + rope)
    query = (Part(queries, 0, depth, depth),)
    yield from _prompt(node, prefix, "naiveattn", "MLANaiveAttention", query, parts, sizes)
    layout = node.last
    yield from _output(node, prefix, layout, heads * value, hidden.shape[1])


def _grouped(
    node: Node, prefix: str, attention: AttentionSpec, hidden: Layout, step: int, heads: int
) -> Made:
    setting, tokens, size = node.setting, node.tokens, hidden.shape[1]
    key_heads = ceiling(attention.key_value_heads, setting.system.tensor_parallel)
    if heads % key_heads:
        raise StrategyError(
            f"key 'tensor_parallel': {heads} heads of a node are no multiple of the {key_heads} "
            "heads of keys that they share"
        )
    depth, value = attention.head_dim, attention.value_head_dim
    inner = attention.q_lora_rank
    source = hidden
    if inner:
        made, source = node.linear(f"{prefix}_wqa", hidden, (tokens, size, inner))
        yield made, source
    widths = {
        "wq": (source, inner or size, heads * depth),
        "wk": (hidden, size, key_heads * depth),
        "wv": (hidden, size, key_heads * value),
    }
    found = []
    for word, (given, rows, columns) in widths.items():
        operation, layout = node.linear(f"{prefix}_{word}", given, (tokens, rows, columns))
        found.append(layout)
        yield operation, layout
    queries, keys, values = found
    query = (Part(queries, 0, depth, depth),)
    parts = (Part(keys, 0, depth, depth), Part(values, 0, value, value))
    stored = key_heads * (depth + value)
    if setting.phase == "prefill":
        sizes = _prompt_sizes(node, attention, heads, key_heads, stored)
        yield from _prompt(node, prefix, "attn", "SelfAttention", query, parts, sizes)
        layout = node.last
    else:
        count, added = _cached(node, step, attention)
        sizes = AttentionSizes(
            sequences=node.sequences,
            queries=setting.length,
            keys=count,
            heads=heads,
            key_heads=key_heads,
            depth=depth,
            values=value,
            shared_values=False,
            stored=stored,
            activation_bytes=setting.activation_bytes,
            cache_bytes=setting.cache_bytes,
        )
        whole = setting.system.sequence_parallel == 1
        made_attention, layout = decode_attention(
            query, parts if added else (), sizes, node.grid, whole
        )
        macs = sizes.sequences * sizes.queries * count * heads * (depth + value)
        yield node.alone(f"{prefix}_attn", "SelfAttention", macs, made_attention), layout
        if not whole:
            operation, layout = _summed(node, prefix, layout, heads, value)
            yield operation, layout
    yield from _output(node, prefix, layout, heads * value, size)


def _cached(node: Node, step: int, attention: AttentionSpec) -> tuple[int, bool]:
    """Return the keys of a sequence on this node, new ones included, and whether it stores those.

    Pages of a sequence have one size on all nodes of a group, so that sums over it fit.
    """
    setting = node.setting
    context = setting.input_length + step + setting.length
    if attention.kind == "sliding":
        context = min(context, attention.window + setting.length - 1)
    elif attention.kind == "chunked":
        context = max(
            context - (context - 1) // attention.window * attention.window, setting.length
        )
    parts = setting.system.sequence_parallel
    last = int(np.searchsorted(key_starts(setting, context), context - 1, side="right")) - 1
    return ceiling(context, parts), bool(
        setting.ranks.sequence[node.number] == min(last, parts - 1)
    )


def _prompt_sizes(
    node: Node, attention: AttentionSpec, heads: int, key_heads: int, stored: int
) -> AttentionSizes:
    setting = node.setting
    starts = key_starts(setting, setting.length)
    rank = setting.ranks.sequence[node.number]
    return AttentionSizes(
        sequences=node.sequences,
        queries=setting.length,
        keys=int(starts[rank + 1] - starts[rank]),
        heads=heads,
        key_heads=key_heads,
        depth=attention.head_dim,
        values=attention.value_head_dim,
        shared_values=False,
        stored=stored,
        first_key=int(starts[rank]),
        window=attention.window,
        chunked=attention.kind == "chunked",
        activation_bytes=setting.activation_bytes,
        cache_bytes=setting.cache_bytes,
    )


def _prompt(
    node: Node,
    prefix: str,
    word: str,
    kind: str,
    queries: tuple[Part, ...],
    keys: tuple[Part, ...],
    sizes: AttentionSizes,
) -> Made:
    whole = node.setting.system.sequence_parallel == 1
    instructions, layout = prompt_attention(queries, keys, sizes, node.grid, whole)
    low, high = sizes.seen()
    macs = sizes.sequences * int((high - low).sum()) * sizes.heads * (sizes.depth + sizes.values)
    yield node.alone(f"{prefix}_{word}", kind, macs, instructions), layout
    if not whole:
        # Nodes see other keys and cut their queries otherwise; a sum needs one layout.
        layout = _widened(layout, sizes.values)
        moved, layout = chosen_rows(
            layout, (0,), layout.shape[0], node.grid, node.setting.activation_bytes
        )
        yield node.alone(f"{prefix}_{word}_copy", "View", 0, moved), layout
        group = node.setting.group(node.number, "sequence")
        operation = node.all_reduce(f"{prefix}_ar_sp", layout, group)
        layout = even_layout(layout.shape[0], sizes.heads * sizes.values, node.grid)
        yield operation, layout
    node.last = layout


@functools.lru_cache(maxsize=256)
def _widened(layout: Layout, values: int) -> Layout:
    """Return a layout of results with the statistics of each head beside its values."""
    return Layout(layout.rows, layout.columns // values * (values + STATISTICS), layout.banks)


def _summed(
    node: Node, prefix: str, layout: Layout, heads: int, values: int
) -> tuple[CoreOperation, Layout]:
    """Return the sum of results over the nodes that share a context, statistics included."""
    group = node.setting.group(node.number, "sequence")
    return node.all_reduce(f"{prefix}_ar_sp", _widened(layout, values), group), layout


def _output(node: Node, prefix: str, source: Layout, width: int, size: int) -> Made:
    made, layout = node.linear(f"{prefix}_wo", source, (node.tokens, width, size))
    yield made, layout
    if node.setting.system.tensor_parallel > 1:
        group = node.setting.group(node.number, "tensor")
        yield node.all_reduce(f"{prefix}_ar_tp", layout, group), layout
