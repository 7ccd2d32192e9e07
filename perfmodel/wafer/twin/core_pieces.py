"""Operations on the cores of a node: products, attention, sums, transfers.

Each tile of a product runs on the core in whose bank its weights lie, each tile of an attention
where its keys and values do. Where the depth is split, partial sums lie in that bank as well;
the core of the output's bank adds them up behind a barrier.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/layers/{linear,
grouped_linear,attention}.py``.

All copies and multicasts are issued by a node's first core, and so is all of an all-reduce.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/layers/{reduce,allreduce,
alltoallv,unicast,multicast}.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.wafer.cores.instructions import MULTICAST, build
from perfmodel.wafer.twin.core_lines import (
    NO_NUMBERS,
    Piece,
    Traffic,
    barriers,
    copies,
    products,
    reductions,
    single,
    tile_numbers,
    tile_traffic,
    traffic,
)
from perfmodel.wafer.twin.layouts import Layout, Shape, fresh


class CoreNode(NamedTuple):
    """A node: its first core and bank, how many it has, and bytes per element."""

    first: int
    cores: int
    element_bytes: int

    def fresh(self, dims: Shape, tile: Shape) -> Layout:
        """Spread the blocks of a new tensor over the node's banks."""
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


# Sums and transfers between nodes of the generator, tile by tile.


def copy_piece(name: str, node: CoreNode, pairs: Sequence[tuple[Layout, Layout]]) -> Piece:
    """Return copies of tensors to others of the same blocks, but not into the same bank.

    Parameters
    ----------
    name : str
    node : CoreNode
    pairs : sequence of (Layout, Layout)
        What is sent, and how it lies where it is received.
    """
    sent = [tile_traffic(source, node.element_bytes) for source, _ in pairs]
    nothing = np.empty(0, np.int64)
    bank = np.concatenate([nothing, *(one.bank for one in sent)])
    size = np.concatenate([nothing, *(one.size for one in sent)])
    target = np.concatenate([nothing, *(received.banks.reshape(-1) for _, received in pairs)])
    numbers = np.concatenate([np.empty((0, 3), np.int64), *(tile_numbers(one) for one, _ in pairs)])
    (moved,) = np.nonzero(bank != target)
    return copies(f"{name}_unicast", numbers, moved, bank[moved], target[moved], size[moved])


def multicast_piece(name: str, node: CoreNode, sent: Layout, received: Sequence[Layout]) -> Piece:
    """Return multicasts of a tensor's tiles to the same tiles on other nodes."""
    source = tile_traffic(sent, node.element_bytes)
    count = len(source.bank)
    places = np.arange(count) * len(received)
    arguments = (source.bank, source.size, places, len(received))
    made = build(MULTICAST, np.zeros(count, np.int64), arguments, tile=np.arange(count))
    destinations = np.stack([layout.banks.reshape(-1) for layout in received], axis=1).reshape(-1)
    made = made._replace(destinations=destinations)
    return Piece(made, f"{name}_multicast", tile_numbers(sent))


def sum_piece(name: str, node: CoreNode, source: Layout) -> list[Piece]:
    """Return sums over the first of three axes, spread over the cores in turn."""
    if len(source.dims) != 3:
        raise DataError(f"'{name}': a sum of a tensor of {source.dims}; three axes are summed")
    count = source.dims[0]
    if source.tile[0] > 1:
        raise DataError(
            f"'{name}': a sum of blocks of {source.tile[0]} rows; single rows are summed"
        )
    out = node.fresh((1, *source.dims[1:]), source.tile)
    sums = out.banks.size
    rows = tile_traffic(source, node.element_bytes)
    extents = [end - begin for begin, end in zip(out.begins, out.ends, strict=True)]
    sides = np.stack(np.meshgrid(*extents, indexing="ij"), axis=-1).reshape(sums, 3)
    return [
        reductions(
            f"{name}_reduce_op",
            np.repeat(NO_NUMBERS, sums, axis=0),
            np.arange(sums + 1) * count,
            rows.of(np.arange(count * sums).reshape(count, sums).T.reshape(-1)),
            tile_traffic(out, node.element_bytes),
            np.arange(sums) % node.cores,
            sides,
        )
    ]


def all_reduce_pieces(
    name: str, node: CoreNode, source: Layout, following: Layout, group: Sequence[int], place: int
) -> list[Piece]:
    """Return the instructions of a ring all-reduce on a node.

    Chunks are counted from the node's number, not its place in the group, as the generator
    does; the columns that the group does not divide are left out.

    Parameters
    ----------
    name : str
    node : CoreNode
    source, following : Layout
        What is reduced, here and on the next node of the ring.
    group : sequence of int
        Nodes.
    place : int
        Number of this node.
    """
    count = len(group)
    chunk = source.dims[-1] // count
    if not chunk:
        raise DataError(f"'{name}': {source.dims[-1]} columns are fewer than {count} nodes")
    boxes = np.zeros((count, 2, len(source.dims)), np.int64)
    boxes[:, 1] = source.dims
    boxes[:, 0, -1] = np.arange(count) * chunk
    boxes[:, 1, -1] = boxes[:, 0, -1] + chunk
    here = traffic(source, boxes, node.element_bytes)
    there = traffic(following, boxes, node.element_bytes)
    _check_alike(name, here, there)
    first_cores = [node.cores * member for member in group]
    sides = boxes[:, 1] - boxes[:, 0]

    def copied(stage: str, round_: int, index: int) -> Piece:
        send, receive = here.of(np.array([index])), there.of(np.array([index]))
        tiles = np.zeros(len(send.bank), np.int64)
        numbers = np.array([[round_]])
        return copies(f"{name}_{stage}", numbers, tiles, send.bank, receive.bank, send.size)

    def barrier(stage: str, round_: int) -> Piece:
        numbers = np.array([[round_]])
        return barriers(f"{name}_barrier_{stage}", numbers, [first_cores], node.first, node.cores)

    pieces = []
    for round_ in range(count - 1):
        pieces.append(copied("stage1", round_, (place - round_) % count))
        pieces.append(barrier("stage1", round_))
        index = (place - round_ - 1) % count
        pieces.append(
            reductions(
                f"{name}_reduce",
                np.array([[round_]]),
                np.array([0, 2]),
                here.of(np.array([index, index])),
                here.of(np.array([index])),
                np.zeros(1, np.int64),
                sides[[index]],
            )
        )
        pieces.append(barrier("reduce", round_))
    for round_ in range(count - 1):
        pieces.append(copied("stage2", round_, (place - round_ + 1) % count))
        pieces.append(barrier("gather", round_))
    return pieces


def _check_alike(name: str, source: Traffic, target: Traffic) -> None:
    if (source.starts != target.starts).any() or (source.size != target.size).any():
        raise DataError(f"'{name}': a tile lies in other banks on the node that receives it")
