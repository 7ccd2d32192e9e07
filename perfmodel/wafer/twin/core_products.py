"""Products and attention of the generator on the cores of a node, tile by tile.

Each tile of a product runs on the core in whose bank its weights lie, each tile of an attention
where its keys and values do. Where the depth is split, partial sums lie in that bank as well;
the core of the output's bank adds them up behind a barrier.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/layers/{linear,
grouped_linear,attention}.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.wafer.twin.core_lines import (
    Piece,
    barriers,
    products,
    reductions,
    single,
    traffic,
)
from perfmodel.wafer.twin.layouts import Layout, Shape, fresh


class CoreNode(NamedTuple):
    """A node: its first core and bank, how many it has, and bytes per element."""

    first: int
    cores: int
    element_bytes: int

    def fresh(self, dims: Shape, tile: Shape) -> Layout:
        """Deal the blocks of a new tensor to the node's banks."""
        return fresh(dims, tile, self.first, self.cores)


class Axis(NamedTuple):
    """Tiles of an axis: where each begins, and its elements."""

    begin: Integers
    size: Integers

    @classmethod
    def cut(cls, side: int, part: int) -> Axis:
        """Cut an axis into parts."""
        begin = np.arange(0, side, part)
        return cls(begin, np.minimum(part, side - begin))


def _mesh(*axes: Axis) -> tuple[Integers, ...]:
    """Return the number along each axis of all tiles, the last axis fastest."""
    grids = np.indices([len(axis.begin) for axis in axes])
    return tuple(grid.reshape(-1) for grid in grids)


def _boxes(axes: tuple[Axis, ...], places: tuple[Integers, ...]) -> Integers:
    """Return the boxes of tiles, shape (tiles, 2, axes)."""
    begins = [axis.begin[place] for axis, place in zip(axes, places, strict=True)]
    sizes = [axis.size[place] for axis, place in zip(axes, places, strict=True)]
    begin = np.stack(begins, axis=1)
    return np.stack([begin, begin + np.stack(sizes, axis=1)], axis=1)


def product_pieces(
    name: str, node: CoreNode, source: Layout, dims: Shape, tile: Shape
) -> list[Piece]:
    """Return the instructions of a product.

    Parameters
    ----------
    name : str
    node : CoreNode
    source : Layout
        Of the input, M x K; in front, where products are grouped, the group.
    dims, tile : tuple of int
        M, K, N; in front, where products are grouped, their number.
    """
    grouped = len(dims) == 4
    group, rows, depth, columns = (
        Axis.cut(side, part)
        for side, part in zip((1,) * (not grouped) + dims, (1,) * (not grouped) + tile, strict=True)
    )
    b, m, k, n = _mesh(group, rows, depth, columns)
    deep, wide, high = len(depth.begin), len(columns.begin), len(rows.begin)
    core = ((b * deep + k) * wide + n) % node.cores
    bank = node.first + core
    elements = group.size[b] * node.element_bytes
    weights = single(bank, elements * depth.size[k] * columns.size[n])
    out_sizes = elements * rows.size[m] * columns.size[n]
    out_core = ((b * high + m) * wide + n) % node.cores
    held = bank if deep > 1 else node.first + out_core
    inputs = (group, rows, depth) if grouped else (rows, depth)
    unique = _mesh(group, rows, depth)[0 if grouped else 1 :]
    read = traffic(source, _boxes(inputs, unique), node.element_bytes)
    sides = np.zeros((len(core), 6), np.int64)
    sides[:, 0], sides[:, 1], sides[:, 2] = rows.size[m], depth.size[k], columns.size[n]
    pieces = [
        products(
            f"{name}_grouped_gemm" if grouped else f"{name}_gemm",
            np.stack((b, m, k, n)[0 if grouped else 1 :], axis=1),
            read.of((b * high + m) * deep + k).before(weights),
            single(held, out_sizes),
            core,
            group.size[b],
            sides,
        )
    ]
    if deep == 1:
        return pieces
    b, m, n = _mesh(group, rows, columns)
    first = ((b * high + m) * deep * wide + n)[:, None]
    parts = first + np.arange(deep) * wide  # tiles that make up each output
    out_core = ((b * high + m) * wide + n) % node.cores
    numbers = np.stack((b, m, n)[0 if grouped else 1 :], axis=1)
    out_sides = [rows.size[m], columns.size[n]]
    if grouped:
        out_sides.insert(0, group.size[b])
    made = core[parts]
    sums = _summed(
        name, f"{name}_reduce", numbers, node, made, made, out_core, out_sizes[parts], out_sides
    )
    return [*pieces, *sums]


def _summed(
    name: str,
    comment: str,
    numbers: Integers,
    node: CoreNode,
    cores: Integers,
    held: Integers,
    out_core: Integers,
    sizes: Integers,
    sides: list[Integers],
) -> list[Piece]:
    """Return barriers and sums of tiles.

    Parameters
    ----------
    name, comment : str
        Of the barriers and of the sums.
    numbers : array of int, shape (sums, n)
    node : CoreNode
    cores, held, sizes : array of int, shape (sums, parts)
        Cores that made the parts, cores in whose banks they lie, and their bytes [B].
    out_core : array of int, shape (sums,)
    sides : list of array of int, shape (sums,)
        Of what is added up.
    """
    groups = [
        [node.first + core for core in dict.fromkeys([*row, last])]
        for row, last in zip(cores.tolist(), out_core.tolist(), strict=True)
    ]
    return [
        barriers(f"{name}_barrier_reduce", numbers, groups, node.first, node.cores),
        reductions(
            comment,
            numbers,
            np.arange(len(cores) + 1) * cores.shape[1],
            single(node.first + held.reshape(-1), sizes.reshape(-1)),
            single(node.first + out_core, sizes[:, 0]),
            out_core,
            np.stack(sides, axis=1),
        ),
    ]


def attention_pieces(
    name: str, node: CoreNode, source: Layout, dims: Shape, query_tile: Shape, key_tile: Shape
) -> list[Piece]:
    """Return the instructions of an absorbed latent attention.

    Parameters
    ----------
    name : str
    node : CoreNode
    source : Layout
        Of the queries, sequences x 1 x heads x (latent + rotary).
    dims : tuple of int
        Sequences, heads, context, latent, rotary.
    query_tile : tuple of int
        Sequences, positions, heads, latent.
    key_tile : tuple of int
        Sequences, context, latent.
    """
    sequences, heads, context, latent, rotary = dims
    if query_tile[1] != 1 or query_tile[3] != latent:
        raise DataError(
            f"tiling of '{name}', MLAQ: {list(query_tile)} should have 1 position and all of "
            f"{latent} elements"
        )
    if query_tile[0] != key_tile[0]:
        raise DataError(
            f"tiling of '{name}': MLAQ and MLAKV have {query_tile[0]} and {key_tile[0]} sequences"
        )
    batch = Axis.cut(sequences, key_tile[0])
    head = Axis.cut(heads, query_tile[2])
    keys = Axis.cut(context, key_tile[1])
    width = latent + rotary
    b, h, s = _mesh(batch, head, keys)
    split, many = len(keys.begin), len(head.begin)
    core = (b * split + s) % node.cores
    out_core = (b * many + h) % node.cores
    whole = Axis.cut(width, width)
    one = Axis.cut(1, 1)
    unique_b, unique_h = _mesh(batch, head)
    none = np.zeros_like(unique_b)
    boxes = _boxes((batch, one, head, whole), (unique_b, none, unique_h, none))
    read = traffic(source, boxes, node.element_bytes)
    elements = batch.size[b] * node.element_bytes
    values = single(node.first + core, elements * keys.size[s] * width)
    out_sizes = elements * head.size[h] * latent
    sides = np.stack(
        (
            head.size[h],
            np.full(len(b), width),
            keys.size[s],
            head.size[h],
            keys.size[s],
            np.full(len(b), latent),
        ),
        axis=1,
    )
    pieces = [
        products(
            f"{name}_attn",
            np.stack((b, h, s), axis=1),
            read.of(b * many + h).before(values),
            single(node.first + out_core, out_sizes),
            core,
            batch.size[b],
            sides,
        )
    ]
    if split == 1:
        return pieces
    # Results of all parts of the context lie in the bank of the output.
    parts = np.arange(len(unique_b))[:, None] * split + np.arange(split)
    held = out_core[parts]
    size = batch.size[unique_b]
    sums = _summed(
        name,
        f"{name}_attn_reduce",
        np.stack((unique_b, unique_h), axis=1),
        node,
        core[parts],
        held,
        held[:, 0],
        out_sizes[parts],
        [size, np.ones_like(size), head.size[unique_h], np.full(len(size), latent)],
    )
    return [*pieces, *sums]
