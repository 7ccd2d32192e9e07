"""Blocks of tensors in banks: which bytes of which bank a box of elements takes."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean

# Blocks of a matrix that move from the banks where they lie to those where they are used.


@jit_lean
def block_overlaps(rows, columns, banks, boxes, moved):
    """Add up how many elements of each bank lie in boxes of a matrix.

    Parameters
    ----------
    rows, columns : int64[blocks + 1]
        Where blocks begin along each axis, and the end.
    banks : int64[row blocks, column blocks]
        Bank of each block.
    boxes : int64[boxes, 5]
        Slot (whoever wants the box), first row, end of rows, first column, end of columns.
    moved : int64[banks, slots]
        Elements, to be added to.
    """
    for box in range(boxes.shape[0]):
        slot, top, bottom, left, right = boxes[box]
        if top >= bottom or left >= right:
            continue
        i = np.searchsorted(rows, top, side="right") - 1
        first = np.searchsorted(columns, left, side="right") - 1
        while i < rows.shape[0] - 1 and rows[i] < bottom:
            height = min(rows[i + 1], bottom) - max(rows[i], top)
            j = first
            while j < columns.shape[0] - 1 and columns[j] < right:
                width = min(columns[j + 1], right) - max(columns[j], left)
                moved[banks[i, j], slot] += height * width
                j += 1
            i += 1


@jit
def tree_links(sources, starts, destinations, rows, columns):
    """Count the links of trees from sources to destinations, along rows first (XY routes).

    Parameters
    ----------
    sources : int64[trees]
    starts : int64[trees + 1]
        Where the destinations of each begin, and the end.
    destinations : int64[:]
    rows, columns : int64[banks]
        Where each bank lies.

    Returns
    -------
    int64[trees]
        Links that a byte takes: a link that leads to several destinations counts once.
    """
    links = np.zeros(sources.shape[0], np.int64)
    for tree in range(sources.shape[0]):
        row = rows[sources[tree]]
        column = columns[sources[tree]]
        left = column
        right = column
        for at in range(starts[tree], starts[tree + 1]):
            there = columns[destinations[at]]
            left = min(left, there)
            right = max(right, there)
            # One branch up and one down per column, counted with its first destination.
            first = True
            for before in range(starts[tree], at):
                if columns[destinations[before]] == there:
                    first = False
                    break
            if not first:
                continue
            top = row
            bottom = row
            for other in range(at, starts[tree + 1]):
                if columns[destinations[other]] == there:
                    top = min(top, rows[destinations[other]])
                    bottom = max(bottom, rows[destinations[other]])
            links[tree] += bottom - top
        links[tree] += right - left
    return links


# How much of which bank's memory boxes of a tensor take that is cut into blocks.

AXES = 4


@jit
def block_traffic(banks, blocks, tile, begins, ends, boxes, element_bytes, room):
    """Find the banks that hold boxes of a tensor, in the order of blocks, and the bytes in each.

    Parameters
    ----------
    banks : int64[blocks of the tensor]
        Bank of each block, in row-major order.
    blocks, tile : int64[AXES]
        Blocks along each axis, and elements of a block; 1 where the tensor has fewer axes.
    begins, ends : int64[sum of blocks]
        Elements that the blocks of each axis hold, one axis after the other.
    boxes : int64[boxes, 2 AXES]
        First element of each axis, then the end of each axis.
    element_bytes : int
        [B]
    room : int
        Of entries, for all boxes together.

    Returns
    -------
    entries : int64[boxes + 1]
        Where the entries of each box begin, and the end.
    bank, size : int64[entries]
        Of a box each bank once, where the first of its blocks comes; its bytes [B].
    """
    most = 0
    for at in range(banks.shape[0]):
        most = max(most, banks[at])
    entries = np.zeros(boxes.shape[0] + 1, np.int64)
    bank = np.empty(room, np.int64)
    size = np.empty(room, np.int64)
    # Entry of a bank in the present box; those of boxes before lie below its first entry.
    entry_of = np.full(most + 1, -1, np.int64)
    start_1 = blocks[0]
    start_2 = start_1 + blocks[1]
    start_3 = start_2 + blocks[2]
    used = 0
    for box in range(boxes.shape[0]):
        first = used
        for i in range(boxes[box, 0] // tile[0], -(-boxes[box, 4] // tile[0])):
            length_0 = min(ends[i], boxes[box, 4]) - max(begins[i], boxes[box, 0])
            for j in range(boxes[box, 1] // tile[1], -(-boxes[box, 5] // tile[1])):
                length_1 = length_0 * (
                    min(ends[start_1 + j], boxes[box, 5]) - max(begins[start_1 + j], boxes[box, 1])
                )
                for k in range(boxes[box, 2] // tile[2], -(-boxes[box, 6] // tile[2])):
                    length_2 = length_1 * (
                        min(ends[start_2 + k], boxes[box, 6])
                        - max(begins[start_2 + k], boxes[box, 2])
                    )
                    row = ((i * blocks[1] + j) * blocks[2] + k) * blocks[3]
                    for last in range(boxes[box, 3] // tile[3], -(-boxes[box, 7] // tile[3])):
                        taken = (
                            length_2
                            * (
                                min(ends[start_3 + last], boxes[box, 7])
                                - max(begins[start_3 + last], boxes[box, 3])
                            )
                            * element_bytes
                        )
                        holder = banks[row + last]
                        entry = entry_of[holder]
                        if entry < first:
                            entry = used
                            entry_of[holder] = entry
                            bank[entry] = holder
                            size[entry] = 0
                            used += 1
                        size[entry] += taken
        entries[box + 1] = used
    return entries, bank[:used], size[:used]
