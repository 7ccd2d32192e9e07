"""Operations of attention, dense networks and the ends of a model, on all nodes at once.

Every node of a cluster (tensor x sequence ranks) holds all tokens of the cluster. Projections are
split over tensor ranks and done alike on all sequence ranks; the cache is split over sequence
ranks; dense networks and the vocabulary over the whole cluster. Norms, rotary positions, softmax
and residual sums are left out: their bytes are those of activations that neighbours count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import MlpSpec
from perfmodel.wafer.cores.setting import CoreSetting, ceiling, key_starts
from perfmodel.wafer.nodes.rows import OperationRows
from perfmodel.wafer.system import Group

# What each node has to do with in a pass: tokens, keys, groups; and what collectives move.


@dataclass(frozen=True)
class Shares:
    """Shares of all nodes in some steps of a phase.

    Attributes
    ----------
    setting : CoreSetting
    steps : tuple of int
        Of decode, from 0; (0,) in prefill.
    """

    setting: CoreSetting
    steps: tuple[int, ...]

    @cached_property
    def sequences(self) -> Integers:
        """Sequences of each node's cluster, shape (nodes, 1)."""
        return self.setting.local_batch[:, None]

    @cached_property
    def tokens(self) -> Integers:
        """Tokens of each node's cluster in a pass, shape (nodes, 1)."""
        return self.sequences * self.setting.length

    @cached_property
    def owned(self) -> Integers:
        """Tokens that each node brings to experts, shape (nodes, 1)."""
        return self.setting.own_batch[:, None] * self.setting.length

    def stage_mask(self, stage: int) -> Integers:
        """1 for the nodes of a pipeline stage, shape (nodes, 1)."""
        return (self.setting.ranks.pipeline == stage).astype(np.int64)[:, None]

    def group(self, axis: str) -> Group:
        """Return the groups of an axis: tensor, sequence, cluster, stage, ffn_tensor, pipeline."""
        return self.setting.groups(axis)

    @cached_property
    def context(self) -> Integers:
        """Tokens that the cache holds ahead of each step, shape (steps,)."""
        if self.setting.phase == "prefill":
            return np.zeros(len(self.steps), np.int64)
        return self.setting.input_length + np.array(self.steps)

    def keys(self, attention: AttentionSpec) -> tuple[Floats, Floats, Floats, Floats]:
        """Return what each node's queries meet of the keys that it holds, for one sequence.

        Keys are spread over the sequence ranks in pages of one size. A query sees what came before
        and itself, of a window or a chunk where the layer has one.

        Returns
        -------
        pairs : array of float, shape (nodes, steps)
            Query-key pairs.
        seen : array of float, shape (nodes, steps)
            Own keys that any query sees.
        held : array of float, shape (nodes, steps)
            Own keys that are kept: of a window only the last ones.
        new : array of float, shape (nodes, steps)
            Own keys that the pass adds.
        """
        length = self.setting.length
        found = np.zeros((4, self.setting.system.sequence_parallel, len(self.steps)))
        for at, before in enumerate(self.context.tolist()):
            position = before + np.arange(length)
            end = position + 1 if attention.causal else np.full(length, before + length)
            least = np.zeros(length, np.int64)
            if attention.kind == "sliding":
                least = np.maximum(position + 1 - attention.window, 0)
            elif attention.kind == "chunked":
                least = position // attention.window * attention.window
            total = before + length
            starts = key_starts(self.setting, total)
            for rank, (a, b) in enumerate(
                zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
            ):
                inside = np.minimum(end, b) - np.maximum(least, a)
                found[0, rank, at] = np.maximum(inside, 0).sum()
                found[1, rank, at] = max(min(int(end.max()), b) - max(int(least.min()), a), 0)
                found[2, rank, at] = max(b - max(int(least[-1]), a), 0)
                found[3, rank, at] = max(b - max(before, a), 0)
        of = self.setting.ranks.sequence
        return found[0][of], found[1][of], found[2][of], found[3][of]


def all_reduce(payload: Any, size: Any, element_bytes: float) -> dict[str, Any]:
    """Return what a ring all-reduce of a vector does on each of its nodes.

    Of n nodes each sends and receives ``2 (n - 1) / n`` of the vector (Patarasuk & Yuan 2009) and
    adds ``(n - 1) / n`` of it. What is sent is read, sums are read and written, what comes is
    written (derived here).

    Parameters
    ----------
    payload : array
        Bytes of the vector [B].
    size : array
        n.
    """
    part = payload * (size - 1) / size
    return {
        "sent": 2 * part,
        "received": 2 * part,
        "flops": part / element_bytes,
        "reads": 4 * part,
        "writes": 3 * part,
    }


def all_gather(own: Any, total: Any) -> dict[str, Any]:
    """Return what a ring all-gather does: every share but its own comes, all but the last go.

    Parameters
    ----------
    own, total : array
        Bytes of a node's share and of all shares [B].
    """
    moved = total - own
    return {"sent": moved, "received": moved, "reads": moved, "writes": moved}


# Operations of attention, dense networks and the ends of a model, on all nodes at once.

STATISTICS = 8.0
"""Bytes of a query's maximum and sum, fp32, that partial attention is merged by [B]."""


class Blocks:
    """Adds the blocks of a model to rows.

    Parameters
    ----------
    shares : Shares
    rows : OperationRows
    """

    def __init__(self, shares: Shares, rows: OperationRows) -> None:
        self.shares = shares
        self.rows = rows
        self.setting = shares.setting
        self.hidden = shares.setting.model.hidden_size

    def linear(
        self,
        layer: str,
        component: str,
        needs: tuple[int, ...],
        tokens: Any,
        inner: int,
        outer: int,
        groups: int = 1,
    ) -> int:
        """Add a product of activations and weights, or `groups` of them side by side."""
        weights = groups * inner * outer * self.setting.weight_bytes
        active = np.asarray(tokens) > 0
        element = self.setting.activation_bytes
        return self.rows.add(
            layer,
            component,
            "linear" if groups == 1 else "grouped_linear",
            needs,
            macs=1.0 * groups * tokens * inner * outer,
            footprint=weights,
            reads=active * weights + groups * tokens * inner * element,
            writes=groups * tokens * outer * element,
            rows=tokens,
            inner=inner,
            outer=outer,
            instances=groups,
        )

    def reduced(
        self, layer: str, component: str, needs: tuple[int, ...], axis: str, elements: Any
    ) -> int:
        """Add an all-reduce of activations over an axis; nothing where it has one node."""
        group = self.shares.group(axis)
        if group[2].max() <= 1:
            return needs[-1]
        element = self.setting.activation_bytes
        moved = all_reduce(elements * element, group[2][:, None], element)
        return self.rows.add(
            layer, component, "all_reduce", needs, group, outer=elements, instances=1, **moved
        )

    def attention(self, layer: str, spec: AttentionSpec, source: int) -> int:
        """Add an attention block; return the number of its output."""
        system, tokens = self.setting.system, self.shares.tokens
        heads = ceiling(spec.heads, system.tensor_parallel)
        if spec.kind == "mla":
            output, width = self._latent(layer, spec, source, heads)
        else:
            output, width = self._by_heads(layer, spec, source, heads)
        out = self.linear(layer, "attention.wo", (output,), tokens, heads * width, self.hidden)
        return self.reduced(
            layer, "attention.all_reduce_tensor", (out,), "tensor", tokens * self.hidden
        )

    def _by_heads(
        self, layer: str, spec: AttentionSpec, source: int, heads: int
    ) -> tuple[int, int]:
        """Attention over heads, of which several share keys and values (GQA)."""
        tokens = self.shares.tokens
        shared = ceiling(spec.key_value_heads, self.setting.system.tensor_parallel)
        gate = 2 if spec.output_gate == "channel" else 1
        query = self.linear(
            layer, "attention.wq", (source,), tokens, self.hidden, gate * heads * spec.head_dim
        )
        key = self.linear(
            layer, "attention.wk", (source,), tokens, self.hidden, shared * spec.head_dim
        )
        value = self.linear(
            layer, "attention.wv", (source,), tokens, self.hidden, shared * spec.value_head_dim
        )
        cached = shared * (spec.head_dim + spec.value_head_dim)
        mixed = self._softmax(
            layer,
            "attention.attention",
            "attention",
            spec,
            (query, key, value),
            heads,
            spec.head_dim + spec.value_head_dim,
            cached,
            (heads * spec.head_dim, heads * spec.value_head_dim),
        )
        return self._merged(layer, mixed, heads, spec.value_head_dim), spec.value_head_dim

    def _latent(self, layer: str, spec: AttentionSpec, source: int, heads: int) -> tuple[int, int]:
        """Latent attention: in decode in the latent space, in prefill by keys and values."""
        tokens = self.shares.tokens
        latent, rope, nope = spec.kv_lora_rank, spec.qk_rope_head_dim, spec.qk_nope_head_dim
        value = spec.value_head_dim
        cached = latent + rope
        down = self.linear(layer, "attention.wkv_a", (source,), tokens, self.hidden, cached)
        query, width = source, self.hidden
        if spec.q_lora_rank:
            width = spec.q_lora_rank
            query = self.linear(layer, "attention.wq_a", (source,), tokens, self.hidden, width)
        query = self.linear(layer, "attention.wq_b", (query,), tokens, width, heads * (nope + rope))
        if self.setting.phase == "prefill":
            up = self.linear(
                layer, "attention.wkv_b", (down,), tokens, latent, heads * (nope + value)
            )
            mixed = self._softmax(
                layer,
                "attention.attention",
                "latent_attention_naive",
                spec,
                (query, down, up),
                heads,
                nope + rope + value,
                heads * (nope + value) + rope,
                (heads * (nope + rope), heads * value),
                cached,
            )
            return self._merged(layer, mixed, heads, value), value
        absorbed = self.linear(
            layer, "attention.wkv_b1", (query,), tokens, nope, latent, groups=heads
        )
        mixed = self._softmax(
            layer,
            "attention.attention",
            "latent_attention_absorbed",
            spec,
            (absorbed, query, down),
            heads,
            2 * latent + rope,
            cached,
            (heads * cached, heads * latent),
        )
        merged = self._merged(layer, mixed, heads, latent)
        back = self.linear(
            layer, "attention.wkv_b2", (merged,), tokens, latent, value, groups=heads
        )
        return back, value

    def _softmax(
        self,
        layer: str,
        component: str,
        kind: str,
        spec: AttentionSpec,
        needs: tuple[int, ...],
        heads: int,
        width: int,
        read_width: int,
        query_widths: tuple[int, int],
        cached: int = 0,
    ) -> int:
        """Add attention proper.

        Parameters
        ----------
        heads, width : int
            Multiply-adds of a pair of query and key are their product.
        read_width : int
            Elements of a key that are read, for all heads of the node.
        query_widths : (int, int)
            Elements of a token's queries and of its results.
        cached : int
            Elements of a token in the cache; 0: what is read.
        """
        setting, sequences = self.setting, self.shares.sequences
        pairs, seen, held, new = self.shares.keys(spec)
        kept = cached or read_width
        read_bytes = setting.cache_bytes if not cached else setting.activation_bytes
        tokens = self.shares.tokens
        return self.rows.add(
            layer,
            component,
            kind,
            needs,
            macs=sequences * pairs * heads * width,
            footprint=sequences * held * kept * setting.cache_bytes,
            reads=sequences * seen * read_width * read_bytes
            + tokens * query_widths[0] * setting.activation_bytes,
            writes=sequences * new * kept * setting.cache_bytes
            + tokens * query_widths[1] * setting.activation_bytes,
            rows=tokens,
            inner=width,
            outer=seen,
            instances=heads,
        )

    def _merged(self, layer: str, mixed: int, heads: int, width: int) -> int:
        """Add what merges the results of the parts of the context, with their statistics."""
        extra = STATISTICS / self.setting.activation_bytes
        elements = self.shares.tokens * heads * (width + extra)
        return self.reduced(layer, "attention.all_reduce_sequence", (mixed,), "sequence", elements)

    def dense(self, layer: str, spec: MlpSpec, source: int) -> int:
        """Add a dense network, split over the cluster; return the number of its output."""
        tokens = self.shares.tokens
        width = ceiling(spec.intermediate_size, self.setting.system.cluster_nodes)
        first = (source,)
        made = [self.linear(layer, "mlp.up", first, tokens, self.hidden, width)]
        if spec.gated:
            made.append(self.linear(layer, "mlp.gate", first, tokens, self.hidden, width))
        out = self.linear(layer, "mlp.down", tuple(made), tokens, width, self.hidden)
        return self.reduced(layer, "mlp.all_reduce", (out,), "cluster", tokens * self.hidden)

    def embedding(self, layer: str) -> int:
        """Add the look-up of tokens in a table that is split over the cluster by rows."""
        model, tokens = self.setting.model, self.shares.tokens
        parts = self.setting.system.cluster_nodes
        table = ceiling(model.vocab_size, parts) * self.hidden * self.setting.weight_bytes
        found = self.rows.add(
            layer,
            "embedding",
            "embedding",
            footprint=table,
            reads=tokens * self.hidden * self.setting.weight_bytes / parts,
            writes=tokens * self.hidden * self.setting.activation_bytes,
            rows=tokens,
            outer=self.hidden,
            instances=1,
        )
        return self.reduced(layer, "all_reduce", (found,), "cluster", tokens * self.hidden)

    def head(self, layer: str, source: int) -> int:
        """Add the output matrix and the gathering of its parts: of a prompt's last token only."""
        model, setting = self.setting.model, self.setting
        tokens = self.shares.sequences if setting.phase == "prefill" else self.shares.tokens
        width = ceiling(model.vocab_size, setting.system.cluster_nodes)
        out = self.linear(layer, "output", (source,), tokens, self.hidden, width)
        group = self.shares.group("cluster")
        if group[2].max() <= 1:
            return out
        own = tokens * width * setting.activation_bytes
        moved = all_gather(own, tokens * model.vocab_size * setting.activation_bytes)
        return self.rows.add(
            layer, "all_gather", "all_gather", (out,), group, outer=tokens * width, **moved
        )
