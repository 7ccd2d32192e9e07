"""Sides of tiles: the generator's search for products, its table for attention.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/layers/linear.py``,
``grouped_linear.py``, ``src/core_level/common/tile.py``.
"""

from __future__ import annotations

import functools
import itertools
import math

from perfmodel.base.errors import DataError
from perfmodel.wafer.formats.tiling import Tiling

HALVINGS = 6
"""Each side is the whole, a half, a quarter … of it, so many of them."""

DEFAULT_TILING = Tiling(
    {},
    {
        "MLAQ": (1, 1, None, None),
        "MLAKV": (1, 512, None),
    },
)
"""The generator's ``configs/tiling.json``, of which it uses no more than this."""


@functools.lru_cache(maxsize=4096)
def product_tile(dims: tuple[int, ...], cores: int) -> tuple[int, ...]:
    """Return the tile of a product with the least traffic per occupied core.

    Parameters
    ----------
    dims : tuple of int
        M, K, N; in front of them, where products are grouped, their number.
    cores : int

    Returns
    -------
    tuple of int
        Sides, of the first of equal candidates. As in the generator, traffic is that of one
        product: it does not grow with the group.
    """
    m, k, n = dims[-3:]
    best, found = math.inf, dims
    for halvings in itertools.product(range(HALVINGS), repeat=len(dims)):
        tile = tuple(
            math.ceil(side / 2**halving) for side, halving in zip(dims, halvings, strict=True)
        )
        counts = [math.ceil(side / part) for side, part in zip(dims, tile, strict=True)]
        tiles = math.prod(counts)
        occupancy = tiles / cores / math.ceil(tiles / cores)
        rows, depth, columns = counts[-3:]
        traffic = rows * k * n + columns * m * k + (2 * depth + 1) * m * n
        cost = traffic / (m * k + k * n + m * n) / occupancy
        if cost < best:
            best, found = cost, tile
    return found


def attention_tile(tiling: Tiling, kind: str, dims: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return the tile of queries or keys and values of an attention.

    Raises
    ------
    DataError
        It has other axes than the tensor.
    """
    sides = tiling.tile(kind, name)
    if len(sides) != len(dims):
        raise DataError(
            f"tiling of '{name}', {kind}: {len(sides)} sides; its tensor has {len(dims)} axes"
        )
    return tuple(dim if side is None else side for side, dim in zip(sides, dims, strict=True))
