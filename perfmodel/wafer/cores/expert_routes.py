"""Which rows of tokens go from which node to which in a layer with experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.wafer.cores.layout import (
    Layout,
)
from perfmodel.wafer.routing import RoutingOf
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import bucket_sizes, bucket_starts, expert_ranks, shared_nodes

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


def rows_of(layout: Layout, own: int, count: int) -> np.ndarray:
    """Spread rows that are sent to the blocks of rows, in proportion to their sizes."""
    return np.diff(layout.rows * count // max(own, 1))


class Routes:
    """Routes of tokens to experts, found once for all nodes of a step.

    Parameters
    ----------
    setting : CoreSetting
    routing : callable
        `RoutingOf`.
    """

    def __init__(self, setting: CoreSetting, routing: RoutingOf) -> None:
        self.setting = setting
        self.routing = routing
        self._found: dict[tuple[int, int], ExpertRoutes] = {}

    def of(self, step: int, layer: int) -> ExpertRoutes:
        """Return the routes of a layer in a step."""
        if (step, layer) not in self._found:
            self._found = {key: value for key, value in self._found.items() if key[0] == step}
            mlp = self.setting.model.layers[layer].mlps[0]
            self._found[step, layer] = expert_routes(
                self.setting,
                self.routing(step, layer),
                mlp.experts,
                mlp.shared_intermediate_size > 0,
            )
        return self._found[step, layer]
