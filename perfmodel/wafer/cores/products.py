"""Products on the cores of a node: inputs brought to where weights lie, sums over split depths."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.wafer.cores.instructions import (
    ADD,
    COPY,
    GEMM,
    READ,
    WRITE,
    Instructions,
    barrier,
    build,
    joined,
)
from perfmodel.wafer.cores.layout import (
    Layout,
    overlaps,
    transfers,
    whole_bytes,
)
from perfmodel.wafer.system import Grid, bucket_starts
from perfmodel.wafer.tiles import ProductTiles, best_tiles


@functools.lru_cache(maxsize=1024)
def product(
    source: Layout,
    sizes: tuple[int, int, int, int],
    grid: Grid,
    element_bytes: tuple[float, float, float, float],
    columns: tuple[int, int, int] | None = None,
) -> tuple[Instructions, Layout]:
    """Return the instructions of products of one shape, and where the result lies.

    Weights lie in the bank of the core that multiplies them; where several cores have the same,
    each has a share of the depth and sends it to the others. Inputs come from where they lie.
    Cores that share a depth sum each a share of the columns.

    Parameters
    ----------
    source : Layout
        Of the input: m rows; the columns of all groups beside one another.
    sizes : (int, int, int, int)
        Groups, m, k, n.
    grid : (int, int)
        Of cores.
    element_bytes : (float, float, float, float)
        Of inputs, weights, partial sums and outputs [B].
    columns : (int, int, int), optional
        First column of the input, columns from one group to the next, and how many of those
        columns are the group's; all of k otherwise.
    """
    tiles = best_tiles(*sizes[1:], grid, groups=sizes[0], element_bytes=element_bytes)
    cores = grid[0] * grid[1]
    of_input, of_weight, of_sum, of_output = element_bytes
    sent = [
        _inputs(source, tiles, columns or (0, sizes[2], sizes[2]), of_input, cores),
        _weights(tiles, of_weight, cores),
    ]
    parts = [one for one in sent if len(one.lines)]
    if parts:
        parts.append(barrier("inputs", np.arange(cores)))
    groups, m, k, n = (
        np.broadcast_to(
            np.diff(bound).reshape([-1 if axis == one else 1 for one in range(4)]), tiles.parts
        ).ravel()
        for axis, bound in enumerate(tiles.bounds)
    )
    core = tiles.cores.ravel()
    split = tiles.parts[2] > 1
    written = of_sum if split else of_output
    parts.append(build(READ, core, (core, whole_bytes(groups * m * k, of_input))))
    parts.append(build(READ, core, (core, whole_bytes(groups * k * n, of_weight))))
    most = int(groups.max())
    for group in range(most):
        busy = group < groups
        parts.append(build(GEMM, core[busy], (m[busy], k[busy], n[busy]), back=2 + group, waits=2))
    parts.append(build(WRITE, core, (core, whole_bytes(groups * m * n, written)), back=groups))
    if split:
        parts += _sums(tiles, of_sum, of_output, cores)
    return joined(parts), _result(tiles)


def _inputs(
    source: Layout,
    tiles: ProductTiles,
    columns: tuple[int, int, int],
    element_bytes: float,
    cores: int,
) -> Instructions:
    """Bring each core the rows and the depth that it multiplies."""
    groups, rows, depths, _ = tiles.bounds
    first, stride, _ = columns
    boxes, receivers = [], list[Integers]()
    for g in range(tiles.parts[0]):
        for i in range(tiles.parts[1]):
            for j in range(tiles.parts[2]):
                slot = len(receivers)
                whole = tiles.parts[2] == 1 and stride == tiles.sizes[2]
                ranges = (
                    [(groups[g] * stride, groups[g + 1] * stride)]
                    if whole
                    else [
                        (one * stride + depths[j], one * stride + depths[j + 1])
                        for one in range(groups[g], groups[g + 1])
                    ]
                )
                for begin, end in ranges:
                    boxes.append((slot, rows[i], rows[i + 1], first + begin, first + end))
                receivers.append(tiles.cores[g, i, j])
    moved = overlaps(source, np.array(boxes), len(receivers), cores)
    return transfers(whole_bytes(moved, element_bytes), receivers)


def _weights(tiles: ProductTiles, element_bytes: float, cores: int) -> Instructions:
    """Exchange shares of weights among the cores that multiply different rows by the same."""
    parts = tiles.parts[1]
    if parts == 1:
        return transfers(np.zeros((cores, 0), np.int64), [])
    group, _, depth, column = (np.diff(bound) for bound in tiles.bounds)
    peers = np.moveaxis(tiles.cores, 1, 3).reshape(-1, parts)
    height = np.diff(np.array([bucket_starts(int(one), parts) for one in depth]), axis=1)
    size = (
        group[:, None, None, None] * height[None, :, None, :] * column[None, None, :, None]
    ).reshape(-1, parts)
    moved = np.zeros((cores, len(peers)), np.int64)
    moved[peers, np.arange(len(peers))[:, None]] = whole_bytes(size, element_bytes)
    return transfers(moved, list(peers))


def _sums(tiles: ProductTiles, of_sum: float, of_output: float, cores: int) -> list[Instructions]:
    """Sum over the cores that share a depth; each sums and keeps a share of the columns."""
    parts = tiles.parts[2]
    group, rows, _, column = (np.diff(bound) for bound in tiles.bounds)
    peers = np.moveaxis(tiles.cores, 2, 3).reshape(-1, parts)
    height = (
        (group[:, None, None] * rows[None, :, None]) * np.ones((1, 1, len(column)), np.int64)
    ).ravel()
    widths = np.diff(np.array([bucket_starts(int(one), parts) for one in column]), axis=1)
    width = np.broadcast_to(widths, (len(group), len(rows), *widths.shape)).reshape(-1, parts)
    share = height[:, None] * width
    result = []
    back = np.ones(len(peers) * parts, np.int64)
    for step in range(1, parts):
        mine, theirs = np.arange(parts), (np.arange(parts) + step) % parts
        source, to = peers[:, mine].ravel(), peers[:, theirs].ravel()
        size = whole_bytes(share[:, theirs].ravel(), of_sum)
        some = size > 0
        # All wait for the partial sum that was written before them.
        arguments = source[some], to[some], size[some]
        result.append(build(COPY, source[some], arguments, back=back[some], waits=1))
        back += some
    result.append(barrier("sums", np.arange(cores)))
    core = peers.ravel()
    size = whole_bytes(share.ravel(), of_sum)
    high, wide = np.repeat(height, parts), width.ravel()
    some = size > 0
    core, size, high, wide = core[some], size[some], high[some], wide[some]
    result.append(build(READ, core, (core, size)))
    for _ in range(1, parts):
        result.append(build(READ, core, (core, size)))
        result.append(build(ADD, core, (high, wide), back=2))
    result.append(build(WRITE, core, (core, whole_bytes(high * wide, of_output)), back=1))
    return result


def _result(tiles: ProductTiles) -> Layout:
    groups, rows, _, columns = tiles.bounds
    parts = tiles.parts[2]
    shares = np.concatenate(
        [
            begin + bucket_starts(int(end - begin), parts)[:-1]
            for begin, end in itertools.pairwise(columns)
        ]
    )
    n = tiles.sizes[3]
    starts = (np.arange(tiles.sizes[0])[:, None] * n + shares).ravel()
    # A group's columns lie on the cores of its part: (m, group, n, k).
    of_group = np.repeat(np.arange(tiles.parts[0]), np.diff(groups))
    banks = np.transpose(tiles.cores[of_group], (1, 0, 3, 2)).reshape(tiles.parts[1], -1)
    return Layout(rows, np.concatenate((starts, [tiles.sizes[0] * n])), np.ascontiguousarray(banks))


class CoreOperation(NamedTuple):
    """An operation of a node, on its cores.

    Attributes
    ----------
    name : str
        Such as ``decode10_attn_absorb_wkva``.
    kind : str
        Such as ``Linear``.
    macs : int
        Multiply-adds that are asked for; a core may do more where blocks are masked.
    instructions : Instructions
        Cores and banks are counted over the wafer.
    """

    name: str
    kind: str
    macs: int
    instructions: Instructions
