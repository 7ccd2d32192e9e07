"""What the busiest rank of an expert-parallel group gets and holds, over the mean."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.compute.routing import parse_routing, rank_loads
from perfmodel.model.layers import MlpSpec
from perfmodel.software.framework import Framework

BALANCED = "balanced"
DRAWS = 5  # of a random distribution, averaged
TOKENS = 1 << 15  # so many that chance adds nothing to what is popular


def expert_loads(framework: Framework, mlp: MlpSpec, ranks: Column) -> tuple[Column, Column]:
    """Return the tokens of the rank that all wait for, and the rows of the buffer they are in.

    With a capacity every expert takes that many times the mean, filled up with padding where
    fewer come; what is beyond is dropped. A mask without a capacity has a place for every token
    at every expert. The most that may come is everything, or, where experts are spread thin,
    every token for each expert of a rank (MaxText, moe.py, get_ragged_buffer_size).

    Parameters
    ----------
    framework : Framework
    mlp : MlpSpec
    ranks : ndarray, shape (keys,)
        Ranks that share the experts.

    Returns
    -------
    load, held : ndarray, shape (keys,)
        Over the mean of the ranks [1].
    """
    all_of_them = mlp.experts / mlp.experts_per_token
    capacity = framework.capacity_factor
    if framework.expert_dispatch == "einsum" and not capacity:
        capacity = all_of_them
    if capacity:
        load = np.full(ranks.shape, capacity)
        return load, load
    load = busiest_ranks(framework.routing, mlp.experts, mlp.experts_per_token, ranks)
    if not framework.expert_buffer:
        return load, load
    held = np.minimum(framework.expert_buffer, np.minimum(ranks, all_of_them))
    return np.minimum(load, held), held


def busiest_ranks(routing: str, experts: int, choices: int, ranks: Column) -> Column:
    """Return the load of the busiest rank over the mean, for each number of ranks [1].

    A step waits for the rank with most tokens: its products, its permutations and what it
    receives take so many times the mean.

    Parameters
    ----------
    routing : str
        As `perfmodel.compute.routing.parse_routing` reads it; ``balanced`` for equal loads.
    experts, choices : int
        Experts of a layer, and of a token.
    ranks : ndarray, shape (keys,)
        Ranks that share the experts.

    Returns
    -------
    ndarray, shape (keys,)
        1 where loads are balanced or one rank holds all experts.

    Raises
    ------
    DataError
        `routing` is no distribution.
    """
    distribution = parse_routing(routing).distribution
    found = {
        count: 1.0
        if distribution == BALANCED or count == 1 or experts % count
        else _busiest(routing, experts, choices, int(count))
        for count in np.unique(ranks).tolist()
    }
    return np.array([found[count] for count in ranks.tolist()])


@lru_cache(maxsize=256)
def _busiest(routing: str, experts: int, choices: int, ranks: int) -> float:
    law = parse_routing(routing)
    mean = TOKENS * choices / ranks
    most = [
        float(np.sum(rank_loads(law, TOKENS, experts, choices, ranks, draw).loads)) / mean
        for draw in range(DRAWS)
    ]
    return float(np.mean(most))
