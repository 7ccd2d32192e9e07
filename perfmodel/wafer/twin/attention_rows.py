"""Rows of an attention: absorbed and naive latent attention, grouped queries.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers``:
``mla_absorb_block.py``, ``mla_naive_block.py``, ``mha_block.py`` and the attention of each.
"""

from __future__ import annotations

from perfmodel.wafer.cores.setting import ceiling
from perfmodel.wafer.twin.rows import Rows, Tensor
from perfmodel.wafer.twin.setting import Iteration


def attention_rows(rows: Rows, iteration: Iteration, layer: str, x: Tensor) -> Tensor:
    """Add an attention with its all-reduces; return what the next part reads."""
    if not iteration.model.latent:
        return _grouped_query(rows, iteration, f"{layer}_attn", x)
    if iteration.prefill:
        return _naive(rows, iteration, f"{layer}_attn_naive", x)
    return _absorbed(rows, iteration, f"{layer}_attn_absorb", x)


def _absorbed(rows: Rows, iteration: Iteration, name: str, x: Tensor) -> Tensor:
    model = iteration.model
    heads = ceiling(model.heads, iteration.system.tensor_parallel)
    batch, length, _ = x.dims
    rows.linear(f"{name}_wkva", x, model.kv_rank + model.rope)
    query = rows.linear(f"{name}_wqa", x, model.q_rank)
    query = rows.linear(f"{name}_wqb", query, heads * (model.nope + model.rope))
    query = rows.view(query, batch, length, heads, model.nope + model.rope)
    plain, rotated = rows.split(query, model.nope, model.rope)
    plain = rows.view(plain, batch * length, heads, model.nope)
    plain = rows.transpose(plain, 0, 1)
    plain = rows.grouped_linear(f"{name}_wkvb1", plain, model.kv_rank)
    plain = rows.transpose(plain, 0, 1)
    plain = rows.view(plain, batch, length, heads, model.kv_rank)
    query = rows.concat([plain, rotated], axis=-1)

    keys = ceiling(iteration.context, iteration.system.sequence_parallel)
    # One token is printed even where several are guessed.
    shown = [batch, 1, heads, model.kv_rank]
    made = rows.attention(
        f"{name}_absorbattn",
        "MLAAbsorbAttention",
        query,
        model.kv_rank,
        (
            batch * keys * heads * (2 * model.kv_rank + model.rope) * length,
            batch * keys * (model.kv_rank + model.rope) * rows.element,
            f"Q: {shown}, KV: {[batch, keys, model.kv_rank]}, PE: {[batch, keys, model.rope]}"
            f" -> {shown}",
        ),
    )
    if iteration.system.sequence_parallel > 1:
        made = rows.view(made, batch, length, heads * model.kv_rank)
        made = rows.all_reduce(f"{name}_ar_sp", made, iteration.group(rows.node, "sequence"))
        made = rows.view(made, batch, length, heads, model.kv_rank)
    made = rows.transpose(made, 0, 2)
    made = rows.view(made, heads, batch * length, model.kv_rank)
    made = rows.grouped_linear(f"{name}_wkvb2", made, model.value)
    made = rows.transpose(made, 0, 1)
    made = rows.view(made, batch, length, heads, model.value)
    made = rows.view(made, batch, length, heads * model.value)
    return _output(rows, iteration, name, f"{name}_wo", made)


def _naive(rows: Rows, iteration: Iteration, name: str, x: Tensor) -> Tensor:
    model = iteration.model
    heads = ceiling(model.heads, iteration.system.tensor_parallel)
    batch, length, _ = x.dims
    key_width = model.nope + model.rope
    latent = rows.linear(f"{name}_wkva", x, model.kv_rank + model.rope)
    plain, rotated = rows.split(latent, model.kv_rank, model.rope)
    plain = rows.linear(f"{name}_wkvb", plain, heads * (model.nope + model.value))
    plain = rows.view(plain, batch, length, heads, model.nope + model.value)
    plain, _ = rows.split(plain, model.nope, model.value)
    rotated = rows.view(rotated, batch, length, 1, model.rope)
    rotated = rows.concat([rotated] * heads, axis=-2)
    rows.concat([rotated, plain], axis=-1)
    query = rows.linear(f"{name}_wqa", x, model.q_rank)
    query = rows.linear(f"{name}_wqb", query, heads * key_width)
    query = rows.view(query, batch, length, heads, key_width)
    made = _causal_less(
        rows, iteration, f"{name}_naiveattn", "MLANaiveAttention", query, (heads, model.value)
    )
    made = rows.view(made, batch, length, heads * model.value)
    if iteration.system.sequence_parallel > 1:
        made = rows.all_reduce(f"{name}_ar_sp", made, iteration.group(rows.node, "sequence"))
    return _output(rows, iteration, name, f"{name}_wo", made)


def _grouped_query(rows: Rows, iteration: Iteration, name: str, x: Tensor) -> Tensor:
    model = iteration.model
    heads = ceiling(model.heads, iteration.system.tensor_parallel)
    cached = ceiling(model.kv_heads, iteration.system.tensor_parallel)
    batch, length, _ = x.dims
    query = rows.linear(f"{name}_qproj", x, heads * model.head_dim)
    rows.linear(f"{name}_kproj", x, cached * model.head_dim)
    rows.linear(f"{name}_vproj", x, cached * model.head_dim)
    query = rows.view(query, batch, length, heads, model.head_dim)
    made = _causal_less(
        rows, iteration, f"{name}_selfattn", "SelfAttention", query, (cached, model.head_dim)
    )
    made = rows.view(made, batch, length, heads * model.head_dim)
    if iteration.system.sequence_parallel > 1:
        made = rows.all_reduce(f"{name}_ar_sp", made, iteration.group(rows.node, "sequence"))
    return _output(rows, iteration, name, f"{name}_oproj", made)


def _causal_less(
    rows: Rows,
    iteration: Iteration,
    name: str,
    operation: str,
    query: Tensor,
    cached: tuple[int, int],
) -> Tensor:
    """Add an attention of all queries to all keys; `cached`: heads of keys, width of values."""
    batch, length, heads, key_width = query.dims
    kept, value = cached
    keys = ceiling(iteration.context or length, iteration.system.sequence_parallel)
    shown = length if iteration.prefill else 1
    cache = 0 if iteration.prefill else batch * keys * kept * (key_width + value) * rows.element
    text = (
        f"Q: {[batch, shown, heads, key_width]}, K: {[batch, keys, kept, key_width]}, "
        f"V: {[batch, keys, kept, value]} -> {[batch, shown, heads, value]}"
    )
    macs = batch * keys * heads * (key_width + value) * length
    return rows.attention(name, operation, query, value, (macs, cache, text))


def _output(rows: Rows, iteration: Iteration, name: str, product: str, x: Tensor) -> Tensor:
    made = rows.linear(product, x, iteration.model.hidden)
    if iteration.system.tensor_parallel > 1:
        made = rows.all_reduce(f"{name}_ar_tp", made, iteration.group(rows.node, "tensor"))
    return made
