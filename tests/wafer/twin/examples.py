"""A model small enough to be looked at, systems of every kind, and routings for them."""

from __future__ import annotations

import numpy as np

from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.setting import GeneratorModel, Iteration

LATENT = GeneratorModel(
    hidden=16,
    layers=3,
    vocabulary=50,
    heads=4,
    intermediate=24,
    dense_layers=1,
    q_rank=8,
    kv_rank=6,
    nope=4,
    rope=2,
    value=4,
    experts=12,
    top_k=3,
    expert_intermediate=10,
    shared_intermediate=10,
)
LLAMA = GeneratorModel(
    hidden=32,
    layers=2,
    vocabulary=51,
    heads=8,
    intermediate=40,
    dense_layers=2,
    kv_heads=2,
    head_dim=4,
)


def system(nodes, **fields):
    """A wafer of one row of nodes."""
    given = {"nodes": nodes, "node_grid": (1, nodes), "expert_parallel": nodes}
    return WaferSystem(**(given | fields))


def routed(iteration, seed=1):
    """Different experts for every token."""
    facts = iteration.model
    layers = facts.layers - facts.dense_layers
    chance = np.random.default_rng(seed).random(
        (layers, iteration.batch, iteration.length, facts.experts)
    )
    return RoutedTokens(np.argsort(chance, axis=-1)[..., : facts.top_k], facts.experts)


CLUSTERS = system(8, data_parallel=2, tensor_parallel=2, sequence_parallel=2, shared_copies=2)
ITERATIONS = {
    "one node": Iteration(LATENT, system(1), 3, 1, 5),
    "clusters": Iteration(LATENT, CLUSTERS, 7, 1, 9),
    "guessed": Iteration(LATENT, CLUSTERS, 5, 3, 9, "fp8"),
    "prefill": Iteration(LATENT, CLUSTERS, 5, 4),
    "multicast": Iteration(
        LATENT, system(4, data_parallel=4, expert_exchange="multicast"), 6, 2, 9
    ),
    "multicast, tensor": Iteration(
        LATENT, system(4, tensor_parallel=4, expert_exchange="multicast"), 3, 1, 9
    ),
    "allgather": Iteration(
        LATENT,
        system(6, data_parallel=3, sequence_parallel=2, expert_exchange="allgather"),
        8,
        2,
        9,
    ),
    "split experts": Iteration(
        LATENT,
        system(4, data_parallel=2, tensor_parallel=2, expert_parallel=1, ffn_tensor_parallel=4),
        5,
        2,
        9,
    ),
    "fewer sequences than clusters": Iteration(LATENT, system(4, data_parallel=4), 2, 1, 9),
    "llama": Iteration(LLAMA, system(6, tensor_parallel=3, sequence_parallel=2), 4, 1, 11),
    "llama, prefill": Iteration(LLAMA, system(4, sequence_parallel=2, data_parallel=2), 4, 7),
}
