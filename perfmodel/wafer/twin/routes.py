"""Which token stands where in the buffers between nodes and experts.

Tokens are counted sequence by sequence, as nodes own them; places count within a buffer. The
order within a buffer of an expert is the generator's: by rank among a token's experts first.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/common/dist_info.py``,
``layers/moe.py`` (``get_batchids_by_expert``).
"""

from __future__ import annotations

from hashlib import md5
from itertools import pairwise

import numpy as np

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.errors import DataError
from perfmodel.wafer.twin.setting import Iteration

MOST_CELLS = 2**28
"""Tokens times nodes of a layer that rows are written for."""


def check_routed(iteration: Iteration, experts: Integers) -> None:
    """Make sure that experts of tokens have the shape of an iteration.

    Raises
    ------
    DataError
        Names both shapes.
    """
    wanted = (iteration.batch, iteration.length, iteration.moe.experts_per_token)
    if experts.shape != wanted:
        raise DataError(
            f"routing: a layer's array has shape {experts.shape}; batch, length and experts per "
            f"token are {wanted}"
        )
    if experts.min() < 0 or experts.max() >= iteration.moe.experts:
        raise DataError(f"routing: experts should be 0 to {iteration.moe.experts - 1}")


class Routes:
    """Buffers of one layer with experts.

    Parameters
    ----------
    iteration : Iteration
    experts : array of int, shape (batch, length, top_k)

    Attributes
    ----------
    token_experts : int64[tokens, top_k]
    owner, shared : int64[tokens]
        Node that dispatches a token, and the one of its shared experts.
    reached : bool[tokens, nodes]
        Whether a token goes to a node, its own perhaps among them.
    place : int64[tokens, nodes]
        Where it stands among those of its owner that go there.
    pairs : int64[nodes, nodes]
        Tokens from one node to another: ``pairs[source, target]``.
    of_expert : list of int64[rows]
        Tokens of each expert, in its order.
    expert_place : int64[tokens, top_k]
        Where a token stands among those of its expert.
    back : int64[nodes, nodes]
        Rows from a node of experts to an owner.
    back_place : int64[tokens, top_k + 1]
        Where a row stands among those from its node to its owner; the shared expert's last.
    names : list of str
        ``<sequence>.<position>`` of every token.

    Raises
    ------
    DataError
        Experts of another shape, or too many tokens to be written out.
    """

    def __init__(self, iteration: Iteration, experts: Integers) -> None:
        check_routed(iteration, experts)
        nodes, length = iteration.system.nodes, iteration.length
        tokens = iteration.batch * length
        if tokens * nodes > MOST_CELLS:
            raise DataError(
                f"keys 'batch' and 'isl': rows of {tokens} tokens on {nodes} nodes are too many to "
                f"be written one by one; at most {MOST_CELLS} are, and the table has no such limit"
            )
        self.iteration = iteration
        self.tokens = tokens
        self.token_experts: Integers = experts.reshape(tokens, -1)
        self.owner: Integers = np.repeat(iteration.owners, length)
        self.shared: Integers = np.repeat(iteration.shared_nodes, length)
        targets = np.column_stack((iteration.expert_nodes[self.token_experts], self.shared))
        at = np.arange(tokens)
        self.reached: Flags = np.zeros((tokens, nodes), np.bool_)
        self.reached[at[:, None], targets] = True
        first = np.searchsorted(self.owner, np.arange(nodes + 1))
        running = np.zeros((tokens + 1, nodes), np.int64)
        np.cumsum(self.reached, axis=0, out=running[1:])
        self.place: Integers = running[:-1] - running[first[self.owner]]
        self.pairs: Integers = running[first[1:]] - running[first[:-1]]
        self.first: Integers = first

        ranked = self.token_experts.T.ravel()  # by rank, then by token
        order = np.argsort(ranked, kind="stable")
        starts = np.searchsorted(ranked[order], np.arange(iteration.moe.experts + 1))
        inside = np.empty(ranked.size, np.int64)
        inside[order] = np.arange(ranked.size) - starts[ranked[order]]
        self.expert_place: Integers = inside.reshape(-1, tokens).T
        self.of_expert = [order[begin:end] % tokens for begin, end in pairwise(starts)]
        both = targets * nodes + self.owner[:, None]
        flat = both.ravel()
        order = np.argsort(flat, kind="stable")
        starts = np.searchsorted(flat[order], np.arange(nodes * nodes + 1))
        inside = np.empty(flat.size, np.int64)
        inside[order] = np.arange(flat.size) - starts[flat[order]]
        self.back_place: Integers = inside.reshape(both.shape)
        self.back: Integers = np.diff(starts).reshape(nodes, nodes)
        self.back_rows: Integers = order
        self.back_starts: Integers = starts
        self.names = [f"{b}.{s}" for b in range(iteration.batch) for s in range(length)]

    def sent(self, source: int, target: int) -> list[int]:
        """Return the tokens from one node to another, in their order."""
        begin, end = self.first[source], self.first[source + 1]
        return [int(t) for t in begin + np.flatnonzero(self.reached[begin:end, target])]

    def returned(self, source: int, target: int) -> list[tuple[int, int]]:
        """Return rows from a node of experts to an owner: token, and rank of its expert.

        The rank is top_k for the shared expert.
        """
        nodes = self.iteration.system.nodes
        at = source * nodes + target
        rows = self.back_rows[self.back_starts[at] : self.back_starts[at + 1]]
        ranks = self.back_place.shape[1]
        return [divmod(int(row), ranks) for row in rows]

    def shared_tokens(self, node: int) -> list[int]:
        """Return the tokens of a node's shared experts, in their order."""
        return [int(t) for t in np.flatnonzero(self.shared == node)]

    def shared_start(self, node: int) -> int:
        """Return the first token of a node's shared experts; the others follow it."""
        return int(np.searchsorted(self.shared, node))

    def expert_starts(self) -> Integers:
        """Return where each expert's rows begin among those of its node: shape (experts,)."""
        loads = np.array([len(tokens) for tokens in self.of_expert])
        before = np.cumsum(loads) - loads
        ranks = self.iteration.expert_nodes
        starts: Integers = before - before[np.searchsorted(ranks, ranks)]
        return starts

    def own(self, node: int) -> range:
        """Return a node's own tokens."""
        return range(int(self.first[node]), int(self.first[node + 1]))


def digest(parts: list[str]) -> str:
    """Return the generator's short name of a list."""
    return md5("_".join(parts).encode(), usedforsecurity=False).hexdigest().upper()[:8]
