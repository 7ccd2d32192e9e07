"""What each node has to do with in a pass: tokens, keys, groups; and what collectives move."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.model.attention import AttentionSpec
from perfmodel.wafer.cores.setting import CoreSetting, key_starts
from perfmodel.wafer.ranks import bucket_sizes

Group = tuple[Integers, Integers, Integers]
"""First node, stride and size of each node's group."""


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
    def node(self) -> Integers:
        """Numbers of nodes."""
        return np.arange(self.setting.system.nodes)

    @cached_property
    def sequences(self) -> Integers:
        """Sequences of each node's cluster, shape (nodes, 1)."""
        share = bucket_sizes(self.setting.batch, self.setting.system.data_parallel)
        return share[self.setting.ranks.data][:, None]

    @cached_property
    def tokens(self) -> Integers:
        """Tokens of each node's cluster in a pass, shape (nodes, 1)."""
        return self.sequences * self.setting.length

    @cached_property
    def owned(self) -> Integers:
        """Tokens that each node brings to experts, shape (nodes, 1)."""
        system = self.setting.system
        counts = np.bincount(self.setting.owners, minlength=system.stage_nodes)
        own = counts * self.setting.length
        return np.tile(own, system.pipeline_parallel)[:, None]

    def stage_mask(self, stage: int) -> Integers:
        """1 for the nodes of a pipeline stage, shape (nodes, 1)."""
        return (self.setting.ranks.pipeline == stage).astype(np.int64)[:, None]

    def group(self, axis: str) -> Group:
        """Return the groups of an axis: tensor, sequence, cluster, stage, ffn_tensor, pipeline."""
        system, ranks = self.setting.system, self.setting.ranks
        t, c, p = system.tensor_parallel, system.cluster_nodes, system.stage_nodes
        first, stride, size = {
            "tensor": (self.node - ranks.tensor, 1, t),
            "sequence": (self.node - ranks.sequence * t, t, system.sequence_parallel),
            "cluster": (self.node // c * c, 1, c),
            "stage": (self.node // p * p, 1, p),
            "ffn_tensor": (self.node - ranks.ffn_tensor, 1, system.ffn_tensor_parallel),
            "pipeline": (self.node % p, p, system.pipeline_parallel),
        }[axis]
        count = np.ones(self.node.size, np.int64)
        return first, count * stride, count * size

    @cached_property
    def context(self) -> Integers:
        """Tokens that the cache holds ahead of each step, shape (steps,)."""
        if self.setting.phase == "prefill":
            return np.zeros(len(self.steps), np.int64)
        return self.setting.input_length + np.array(self.steps)

    def keys(self, attention: AttentionSpec) -> tuple[Floats, Floats, Floats, Floats]:
        """Return what each node's queries meet of the keys that it holds, for one sequence.

        Keys are dealt to the sequence ranks in pages of one size. A query sees what came before
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
