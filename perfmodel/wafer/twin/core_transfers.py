"""Sums and transfers between nodes of the generator, tile by tile.

All copies and multicasts are issued by a node's first core, and so is all of an all-reduce.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/layers/{reduce,allreduce,
alltoallv,unicast,multicast}.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.wafer.cores.instructions import MULTICAST, build
from perfmodel.wafer.twin.core_lines import (
    NO_NUMBERS,
    Piece,
    Traffic,
    barriers,
    copies,
    reductions,
    tile_numbers,
    tile_traffic,
    traffic,
)
from perfmodel.wafer.twin.core_products import CoreNode
from perfmodel.wafer.twin.layouts import Layout


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
    """Return sums over the first of three axes, dealt to the cores in turn."""
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
