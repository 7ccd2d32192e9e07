"""How much more the busiest rank of an expert-parallel group gets than the mean."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.compute.routing import parse_routing, rank_loads

BALANCED = "balanced"
DRAWS = 5  # of a random distribution, averaged
TOKENS = 1 << 15  # so many that chance adds nothing to what is popular


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
