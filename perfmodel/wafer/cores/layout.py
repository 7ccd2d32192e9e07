"""Where the elements of a matrix lie on the banks of nodes, and how they get elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.kernels.work import kernel_work
from perfmodel.wafer.cores.instructions import (
    ADD,
    COPY,
    NOTHING,
    READ,
    WRITE,
    Instructions,
    barrier,
    build,
    joined,
    multicasts,
)
from perfmodel.wafer.system import Grid, bucket_starts

# Where the elements of a matrix lie on the banks of a node, and how they get elsewhere.


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
        from perfmodel.kernels.wafer import tiles

        tiles.block_overlaps(
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


# Nodes exchange what lies in their banks: every core sends what lies beside it.


@functools.lru_cache(maxsize=1024)
def ring_all_reduce(
    layout: Layout, group: tuple[int, ...], node: int, cores: int, element_bytes: float
) -> Instructions:
    """Return a node's part in the sum of a matrix over a group, in place.

    Each core makes a ring with its namesakes on the other nodes, for what lies beside it: in the
    step t of the first half the node in place q sends the chunk (q - t) mod n and adds to the
    chunk (q - t - 1) mod n what it gets; in the second half whole chunks go round.

    Parameters
    ----------
    layout : Layout
        The same on all nodes of the group.
    group : tuple of int
        Nodes, in the order of the ring.
    node : int
    cores : int
        Of a node.
    element_bytes : float
        [B]
    """
    count, place = len(group), group.index(node)
    elements = layout.elements(cores)
    busy = np.flatnonzero(elements)
    ends = elements[busy, None] * np.arange(1, count + 1) // count
    chunks = np.diff(ends, prepend=0, axis=1)
    own = busy + node * cores
    to = busy + group[(place + 1) % count] * cores
    members = "_".join(map(str, group))
    steps = []
    for step in range(2 * (count - 1)):
        adds = step < count - 1
        sent = chunks[:, (place - step + (0 if adds else count)) % count]
        size = whole_bytes(sent, element_bytes)
        steps.append(build(COPY, own, (own, to, size), back=int(0 < step < count), waits=None))
        steps += [
            barrier(f"{members} {step} {core}", np.array([core + node * cores]), shared=True)
            for core in busy.tolist()
        ]
        if adds:
            got = chunks[:, (place - step - 1) % count]
            size = whole_bytes(got, element_bytes)
            steps.append(build(READ, own, (own, size)))
            steps.append(build(READ, own, (own, size)))
            steps.append(build(ADD, own, (got, 1), back=2))
            steps.append(build(WRITE, own, (own, size), back=1))
    return joined(steps)


def whole_bytes(elements: Integers, element_bytes: float) -> Integers:
    """Return the bytes of elements, a part of one counted whole [B]."""
    return np.ceil(elements * element_bytes).astype(np.int64)


@functools.lru_cache(maxsize=1024)
def row_widths(layout: Layout, grid: Grid) -> Integers:
    """Return, for one row of each block of rows, the columns in each bank that each core gets.

    Who gets a row has its columns in equal pieces, as of `even_layout`.

    Returns
    -------
    array of int, shape (row blocks, cores, cores)
        Row block, bank that has them, core of the other node that gets them.
    """
    cores = grid[0] * grid[1]
    width = layout.shape[1]
    target = even_layout(1, width, grid)
    # Slots are the receiver's blocks of columns.
    boxes = np.column_stack(
        (
            target.banks[0],
            np.zeros(len(target.banks[0]), np.int64),
            np.ones(len(target.banks[0]), np.int64),
            target.columns[:-1],
            target.columns[1:],
        )
    )
    return np.stack(
        [
            overlaps(Layout(np.array([0, 1]), layout.columns, banks[None, :]), boxes, cores, cores)
            for banks in layout.banks
        ]
    )


def rows_in_blocks(layout: Layout, starts: Integers) -> Integers:
    """Count the rows of stretches that lie in each block of rows.

    Parameters
    ----------
    layout : Layout
    starts : array of int, shape (stretches + 1,)

    Returns
    -------
    array of int, shape (row blocks, stretches)
    """
    begin = np.maximum(layout.rows[:-1, None], starts[None, :-1])
    end = np.minimum(layout.rows[1:, None], starts[None, 1:])
    return np.asarray(np.clip(end - begin, 0, None))


def send_rows(
    layout: Layout,
    rows: Integers,
    nodes: Integers,
    node: int,
    grid: Grid,
    element_bytes: float,
) -> Instructions:
    """Return copies of rows to other nodes, one per pair of banks.

    Parameters
    ----------
    layout : Layout
        Of the rows that are sent.
    rows : array of int, shape (row blocks, nodes)
        Rows of each block that go to each node; those for the node itself stay where they are
        needed, or move within it.
    nodes : array of int, shape (nodes,)
    node : int
        Sender.
    grid : (int, int)
        Of cores.
    element_bytes : float
        [B]
    """
    cores = grid[0] * grid[1]
    widths = row_widths(layout, grid)
    elements = np.tensordot(widths, rows, axes=(0, 0))  # bank, core, node
    source, core, place = np.nonzero(elements)
    size = whole_bytes(elements[source, core, place], element_bytes)
    source = source + node * cores
    to = core + np.asarray(nodes)[place] * cores
    away = source != to
    return build(COPY, source[away], (source[away], to[away], size[away]))


def cast_rows(
    layout: Layout,
    rows: Integers,
    nodes: tuple[int, ...],
    node: int,
    grid: Grid,
    element_bytes: float,
) -> Instructions:
    """Return multicasts of rows to several nodes, one per bank and namesake of a receiver.

    Parameters
    ----------
    layout : Layout
        Of the rows that are sent.
    rows : array of int, shape (row blocks,)
        Rows of each block.
    nodes : tuple of int
        Receivers; the sender among them is left out.
    node : int
    grid : (int, int)
        Of cores.
    element_bytes : float
        [B]
    """
    others = np.array([one for one in nodes if one != node], np.int64)
    if not others.size:
        return NOTHING
    cores = grid[0] * grid[1]
    elements = np.tensordot(row_widths(layout, grid), rows, axes=(0, 0))  # bank, core
    source, core = np.nonzero(elements)
    if not source.size:
        return NOTHING
    size = whole_bytes(elements[source, core], element_bytes)
    to = core[:, None] + others * cores
    source = source + node * cores
    if others.size == 1:
        return build(COPY, source, (source, to[:, 0], size))
    return multicasts(source, size, to.ravel(), np.full(source.size, others.size))


def meet(label: str, nodes: tuple[int, ...], node: int, cores: int) -> Instructions:
    """Return a barrier of all cores of some nodes, as one of them is given it."""
    members = "_".join(map(str, nodes))
    return barrier(f"{label} {members}", np.arange(cores) + node * cores, shared=len(nodes) > 1)


@functools.lru_cache(maxsize=1024)
def sums_of_rows(
    rows: int, columns: int, terms: int, grid: Grid, element_bytes: float
) -> tuple[Instructions, Layout]:
    """Return sums of so many terms for each row, as they arrived from other nodes."""
    layout = even_layout(rows, columns, grid)
    elements = layout.elements(grid[0] * grid[1])
    core = np.flatnonzero(elements)
    mine = elements[core]
    parts = [build(READ, core, (core, whole_bytes(mine * terms, element_bytes)))]
    if terms > 1:
        parts.append(build(ADD, core, (mine, terms - 1), back=1))
    parts.append(build(WRITE, core, (core, whole_bytes(mine, element_bytes)), back=1))
    return joined(parts), layout


@functools.lru_cache(maxsize=1024)
def joined_in_place(layout: Layout, cores: int, element_bytes: float) -> Instructions:
    """Return the product of two matrices of one layout element by element (of a gated network)."""
    elements = layout.elements(cores)
    core = np.flatnonzero(elements)
    size = whole_bytes(elements[core], element_bytes)
    return joined(
        [
            build(READ, core, (core, size)),
            build(READ, core, (core, size)),
            build(ADD, core, (elements[core], 1), back=2),
            build(WRITE, core, (core, size), back=1),
        ]
    )


@functools.lru_cache(maxsize=1024)
def chosen_rows(
    layout: Layout, starts: tuple[int, ...], height: int, grid: Grid, element_bytes: float
) -> tuple[Instructions, Layout]:
    """Bring some rows of a matrix into columns of equal pieces, one per core.

    Parameters
    ----------
    layout : Layout
    starts : tuple of int
        First row of each stretch.
    height : int
        Rows of a stretch.
    grid : (int, int)
    element_bytes : float
        [B]
    """

    cores = grid[0] * grid[1]
    target = even_layout(len(starts) * height, layout.shape[1], grid)
    boxes = []
    for number, start in enumerate(starts):
        top = number * height
        for block in range(len(target.rows) - 1):
            low, high = max(top, target.rows[block]), min(top + height, target.rows[block + 1])
            if low < high:
                boxes += [
                    (core, start + low - top, start + high - top, left, right)
                    for core, left, right in zip(
                        target.banks[block], target.columns[:-1], target.columns[1:], strict=True
                    )
                ]
    moved = whole_bytes(overlaps(layout, np.array(boxes), cores, cores), element_bytes)
    return transfers(moved, [np.array([core]) for core in range(cores)]), target
