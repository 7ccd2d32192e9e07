"""How many keys queries see in sparse attention, in closed form; no kernel is needed for that.

A query sees the last `window` tokens, its own included, and keys of a second kind, each of which
stands for `compression` whole tokens, or is a token: `selected` of these, or all. Queries are
aligned to the end of the keys, as everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.columns import Floats


class SparseKeys(NamedTuple):
    """Keys of one sequence under one head; columns of equal length.

    Attributes
    ----------
    pairs : ndarray of float64
        Keys that the queries see, summed up.
    places : ndarray of float64
        Keys in the list of one query: as many as the last query sees, whole blocks; the first
        queries leave places empty.
    gathered : ndarray of float64
        Places of all queries.
    distinct : ndarray of float64
        Different keys among those, at most.
    """

    pairs: Floats
    places: Floats
    gathered: Floats
    distinct: Floats


def limited_pairs(length: ArrayLike, limit: ArrayLike, step: ArrayLike = 1) -> Floats:
    """Return the sum of ``min(limit, floor(m / step))`` for ``m = 1 .. length``.

    Parameters
    ----------
    length : array_like
        Positions, whole and >= 0.
    limit : array_like
        Keys that a query sees at most, whole and >= 0.
    step : array_like
        Tokens that one key stands for, whole and >= 1.
    """
    m, most, s = (np.asarray(number, np.float64) for number in (length, limit, step))
    rising = np.minimum(m, most * s)
    whole = np.floor(rising / s)
    rest = rising - whole * s
    return s * whole * (whole - 1.0) / 2.0 + whole * (rest + 1.0) + (m - rising) * most


def block_pairs(length: ArrayLike, selected: ArrayLike, block: ArrayLike) -> Floats:
    """Return the sum over the first positions of the keys that they see in chosen blocks.

    Parameters
    ----------
    length : array_like
        Positions, whole and >= 0.
    selected : array_like
        Keys in the chosen blocks of a query at most, a multiple of `block`.
    block : array_like
        Tokens of a block.

    Returns
    -------
    ndarray
        All keys before ``selected``; beyond, whole blocks and the query's own, which is always
        chosen, up to itself.
    """
    m, most, b = (np.asarray(number, np.float64) for number in (length, selected, block))
    rising = np.minimum(m, most)
    beyond = m - rising
    whole = np.floor(beyond / b)
    rest = beyond - whole * b
    own = whole * b * (b + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0
    return rising * (rising + 1.0) / 2.0 + beyond * (most - b) + own


def sparse_keys(
    query_length: ArrayLike,
    key_length: ArrayLike,
    *,
    selected: ArrayLike = 0,
    window: ArrayLike = 0,
    compression: ArrayLike = 0,
    block: ArrayLike = 1,
) -> SparseKeys:
    """Return the keys of one sequence.

    Parameters
    ----------
    query_length, key_length : array_like
        Tokens, whole; no more queries than keys.
    selected : array_like
        Keys of the second kind that a query sees at most; 0: all of them, where there are some.
    window : array_like
        Last tokens that it sees, its own included; 0: none.
    compression : array_like
        Tokens that a key of the second kind stands for; 0: none, and with nothing `selected`
        there are no keys of that kind. 1 with nothing selected is dense attention.
    block : array_like
        Keys that are chosen together, 1 or more; 1 where keys are compressed.

    Examples
    --------
    DeepSeek-V3.2 chooses 2,048 keys; of 4,096 tokens a query sees 1,536.25 on average:

    >>> float(sparse_keys(4096, 4096, selected=2048).pairs) / 4096
    1536.25
    """
    queries, keys, most, last, ratio, size = np.broadcast_arrays(
        *(
            np.asarray(number, np.float64)
            for number in (query_length, key_length, selected, window, compression, block)
        )
    )
    step = np.maximum(ratio, 1.0)
    stored = np.where((ratio > 0.0) | (most > 0.0), np.floor(keys / step), 0.0)
    whole = np.ceil(stored / size) * size
    chosen = np.where(most > 0.0, np.minimum(most, whole), whole)
    before = keys - queries

    def seen(length: Floats) -> Floats:
        blocks, tokens = block_pairs(length, chosen, size), limited_pairs(length, chosen, step)
        return np.where(size > 1.0, blocks, tokens) + limited_pairs(length, last)

    near = np.minimum(last, keys)
    places = np.maximum(near + chosen, 1.0)
    recent = np.where(last > 0.0, np.minimum(keys, queries + last - 1.0), 0.0)
    distinct = recent + np.minimum(stored, queries * chosen)
    return SparseKeys(
        pairs=seen(keys) - seen(before),
        places=places,
        gathered=places * queries,
        distinct=np.maximum(distinct, 1.0),
    )
