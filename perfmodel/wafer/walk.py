"""The blocks of a model as operations, in the order in which they run.

One walk for whatever is made of a model on nodes: counts of all nodes at once
(`perfmodel.wafer.nodes`), instructions of a node's cores (`perfmodel.wafer.cores`), rows of
another generator (`perfmodel.wafer.twin`). Who walks says what each operation comes to, and
what stands for its result.

Norms, rotary positions, softmax, residual sums and sampling are left out by all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import MlpSpec
from perfmodel.wafer.setting import LM_HEAD, CoreSetting, ceiling

ABSORBED, NAIVE, BY_HEADS = "absorbattn", "naiveattn", "attn"
"""Latent attention in the latent space, and by keys and values of all heads; over heads, of which
several share keys and values."""

Result = TypeVar("Result")


class AttentionShape(NamedTuple):
    """An attention on a node, without its tokens.

    Attributes
    ----------
    word : {"absorbattn", "naiveattn", "attn"}
    heads, key_heads : int
        Of the node.
    depth, values : int
        Elements of a query and key, and of a value, per head.
    stored, read : int
        Elements of a token that the cache keeps and that are read, of all heads of the node.
    """

    word: str
    heads: int
    key_heads: int
    depth: int
    values: int
    stored: int
    read: int

    @property
    def group(self) -> int:
        """Heads that share keys."""
        return self.heads // self.key_heads

    @property
    def shared_values(self) -> bool:
        """Whether values are a part of the keys."""
        return self.word == ABSORBED

    @property
    def width(self) -> int:
        """Multiply-adds of a pair of query and key in a head."""
        return self.depth + self.values


class Walk(ABC, Generic[Result]):
    """Goes through the blocks of a model.

    Parameters
    ----------
    setting : CoreSetting

    Attributes
    ----------
    layer, part : str
        Where it is: ``decode3``, ``attn_absorb``.
    """

    keys_first = False
    """Whether keys and values of all heads come before the queries."""

    def __init__(self, setting: CoreSetting) -> None:
        self.setting = setting
        self.hidden = setting.model.hidden_size
        self.layer = self.part = ""

    def name(self, word: str) -> str:
        """Return the name of an operation, such as ``decode3_attn_absorb_wkva``."""
        return "_".join(filter(None, (self.layer, self.part, word)))

    @abstractmethod
    def linear(self, word: str, x: Result, inner: int, outer: int) -> Result:
        """Multiply by a matrix of weights."""

    @abstractmethod
    def by_head(self, word: str, x: Result, inner: int, outer: int, heads: int) -> Result:
        """Multiply the first columns of each head by a matrix of the head's own."""

    @abstractmethod
    def softmax(
        self, spec: AttentionSpec, shape: AttentionShape, given: tuple[Result, ...]
    ) -> Result:
        """Attend: `given` are queries, then what keys and values are made of."""

    @abstractmethod
    def merged(self, x: Result, shape: AttentionShape) -> Result:
        """Sum the results of the nodes that share a context."""

    @abstractmethod
    def reduced(self, word: str, x: Result, axis: str) -> Result:
        """Sum over the nodes of an axis; nothing where it has one."""

    @abstractmethod
    def gated(self, up: Result, gate: Result) -> Result:
        """Multiply element by element."""

    @abstractmethod
    def experts(self, spec: MlpSpec, number: int, x: Result) -> Result:
        """Send tokens to the experts of a layer and back."""

    @abstractmethod
    def last_tokens(self, x: Result) -> Result:
        """Take what the output matrix is multiplied by."""

    @abstractmethod
    def gathered(self, x: Result) -> Result:
        """Gather the parts of the vocabulary."""

    def block(self, layer: str, number: int, x: Result) -> Result:
        """Go through a layer."""
        spec = self.setting.model.layers[number]
        x = self.attention(layer, spec.attentions[0], x)
        return self.network_or_experts(spec.mlps[0], number, x)

    def attention(self, layer: str, spec: AttentionSpec, x: Result) -> Result:
        """Go through an attention, with the sums over nodes that it needs."""
        self.layer, self.part = layer, "attn"
        heads = ceiling(spec.heads, self.setting.system.tensor_parallel)
        width = spec.value_head_dim
        if spec.kind != "mla":
            mixed = self._by_heads(spec, x, heads)
        elif self.setting.phase == "decode":
            self.part = "attn_absorb"
            mixed = self._absorbed(spec, x, heads)
        else:
            self.part = "attn_naive"
            mixed = self._naive(spec, x, heads)
        return self.reduced("ar_tp", self.linear("wo", mixed, heads * width, self.hidden), "tensor")

    def _by_heads(self, spec: AttentionSpec, x: Result, heads: int) -> Result:
        shared = ceiling(spec.key_value_heads, self.setting.system.tensor_parallel)
        depth, values = spec.head_dim, spec.value_head_dim
        gate = 2 if spec.output_gate == "channel" else 1
        given = (
            self._queries(spec, x, gate * heads),
            self.linear("wk", x, self.hidden, shared * depth),
            self.linear("wv", x, self.hidden, shared * values),
        )
        stored = shared * (depth + values)
        shape = AttentionShape(BY_HEADS, heads, shared, depth, values, stored, stored)
        return self.merged(self.softmax(spec, shape, given), shape)

    def _latent(self, spec: AttentionSpec, x: Result) -> Result:
        width = spec.kv_lora_rank + spec.qk_rope_head_dim
        return self.linear("wkva", x, self.hidden, width)

    def _queries(self, spec: AttentionSpec, x: Result, heads: int) -> Result:
        word, inner = "wq", self.hidden
        if spec.q_lora_rank:
            x = self.linear("wqa", x, inner, spec.q_lora_rank)
            word, inner = "wqb", spec.q_lora_rank
        return self.linear(word, x, inner, heads * spec.head_dim)

    def _absorbed(self, spec: AttentionSpec, x: Result, heads: int) -> Result:
        rank = spec.kv_lora_rank
        latent, queries = self._latent(spec, x), self._queries(spec, x, heads)
        absorbed = self.by_head("wkvb1", queries, spec.qk_nope_head_dim, rank, heads)
        width = rank + spec.qk_rope_head_dim
        shape = AttentionShape(ABSORBED, heads, 1, width, rank, width, width)
        mixed = self.softmax(spec, shape, (absorbed, queries, latent))
        return self.by_head("wkvb2", self.merged(mixed, shape), rank, spec.value_head_dim, heads)

    def _naive(self, spec: AttentionSpec, x: Result, heads: int) -> Result:
        rank, rope = spec.kv_lora_rank, spec.qk_rope_head_dim
        latent = self._latent(spec, x)
        if self.keys_first:
            keys = self.keys_of_heads(spec, latent, heads)
        queries = self._queries(spec, x, heads)
        if not self.keys_first:
            keys = self.keys_of_heads(spec, latent, heads)
        read = heads * (spec.qk_nope_head_dim + spec.value_head_dim) + rope
        shape = AttentionShape(
            NAIVE, heads, heads, spec.head_dim, spec.value_head_dim, rank + rope, read
        )
        return self.merged(self.softmax(spec, shape, (queries, latent, keys)), shape)

    def keys_of_heads(self, spec: AttentionSpec, latent: Result, heads: int) -> Result:
        """Make keys and values of all heads of what is cached."""
        width = heads * (spec.qk_nope_head_dim + spec.value_head_dim)
        return self.linear("wkvb", latent, spec.kv_lora_rank, width)

    def network_or_experts(self, spec: MlpSpec, number: int, x: Result) -> Result:
        """Go through what follows the attention of a layer."""
        self.part = "moe" if spec.experts else "ffn"
        if spec.experts:
            return self.experts(spec, number, x)
        width = ceiling(spec.intermediate_size, self.setting.system.cluster_nodes)
        return self.reduced("ar", self.network(x, width, spec.gated), "cluster")

    def network(self, x: Result, width: int, gated: bool) -> Result:
        """Go through the products of a dense network, or of an expert."""
        up = self.linear("up", x, self.hidden, width)
        if gated:
            up = self.gated(up, self.linear("gate", x, self.hidden, width))
        return self.linear("down", up, width, self.hidden)

    def head(self, x: Result) -> Result:
        """Multiply by the output matrix and gather its parts."""
        self.layer, self.part = LM_HEAD, ""
        width = ceiling(self.setting.model.vocab_size, self.setting.system.cluster_nodes)
        return self.gathered(self.linear("head", self.last_tokens(x), self.hidden, width))
