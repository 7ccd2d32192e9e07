"""Rows of an iteration, layer by layer, on every node that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.wafer.cores.setting import ceiling
from perfmodel.wafer.routed import RoutedTokens
from perfmodel.wafer.twin.attention_rows import attention_rows
from perfmodel.wafer.twin.expert_rows import expert_rows, whole_expert_rows
from perfmodel.wafer.twin.facts import LM_HEAD
from perfmodel.wafer.twin.nodes import chosen_nodes, experts_of
from perfmodel.wafer.twin.routes import Routes
from perfmodel.wafer.twin.rows import Rows, Tensor
from perfmodel.wafer.twin.setting import Iteration


def iteration_rows(
    iteration: Iteration, routed: RoutedTokens | None, nodes: Sequence[int] | None = None
) -> Iterator[Rows]:
    """Yield the rows of one layer on one node after another.

    What routing makes of a layer is worked out once for all nodes, so that layers come first:
    all nodes' slices of the batch, then all nodes' first layer, and so on.

    Parameters
    ----------
    iteration : Iteration
    routed : RoutedTokens or None
        Needed where a layer has experts.
    nodes : sequence of int, optional
        All of them where not stated.

    Raises
    ------
    DataError
        A routing that does not fit, a node that there is not, too many tokens.
    """
    chosen = [int(node) for node in chosen_nodes(iteration.system, nodes)]
    read = {}
    for node in chosen:
        rows = Rows(node, iteration.element)
        read[node] = _queries(rows, iteration)
        yield rows
    for layer in iteration.layers:
        routes = None
        if iteration.model.has_experts(layer):
            routes = Routes(iteration, experts_of(iteration, routed, layer))
        for node in chosen:
            rows = Rows(node, iteration.element)
            read[node] = _layer(rows, iteration, layer, routes, read[node])
            yield rows


def _queries(rows: Rows, iteration: Iteration) -> Tensor:
    """Slice the node's share of the batch."""
    whole = Tensor("queries", (iteration.batch, iteration.length, iteration.model.hidden))
    first = int(iteration.starts[rows.node // iteration.system.cluster_nodes])
    return rows.slice(whole, first, first + int(iteration.local_batch[rows.node]))


def _layer(
    rows: Rows, iteration: Iteration, layer: str, routes: Routes | None, x: Tensor
) -> Tensor:
    model, cluster = iteration.model, iteration.group(rows.node, "cluster")
    if layer == LM_HEAD:
        made = rows.linear(f"{layer}_head", x, ceiling(model.vocabulary, len(cluster)))
        return rows.all_reduce(f"{layer}_ar", made, cluster) if len(cluster) > 1 else made
    x = attention_rows(rows, iteration, layer, x)
    if routes is None:
        name = f"{layer}_dense" if model.latent else f"{layer}_ffn"
        width = ceiling(model.intermediate, len(cluster))
        return rows.feed_forward(name, x, width, cluster)
    add = expert_rows if iteration.exchanges else whole_expert_rows
    return add(rows, routes, f"{layer}_moe", x)


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
    attention = [_attention_weights(longest, node) for node in range(system.nodes)]
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


def _attention_weights(iteration: Iteration, node: int) -> int:
    """Return a node's bytes of weights and cache of an attention [B]."""
    rows = Rows(node, iteration.element)
    batch = int(iteration.local_batch[node])
    attention_rows(rows, iteration, "", Tensor("", (batch, 1, iteration.model.hidden)))
    return sum(row.footprint for row in rows.table)
