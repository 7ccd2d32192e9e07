"""What the experts of an iteration receive, and what nodes send for it, counted.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/common/dist_info.py``
(``get_dispatch_comm_matrix``, ``get_combine_comm_matrix``) and ``layers/moe.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.wafer.twin.setting import Iteration

CELLS = 2**24
"""Tokens times nodes that are looked at together."""


class Exchange(NamedTuple):
    """Counts of a layer with experts, in rows of one token's hidden features.

    Attributes
    ----------
    loads : int64[experts]
        Rows that each expert multiplies.
    dispatched : int64[nodes]
        Pairs of a node's own token and another node that it is sent to.
    sent_tokens : int64[nodes]
        A node's own tokens that are sent to any other node.
    returned : int64[nodes]
        Rows that a node sends back to other nodes.
    produced : int64[nodes]
        Rows that a node's experts make, those for itself among them.
    receivers : int64[nodes]
        Nodes, itself perhaps among them, that a node has rows for.
    """

    loads: Integers
    dispatched: Integers
    sent_tokens: Integers
    returned: Integers
    produced: Integers
    receivers: Integers


def check_routed(iteration: Iteration, experts: Integers) -> None:
    """Make sure that experts of tokens have the shape of an iteration.

    Raises
    ------
    DataError
        Names both shapes.
    """
    wanted = (iteration.batch, iteration.length, iteration.model.top_k)
    if experts.shape != wanted:
        raise DataError(
            f"routing: a layer's array has shape {experts.shape}; batch, length and experts per "
            f"token are {wanted}"
        )
    if experts.min() < 0 or experts.max() >= iteration.model.experts:
        raise DataError(f"routing: experts should be 0 to {iteration.model.experts - 1}")


def exchange_counts(iteration: Iteration, experts: Integers) -> Exchange:
    """Count what a layer's tokens make nodes send.

    Parameters
    ----------
    iteration : Iteration
    experts : array of int, shape (batch, length, top_k)
        Experts of every token.

    Returns
    -------
    Exchange

    Raises
    ------
    DataError
        The array has another shape.
    """
    check_routed(iteration, experts)
    nodes = iteration.system.nodes
    loads = np.bincount(experts.ravel(), minlength=iteration.model.experts)
    if not iteration.exchanges:
        none = np.zeros(nodes, np.int64)
        return Exchange(loads, none, none, none, none, none)
    dispatched, sent_tokens = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    pairs = np.zeros((nodes, nodes), np.int64)
    for begin, end in _pieces(iteration):
        owner = np.repeat(iteration.owners[begin:end], iteration.length)
        shared = np.repeat(iteration.shared_nodes[begin:end], iteration.length)
        chosen = iteration.expert_nodes[experts[begin:end]].reshape(owner.size, -1)
        targets = np.column_stack((chosen, shared))
        pairs += np.bincount(
            (targets * nodes + owner[:, None]).ravel(), minlength=nodes * nodes
        ).reshape(nodes, nodes)
        at = np.arange(owner.size)
        reached = np.zeros((owner.size, nodes), np.bool_)
        reached[at[:, None], targets] = True
        reached[at, owner] = False
        others = reached.sum(axis=1)
        dispatched += np.bincount(owner, others, nodes).astype(np.int64)
        sent_tokens += np.bincount(owner, others > 0, nodes).astype(np.int64)
    produced = pairs.sum(axis=1)
    return Exchange(
        loads,
        dispatched,
        sent_tokens,
        produced - pairs.diagonal(),
        produced,
        (pairs > 0).sum(axis=1),
    )


def _pieces(iteration: Iteration) -> Iterator[tuple[int, int]]:
    """Yield sequences that are looked at together."""
    step = max(1, CELLS // (iteration.length * iteration.system.nodes))
    for begin in range(0, iteration.batch, step):
        yield begin, min(begin + step, iteration.batch)
