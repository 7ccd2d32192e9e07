"""Tiles of a product on the cores of a node: who multiplies what, and where operands lie.

A product of (m, k) by (k, n), or several of one shape (groups), is cut along its axes into as
many pieces as there are cores, of sizes that differ by one at most. The generator of
`perfmodel.wafer.twin` halves each axis instead, which leaves four of 36 cores idle.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from math import inf, isfinite, prod
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.work import kernel_work
from perfmodel.wafer.system import Grid, bucket_starts

AXIS_NAMES = ("groups", "m", "k", "n")
LEAST_OCCUPANCY = 0.97
LARGEST_SIDE = 1024  # cores; lines of more are not searched, they are spread over two axes at most
LARGEST_SIZE = 2**31
SEARCHED_SIDE = 16  # every way to spread a side's cores, idle ones too
BUSY = 0.97  # of longer sides, at least so much of the cores


class Lines(NamedTuple):
    """Ways to spread the cores along a side to the axes."""

    factors: Integers  # shape (line, axis)
    strides: Integers


@dataclass(frozen=True)
class ProductTiles:
    """A product cut into tiles, each on a core of a node.

    Cores count row by row.

    Attributes
    ----------
    grid : (int, int)
        Rows and columns of cores.
    sizes, parts : (int, int, int, int)
        Groups, m, k and n, and pieces of each.
    cores : array of int, shape parts
        Which core multiplies a tile.
    byte_hops : float
        Bytes times hops of copies of inputs (from one of the cores that want them) and of weights
        among cores, and of sums of which every core takes its share of the columns [B hops].
    """

    grid: Grid
    sizes: tuple[int, int, int, int]
    parts: tuple[int, int, int, int]
    cores: Integers
    byte_hops: float

    @property
    def bounds(self) -> tuple[Integers, ...]:
        """Where each piece of an axis begins, and the end: one array of parts + 1 per axis."""
        return tuple(bucket_starts(*pair) for pair in zip(self.sizes, self.parts, strict=True))

    @property
    def occupancy(self) -> float:
        """Useful multiply-adds over cores times those of the busiest."""
        busiest = prod(-(-size // part) for size, part in zip(self.sizes, self.parts, strict=True))
        return prod(self.sizes) / (busiest * prod(self.grid))


def best_tiles(
    m: int,
    k: int,
    n: int,
    grid: Grid,
    *,
    groups: int = 1,
    element_bytes: tuple[float, float, float, float] = (2.0, 2.0, 2.0, 2.0),
    memory: float | None = None,
    access_hops: float = 1.0,
    least_occupancy: float = LEAST_OCCUPANCY,
) -> ProductTiles:
    """Cut a product so that all cores are busy, and bytes go as few hops as possible.

    Of the mappings whose busiest core has at most ``1 / least_occupancy`` of the mean the one
    with the least bytes times hops, a core's own bank counting as `access_hops`; where no
    mapping is so even (a product smaller than the grid) the most even one.

    Parameters
    ----------
    m, k, n : int
        (m, k) times (k, n).
    grid : (int, int)
        Rows and columns of cores.
    groups : int
        Products of this shape, each with weights of its own.
    element_bytes : (float, float, float, float)
        Of inputs, weights, partial sums and outputs [B].
    memory : float, optional
        Bytes that the tiles of a core may take.
    access_hops : float
        Hops that reading or writing a byte in a bank counts as. A prior: 1.
    least_occupancy : float
        From 0 to 1.

    Raises
    ------
    StrategyError
        A size that is no whole number above 0, or no tiles within the memory.
    """
    sizes = (groups, m, k, n)
    for key, size in zip(AXIS_NAMES, sizes, strict=True):
        if not isinstance(size, int | np.integer) or not 0 < size <= LARGEST_SIZE:
            raise StrategyError(
                f"key '{key}': a whole number from 1 to {LARGEST_SIZE}, not {size!r}"
            )
    if len(grid) != 2:
        raise StrategyError(f"key 'core_grid': two whole numbers, rows and columns, not {grid}")
    for side in grid:
        if not isinstance(side, int | np.integer) or not 0 < side <= LARGEST_SIDE:
            raise StrategyError(
                f"key 'core_grid': sides from 1 to {LARGEST_SIDE} cores, not {side!r}"
            )
    if not all(isfinite(one) and one > 0 for one in element_bytes):
        raise StrategyError(f"key 'element_bytes': numbers above 0, not {element_bytes}")
    if memory is not None and not memory > 0:
        raise StrategyError(f"key 'memory': bytes of a core, above 0, not {memory}")
    return _best_tiles(
        (int(groups), int(m), int(k), int(n)),
        (int(grid[0]), int(grid[1])),
        tuple(map(float, element_bytes)),
        inf if memory is None else float(memory),
        float(access_hops),
        float(least_occupancy),
    )


@functools.lru_cache(maxsize=4096)
def _best_tiles(
    sizes: tuple[int, int, int, int],
    grid: Grid,
    element_bytes: tuple[float, float, float, float],
    memory: float,
    access_hops: float,
    least_occupancy: float,
) -> ProductTiles:
    rows, columns = lines_of(grid[0]), lines_of(grid[1])
    best = np.empty(3)
    with kernel_work(mappings=len(rows.factors) * len(columns.factors)):
        from perfmodel.kernels.wafer import tiles

        measured = []
        for lines in (rows, columns):
            span, pairs = np.empty(lines.factors.shape), np.empty(lines.factors.shape)
            tiles.measure_lines(lines.factors, lines.strides, span, pairs)
            measured += [lines.factors, span, pairs]
        row, column = tiles.best_lines(
            *measured,
            np.array(sizes, dtype=np.int64),
            np.array(element_bytes),
            grid[0] * grid[1],
            memory,
            access_hops,
            least_occupancy,
            best,
        )
    if row < 0:
        raise StrategyError(
            f"key 'memory': {memory:.6g} bytes of a core hold no tiles of {sizes[1]} x {sizes[2]} "
            f"x {sizes[3]} ({sizes[0]} groups) on {grid[0]} x {grid[1]} cores"
        )
    halves = [
        (lines.factors[at], lines.strides[at]) for lines, at in ((rows, row), (columns, column))
    ]
    g, m, k, n = (int(one) for one in halves[0][0] * halves[1][0])
    return ProductTiles(grid, sizes, (g, m, k, n), _placed(grid, *halves), float(best[1]))


@functools.cache
def lines_of(side: int) -> Lines:
    """List the ways to spread the cores along a side to the axes, in every order of nesting.

    Of sides up to `SEARCHED_SIDE` cores all, those that leave cores idle included; of longer
    ones those that use `BUSY` of them, on two axes at most.
    """
    axes = range(len(AXIS_NAMES))
    least, most_axes = (1, 4) if side <= SEARCHED_SIDE else (int(BUSY * side), 2)
    factors, strides = [], []
    for count in range(most_axes + 1):
        for order in itertools.permutations(axes, count):  # inner to outer
            for splits in _splits(side, count):
                if prod(splits) < least:
                    continue
                line, stride = [1] * len(axes), [1] * len(axes)
                inner = 1
                for axis, parts in zip(order, splits, strict=True):
                    line[axis], stride[axis] = parts, inner
                    inner *= parts
                factors.append(line)
                strides.append(stride)
    return Lines(np.array(factors, dtype=np.int64), np.array(strides, dtype=np.int64))


def _splits(most: int, count: int) -> list[tuple[int, ...]]:
    """Tuples of so many factors of 2 or more whose product is at most `most`."""
    if not count:
        return [()]
    return [
        (first, *rest) for first in range(2, most + 1) for rest in _splits(most // first, count - 1)
    ]


def _placed(
    grid: Grid, row: tuple[Integers, Integers], column: tuple[Integers, Integers]
) -> Integers:
    """Put tiles on cores: an axis counts its parts along rows first, then along columns."""
    index = np.indices(tuple(row[0] * column[0]))
    along_rows, along_columns = np.divmod(index, column[0].reshape(4, 1, 1, 1, 1))
    rows = (along_rows * row[1].reshape(4, 1, 1, 1, 1)).sum(axis=0)
    columns = (along_columns * column[1].reshape(4, 1, 1, 1, 1)).sum(axis=0)
    return np.asarray(rows * grid[1] + columns)
