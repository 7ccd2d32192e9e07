"""What is asked of the core level: a model, nodes, a phase, tokens, and bytes of elements."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import ModelError, StrategyError, did_you_mean
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.system import (
    Group,
    NodeRanks,
    WaferSystem,
    bucket_sizes,
    bucket_starts,
    node_ranks,
    shared_servers,
    token_owners,
)

LM_HEAD = "lm_head"
LARGEST_TOKENS = 2**24
"""Tokens of a pass: the experts of each are held."""
LARGEST_CORES = 4096
"""Cores of a node, and nodes: tables of cores by cores are made, and of nodes by nodes."""


@dataclass(frozen=True)
class CoreSetting:
    """One phase of a model on the cores of a wafer, and which node has what part of the batch.

    Attributes
    ----------
    model : ModelSpec
    system : WaferSystem
    phase : {"prefill", "decode"}
    batch : int
        Sequences of all data-parallel clusters.
    input_length : int
        Tokens of a prompt.
    speculative : int
        Tokens that a decode step checks beside the next.
    weight_bytes, activation_bytes, cache_bytes : float
        Of an element [B].
    bank_size : int
        Bytes of a core's bank, that a tile's operands and result have to fit [B]; 0: any.
    """

    model: ModelSpec
    system: WaferSystem
    phase: str
    batch: int
    input_length: int
    speculative: int = 0
    weight_bytes: float = 2.0
    activation_bytes: float = 2.0
    cache_bytes: float = 2.0
    bank_size: int = 0

    def __post_init__(self) -> None:
        for key, least in (("batch", 1), ("input_length", 1), ("speculative", 0)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise StrategyError(
                    f"key '{key}': a whole number of at least {least}, not {value!r}"
                )
        if self.phase not in ("prefill", "decode"):
            raise StrategyError(f"key 'phase': prefill or decode, not '{self.phase}'")
        self.check_size()
        self.check_context(self.input_length, "isl")
        if self.model.encoders:
            raise ModelError(f"{self.model.name}: key 'towers': encoders have no core level yet")
        for layer in self.model.layers:
            check_layer(self.model.name, layer)

    def check_size(self) -> None:
        """Refuse more cores, nodes or tokens than tables are made of.

        Raises
        ------
        StrategyError
        """
        for key, count in (("core_grid", self.system.cores), ("node_grid", self.system.nodes)):
            if count > LARGEST_CORES:
                what = "cores of a node" if key == "core_grid" else "nodes"
                raise StrategyError(f"key '{key}': {count} {what} exceed {LARGEST_CORES}")
        if self.batch * self.length > LARGEST_TOKENS:
            raise StrategyError(
                f"key 'batch': {self.batch} sequences of {self.length} tokens exceed the "
                f"{LARGEST_TOKENS} tokens of a pass"
            )

    def check_context(self, tokens: int, key: str) -> None:
        """Refuse a context that is longer than the model's.

        Raises
        ------
        StrategyError
        """
        most = self.model.max_positions
        if most and tokens > most:
            raise StrategyError(
                f"key '{key}': {tokens} tokens exceed the {most} positions of {self.model.name}"
            )

    @property
    def prefix(self) -> str:
        """What names of layers begin with."""
        return self.phase

    @property
    def length(self) -> int:
        """Tokens of a sequence that a pass is over."""
        return self.input_length if self.phase == "prefill" else 1 + self.speculative

    def stage_layers(self, node: int) -> range:
        """Layers of a node's pipeline stage."""
        starts = bucket_starts(len(self.model.layers), self.system.pipeline_parallel)
        stage = self.ranks.pipeline[node]
        return range(int(starts[stage]), int(starts[stage + 1]))

    @cached_property
    def ranks(self) -> NodeRanks:
        """Ranks of all nodes."""
        return node_ranks(self.system)

    @cached_property
    def starts(self) -> Integers:
        """First sequence of each data-parallel cluster, and the end: shape (clusters + 1,)."""
        return bucket_starts(self.batch, self.system.data_parallel)

    @cached_property
    def local_batch(self) -> Integers:
        """Sequences whose attention a node computes: shape (nodes,)."""
        return bucket_sizes(self.batch, self.system.data_parallel)[self.ranks.data]

    @cached_property
    def owners(self) -> Integers:
        """Node of a stage that dispatches each sequence to experts: shape (batch,)."""
        return token_owners(self.system, self.batch)

    @cached_property
    def own_batch(self) -> Integers:
        """Sequences that a node dispatches: shape (nodes,)."""
        counts = np.bincount(self.owners, minlength=self.system.stage_nodes)
        return np.tile(counts, self.system.pipeline_parallel)

    @cached_property
    def shared_nodes(self) -> Integers:
        """Node of the shared experts that each sequence visits: shape (batch,)."""
        return shared_servers(self.system, self.batch)

    def groups(self, axis: str) -> Group:
        """Return first node, stride and size of each node's group.

        Parameters
        ----------
        axis : {"tensor", "sequence", "cluster", "data", "stage", "ffn_tensor", "pipeline"}
        """
        system, ranks, node = self.system, self.ranks, np.arange(self.system.nodes)
        t, c, p = system.tensor_parallel, system.cluster_nodes, system.stage_nodes
        first, stride, size = {
            "tensor": (node - ranks.tensor, 1, t),
            "sequence": (node - ranks.sequence * t, t, system.sequence_parallel),
            "cluster": (node // c * c, 1, c),
            "data": (node - ranks.data * c, c, system.data_parallel),
            "stage": (node // p * p, 1, p),
            "ffn_tensor": (node - ranks.ffn_tensor, 1, system.ffn_tensor_parallel),
            "pipeline": (node % p, p, system.pipeline_parallel),
        }[axis]
        count = np.ones(node.size, np.int64)
        return first, count * stride, count * size

    def group(self, node: int, axis: str) -> tuple[int, ...]:
        """Return the nodes that share a collective over an axis with a node."""
        first, stride, size = (int(part[node]) for part in self.groups(axis))
        return tuple(range(first, first + stride * size, stride))


def check_layer(name: str, layer: LayerSpec) -> None:
    """Refuse layers that have no rule at the core level.

    Raises
    ------
    ModelError
    """
    if len(layer.mixers) != 1 or not isinstance(layer.mixers[0], AttentionSpec):
        raise ModelError(f"{name}: key 'mixers': only layers of one attention have a core level")
    attention = layer.mixers[0]
    for key in ("indexer", "compression", "cross", "shared_keys", "key_is_value", "output_groups"):
        if getattr(attention, key):
            raise ModelError(f"{name}: key '{key}': attention with it has no core level yet")
    if len(layer.mlps) != 1 or not isinstance(layer.mlps[0], MlpSpec):
        raise ModelError(f"{name}: key 'mlps': only layers of one network have a core level")
    if layer.mlps[0].latent_size:
        raise ModelError(f"{name}: key 'latent_size': experts with it have no core level yet")


def ceiling(items: int, parts: int) -> int:
    """Return the larger share of items that are distributed."""
    return -(-items // parts)


def key_starts(setting: CoreSetting, keys: int) -> Integers:
    """Return where the keys of each sequence rank begin: pages of one size, the last cut off."""
    count = setting.system.sequence_parallel
    return np.minimum(np.arange(count + 1) * ceiling(keys, count), keys)


def layer_names(setting: CoreSetting) -> list[str]:
    """Return the names of all layers: ``decode0`` …, then ``lm_head``."""
    return [*(f"{setting.prefix}{at}" for at in range(len(setting.model.layers))), LM_HEAD]


def check_layers(setting: CoreSetting, layers: Collection[str] | None) -> frozenset[str]:
    """Return the layers that are asked for; None for all.

    Raises
    ------
    StrategyError
        A layer that the model has not.
    """
    known = layer_names(setting)
    for name in layers or ():
        if name not in known:
            raise StrategyError(
                f"key 'layers': {setting.model.name} has no '{name}'{did_you_mean(name, known)}; "
                f"it has {known[0]} to {known[-2]} and {LM_HEAD}"
            )
    return frozenset(known if layers is None else layers)
