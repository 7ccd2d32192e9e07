"""What a wafer is set up as: nodes, their cores, and how a model is spread over them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from perfmodel.base.errors import StrategyError, did_you_mean

EXCHANGES = ("alltoall", "allgather", "multicast")
"""How tokens reach their experts; ``multicast`` returns by unicast."""

Grid = tuple[int, int]
"""Rows and columns."""


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
        Distribution of tokens over experts, as `perfmodel.compute.routing.parse_routing` reads it.
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
