"""Operations of attention, dense networks and the ends of a model, on all nodes at once.

Every node of a cluster (tensor x sequence ranks) holds all tokens of the cluster. Projections are
split over tensor ranks and done alike on all sequence ranks; the cache is split over sequence
ranks; dense networks and the vocabulary over the whole cluster. Norms, rotary positions, softmax
and residual sums are left out: their bytes are those of activations that neighbours count.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.model.attention import AttentionSpec
from perfmodel.wafer.nodes.rows import OperationRows
from perfmodel.wafer.setting import CoreSetting, ceiling, key_starts
from perfmodel.wafer.system import Group
from perfmodel.wafer.walk import ABSORBED, BY_HEADS, NAIVE, AttentionShape, Walk

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


class Result(NamedTuple):
    """What an operation makes.

    Attributes
    ----------
    needs : tuple of int
        Operations that make it.
    tokens : array, shape (nodes, 1) or (nodes, steps)
        Rows of it on each node.
    active, held : array
        Experts of a node that have any rows, and all of them; None: a network that is no expert.
    """

    needs: tuple[int, ...]
    tokens: Any
    active: Any = None
    held: Any = 1


COMPONENTS = {
    "attn": {
        "wkva": "wkv_a", "wkvb": "wkv_b", "wkvb1": "wkv_b1", "wkvb2": "wkv_b2", "wqa": "wq_a",
        "wqb": "wq_b", "absorbattn": "attention", "naiveattn": "attention", "attn": "attention",
        "ar_sp": "all_reduce_sequence", "ar_tp": "all_reduce_tensor",
    },
    "ffn": {"ar": "all_reduce"},
    "moe_exp": {"gate": "gate_projection"},
    "moe_shared": {"up": "shared_up", "gate": "shared_gate", "down": "shared_down"},
    "": {"head": "output"},
}  # fmt: skip
"""Words of a walk -> components, where they have other names."""
PARTS = {"attn": "attention.", "ffn": "mlp.", "moe": "moe.", "": ""}
KINDS_OF_ATTENTION = {
    ABSORBED: "latent_attention_absorbed",
    NAIVE: "latent_attention_naive",
    BY_HEADS: "attention",
}


class Blocks(Walk[Result], ABC):
    """Adds the blocks of a model to rows.

    Parameters
    ----------
    shares : Shares
    rows : OperationRows
    """

    def __init__(self, shares: Shares, rows: OperationRows) -> None:
        super().__init__(shares.setting)
        self.shares = shares
        self.rows = rows

    def component(self, word: str) -> str:
        """Return the component that a word of the walk stands for."""
        part, _, more = self.part.partition("_")
        if part == "attn" and more and word == "wq":
            word = "wqb"
        names = COMPONENTS.get(part if part == "attn" else self.part, {})
        return PARTS[part] + names.get(word, word)

    def add(
        self, word: str, kind: str, x: Result, group: Group | None = None, **values: Any
    ) -> int:
        """Add an operation where the walk is."""
        return self.rows.add(self.layer, self.component(word), kind, x.needs, group, **values)

    def linear(self, word: str, x: Result, inner: int, outer: int) -> Result:
        """Add a product of activations and weights; of experts only those with rows are read."""
        kind, instances = ("linear", 1) if x.active is None else ("grouped_linear", x.active)
        return self._product(word, kind, x, (1, inner, outer), instances)

    def by_head(self, word: str, x: Result, inner: int, outer: int, heads: int) -> Result:
        """Add products side by side, one per head."""
        return self._product(word, "grouped_linear", x, (heads, inner, outer), heads)

    def _product(
        self, word: str, kind: str, x: Result, sizes: tuple[int, int, int], instances: Any
    ) -> Result:
        groups, inner, outer = sizes
        weights = groups * inner * outer * self.setting.weight_bytes
        active = np.asarray(x.tokens) > 0 if x.active is None else x.active
        element = self.setting.activation_bytes
        made = self.add(
            word,
            kind,
            x,
            macs=1.0 * groups * x.tokens * inner * outer,
            footprint=x.held * weights,
            reads=active * weights + groups * x.tokens * inner * element,
            writes=groups * x.tokens * outer * element,
            rows=x.tokens,
            inner=inner,
            outer=outer,
            instances=instances,
        )
        return x._replace(needs=(made,))

    def gated(self, up: Result, gate: Result) -> Result:
        """Take both: what a gate does to them is left out."""
        return up._replace(needs=up.needs + gate.needs)

    def reduced(self, word: str, x: Result, axis: str) -> Result:
        """Add an all-reduce of activations over an axis; nothing where it has one node."""
        return self._reduced(word, x, axis, x.tokens * self.hidden)

    def _reduced(self, word: str, x: Result, axis: str, elements: Any) -> Result:
        group = self.shares.group(axis)
        if group[2].max() <= 1:
            return x
        element = self.setting.activation_bytes
        moved = all_reduce(elements * element, group[2][:, None], element)
        made = self.add(word, "all_reduce", x, group, outer=elements, instances=1, **moved)
        return x._replace(needs=(made,))

    def softmax(
        self, spec: AttentionSpec, shape: AttentionShape, given: tuple[Result, ...]
    ) -> Result:
        """Add attention proper."""
        setting, sequences = self.setting, self.shares.sequences
        pairs, seen, held, new = self.shares.keys(spec)
        tokens, activation = self.shares.tokens, setting.activation_bytes
        read_bytes = activation if shape.word == NAIVE else setting.cache_bytes
        made = self.add(
            shape.word,
            KINDS_OF_ATTENTION[shape.word],
            Result(sum((one.needs for one in given), ()), tokens),
            macs=sequences * pairs * shape.heads * shape.width,
            footprint=sequences * held * shape.stored * setting.cache_bytes,
            reads=sequences * seen * shape.read * read_bytes
            + tokens * (shape.heads * shape.depth) * activation,
            writes=sequences * new * shape.stored * setting.cache_bytes
            + tokens * (shape.heads * shape.values) * activation,
            rows=tokens,
            inner=shape.width,
            outer=seen,
            instances=shape.heads,
        )
        return Result((made,), tokens)

    def merged(self, x: Result, shape: AttentionShape) -> Result:
        """Add what merges the results of the parts of the context, with their statistics."""
        extra = STATISTICS / self.setting.activation_bytes
        elements = x.tokens * shape.heads * (shape.values + extra)
        return self._reduced("ar_sp", x, "sequence", elements)

    def embedding(self, layer: str) -> Result:
        """Add the look-up of tokens in a table that is split over the cluster by rows."""
        self.layer, self.part = layer, ""
        model, tokens = self.setting.model, self.shares.tokens
        parts = self.setting.system.cluster_nodes
        table = ceiling(model.vocab_size, parts) * self.hidden * self.setting.weight_bytes
        found = self.add(
            "embedding",
            "embedding",
            Result((), tokens),
            footprint=table,
            reads=tokens * self.hidden * self.setting.weight_bytes / parts,
            writes=tokens * self.hidden * self.setting.activation_bytes,
            rows=tokens,
            outer=self.hidden,
            instances=1,
        )
        return self.reduced("all_reduce", Result((found,), tokens), "cluster")

    def last_tokens(self, x: Result) -> Result:
        """Take a prompt's last token only."""
        prefill = self.setting.phase == "prefill"
        return x._replace(tokens=self.shares.sequences) if prefill else x

    def gathered(self, x: Result) -> Result:
        """Add the gathering of the parts of the vocabulary."""
        group, model = self.shares.group("cluster"), self.setting.model
        if group[2].max() <= 1:
            return x
        width = ceiling(model.vocab_size, self.setting.system.cluster_nodes)
        element = self.setting.activation_bytes
        moved = all_gather(x.tokens * width * element, x.tokens * model.vocab_size * element)
        made = self.add("all_gather", "all_gather", x, group, outer=x.tokens * width, **moved)
        return x._replace(needs=(made,))
