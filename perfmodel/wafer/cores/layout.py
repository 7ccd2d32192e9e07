"""Where the elements of a matrix lie on the banks of a node, and how they get elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.kernels.work import kernel_work
from perfmodel.wafer.cores.instructions import (
    COPY,
    NOTHING,
    Instructions,
    build,
    joined,
    multicasts,
)
from perfmodel.wafer.ranks import bucket_starts
from perfmodel.wafer.system import Grid


@dataclass(frozen=True, eq=False)
class Layout:
    """A matrix in blocks, each in one bank.

    Attributes
    ----------
    rows, columns : array of int, shape (blocks + 1,)
        Where blocks begin along each axis, and the end.
    banks : array of int, shape (row blocks, column blocks)
        Of the node, counted from its first.
    """

    rows: Integers
    columns: Integers
    banks: Integers

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return int(self.rows[-1]), int(self.columns[-1])

    def elements(self, cores: int) -> Integers:
        """Count the elements in each bank, shape (cores,)."""
        sizes = np.outer(np.diff(self.rows), np.diff(self.columns))
        return np.bincount(
            self.banks.ravel(), weights=sizes.ravel().astype(float), minlength=cores
        ).astype(np.int64)


@functools.cache
def along_snake(grid: Grid) -> Integers:
    """Return the cores of a grid row by row, every second row backwards: neighbours follow."""
    cores = np.arange(grid[0] * grid[1]).reshape(grid)
    cores[1::2] = cores[1::2, ::-1]
    return cores.ravel()


@functools.lru_cache(maxsize=4096)
def even_layout(rows: int, columns: int, grid: Grid) -> Layout:
    """Return a matrix cut into columns, one piece per core, along a snake over the cores.

    Of a matrix with fewer columns than cores, each column is cut into rows as well.
    """
    cores = grid[0] * grid[1]
    across = min(columns, cores)
    down = min(rows, cores // across)
    banks = along_snake(grid)[: down * across].reshape(across, down).T
    return Layout(bucket_starts(rows, down), bucket_starts(columns, across), banks)


def overlaps(layout: Layout, boxes: Integers, slots: int, cores: int) -> Integers:
    """Count the elements of each bank in boxes of the matrix: shape (cores, slots).

    Parameters
    ----------
    layout : Layout
    boxes : array of int, shape (boxes, 5)
        Slot, first row, end of rows, first column, end of columns.
    slots, cores : int
    """
    moved = np.zeros((cores, slots), np.int64)
    with kernel_work(instructions=len(boxes)):
        from perfmodel.kernels.wafer import trace_blocks

        trace_blocks.block_overlaps(
            layout.rows, layout.columns, layout.banks, np.asarray(boxes, np.int64), moved
        )
    return moved


def transfers(moved: Integers, receivers: Sequence[Integers]) -> Instructions:
    """Return copies and multicasts that bring each slot's bytes to all of its receivers.

    Who lies beside the source bank issues them; what lies there already is not sent there.

    Parameters
    ----------
    moved : array of int, shape (cores, slots)
        Bytes that a bank has for a slot [B].
    receivers : sequence of array of int
        Cores of each slot.
    """
    source, slot = np.nonzero(moved)
    if not source.size:
        return NOTHING
    counts = np.array([len(one) for one in receivers])[slot]
    owner = np.repeat(np.arange(slot.size), counts)
    to = np.concatenate([receivers[one] for one in slot.tolist()])
    away = to != source[owner]
    owner, to = owner[away], to[away]
    counts = np.bincount(owner, minlength=slot.size)
    size = moved[source, slot]
    single = counts == 1
    parts = []
    if single.any():
        alone = single[owner]
        parts.append(build(COPY, source[single], (source[single], to[alone], size[single])))
    several = counts > 1
    if several.any():
        chosen = several[owner]
        parts.append(multicasts(source[several], size[several], to[chosen], counts[several]))
    return joined(parts)
