"""Contexts of sequences dealt to the cores of a node: whole positions, equally many each.

A sequence's keys and values lie on as few neighbouring cores as possible: cores take their
shares one after the other along a snake through the grid, so two that hold parts of a
sequence are one hop apart, and only they have to rescale and add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.work import kernel_work
from perfmodel.wafer.system import Grid

GRANULE = 16
"""Positions that stay together by default. A prior: a row of a tile of a multiplier array."""
LARGEST_CONTEXT = 2**40


class DealtContexts(NamedTuple):
    """Pieces of contexts, in the order in which they were dealt; each array of shape (pieces,)."""

    core: Integers
    sequence: Integers
    first: Integers  # positions
    last: Integers  # exclusive


def snake(grid: Grid) -> Integers:
    """Order the cores of a grid, counted row by row, so that each is beside the one before.

    Returns
    -------
    array of int, shape (rows x columns,)
    """
    order = np.arange(grid[0] * grid[1]).reshape(grid)
    order[1::2] = order[1::2, ::-1]
    return order.reshape(-1)


def deal_contexts(lengths: Integers, grid: Grid, granule: int = GRANULE) -> DealtContexts:
    """Deal positions of contexts to the cores of a node, equally many each.

    Parameters
    ----------
    lengths : array of int, shape (sequences,)
        Positions of each context; heads of keys and values count as sequences of their own.
    grid : (int, int)
        Rows and columns of cores.
    granule : int
        Positions that stay together, except the last of a context.

    Raises
    ------
    StrategyError
        A length or a granule that is no whole number above 0.
    """
    wanted = np.asarray(lengths, dtype=np.int64).reshape(-1)
    if not len(wanted) or wanted.min() < 1 or wanted.sum(dtype=float) > LARGEST_CONTEXT:
        raise StrategyError(
            f"key 'context': positions of at least one sequence, 1 to {LARGEST_CONTEXT} together"
        )
    if granule < 1:
        raise StrategyError(f"key 'granule': a whole number above 0, not {granule}")
    order = snake(grid)
    with kernel_work(assigned_tokens=float(len(wanted) + len(order))):
        from perfmodel.kernels.wafer import tiles

        width = len(wanted) // len(order) + 2
        while True:
            pieces = tuple(np.empty((len(order), width), dtype=np.int64) for _ in range(3))
            most = tiles.deal_contexts(wanted, granule, len(order), *pieces)
            if most <= width:
                break
            width = most
    sequence, first, last = pieces
    there = sequence >= 0
    core = np.broadcast_to(order[:, None], sequence.shape)
    return DealtContexts(core[there], sequence[there], first[there], last[there])
