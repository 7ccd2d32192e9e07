"""Sums and transfers between nodes of the generator, tile by tile.

All copies and multicasts are issued by a node's first core, and so is all of an all-reduce.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/layers/{reduce,allreduce,
alltoallv,unicast,multicast}.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.parity.wse.core_lines import (
    NO_NUMBERS,
    Piece,
    Traffic,
    barriers,
    copies,
    reductions,
    traffic,
)
from perfmodel.parity.wse.core_products import CoreNode
from perfmodel.parity.wse.layouts import Layout
from perfmodel.wafer.cores.instructions import MULTICAST, build


def tile_boxes(layout: Layout) -> tuple[Integers, Integers]:
    """Return the numbers of a tensor's tiles, and their boxes.

    Returns
    -------
    numbers : array of int, shape (tiles, axes)
    boxes : array of int, shape (tiles, 2, axes)
    """
    counts = [-(-side // part) for side, part in zip(layout.dims, layout.tile, strict=True)]
    numbers = np.indices(counts).reshape(len(counts), -1).T
    begin = numbers * layout.tile
    return numbers, np.stack((begin, np.minimum(begin + layout.tile, layout.dims)), axis=1)


def copy_pieces(name: str, node: CoreNode, pairs: Sequence[tuple[Layout, Layout]]) -> list[Piece]:
    """Return copies of tensors to others of the same shape, but not into the same bank.

    Parameters
    ----------
    name : str
    node : CoreNode
    pairs : sequence of (Layout, Layout)
        What is sent, and how it lies where it is received; tiles are those of the former.
    """
    pieces = []
    for sent, received in pairs:
        numbers, boxes = tile_boxes(sent)
        source = traffic(sent, boxes, node.element_bytes)
        target = traffic(received, boxes, node.element_bytes)
        several = (source.counts > 1) & (target.counts > 1)
        if several.any():
            raise DataError(f"'{name}': a tile lies in several banks of both nodes")
        # One bank sends to several, or several to one: the other side is repeated.
        tiles = np.repeat(np.arange(len(boxes)), np.maximum(source.counts, target.counts))
        begin = np.concatenate(([0], np.cumsum(np.maximum(source.counts, target.counts))))
        within = np.arange(len(tiles)) - begin[tiles]
        send = source.starts[tiles] + within * (source.counts > 1)[tiles]
        receive = target.starts[tiles] + within * (target.counts > 1)[tiles]
        size = np.where((target.counts > 1)[tiles], target.size[receive], source.size[send])
        moved = source.bank[send] != target.bank[receive]
        pieces.append(
            copies(
                f"{name}_unicast",
                numbers,
                tiles[moved],
                source.bank[send][moved],
                target.bank[receive][moved],
                size[moved],
            )
        )
    return pieces


def multicast_piece(name: str, node: CoreNode, sent: Layout, received: Sequence[Layout]) -> Piece:
    """Return multicasts of a tensor's tiles to the same tiles on other nodes."""
    numbers, boxes = tile_boxes(sent)
    source = traffic(sent, boxes, node.element_bytes)
    targets = [traffic(layout, boxes, node.element_bytes) for layout in received]
    for target in targets:
        _check_alike(name, source, target)
    count = len(source.bank)
    tiles = np.repeat(np.arange(len(boxes)), source.counts)
    places = np.arange(count) * len(targets)
    arguments = (source.bank, source.size, places, len(targets))
    made = build(MULTICAST, np.zeros(count, np.int64), arguments, tile=tiles)
    destinations = np.stack([target.bank for target in targets], axis=1).reshape(-1)
    return Piece(made._replace(destinations=destinations), f"{name}_multicast", numbers)


def sum_piece(name: str, node: CoreNode, source: Layout) -> list[Piece]:
    """Return sums over the first of three axes, dealt to the cores in turn."""
    if len(source.dims) != 3:
        raise DataError(f"'{name}': a sum of a tensor of {source.dims}; three axes are summed")
    count = source.dims[0]
    one = source._replace(dims=(1, *source.dims[1:]), tile=(1, *source.tile[1:]))
    _, boxes = tile_boxes(one)
    rows = np.repeat(boxes[:, None], count, axis=1)
    rows[..., 0] += np.arange(count)[:, None]
    out = traffic(node.fresh(one.dims, one.tile), boxes, node.element_bytes)
    sums = len(boxes)
    return [
        reductions(
            f"{name}_reduce_op",
            np.repeat(NO_NUMBERS, sums, axis=0),
            np.arange(sums + 1) * count,
            traffic(source, rows.reshape(-1, 2, 3), node.element_bytes),
            out,
            np.arange(sums) % node.cores,
            boxes[:, 1] - boxes[:, 0],
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
