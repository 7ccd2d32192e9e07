"""The experts of a layer on nodes: where tokens go, and the operations of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.model.layers import MlpSpec
from perfmodel.wafer.cores.instructions import NOTHING, joined
from perfmodel.wafer.cores.layout import (
    Layout,
    cast_rows,
    chosen_rows,
    even_layout,
    rows_in_blocks,
    send_rows,
    sums_of_rows,
)
from perfmodel.wafer.cores.node import CoreOperation, Node
from perfmodel.wafer.cores.setting import CoreSetting, ceiling
from perfmodel.wafer.system import bucket_sizes, bucket_starts, expert_ranks, shared_nodes

# Which rows of tokens go from which node to which in a layer with experts.

CHUNK = 1 << 16  # tokens at a time


@dataclass(frozen=True)
class ExpertRoutes:
    """Tokens of a layer between the nodes of a pipeline stage.

    A token goes to a node once however many of its experts lie there; each of its experts'
    results goes back alone. Where experts are split over nodes, all of these get the token.

    Attributes
    ----------
    setting : CoreSetting
    sent : array of int, shape (nodes, nodes)
        Rows from the node of a token to the nodes of its experts, shared ones included.
    worked : array of int, shape (expert, data replicas, nodes)
        Rows of every expert (behind the routed ones: every copy of the shared ones), in each
        replica, by the node they came from.
    casts : tuple of dict
        For each node that casts its tokens, rows by the set of nodes that they go to; empty
        where tokens are sent to one node after the other.
    """

    setting: CoreSetting
    sent: Integers
    worked: Integers
    casts: tuple[dict[tuple[int, ...], int], ...] = ()


def expert_routes(
    setting: CoreSetting, experts: Integers, count: int, shared: bool
) -> ExpertRoutes:
    """Find where the tokens of a layer go.

    Parameters
    ----------
    setting : CoreSetting
    experts : array of int, shape (sequences, length, experts per token)
    count : int
        Experts of the layer.
    shared : bool
        Whether all tokens visit shared experts as well.

    Raises
    ------
    StrategyError
        More ranks than experts, or a routing of another shape.
    """
    system = setting.system
    if experts.shape[:2] != (setting.batch, setting.length):
        raise StrategyError(
            f"key 'routing': {experts.shape[0]} sequences of {experts.shape[1]} tokens are not "
            f"the {setting.batch} of {setting.length} that are asked for"
        )
    if count < system.expert_parallel:
        raise StrategyError(
            f"key 'expert_parallel': {system.expert_parallel} ranks for {count} experts"
        )
    nodes, replica_nodes = system.stage_nodes, system.expert_parallel * system.ffn_tensor_parallel
    copies = system.shared_copies
    source = np.repeat(setting.owners, setting.length)
    rank_of = expert_ranks(system, count)
    routed = experts.reshape(len(source), -1)
    tail = np.repeat(np.arange(copies), bucket_sizes(setting.batch, copies) * setting.length)
    sent = np.zeros((nodes, nodes), np.int64)
    worked = np.zeros((count + copies * shared, system.ffn_data_parallel, nodes), np.int64)
    casts: list[dict[tuple[int, ...], int]] = [{} for _ in range(nodes)]
    for begin in range(0, len(source), CHUNK):
        part = slice(begin, begin + CHUNK)
        owner, chosen = source[part], routed[part]
        replica = owner // replica_nodes
        where = rank_of[chosen] * system.ffn_tensor_parallel + (replica * replica_nodes)[:, None]
        goes = [where + part_of for part_of in range(system.ffn_tensor_parallel)]
        key = (chosen * system.ffn_data_parallel + replica[:, None]) * nodes + owner[:, None]
        worked[:count].reshape(-1)[:] += np.bincount(key.ravel(), minlength=worked[:count].size)
        if shared:
            copy = tail[part]
            goes.append((copy * (nodes // copies))[:, None])
            key = ((count + copy) * system.ffn_data_parallel) * nodes + owner
            worked.reshape(-1)[:] += np.bincount(key, minlength=worked.size)
        ordered = np.sort(np.hstack(goes), axis=1)
        first = np.ones(ordered.shape, bool)
        first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        pair = owner[:, None] * nodes + ordered
        sent += np.bincount(pair[first], minlength=nodes * nodes).reshape(nodes, nodes)
        if system.expert_exchange == "multicast":
            first &= ordered != owner[:, None]
            for node, row, mask in zip(owner.tolist(), ordered, first, strict=True):
                others = tuple(row[mask].tolist())
                casts[node][others] = casts[node].get(others, 0) + 1
    return ExpertRoutes(setting, sent, worked, tuple(casts))


def node_experts(routes: ExpertRoutes, node: int, count: int) -> list[tuple[str, Integers]]:
    """Return the experts of a node that have tokens: name, and rows by the node they came from.

    Parameters
    ----------
    routes : ExpertRoutes
    node : int
        Within the stage.
    count : int
        Routed experts of the layer.
    """
    setting = routes.setting
    rank = int(setting.ranks.expert[node])
    replica = int(setting.ranks.ffn_data[node])
    starts = bucket_starts(count, setting.system.expert_parallel)
    found = [
        (f"exp_{expert}", routes.worked[expert, replica])
        for expert in range(int(starts[rank]), int(starts[rank + 1]))
    ]
    if len(routes.worked) > count:
        found += [
            ("exp_shared", routes.worked[count + copy].sum(axis=0))
            for copy, place in enumerate(shared_nodes(setting.system))
            if place == node
        ]
    return [(name, rows) for name, rows in found if rows.sum()]


# The experts of a layer as operations of a node: dispatch, their products, combine, sums.

Made = Iterator[tuple[CoreOperation, Layout]]


def expert_operations(
    node: Node, prefix: str, mlp: MlpSpec, hidden: Layout, routes: ExpertRoutes
) -> Made:
    """Yield the operations of a layer's experts, each with where its result lies.

    Tokens of a cluster are spread over its nodes; each chooses the experts of its own, sends them,
    sums what comes back and hands the sums to the others of its cluster. Tokens arrive in equal
    pieces of columns, one per core.

    Parameters
    ----------
    node : Node
    prefix : str
        What names begin with, such as ``decode10_moe``.
    mlp : MlpSpec
    hidden : Layout
        Of the input: all tokens of the cluster.
    routes : ExpertRoutes
    """
    setting, grid, size = node.setting, node.grid, hidden.shape[1]
    system, element = setting.system, setting.activation_bytes
    stage = setting.group(node.number, "stage")
    place = node.number - stage[0]
    own, starts = _own_rows(node)
    layout = even_layout(max(own, 1), size, grid)
    if own:
        moved, layout = chosen_rows(hidden, (starts,), own, grid, element)
        yield node.alone(f"{prefix}_own", "Slice", 0, moved), layout
        yield node.linear(f"{prefix}_gate", layout, (own, size, mlp.experts))
    to = routes.sent[place].copy()
    to[place] = 0
    casts = routes.casts[place] if routes.casts else {}
    yield _dispatch(node, prefix, layout, own, to, casts, stage), layout

    returned = []
    for name, rows in node_experts(routes, place, mlp.experts):
        shared = name == "exp_shared"
        width = mlp.shared_intermediate_size if shared else mlp.expert_intermediate_size
        split = 1 if shared else system.ffn_tensor_parallel
        count = int(rows.sum())
        source = even_layout(count, size, grid)
        result = source
        for made in node.network(
            f"{prefix}_{name}", source, count, ceiling(width, split), size, mlp.gated
        ):
            yield made
            result = made[1]
        if split > 1:
            team = tuple(node.number // split * split + one for one in range(split))
            yield node.all_reduce(f"{prefix}_{name}_ar", result, team), result
            # Each node of the team gives back its share of the rows.
            part = node.number % split
            rows = rows * (part + 1) // split - rows * part // split
        returned.append((result, rows))
    yield _combine(node, prefix, returned, stage), layout

    if own:
        terms = mlp.experts_per_token + (mlp.shared_intermediate_size > 0)
        made_sums, layout = sums_of_rows(own, size, terms, grid, element)
        yield node.alone(f"{prefix}_sum", "Sum", 0, made_sums), layout
    cluster = setting.group(node.number, "cluster")
    if len(cluster) > 1:
        instructions = NOTHING
        if own:
            rows_here = np.diff(layout.rows)
            instructions = cast_rows(layout, rows_here, cluster, node.number, grid, element)
        yield (
            node.together(f"{prefix}_multicast_dp", "Multicast", instructions, cluster),
            even_layout(node.tokens, size, grid),
        )


def _own_rows(node: Node) -> tuple[int, int]:
    """Return how many rows of its cluster a node sends, and the first of them."""
    setting = node.setting
    first = setting.group(node.number, "cluster")[0]
    own, before = setting.own_batch[node.number], setting.own_batch[first : node.number].sum()
    return int(own) * setting.length, int(before) * setting.length


def _dispatch(
    node: Node,
    prefix: str,
    layout: Layout,
    own: int,
    to: np.ndarray,
    casts: Mapping[tuple[int, ...], int],
    stage: tuple[int, ...],
) -> CoreOperation:
    setting = node.setting
    grid, element = node.grid, setting.activation_bytes
    exchange = setting.system.expert_exchange
    if not own:
        made = NOTHING
    elif exchange == "allgather":
        made = cast_rows(layout, np.diff(layout.rows), stage, node.number, grid, element)
    elif exchange == "multicast":
        made = joined(
            [
                cast_rows(
                    layout,
                    rows_of(layout, own, rows),
                    tuple(stage[0] + other for other in others),
                    node.number,
                    grid,
                    element,
                )
                for others, rows in casts.items()
            ]
        )
    else:
        blocks = np.array([rows_of(layout, own, int(count)) for count in to]).T
        made = send_rows(layout, blocks, np.array(stage), node.number, grid, element)
    kind, word = {
        "allgather": ("AllGather", "ag_disp"),
        "multicast": ("Multicast", "mc_disp"),
    }.get(exchange, ("AlltoAll", "a2a_disp"))
    return node.together(f"{prefix}_{word}", kind, made, stage)


def rows_of(layout: Layout, own: int, count: int) -> np.ndarray:
    """Spread rows that are sent to the blocks of rows, in proportion to their sizes."""
    return np.diff(layout.rows * count // max(own, 1))


def _combine(
    node: Node, prefix: str, returned: list[tuple[Layout, np.ndarray]], stage: tuple[int, ...]
) -> CoreOperation:
    setting = node.setting
    grid, element = node.grid, setting.activation_bytes
    place = node.number - stage[0]
    exchange = setting.system.expert_exchange
    parts = []
    for layout, rows in returned:
        if exchange == "allgather":
            whole = np.diff(layout.rows)
            parts.append(cast_rows(layout, whole, stage, node.number, grid, element))
            continue
        starts = np.concatenate(([0], np.cumsum(rows)))
        blocks = rows_in_blocks(layout, starts)
        blocks[:, place] = 0
        parts.append(send_rows(layout, blocks, np.array(stage), node.number, grid, element))
    kind, word = {
        "allgather": ("AllGather", "combine_ag"),
        "multicast": ("Unicast", "combine_unicast"),
    }.get(exchange, ("AlltoAll", "combine_a2a"))
    return node.together(f"{prefix}_{word}", kind, joined(parts), stage)
