"""Experts on a wafer: what their tokens load on its links, layer by layer, and who is last.

Tokens go from the nodes that have them to the nodes of their experts and back, along rows of the
node grid, then along columns. From the links' loads follow the time of the exchange (Luczynski et
al., HPDC 2024) and the hottest link; from the experts' tokens the straggler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError, StrategyError, did_you_mean
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.work import kernel_work
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.system import (
    WaferSystem,
    bucket_sizes,
    expert_ranks,
    shared_servers,
    token_owners,
)

EXCHANGES = ("each", "deduplicated", "tree")
"""A row per expert; one per node that holds any (back: summed there); one that routers copy on its
way (back: that they add where ways meet), as `perfmodel.kernels.wafer.routes` numbers them."""

PLACEMENTS = ("contiguous", "strided", "balanced")
"""Experts over nodes in their order, card by card, or heaviest first to the lightest node."""

MOST_TOKENS = 65_536
"""Tokens of a layer that are routed one by one; of more, every n-th, and loads are scaled."""


class _Rows(NamedTuple):
    """Rows of a layer on the links between nodes, as `exchange_loads` counts them."""

    loads: tuple[Floats, Floats]
    hops: tuple[float, float]
    longest: tuple[int, int]
    sent: tuple[float, float]
    tokens: Floats  # of each node, one for each of its experts
    shared: Floats  # of each node, for its copy of the shared expert


@dataclass(frozen=True)
class ExpertTraffic:
    """What the experts of each layer come to, arrays of shape (layers,) unless said.

    Attributes
    ----------
    layers : array of int
        Layers of the model that have experts.
    dispatch_time, combine_time : array of float
        Of the exchanges on the mesh [s].
    expert_time : array of float
        Of the products of the straggler at what its cores sustain [s].
    dispatch_bytes, combine_bytes : array of float
        That leave nodes [B].
    dispatch_hops, combine_hops : array of float
        Bytes times links between nodes [B].
    hottest_link : array of float
        Bytes over the busiest link of the two exchanges [B].
    hottest_from, hottest_to : array of int
        Its nodes.
    link_imbalance : array of float
        Its bytes over the mean's of all links between nodes.
    straggler : array of int
        Node whose experts, the shared one among them, have most to do.
    straggler_tokens : array of float
        Its tokens, one for each expert.
    straggler_ratio : array of float
        Its multiply-adds over the mean of all nodes.
    remarks : tuple of str
        What was simplified.
    """

    layers: Integers
    dispatch_time: Floats
    combine_time: Floats
    expert_time: Floats
    dispatch_bytes: Floats
    combine_bytes: Floats
    dispatch_hops: Floats
    combine_hops: Floats
    hottest_link: Floats
    hottest_from: Integers
    hottest_to: Integers
    link_imbalance: Floats
    straggler: Integers
    straggler_tokens: Floats
    straggler_ratio: Floats
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, list[float]]:
        """Return all columns as lists, for JSON."""
        names = [one.name for one in fields(self) if one.name != "remarks"]
        return {name: np.asarray(getattr(self, name)).tolist() for name in names}


def routed_layers(model: ModelSpec, routing: Callable[[int, int], Integers]) -> RoutedTokens:
    """Return the experts of all layers in the first step, from step and layer.

    Raises
    ------
    StrategyError
        The model has no experts.
    """
    layers = [at for at, layer in enumerate(model.layers) if layer.experts]
    if not layers:
        raise StrategyError(f"{model.name} has no experts")
    experts = np.stack([routing(0, layer) for layer in layers])
    return RoutedTokens(experts, model.layers[layers[0]].experts)


def expert_nodes(system: WaferSystem, num_experts: int, placement: str, loads: Floats) -> Integers:
    """Return the node of a stage that holds each expert.

    Parameters
    ----------
    system : WaferSystem
    num_experts : int
    placement : str
        One of `PLACEMENTS`.
    loads : array of float, shape (experts,)
        Tokens of each; ``balanced`` only spreads by them.

    Returns
    -------
    array of int, shape (experts,)

    Raises
    ------
    StrategyError
        Unknown placement, or more nodes than experts.
    """
    ranks = system.expert_parallel
    if ranks > num_experts:
        raise StrategyError(
            f"key 'expert_parallel': {ranks} exceeds the {num_experts} experts of the model"
        )
    if placement == "contiguous":
        rank = expert_ranks(system, num_experts)
    elif placement == "strided":
        rank = np.arange(num_experts) % ranks
    elif placement == "balanced":
        rank = _balanced(loads, ranks)
    else:
        raise StrategyError(f"unknown placement '{placement}'{did_you_mean(placement, PLACEMENTS)}")
    return rank * system.ffn_tensor_parallel


def _balanced(loads: Floats, ranks: int) -> Integers:
    """Spread the heaviest expert left to the node with the lightest load that has room."""
    room = bucket_sizes(loads.size, ranks)
    sums = np.zeros(ranks)
    rank = np.zeros(loads.size, np.int64)
    for expert in np.argsort(-loads, kind="stable"):
        best = int(np.argmin(np.where(room > 0, sums, np.inf)))
        rank[expert] = best
        sums[best] += loads[expert]
        room[best] -= 1
    return rank


def expert_traffic(
    model: ModelSpec,
    system: WaferSystem,
    routed: RoutedTokens,
    hardware: MeshHardware,
    *,
    dispatch: str = "deduplicated",
    combine: str = "deduplicated",
    placement: str = "contiguous",
    precision: str = "fp16",
    element_bytes: float = 2.0,
) -> ExpertTraffic:
    """Route the tokens of all layers with experts over the wafer.

    Parameters
    ----------
    model : ModelSpec
    system : WaferSystem
        One stage of the pipeline is looked at: all its nodes, in rows of the node grid.
    routed : RoutedTokens
    hardware : MeshHardware
        Its links lie between cores: a node has as many to the next as its side has cores.
    dispatch, combine : str
        Of `EXCHANGES`.
    placement : str
        Of `PLACEMENTS`.
    precision : str
        Of the products.
    element_bytes : float
        Of an activation [B].

    Raises
    ------
    StrategyError
        No experts, unknown words, or a pipeline's stages that do not fill rows of nodes.
    DataError
        Routing of other experts than the model's, or of another batch than can be spread.
    """
    layers = np.array([n for n, layer in enumerate(model.layers) if layer.experts])
    if not layers.size:
        raise StrategyError(f"{model.name} has no experts")
    for name, value in (("dispatch", dispatch), ("combine", combine)):
        if value not in EXCHANGES:
            raise StrategyError(f"key '{name}': unknown '{value}'{did_you_mean(value, EXCHANGES)}")
    experts = model.layers[int(layers[0])].experts
    if routed.num_experts != experts:
        raise DataError(f"routing: {routed.num_experts} experts, the model has {experts}")
    if len(routed.experts) not in (1, layers.size):
        raise DataError(
            f"routing: {len(routed.experts)} layers, the model has {layers.size} with experts"
        )
    grid = _stage_grid(system)
    sequences, length = routed.experts.shape[1:3]
    owners = np.repeat(token_owners(system, sequences), length)
    shared = np.repeat(shared_servers(system, sequences), length)
    step = -(-owners.size // MOST_TOKENS)
    chosen = slice(None, None, step)
    scale = owners.size / len(owners[chosen])
    remarks = () if step == 1 else (f"of {owners.size:,} tokens, one of {step} is routed",)
    rows_of: dict[tuple[int, bool], _Rows] = {}  # where one layer of the routing stands for all
    found = []
    for number, layer in enumerate(layers.tolist()):
        mlp = next(mlp for mlp in model.layers[layer].mlps if mlp.experts)
        key = (number if len(routed.experts) > 1 else 0, mlp.shared_intermediate_size > 0)
        if key not in rows_of:
            top = routed.of_layer(key[0]).reshape(owners.size, -1)[chosen]
            more = shared[chosen, None] if key[1] else np.empty((len(top), 0), np.int64)
            rows_of[key] = _layer_loads(
                system, grid, owners[chosen], top, more, experts, placement, (dispatch, combine)
            )
        row_bytes = model.hidden_size * element_bytes * scale
        per_token = model.hidden_size * (3 if mlp.gated else 2) * scale
        macs = (
            per_token * mlp.expert_intermediate_size / system.ffn_tensor_parallel,
            per_token * mlp.shared_intermediate_size,
        )
        found.append(_times(system, hardware, rows_of[key], row_bytes, macs, precision, scale))
    columns: dict[str, Any] = {name: np.array([row[name] for row in found]) for name in found[0]}
    return ExpertTraffic(layers=layers, remarks=remarks, **columns)


def _stage_grid(system: WaferSystem) -> tuple[int, int]:
    """Return rows and columns of the nodes of a stage."""
    rows, columns = system.node_grid
    if system.stage_nodes % columns and system.pipeline_parallel > 1:
        raise StrategyError(
            f"key 'pipeline_parallel': a stage of {system.stage_nodes} nodes does not fill rows of "
            f"the {rows} x {columns} node grid"
        )
    return system.stage_nodes // columns, columns


def _layer_loads(
    system: WaferSystem,
    grid: tuple[int, int],
    owners: Integers,
    experts: Integers,
    shared: Integers,
    count: int,
    placement: str,
    kinds: tuple[str, str],
) -> _Rows:
    """Route the tokens of a layer there and back; one copy of the network is as the other."""
    weights = np.bincount(experts.ravel(), minlength=count).astype(np.float64)
    home = expert_nodes(system, count, placement, weights)
    # Copies of the network (data parallel) serve the clusters of their own nodes.
    copy = owners // (system.ffn_tensor_parallel * system.expert_parallel)
    nodes = home[experts] + (copy * system.ffn_tensor_parallel * system.expert_parallel)[:, None]
    tokens = np.bincount(nodes.ravel(), minlength=system.stage_nodes).astype(np.float64)
    if system.ffn_tensor_parallel > 1:  # every rank of an expert needs the token
        shifts = np.arange(system.ffn_tensor_parallel)
        nodes = (nodes[:, :, None] + shifts).reshape(len(nodes), -1)
        tokens = np.repeat(tokens[:: system.ffn_tensor_parallel], system.ffn_tensor_parallel)
    nodes = np.concatenate((nodes, shared), axis=1)
    found = []
    with kernel_work(mesh_flows=2 * nodes.size):
        from perfmodel.kernels.wafer.routes import exchange_loads

        for kind, back in zip(kinds, (False, True), strict=True):
            found.append(exchange_loads(*grid, owners, nodes, EXCHANGES.index(kind), back))
    loads, hops, longest, sent = zip(*found, strict=True)
    ours = np.bincount(shared.ravel(), minlength=system.stage_nodes).astype(np.float64)
    return _Rows(loads, hops, longest, sent, tokens, ours)


def _times(
    system: WaferSystem,
    hardware: MeshHardware,
    rows: _Rows,
    row_bytes: float,
    macs: tuple[float, float],
    precision: str,
    scale: float,
) -> dict[str, float]:
    """Return the columns of `ExpertTraffic` behind its layers."""
    from perfmodel.kernels.wafer.reduce import phase_cycles

    high, wide = system.core_grid
    lanes = np.array([high, high, wide, wide, system.cores, system.cores])[:, None]
    times = []
    for loads, hops, longest in zip(rows.loads, rows.hops, rows.longest, strict=True):
        cycles = loads * row_bytes / (hardware.link_width * lanes)
        links = float(np.count_nonzero(loads[:4]))
        mean = hops * row_bytes / (hardware.link_width * min(high, wide))
        way = longest * max(high, wide) * hardware.hop_cycles
        stage = hardware.constants.get("stage_latency", 0.0)
        depth = 1.0 if links else 0.0
        busiest = float(cycles.max(initial=0.0))
        times.append(
            phase_cycles(busiest, mean, links, way, depth, hardware.ramp_cycles, stage)
            / hardware.clock
        )
    rate = hardware.peak_macs(precision) * hardware.constants.get("mac_fraction", 1.0)
    work = rows.tokens * macs[0] + rows.shared * macs[1]
    last = int(np.argmax(work))
    busy = work[last] / (rate * system.cores * hardware.clock)
    link = (rows.loads[0] + rows.loads[1])[:4] * row_bytes
    way_of, node = np.unravel_index(int(np.argmax(link)), link.shape)
    beyond = int(node) + (1, -1, system.node_grid[1], -system.node_grid[1])[int(way_of)]
    hottest = float(link.max(initial=0.0))
    used = link[link > 0.0]
    return {
        "dispatch_time": times[0],
        "combine_time": times[1],
        "expert_time": busy,
        "dispatch_bytes": row_bytes * rows.sent[0],
        "combine_bytes": row_bytes * rows.sent[1],
        "dispatch_hops": row_bytes * rows.hops[0],
        "combine_hops": row_bytes * rows.hops[1],
        "hottest_link": hottest,
        "hottest_from": int(node) if hottest else -1,
        "hottest_to": beyond if hottest else -1,
        "link_imbalance": hottest / float(used.mean()) if hottest else 1.0,
        "straggler": last,
        "straggler_tokens": float(rows.tokens[last] + rows.shared[last]) * scale,
        "straggler_ratio": float(work[last] / work.mean()),
    }
