"""Nodes and cores of a wafer: how many, how a model is shared among them, where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError, did_you_mean

# What a wafer is set up as: nodes, their cores, and how a model is spread over them.

EXCHANGES = ("alltoall", "allgather", "multicast")
"""How tokens reach their experts; ``multicast`` returns by unicast."""

Grid = tuple[int, int]
"""Rows and columns."""

Group = tuple[Integers, Integers, Integers]
"""First node, stride and size of each node's group."""


@dataclass(frozen=True)
class WaferSystem:
    """Nodes of a wafer in one phase, and the degrees of parallelism over them.

    Ranks of attention count fastest to slowest: tensor, sequence, data, pipeline; those of the
    feed-forward network: expert tensor, expert, data, pipeline.

    Attributes
    ----------
    nodes : int
        Nodes, all stages of the pipeline counted.
    node_grid, core_grid : (int, int)
        Rows and columns of nodes on the wafer, and of cores in a node; each core has a memory
        bank of its own.
    data_parallel, tensor_parallel, sequence_parallel : int
        Degrees of attention; the sequence degree splits the context (the KV cache).
    pipeline_parallel : int
        Stages.
    expert_parallel, ffn_tensor_parallel, ffn_data_parallel : int
        Degrees of the experts, or of a dense network.
    shared_copies : int
        Nodes that each hold the shared experts and serve a share of the batch.
    expert_exchange : {"alltoall", "allgather", "multicast"}
    routing : str
        Distribution of tokens over experts, as `perfmodel.base.routing.parse_routing` reads it.
    """

    nodes: int = 1
    node_grid: Grid = (1, 1)
    core_grid: Grid = (1, 1)
    data_parallel: int = 1
    tensor_parallel: int = 1
    sequence_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    ffn_tensor_parallel: int = 1
    ffn_data_parallel: int = 1
    shared_copies: int = 1
    expert_exchange: str = "alltoall"
    routing: str = "uniform"

    def __post_init__(self) -> None:
        for key in (
            "nodes",
            "data_parallel",
            "tensor_parallel",
            "sequence_parallel",
            "pipeline_parallel",
            "expert_parallel",
            "ffn_tensor_parallel",
            "ffn_data_parallel",
            "shared_copies",
        ):
            _check_degree(key, getattr(self, key))
        for key in ("node_grid", "core_grid"):
            grid = getattr(self, key)
            if len(grid) != 2:
                raise StrategyError(f"key '{key}': two whole numbers, rows and columns, not {grid}")
            for side in grid:
                _check_degree(key, side)
        if prod(self.node_grid) != self.nodes:
            raise StrategyError(
                f"key 'node_grid': {self.node_grid[0]} x {self.node_grid[1]} nodes are not the "
                f"{self.nodes} of 'nodes'"
            )
        self._check_product(
            ("tensor_parallel", "sequence_parallel", "data_parallel", "pipeline_parallel")
        )
        self._check_product(
            ("ffn_tensor_parallel", "expert_parallel", "ffn_data_parallel", "pipeline_parallel")
        )
        if self.shared_copies > self.stage_nodes:
            raise StrategyError(
                f"key 'shared_copies': {self.shared_copies} exceeds the {self.stage_nodes} nodes "
                "of a pipeline stage"
            )
        if self.expert_exchange not in EXCHANGES:
            raise StrategyError(
                f"key 'expert_exchange': unknown '{self.expert_exchange}'"
                f"{did_you_mean(self.expert_exchange, EXCHANGES)}"
            )

    def _check_product(self, keys: tuple[str, ...]) -> None:
        values = [getattr(self, key) for key in keys]
        if prod(values) != self.nodes:
            product = " x ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
            raise StrategyError(f"{product} is {prod(values)}, not the {self.nodes} of 'nodes'")

    @property
    def stage_nodes(self) -> int:
        """Nodes of one pipeline stage."""
        return self.nodes // self.pipeline_parallel

    @property
    def cluster_nodes(self) -> int:
        """Nodes that share the attention of the same tokens."""
        return self.tensor_parallel * self.sequence_parallel

    @property
    def cores(self) -> int:
        """Cores of a node."""
        return self.core_grid[0] * self.core_grid[1]


def _check_degree(key: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise StrategyError(f"key '{key}': a whole number above 0, not {value!r}")
    if value > 2**24:
        raise StrategyError(f"key '{key}': {value} exceeds {2**24}, more than any wafer has")


# A system from the degrees that somebody states: the others follow.

CORE_GRID: Grid = (6, 6)
"""Of the wafer workload generator's default system."""


def given_system(
    *,
    data_parallel: int = 1,
    tensor_parallel: int = 1,
    sequence_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: int | None = None,
    ffn_tensor_parallel: int = 1,
    ffn_data_parallel: int = 1,
    node_grid: Grid | None = None,
    core_grid: Grid = CORE_GRID,
    shared_copies: int = 1,
    expert_exchange: str = "alltoall",
) -> WaferSystem:
    """Return a system of as many nodes as the degrees of attention make.

    Parameters
    ----------
    data_parallel, tensor_parallel, sequence_parallel, pipeline_parallel : int
        Their product is the number of nodes.
    expert_parallel : int, optional
        What the other degrees of the feed-forward network leave of a stage's nodes.
    ffn_tensor_parallel, ffn_data_parallel : int
    node_grid : (int, int), optional
        As square as the number of nodes allows.
    core_grid : (int, int)
    shared_copies : int
    expert_exchange : str

    Raises
    ------
    StrategyError
        Degrees or grids that contradict each other; names the key.
    """
    degrees = (data_parallel, tensor_parallel, sequence_parallel, pipeline_parallel)
    nodes = 1
    for degree in degrees:
        nodes *= degree
    if nodes > 2**24:
        raise StrategyError(f"degrees of attention: {nodes} nodes exceed {2**24}")
    others = ffn_tensor_parallel * ffn_data_parallel * pipeline_parallel
    if expert_parallel is None:
        if nodes % others:
            raise StrategyError(
                f"keys 'ffn_tensor_parallel' and 'ffn_data_parallel': {ffn_tensor_parallel} x "
                f"{ffn_data_parallel} nodes do not divide a stage's {nodes // pipeline_parallel}"
            )
        expert_parallel = nodes // others
    if node_grid is None:
        rows = next(rows for rows in range(isqrt(nodes), 0, -1) if nodes % rows == 0)
        node_grid = (rows, nodes // rows)
    return WaferSystem(
        nodes=nodes,
        node_grid=node_grid,
        core_grid=core_grid,
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        sequence_parallel=sequence_parallel,
        pipeline_parallel=pipeline_parallel,
        expert_parallel=expert_parallel,
        ffn_tensor_parallel=ffn_tensor_parallel,
        ffn_data_parallel=ffn_data_parallel,
        shared_copies=shared_copies,
        expert_exchange=expert_exchange,
    )


# Which share of the work a node has: buckets, ranks and groups.


def bucket_sizes(items: int, buckets: int) -> Integers:
    """Spread items into contiguous buckets; the first ``items mod buckets`` get one more.

    Returns
    -------
    array of int, shape (buckets,)
    """
    sizes = np.full(buckets, items // buckets, dtype=np.int64)
    sizes[: items % buckets] += 1
    return sizes


def bucket_starts(items: int, buckets: int) -> Integers:
    """Return where each bucket of `bucket_sizes` begins, and the end: shape (buckets + 1,)."""
    return np.concatenate(([0], np.cumsum(bucket_sizes(items, buckets))))


class NodeRanks(NamedTuple):
    """Ranks of every node, each array of shape (nodes,)."""

    tensor: Integers
    sequence: Integers
    data: Integers
    pipeline: Integers
    ffn_tensor: Integers
    expert: Integers
    ffn_data: Integers


def node_ranks(system: WaferSystem) -> NodeRanks:
    """Return the ranks of all nodes, in the order that `WaferSystem` states."""
    node = np.arange(system.nodes)
    t, s, d = system.tensor_parallel, system.sequence_parallel, system.data_parallel
    f, e, g = system.ffn_tensor_parallel, system.expert_parallel, system.ffn_data_parallel
    return NodeRanks(
        tensor=node % t,
        sequence=node // t % s,
        data=node // (t * s) % d,
        pipeline=node // (t * s * d),
        ffn_tensor=node % f,
        expert=node // f % e,
        ffn_data=node // (f * e) % g,
    )


def token_owners(system: WaferSystem, batch: int) -> Integers:
    """Return the node within a pipeline stage that dispatches each sequence of the batch.

    The batch is spread over the data-parallel clusters, a cluster's share over its nodes.

    Returns
    -------
    array of int, shape (batch,)
    """
    owners = []
    for cluster, share in enumerate(bucket_sizes(batch, system.data_parallel)):
        members = bucket_sizes(int(share), system.cluster_nodes)
        owners.append(np.repeat(np.arange(system.cluster_nodes), members) + cluster * len(members))
    return np.concatenate(owners)


def shared_nodes(system: WaferSystem) -> Integers:
    """Return the nodes within a stage that each hold the shared experts: evenly spread.

    Returns
    -------
    array of int, shape (copies,)
    """
    return np.arange(system.shared_copies) * (system.stage_nodes // system.shared_copies)


def shared_servers(system: WaferSystem, sequences: int) -> Integers:
    """Return the node within a stage whose copy of the shared experts serves each sequence.

    Returns
    -------
    array of int, shape (sequences,)
    """
    return np.repeat(shared_nodes(system), bucket_sizes(sequences, system.shared_copies))


def expert_ranks(system: WaferSystem, experts: int) -> Integers:
    """Return the expert rank that holds each expert: spread in their order.

    Returns
    -------
    array of int, shape (experts,)
    """
    return np.repeat(
        np.arange(system.expert_parallel), bucket_sizes(experts, system.expert_parallel)
    )


# Where the cores of a wafer stand: nodes on a grid, each a grid of cores.


def mesh_sides(system: WaferSystem) -> Grid:
    """Return rows and columns of cores of the whole wafer."""
    return (
        system.node_grid[0] * system.core_grid[0],
        system.node_grid[1] * system.core_grid[1],
    )


def core_places(system: WaferSystem) -> Integers:
    """Return the place of every core in the mesh of all cores.

    Cores count node by node, row by row in a node (as banks and cores of traces do); places count
    row by row over the wafer, as `perfmodel.kernels.wafer.routes` does.

    Returns
    -------
    array of int, shape (nodes x cores,)
    """
    rows, columns = system.core_grid
    across = system.node_grid[1]
    node, core = np.divmod(np.arange(system.nodes * system.cores), system.cores)
    row = node // across * rows + core // columns
    column = node % across * columns + core % columns
    return row * (across * columns) + column
