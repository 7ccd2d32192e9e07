"""Rows of tokens that nodes send, receive and work on in a layer with experts."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit

DISPATCHED = 0
DISPATCH_RECEIVED = 1
CAST = 2  # tokens with an expert elsewhere: sent once, whatever the number of nodes
WORKED = 3
ACTIVE = 4  # experts that have any token
SHARED = 5
RETURNED = 6  # of routed experts: all nodes that share one together
RETURN_RECEIVED = 7
SHARED_RETURNED = 8
SHARED_RETURN_RECEIVED = 9
COUNTS = 10


@jit
def expert_rows(experts, stands, owners, shared, rank_of, parts, replicas, counts):
    """Count rows token by token.

    A token goes once to each node that has any of its experts; every expert's result comes back
    alone, and where experts are split over nodes each of these returns its share of it.

    Parameters
    ----------
    experts : int64[sequences, drawn, k]
        Experts of tokens.
    stands : int64[drawn]
        Tokens of a sequence that each of them stands for.
    owners : int64[sequences]
        Node that has a sequence's tokens.
    shared : int64[sequences]
        Node of the shared experts that serves them; negative: none.
    rank_of : int64[experts]
        Expert-parallel rank of each expert.
    parts, replicas : int
        Nodes that an expert is split over, and copies of all experts; node ``(replica ranks +
        rank) parts + part``. A token goes to the replica of its own node.
    counts : int64[COUNTS, nodes]
        Result.
    """
    nodes = counts.shape[1]
    replica_nodes = nodes // replicas
    counts[:] = 0
    reached = np.full(nodes, -1)
    used = np.zeros((replicas, rank_of.size), np.bool_)
    token = 0
    for s in range(experts.shape[0]):
        owner = owners[s]
        replica = owner // replica_nodes
        base = replica * replica_nodes
        for t in range(experts.shape[1]):
            rows = stands[t]
            remote = False
            for j in range(experts.shape[2] + 1):
                if j < experts.shape[2]:
                    e = experts[s, t, j]
                    used[replica, e] = True
                    first = base + rank_of[e] * parts
                    end = first + parts
                    work, back, came = WORKED, RETURNED, RETURN_RECEIVED
                else:
                    if shared[s] < 0:
                        continue
                    first = shared[s]
                    end = first + 1
                    work, back, came = SHARED, SHARED_RETURNED, SHARED_RETURN_RECEIVED
                for node in range(first, end):
                    counts[work, node] += rows
                    if node != owner:
                        remote = True
                        counts[back, node] += rows
                        counts[came, owner] += rows
                        if reached[node] != token:
                            reached[node] = token
                            counts[DISPATCHED, owner] += rows
                            counts[DISPATCH_RECEIVED, node] += rows
            if remote:
                counts[CAST, owner] += rows
            token += 1
    for replica in range(replicas):
        for e in range(rank_of.size):
            if used[replica, e]:
                first = replica * replica_nodes + rank_of[e] * parts
                for node in range(first, first + parts):
                    counts[ACTIVE, node] += 1
