"""One iteration of the generator: a model on a system, and what each node has of the batch.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/common/config.py`` (what is
asserted, order of ranks) and ``dist_info.py`` (buckets).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, StrategyError, did_you_mean
from perfmodel.wafer.ranks import (
    bucket_sizes,
    bucket_starts,
    expert_ranks,
    node_ranks,
    shared_servers,
    token_owners,
)
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.facts import GeneratorModel

PRECISIONS = {"fp16": 2, "fp8": 1}
"""Bytes of an element: one for weights, activations, keys and values, and messages."""
MOST_TOKENS = 2**31
LONGEST = 2**31  # tokens of a context
MOST_MACS = 2**63


@dataclass(frozen=True)
class Iteration:
    """A prefill, or a step of decoding.

    Attributes
    ----------
    model : GeneratorModel
    system : WaferSystem
    batch : int
        Sequences.
    length : int
        Tokens of each that pass: the prompt, or 1 and those speculated.
    context : int
        Tokens seen before; 0 for a prefill.
    precision : {"fp16", "fp8"}
    layers : tuple of str
        Layers that run, first to last; empty for all.

    Raises
    ------
    StrategyError
        The generator has no such system.
    DataError
        Sizes that nothing could have.
    """

    model: GeneratorModel
    system: WaferSystem
    batch: int
    length: int
    context: int = 0
    precision: str = "fp16"
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, least in (("batch", 1), ("length", 1), ("context", 0)):
            value = getattr(self, key)
            if type(value) is not int or not least <= value <= LONGEST:
                raise DataError(f"key '{key}': a whole number of {least} to {LONGEST}, not {value}")
        if self.batch * self.length > MOST_TOKENS:
            raise DataError(
                f"keys 'batch' and 'length': {self.batch} x {self.length} tokens exceed "
                f"{MOST_TOKENS}"
            )
        widest = 2 * self.model.kv_rank + self.model.rope + 2 * self.model.head_dim
        widest += self.model.nope + self.model.value
        keys = max(self.context, self.length)
        if self.batch * self.length * keys * self.model.heads * widest >= MOST_MACS:
            raise DataError(
                f"keys 'batch' and 'isl': attention of {self.batch} x {self.length} tokens to "
                f"{keys} each is more multiply-accumulates than 63 bits count"
            )
        if self.precision not in PRECISIONS:
            raise DataError(
                f"key 'precision': unknown '{self.precision}'"
                f"{did_you_mean(self.precision, PRECISIONS)}"
            )
        if not self.layers:
            object.__setattr__(self, "layers", self.model.layer_names())
        check_covered(self.model, self.system)

    @property
    def prefill(self) -> bool:
        """Whether prompts are read, and not tokens written."""
        return self.context == 0

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return PRECISIONS[self.precision]

    @property
    def parallel(self) -> int:
        """Nodes over which dense networks and the LM head are split."""
        return self.system.cluster_nodes

    @property
    def exchanges(self) -> bool:
        """Whether tokens go to experts on other nodes."""
        return self.system.expert_parallel > 1

    @cached_property
    def starts(self) -> Integers:
        """First sequence of each data-parallel cluster, and the end: shape (clusters + 1,)."""
        return bucket_starts(self.batch, self.system.data_parallel)

    @cached_property
    def local_batch(self) -> Integers:
        """Sequences whose attention a node computes: shape (nodes,)."""
        return bucket_sizes(self.batch, self.system.data_parallel)[node_ranks(self.system).data]

    @cached_property
    def owners(self) -> Integers:
        """Node that dispatches each sequence: shape (batch,)."""
        return token_owners(self.system, self.batch)

    @cached_property
    def own_batch(self) -> Integers:
        """Sequences that a node dispatches: shape (nodes,)."""
        return np.bincount(self.owners, minlength=self.system.nodes)

    @cached_property
    def shared_nodes(self) -> Integers:
        """Node of the shared experts that each sequence visits: shape (batch,)."""
        return shared_servers(self.system, self.batch)

    @cached_property
    def expert_nodes(self) -> Integers:
        """Node, or rank of the tensor-parallel group, of each expert: shape (experts,)."""
        return expert_ranks(self.system, self.model.experts)

    def group(self, node: int, axis: str) -> list[int]:
        """Return the nodes that share a collective with a node.

        Parameters
        ----------
        node : int
        axis : {"tensor", "sequence", "cluster", "experts", "data"}
        """
        tensor, cluster = self.system.tensor_parallel, self.system.cluster_nodes
        first = node - node % cluster
        if axis == "cluster":
            return list(range(first, first + cluster))
        if axis == "tensor":
            return list(range(node - node % tensor, node - node % tensor + tensor))
        if axis == "sequence":
            return list(range(first + node % tensor, first + cluster, tensor))
        if axis == "data":
            return list(range(node % cluster, self.system.nodes, cluster))
        return list(range(self.system.nodes))


def check_covered(model: GeneratorModel, system: WaferSystem) -> None:
    """Make sure that the generator has such a system.

    What it refuses by mistake only runs: experts in tensor-parallel parts, for which it looks
    up rows on the wrong node.

    Raises
    ------
    StrategyError
        Names the key, and what the generator asserts.
    """
    nodes = system.nodes
    elsewhere = "; without the generator's compatibility this runs"
    if system.pipeline_parallel > 1:
        raise StrategyError(
            f"key 'pp': {system.pipeline_parallel} stages; the generator asserts that ep or tp_ffn "
            f"is num_nodes, and so has one{elsewhere}"
        )
    if system.ffn_data_parallel > 1:
        raise StrategyError(
            f"key 'dp_ffn': {system.ffn_data_parallel}; the generator asserts 1{elsewhere}"
        )
    if system.expert_parallel > 1 and system.ffn_tensor_parallel > 1:
        raise StrategyError(
            f"keys 'ep' and 'tp_ffn': {system.expert_parallel} x {system.ffn_tensor_parallel}; the "
            f"generator asserts that one of them is num_nodes, {nodes}{elsewhere}"
        )
    if system.ffn_tensor_parallel > 1 and system.shared_copies > 1:
        raise StrategyError(
            f"key 'n_redundant_shared_exp': {system.shared_copies}; the generator asserts 1 where "
            f"tp_ffn is num_nodes{elsewhere}"
        )
    if 0 < model.experts < system.expert_parallel:
        raise StrategyError(
            f"key 'ep': {system.expert_parallel} exceeds the {model.experts} experts of the model"
        )
