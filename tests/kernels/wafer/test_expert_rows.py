"""Rows of tokens counted one by one in plain sets."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.wafer import expert_rows as kernel


def test_counts_are_those_of_messages() -> None:
    random = np.random.default_rng(7)
    ranks, parts, replicas, count = 3, 2, 2, 7
    nodes = ranks * parts * replicas
    experts = np.stack([random.permutation(count)[:3] for _ in range(40)]).reshape(8, 5, 3)
    stands = np.array([1, 3, 1, 2, 1])
    owners = random.integers(0, nodes, 8)
    shared = np.array([0, 0, 6, 6, -1, 0, 6, 6])
    rank_of = np.array([0, 0, 0, 1, 1, 2, 2])
    counts = np.empty((kernel.COUNTS, nodes), np.int64)
    kernel.expert_rows(experts, stands, owners, shared, rank_of, parts, replicas, counts)

    asked = np.zeros_like(counts)
    used = set()
    for s, owner in enumerate(owners):
        replica = owner // (ranks * parts)
        for t, rows in enumerate(stands):
            places = []
            for e in experts[s, t]:
                for part in range(parts):
                    node = (replica * ranks + rank_of[e]) * parts + part
                    places.append(node)
                    used.add((node, e))
            asked[kernel.WORKED] += rows * np.bincount(places, minlength=nodes)
            for node in places:
                if node != owner:
                    asked[kernel.RETURNED, node] += rows
                    asked[kernel.RETURN_RECEIVED, owner] += rows
            if shared[s] >= 0:
                asked[kernel.SHARED, shared[s]] += rows
                places.append(shared[s])
                if shared[s] != owner:
                    asked[kernel.SHARED_RETURNED, shared[s]] += rows
                    asked[kernel.SHARED_RETURN_RECEIVED, owner] += rows
            others = set(places) - {owner}
            asked[kernel.DISPATCHED, owner] += rows * len(others)
            asked[kernel.CAST, owner] += rows * bool(others)
            for node in others:
                asked[kernel.DISPATCH_RECEIVED, node] += rows
    for node, _ in used:
        asked[kernel.ACTIVE, node] += 1
    assert (counts == asked).all()
