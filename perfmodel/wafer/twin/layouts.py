"""Where the blocks of a tensor lie: banks of the generator's tensors, and how views move them.

A tensor is cut into blocks; each block lies in one memory bank. A fresh tensor spreads its blocks,
in row-major order, to the banks of a node in turn. Views, splits, transposes, slices and
concatenations move no data: they only count blocks differently, so that a tile of what comes
out may lie in several banks, whose order is that of the blocks.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/common/tensor.py``,
``src/core_level/layers/{remap,view,split,transpose,slice,concat}.py``; what stops that
program (an assertion) is a `DataError` here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError

Shape = tuple[int, ...]
MOST_BLOCKS = 2**24
"""Of one tensor; the largest of DeepSeek-V3's on 56 nodes has some ten thousand."""


class Layout(NamedTuple):
    """Blocks of a tensor.

    Attributes
    ----------
    dims, tile : tuple of int, shape (axes,)
        Elements of the tensor, and of a block that no end cuts off.
    banks : array of int, shape (blocks of each axis)
    begins, ends : tuple of array of int, shape (axes,)
        Elements that the blocks of an axis hold. After a slice that begins inside a block,
        its first block begins below 0.
    """

    dims: Shape
    tile: Shape
    banks: Integers
    begins: tuple[Integers, ...]
    ends: tuple[Integers, ...]


def fresh(dims: Shape, tile: Shape, first_bank: int, banks: int, offset: int = 0) -> Layout:
    """Spread the blocks of a tensor over the banks of a node in turn.

    Parameters
    ----------
    dims, tile : tuple of int
    first_bank, banks : int
        Of the node.
    offset : int, optional
        Bank of the first block, counted from `first_bank`.
    """
    blocks = tuple(-(-side // part) for side, part in zip(dims, tile, strict=True))
    count = math.prod(blocks)
    if count > MOST_BLOCKS:
        raise DataError(f"a tensor of {dims} in tiles of {tile} has more than {MOST_BLOCKS} blocks")
    spread = (first_bank + (offset + np.arange(count)) % banks).reshape(blocks)
    begins = tuple(np.arange(number) * part for number, part in zip(blocks, tile, strict=True))
    ends = tuple(
        np.minimum(begin + part, side) for begin, part, side in zip(begins, tile, dims, strict=True)
    )
    return Layout(dims, tile, spread, begins, ends)


def with_ones(layout: Layout, dims: Shape) -> Layout:
    """Return a tensor with axes of one element put in or taken out, as `dims` asks.

    Raises
    ------
    DataError
        `dims` differ in more than that.
    """
    if layout.dims == dims:
        return layout
    tile, begins, ends = list(layout.tile), list(layout.begins), list(layout.ends)
    shape = list(layout.banks.shape)
    left = list(layout.dims)
    at = 0
    for side in dims:
        while at < len(left) and left[at] != side and left[at] == 1:
            for part in (left, tile, begins, ends, shape):
                del part[at]
        if at == len(left) or left[at] != side:
            if side != 1:
                raise DataError(_not_read(layout, dims))
            left.insert(at, 1)
            tile.insert(at, 1)
            begins.insert(at, _ZERO)
            ends.insert(at, _ONE)
            shape.insert(at, 1)
        at += 1
    if any(side != 1 for side in left[at:]):
        raise DataError(_not_read(layout, dims))
    count = len(dims)
    return Layout(
        dims,
        tuple(tile[:count]),
        layout.banks.reshape(shape[:count]),
        tuple(begins[:count]),
        tuple(ends[:count]),
    )


def _not_read(layout: Layout, dims: Shape) -> str:
    return (
        f"a tensor of {layout.dims} cannot be read as {dims}: only axes of one element come and "
        "go, so that the generator takes one position per sequence"
    )


_ZERO = np.zeros(1, np.int64)
_ONE = np.ones(1, np.int64)


def remapped(layout: Layout, tile: Shape) -> Layout:
    """Cut a tensor into smaller blocks; each stays in the bank where it begins.

    What lies in other banks is moved there without any instruction, as in the generator.
    """
    if any(new > old for new, old in zip(tile, layout.tile, strict=True)):
        raise DataError(f"blocks of {layout.tile} cannot become larger ones of {tile}")
    smaller = fresh(layout.dims, tile, 0, 1)
    places = [begin // old for begin, old in zip(smaller.begins, layout.tile, strict=True)]
    return smaller._replace(banks=layout.banks[np.ix_(*places)])


def viewed(layout: Layout, dims: Shape) -> Layout:
    """Split one axis into two, or merge two neighbours into one.

    Equal shapes, which stop the generator where experts are on one node, stay as they are.
    """
    old = layout.dims
    if old == dims:
        return layout
    for axis, (before, after) in enumerate(zip(old, dims, strict=False)):
        if before > after:
            if (*old[:axis], *dims[axis : axis + 2], *old[axis + 1 :]) != dims or (
                before != math.prod(dims[axis : axis + 2])
            ):
                break
            return _split_axis(layout, axis, dims)
        if before < after:
            if (*old[:axis], after, *old[axis + 2 :]) != dims or (
                after != math.prod(old[axis : axis + 2])
            ):
                break
            return _merged_axes(layout, axis, dims)
    raise DataError(f"a view of {old} as {dims}: one axis is split, or two are merged")


def _split_axis(layout: Layout, axis: int, dims: Shape) -> Layout:
    inner = dims[axis + 1]
    if layout.tile[axis] > inner:
        layout = remapped(layout, _with(layout.tile, axis, inner))
    part = layout.tile[axis]
    if inner % part:
        raise DataError(
            f"a view of {layout.dims} as {dims}: blocks of {part} do not divide {inner}"
        )
    outer = np.arange(dims[axis])
    begin = np.arange(inner // part) * part
    return Layout(
        dims,
        (*layout.tile[:axis], 1, part, *layout.tile[axis + 1 :]),
        layout.banks.reshape(
            *layout.banks.shape[:axis], len(outer), len(begin), *layout.banks.shape[axis + 1 :]
        ),
        (*layout.begins[:axis], outer, begin, *layout.begins[axis + 1 :]),
        (*layout.ends[:axis], outer + 1, begin + part, *layout.ends[axis + 1 :]),
    )


def _merged_axes(layout: Layout, axis: int, dims: Shape) -> Layout:
    inner, part = layout.dims[axis + 1], layout.tile[axis + 1]
    begins, ends = layout.begins[axis].tolist(), layout.ends[axis].tolist()
    in_row = len(layout.begins[axis + 1])
    # Blocks of rows that are not whole multiples fall on one another: the last one stays.
    place: dict[int, tuple[int, int, int]] = {}
    for block, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        for column in range(in_row):
            for at, row in enumerate(range(begin, end)):
                key = (block * layout.tile[axis] + at) * (inner // part) + column
                place[key] = block, column, row
    count = -(-dims[axis] // part)
    if len(place) != count or max(place, default=0) >= count:
        raise DataError(
            f"a view of {layout.dims} as {dims}: blocks of {part} do not divide {inner}"
        )
    blocks, columns, rows = np.array([place[key] for key in range(count)]).T
    order = (slice(None),) * axis
    return Layout(
        dims,
        (*layout.tile[:axis], *layout.tile[axis + 1 :]),
        layout.banks[(*order, blocks, columns)],
        (
            *layout.begins[:axis],
            rows * inner + layout.begins[axis + 1][columns],
            *layout.begins[axis + 2 :],
        ),
        (
            *layout.ends[:axis],
            rows * inner + layout.ends[axis + 1][columns],
            *layout.ends[axis + 2 :],
        ),
    )


def split(layout: Layout, axis: int, sizes: Sequence[int]) -> tuple[Layout, Layout]:
    """Cut a tensor into two along an axis."""
    if len(sizes) != 2 or sum(sizes) != layout.dims[axis]:
        raise DataError(f"a split of {layout.dims}: {list(sizes)} are not two parts of it")
    if layout.tile[axis] > min(sizes):
        layout = remapped(layout, _with(layout.tile, axis, min(sizes)))
    part = layout.tile[axis]
    if sizes[0] % part or sizes[1] % part:
        raise DataError(f"a split of {layout.dims}: blocks of {part} do not divide {list(sizes)}")
    first = sizes[0] // part
    return (
        _taken(layout, axis, slice(0, first), 0, sizes[0]),
        _taken(layout, axis, slice(first, None), sizes[0], sizes[1]),
    )


def sliced(layout: Layout, axis: int, begin: int, end: int) -> Layout:
    """Return the elements from `begin` to `end` of an axis."""
    if not 0 <= begin < end <= layout.dims[axis]:
        raise DataError(f"a slice of {layout.dims}: no elements {begin}:{end} on axis {axis}")
    part = layout.tile[axis]
    if end - begin > 1 and begin % part:
        raise DataError(f"a slice of {layout.dims}: {begin}:{end} cuts blocks of {part}")
    blocks = slice(begin // part, (end - 1) // part + 1)
    taken = _taken(layout, axis, blocks, begin, end - begin)
    return taken._replace(tile=_with(layout.tile, axis, min(part, end - begin)))


def transposed(layout: Layout, first: int, second: int) -> Layout:
    """Swap two axes."""

    def swapped(values: tuple) -> tuple:
        swap = list(values)
        swap[first], swap[second] = values[second], values[first]
        return tuple(swap)

    return Layout(
        swapped(layout.dims),
        swapped(layout.tile),
        layout.banks.swapaxes(first, second),
        swapped(layout.begins),
        swapped(layout.ends),
    )


def concatenated(parts: Sequence[Layout], axis: int) -> Layout:
    """Put tensors behind one another along an axis."""
    tile = tuple(map(min, zip(*(layout.tile for layout in parts), strict=True)))
    parts = [layout if layout.tile == tile else remapped(layout, tile) for layout in parts]
    sizes = [layout.dims[axis] for layout in parts]
    dims = _with(parts[0].dims, axis, sum(sizes))
    if any(_with(layout.dims, axis, dims[axis]) != dims for layout in parts):
        raise DataError(f"a concatenation of {[layout.dims for layout in parts]} on axis {axis}")
    if any(size % tile[axis] for size in sizes[:-1]):
        raise DataError(f"a concatenation of {sizes}: blocks of {tile[axis]} do not divide them")
    starts = np.concatenate(([0], np.cumsum(sizes[:-1])))
    return Layout(
        dims,
        tile,
        np.concatenate([layout.banks for layout in parts], axis),
        _shifted(parts[0].begins, [layout.begins[axis] for layout in parts], starts, axis),
        _shifted(parts[0].ends, [layout.ends[axis] for layout in parts], starts, axis),
    )


class Row(NamedTuple):
    """A row of the first axis of a tensor, not yet taken out."""

    layout: Layout
    place: int

    def taken(self) -> Layout:
        """Return the tensor of this row alone."""
        return sliced(self.layout, 0, self.place, self.place + 1)


def rows_together(rows: Sequence[Row]) -> Layout:
    """Put rows of tensors behind one another, as `concatenated` does with slices of them."""
    first = rows[0].layout
    tile = (1, *first.tile[1:])
    if any(row.layout.tile[1:] != tile[1:] for row in rows):
        return concatenated([row.taken() for row in rows], 0)
    blocks = [row.place // row.layout.tile[0] for row in rows]
    pairs = list(zip(rows, blocks, strict=True))
    begins = np.arange(len(rows))
    ends = begins + 1
    if any(row.layout.tile[0] > 1 for row in rows):  # blocks that begin before their row
        before = [int(row.layout.begins[0][block]) - row.place for row, block in pairs]
        begins = begins + np.array(before, np.int64)
    return Layout(
        (len(rows), *first.dims[1:]),
        tile,
        np.array([row.layout.banks[block] for row, block in pairs]),
        (begins, *first.begins[1:]),
        (ends, *first.ends[1:]),
    )


def _shifted(
    edges: tuple[Integers, ...], parts: Sequence[Integers], starts: Integers, axis: int
) -> tuple[Integers, ...]:
    moved = np.concatenate(parts) + np.repeat(starts, [len(part) for part in parts])
    return (*edges[:axis], moved, *edges[axis + 1 :])


def _taken(layout: Layout, axis: int, blocks: slice, begin: int, size: int) -> Layout:
    """Return some blocks of an axis, whose elements are counted from `begin`."""
    order = (slice(None),) * axis
    return Layout(
        _with(layout.dims, axis, size),
        layout.tile,
        layout.banks[(*order, blocks)],
        (
            *layout.begins[:axis],
            layout.begins[axis][blocks] - begin,
            *layout.begins[axis + 1 :],
        ),
        (
            *layout.ends[:axis],
            np.minimum(layout.ends[axis][blocks] - begin, size),
            *layout.ends[axis + 1 :],
        ),
    )


def _with(shape: Shape, axis: int, side: int) -> Shape:
    axis %= len(shape)
    return (*shape[:axis], side, *shape[axis + 1 :])
