"""Closed forms of the generator: what each node counts for each part of a layer.

A component sums the rows that do the same: three products of each expert, for example. What
the generator leaves out stays left out: activations, writes of keys and values, the causal
half, the token being made; "reads" are weights and cache, "sent" is a vector once.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.wafer.twin.exchange import Exchange
from perfmodel.wafer.twin.facts import LM_HEAD
from perfmodel.wafer.twin.setting import Iteration

Column = Integers | int


class Component(NamedTuple):
    """A part of a layer on every node; a plain number holds for all of them.

    Attributes
    ----------
    name, operation : str
    rows : int64[nodes] or int
        Rows of the generator's table; 0 where the node has none.
    macs : int64[nodes] or int
    weights : int64[nodes] or int
        Weights and cache, needed and read [B].
    sent : int64[nodes] or int
        [B]
    """

    name: str
    operation: str
    rows: Column = 1
    macs: Column = 0
    weights: Column = 0
    sent: Column = 0


def ceiling(items: int, parts: int) -> int:
    """Return the larger share of items that are dealt out."""
    return -(-items // parts)


def layer_components(
    iteration: Iteration, layer: str, exchange: Exchange | None = None
) -> Iterator[Component]:
    """Yield the components of a layer in the order in which they run.

    Parameters
    ----------
    iteration : Iteration
    layer : str
    exchange : Exchange, optional
        Of a layer with experts.
    """
    if layer == LM_HEAD:
        yield from _split_product(iteration, "lm_head.head", iteration.model.vocabulary)
        return
    yield from attention_components(iteration)
    if exchange is not None:
        yield from _experts(iteration, exchange)
        return
    width = ceiling(iteration.model.intermediate, iteration.parallel)
    yield _product(iteration, "dense_ffn", 3, iteration.model.hidden, width)
    if iteration.parallel > 1:
        yield _all_reduce(iteration, "dense_ffn.allreduce", iteration.model.hidden)


def attention_components(iteration: Iteration) -> Iterator[Component]:
    """Yield the components of an attention, with its all-reduces."""
    if not iteration.model.latent:
        yield from _grouped_query(iteration)
    elif iteration.prefill:
        yield from _naive(iteration)
    else:
        yield from _absorbed(iteration)


def _tokens(iteration: Iteration) -> Integers:
    return iteration.local_batch * iteration.length


def _product(
    iteration: Iteration, name: str, rows: int, inputs: int, outputs: int, groups: int = 0
) -> Component:
    """Return products of a node's tokens with matrices, of groups of them where asked."""
    size = rows * (groups or 1) * inputs * outputs
    operation = "GroupedLinear" if groups else "Linear"
    return Component(name, operation, rows, _tokens(iteration) * size, size * iteration.element)


def _all_reduce(iteration: Iteration, name: str, width: int) -> Component:
    return Component(name, "AllReduce", sent=_tokens(iteration) * width * iteration.element)


def _split_product(iteration: Iteration, name: str, outputs: int) -> Iterator[Component]:
    """Yield the LM head: all tokens, and an all-reduce where a gather would do."""
    width = ceiling(outputs, iteration.parallel)
    yield _product(iteration, name, 1, iteration.model.hidden, width)
    if iteration.parallel > 1:
        yield _all_reduce(iteration, "lm_head.allreduce", width)


def _heads(iteration: Iteration) -> int:
    return ceiling(iteration.model.heads, iteration.system.tensor_parallel)


def _keys(iteration: Iteration) -> int:
    """Return the keys of a sequence that a node looks at."""
    return ceiling(iteration.context or iteration.length, iteration.system.sequence_parallel)


def _attention(
    iteration: Iteration, name: str, operation: str, width: int, cached: int
) -> Component:
    """Return an attention: products of a width per head, query and key, cache once."""
    keys, queries = _keys(iteration), iteration.length
    macs = iteration.local_batch * (keys * _heads(iteration) * width * queries)
    cache = 0 if iteration.prefill else keys * cached * iteration.element
    return Component(name, operation, 1, macs, iteration.local_batch * cache)


def _absorbed(iteration: Iteration) -> Iterator[Component]:
    model, heads = iteration.model, _heads(iteration)
    yield _product(iteration, "attn.wkv_a", 1, model.hidden, model.kv_rank + model.rope)
    yield _product(iteration, "attn.wq_a", 1, model.hidden, model.q_rank)
    yield _product(iteration, "attn.wq_b", 1, model.q_rank, heads * (model.nope + model.rope))
    yield _product(iteration, "attn.wkv_b1", 1, model.nope, model.kv_rank, heads)
    yield _attention(
        iteration,
        "attn.mla_absorb",
        "MLAAbsorbAttention",
        2 * model.kv_rank + model.rope,
        model.kv_rank + model.rope,
    )
    if iteration.system.sequence_parallel > 1:
        yield _all_reduce(iteration, "attn.allreduce_sp", heads * model.kv_rank)
    yield _product(iteration, "attn.wkv_b2", 1, model.kv_rank, model.value, heads)
    yield _product(iteration, "attn.wo", 1, heads * model.value, model.hidden)
    yield from _reduced(iteration)


def _naive(iteration: Iteration) -> Iterator[Component]:
    model, heads = iteration.model, _heads(iteration)
    yield _product(iteration, "attn.wkv_a", 1, model.hidden, model.kv_rank + model.rope)
    yield _product(iteration, "attn.wkv_b", 1, model.kv_rank, heads * (model.nope + model.value))
    yield _product(iteration, "attn.wq_a", 1, model.hidden, model.q_rank)
    yield _product(iteration, "attn.wq_b", 1, model.q_rank, heads * (model.nope + model.rope))
    width = model.nope + model.rope + model.value
    yield _attention(iteration, "attn.mla_naive", "MLANaiveAttention", width, heads * width)
    if iteration.system.sequence_parallel > 1:
        yield _all_reduce(iteration, "attn.allreduce_sp", heads * model.value)
    yield _product(iteration, "attn.wo", 1, heads * model.value, model.hidden)
    yield from _reduced(iteration)


def _grouped_query(iteration: Iteration) -> Iterator[Component]:
    model, heads = iteration.model, _heads(iteration)
    cached = ceiling(model.kv_heads, iteration.system.tensor_parallel) * model.head_dim
    yield _product(iteration, "attn.q_proj", 1, model.hidden, heads * model.head_dim)
    yield _product(iteration, "attn.k_proj", 1, model.hidden, cached)
    yield _product(iteration, "attn.v_proj", 1, model.hidden, cached)
    yield _attention(iteration, "attn.gqa", "SelfAttention", 2 * model.head_dim, 2 * cached)
    if iteration.system.sequence_parallel > 1:
        yield _all_reduce(iteration, "attn.allreduce_sp", heads * model.head_dim)
    yield _product(iteration, "attn.o_proj", 1, heads * model.head_dim, model.hidden)
    yield from _reduced(iteration)


def _reduced(iteration: Iteration) -> Iterator[Component]:
    if iteration.system.tensor_parallel > 1:
        yield _all_reduce(iteration, "attn.allreduce_tp", iteration.model.hidden)


def _experts(iteration: Iteration, exchange: Exchange) -> Iterator[Component]:
    model, system = iteration.model, iteration.system
    row = model.hidden * iteration.element
    own = iteration.own_batch * iteration.length * row
    how = system.expert_exchange if iteration.exchanges else ""
    yield _product(iteration, "moe.gate", 1, model.hidden, model.experts)
    if how == "alltoall":
        yield Component("moe.dispatch(alltoall)", "AlltoAll", sent=exchange.dispatched * row)
    elif how == "multicast":
        tokens = exchange.sent_tokens
        yield Component("moe.dispatch(multicast)", "Multicast", tokens, sent=tokens * row)
    elif how == "allgather":
        yield Component("moe.dispatch(allgather)", "AllGather", sent=own)
    elif system.ffn_tensor_parallel > 1 and system.data_parallel > 1:
        yield Component("moe.gather", "AllGather", sent=_tokens(iteration) * row)
    yield from _expert_products(iteration, exchange)
    if how == "alltoall":
        yield Component("moe.combine(alltoall)", "AlltoAll", sent=exchange.returned * row)
    elif how == "multicast":
        sent = exchange.returned * row
        yield Component("moe.combine(unicast)", "Unicast", exchange.receivers, sent=sent)
    elif how == "allgather":
        yield Component("moe.combine(allgather)", "AllGather", sent=exchange.produced * row)
    if how in ("alltoall", "multicast"):
        yield Component("moe.multicast_dp", "Multicast", sent=own)


def _expert_products(iteration: Iteration, exchange: Exchange) -> Iterator[Component]:
    model, system = iteration.model, iteration.system
    parts = system.ffn_tensor_parallel
    row = model.hidden * iteration.element
    matrix = 3 * model.hidden * ceiling(model.expert_intermediate, parts)
    ranks = system.expert_parallel
    loads = np.bincount(iteration.expert_nodes, exchange.loads, ranks).astype(np.int64)
    active = np.bincount(iteration.expert_nodes, exchange.loads > 0, ranks).astype(np.int64)
    if ranks == 1:  # every node has a part of every expert
        loads, active = np.repeat(loads, system.nodes), np.repeat(active, system.nodes)
    weights = active * (matrix * iteration.element)
    yield Component("moe.routed_experts", "Linear", 3 * active, loads * matrix, weights)
    shared = 3 * model.hidden * ceiling(model.shared_intermediate, parts)
    if ranks == 1:
        rows = np.full(system.nodes, iteration.batch * iteration.length)
    else:
        rows = np.bincount(iteration.shared_nodes, minlength=system.nodes) * iteration.length
    held = (rows > 0).astype(np.int64)
    weights = held * (shared * iteration.element)
    yield Component("moe.shared_expert", "Linear", 3 * held, rows * shared, weights)
    if parts > 1:
        vectors = (loads + rows) * row
        yield Component("moe.experts.allreduce", "AllReduce", active + held, sent=vectors)


def footprints(iteration: Iteration, context: int) -> Integers:
    """Return bytes of weights and cache per node, as of ``footprint.json``.

    Parameters
    ----------
    iteration : Iteration
        Its layers count, the LM head and the embedding do not; experts whether used or not,
        a latent attention as the absorbed one.
    context : int
        Tokens of a sequence that are kept.

    Returns
    -------
    array of int, shape (nodes,)
        [B]
    """
    model, system = iteration.model, iteration.system
    longest = Iteration(model, system, iteration.batch, 1, context, iteration.precision)
    attention = sum((part.weights for part in attention_components(longest)), start=np.int64(0))
    total = np.zeros(system.nodes, np.int64)
    experts = np.bincount(iteration.expert_nodes, minlength=system.expert_parallel)
    shared = np.zeros(system.nodes, np.int64)
    stride = system.nodes // system.shared_copies if system.expert_parallel > 1 else 1
    shared[::stride][: system.shared_copies if system.expert_parallel > 1 else None] = 1
    parts = system.ffn_tensor_parallel
    for layer in iteration.layers:
        if layer == LM_HEAD:
            continue
        total += attention
        if not model.has_experts(layer):
            width = ceiling(model.intermediate, iteration.parallel)
            total += 3 * model.hidden * width * iteration.element
            continue
        width = ceiling(model.expert_intermediate, parts)
        wide = ceiling(model.shared_intermediate, parts)
        held = experts if experts.size > 1 else experts[0]
        elements = model.experts + 3 * (held * width + shared * wide)
        total += model.hidden * elements * iteration.element
    return total
