"""Tiles of operations, and instructions of tiles as columns.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/layers/linear.py``,
``grouped_linear.py``, ``src/core_level/common/tile.py``.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/layers/{linear,grouped_linear,
attention,reduce,barrier}.py``, ``src/core_level/common/wafer.py``.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.wafer.core_trace import TracePiece as Piece
from perfmodel.wafer.cores.instructions import (
    BARRIER,
    COLUMNS,
    COPY,
    MOST_ARGUMENTS,
    NOTHING,
    Instructions,
    build,
)
from perfmodel.wafer.generator_files import Tiling
from perfmodel.wafer.twin.layouts import Layout

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


# Instructions of an operation on the cores of a node, as columns.

AXES = 4
NO_NUMBERS = np.empty((1, 0), np.int64)


class Traffic(NamedTuple):
    """Banks and bytes of each of some boxes: entries from ``starts[i]`` to ``starts[i + 1]``."""

    starts: Integers
    bank: Integers
    size: Integers

    @property
    def counts(self) -> Integers:
        """Entries of each box."""
        return np.diff(self.starts)

    def of(self, boxes: Integers) -> Traffic:
        """Return the traffic of some boxes, in any order and as often as they are named."""
        counts = self.counts[boxes]
        starts = np.concatenate(([0], np.cumsum(counts)))
        places = np.repeat(self.starts[boxes] - starts[:-1], counts) + np.arange(starts[-1])
        return Traffic(starts, self.bank[places], self.size[places])

    def before(self, other: Traffic) -> Traffic:
        """Return each box's entries followed by those of the same box in `other`."""
        owners = [np.repeat(np.arange(len(one.counts)), one.counts) for one in (self, other)]
        order = np.argsort(np.concatenate(owners), kind="stable")
        return Traffic(
            self.starts + other.starts,
            np.concatenate((self.bank, other.bank))[order],
            np.concatenate((self.size, other.size))[order],
        )


def single(bank: Integers, size: Integers) -> Traffic:
    """Return the traffic of boxes that lie in one bank each."""
    return Traffic(np.arange(len(bank) + 1), np.asarray(bank), np.asarray(size))


def traffic(layout: Layout, boxes: Integers, element_bytes: int) -> Traffic:
    """Find where boxes of a tensor lie.

    Parameters
    ----------
    layout : Layout
    boxes : array of int, shape (boxes, 2, axes)
        First element of each axis, and the end.
    element_bytes : int
        [B]
    """
    from perfmodel.kernels.wafer.tiles import block_traffic
    from perfmodel.kernels.work import kernel_work

    missing = AXES - len(layout.dims)
    boxes = np.ascontiguousarray(boxes)
    if (boxes[:, 0] < 0).any() or (boxes[:, 1] > layout.dims).any():
        raise DataError(f"a tile reaches beyond its tensor of {layout.dims}")
    tile = np.array((1,) * missing + layout.tile, np.int64)
    counts = -(-boxes[:, 1] // layout.tile) - boxes[:, 0] // layout.tile
    room = int(np.minimum(counts.prod(axis=1), layout.banks.size).sum())
    padded = np.zeros((len(boxes), 2, AXES), np.int64)
    padded[:, 1, :missing] = 1
    padded[:, :, missing:] = boxes
    with kernel_work(tile_boxes=len(boxes)):
        found = block_traffic(
            np.ascontiguousarray(layout.banks).reshape(-1),
            np.array((1,) * missing + layout.banks.shape, np.int64),
            tile,
            np.concatenate((np.zeros(missing, np.int64), *layout.begins)),
            np.concatenate((np.ones(missing, np.int64), *layout.ends)),
            padded.reshape(-1, 2 * AXES),
            element_bytes,
            room,
        )
    return Traffic(*found)


def tile_numbers(layout: Layout) -> Integers:
    """Return the number along each axis of all tiles of a tensor, shape (tiles, axes)."""
    shape = layout.banks.shape
    return np.indices(shape).reshape(len(shape), -1).T


def tile_traffic(layout: Layout, element_bytes: int) -> Traffic:
    """Find where all tiles of a tensor lie, in row-major order: each in one bank."""
    sizes = np.full((), element_bytes, np.int64)
    for side, part, begin, end in zip(
        layout.dims, layout.tile, layout.begins, layout.ends, strict=True
    ):
        first = np.arange(len(begin)) * part
        last = np.minimum(first + part, side)
        sizes = np.multiply.outer(sizes, np.minimum(end, last) - np.maximum(begin, first))
    return single(layout.banks.reshape(-1), sizes.reshape(-1))


def products(
    comment: str,
    numbers: Integers,
    reads: Traffic,
    writes: Traffic,
    cores: Integers,
    repeats: Integers,
    sides: Integers,
) -> Piece:
    """Return the instructions of products of tiles.

    Parameters as of `perfmodel.kernels.wafer.trace_lines.product_lines`.
    """
    from perfmodel.kernels.wafer.trace_lines import product_lines
    from perfmodel.kernels.work import kernel_work

    kinds = np.count_nonzero(sides[:, ::3], axis=1)
    count = int(reads.starts[-1] + writes.starts[-1] + (kinds * repeats).sum())
    made = _empty(count)
    with kernel_work(instructions=count):
        product_lines(*reads, *writes, cores, repeats, sides, made.lines, made.arguments)
    return Piece(made, comment, numbers)


def reductions(
    comment: str,
    numbers: Integers,
    parts: Integers,
    reads: Traffic,
    writes: Traffic,
    cores: Integers,
    sides: Integers,
) -> Piece:
    """Return the instructions of sums of tiles.

    Parameters as of `perfmodel.kernels.wafer.trace_lines.reduction_lines`.
    """
    from perfmodel.kernels.wafer.trace_lines import reduction_lines
    from perfmodel.kernels.work import kernel_work

    adds = np.maximum(np.diff(parts) - 1, 0).sum()
    made = _empty(int(reads.starts[-1] + writes.starts[-1] + adds))
    padded = np.zeros((len(sides), MOST_ARGUMENTS), np.int64)
    padded[:, : sides.shape[1]] = sides
    with kernel_work(instructions=len(made.lines)):
        reduction_lines(parts, *reads, *writes, cores, padded, made.lines, made.arguments)
    return Piece(made, comment, numbers)


def copies(
    comment: str, numbers: Integers, tiles: Integers, source: Integers, to: Integers, size: Integers
) -> Piece:
    """Return copies from bank to bank, all issued by the node's first core.

    Parameters
    ----------
    comment : str
    numbers : array of int, shape (tiles, n)
    tiles, source, to, size : array of int, shape (copies,)
        Tile that each belongs to, its banks, and its bytes [B].
    """
    first_core = np.zeros(len(source), np.int64)
    return Piece(build(COPY, first_core, (source, to, size), tile=tiles), comment, numbers)


def barrier_number(name: str, cores: str) -> tuple[int, int]:
    """Return the upper and the lower half of the number of a barrier: a hash of its text."""
    digest = hashlib.md5((name + cores).encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")


def barriers(
    name: str, numbers: Integers, groups: Iterable[Sequence[int]], first_core: int, cores: int
) -> Piece:
    """Return barriers, one per row of `numbers`, on those cores of a node that take part.

    Parameters
    ----------
    name : str
    numbers : array of int, shape (barriers, n)
    groups : iterable of sequence of int
        Cores of the wafer that take part, of each barrier.
    first_core, cores : int
        Of the node.
    """
    rows: list[tuple[int, ...]] = []
    within = True
    for tile, (group, row) in enumerate(zip(groups, numbers.tolist(), strict=True)):
        halves = barrier_number("_".join([name, *map(str, row)]), "_".join(map(str, group)))
        on_node = [core - first_core for core in group if 0 <= core - first_core < cores]
        within &= len(on_node) == len(group)
        rows.extend([(core, tile, *halves) for core in on_node])
    table = np.array(rows, np.int64).reshape(-1, 4)
    made = build(BARRIER, table[:, 0], (table[:, 2], table[:, 3]), tile=table[:, 1])
    # The generator marks the comment of a barrier that stays within a node.
    comment = name.replace("barrier", "intrabarrier", 1) if within else name
    return Piece(made, comment, numbers)


def _empty(count: int) -> Instructions:
    return Instructions(
        np.zeros((count, COLUMNS), np.int64),
        np.zeros((count, MOST_ARGUMENTS), np.int64),
        NOTHING.destinations,
    )
