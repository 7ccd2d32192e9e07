"""Tiles of a product on a rectangle of cores, and blocks of tensors in banks.

Axes of a product
    0 groups, 1 rows m, 2 sums k, 3 columns n

A *line* says how the cores along one side of the rectangle are spread over the axes: a factor for
each, nested in some order. Two lines, one of either side, make a mapping. Distances are those
of a mesh, so they add up over the sides and each line is measured once.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean

AXES = 4
GROUPS, ROWS, SUMS, COLUMNS = range(AXES)


# The best split of a product, by occupancy and by traffic times hops.


@jit_lean
def measure_lines(factors, strides, span, pairs):
    """Hops along one side between cores that share all but one axis.

    Parameters
    ----------
    factors, strides : ndarray of int64, shape (line, axis)
        Parts of an axis along the side, and cores from one part to the next.
    span : ndarray of float64, shape (line, axis)
        Result: links from the first to the last of such cores, over all of them: of a copy to all.
    pairs : ndarray of float64, shape (line, axis)
        Result: hops from each such core to each other, over their number, over all of them: of
        sums of which every core takes its share.

    Notes
    -----
    f cores that are s apart have ``s (f - 1)`` links between the outer two, and
    ``s f (f^2 - 1) / 3`` hops from each to each.
    """
    for line in range(factors.shape[0]):
        used = 1
        for axis in range(AXES):
            used *= factors[line, axis]
        for axis in range(AXES):
            parts = factors[line, axis]
            groups = used // parts
            stride = strides[line, axis]
            span[line, axis] = float(groups * stride * (parts - 1))
            pairs[line, axis] = float(groups * stride * (parts * parts - 1)) / 3.0


@jit
def best_lines(
    row_factors,
    row_span,
    row_pairs,
    column_factors,
    column_span,
    column_pairs,
    sizes,
    element_bytes,
    cores,
    memory,
    access_hops,
    least_occupancy,
    best,
):
    """Choose the two lines with the least traffic among those that keep the cores busy.

    Parameters
    ----------
    row_factors, column_factors : ndarray of int64, shape (line, axis)
        Lines of either side.
    row_span, row_pairs, column_span, column_pairs : ndarray of float64, shape (line, axis)
        As `measure_lines` finds them.
    sizes : ndarray of int64, shape (axis,)
        Of the product.
    element_bytes : ndarray of float64, shape (4,)
        Of inputs, weights, partial sums and outputs [B].
    cores : int
        Of the rectangle.
    memory : float
        Bytes of a core's tiles; infinite for no limit.
    access_hops : float
        Hops that a byte of a core's own bank counts as.
    least_occupancy : float
        Useful multiply-adds over cores times those of the busiest.
    best : ndarray of float64, shape (3,)
        Result: occupancy, traffic times hops of it [B hops] and cost.

    Returns
    -------
    row, column : int
        Places of the lines; -1 where no tiles fit. Where no mapping is busy enough the busiest.
    """
    found_row = found_column = -1
    best[0] = -1.0
    best[1] = math.inf
    best[2] = math.inf
    parts = np.empty(AXES, dtype=np.int64)
    work = 1.0
    for axis in range(AXES):
        work *= float(sizes[axis])
    for r in range(row_factors.shape[0]):
        used_rows = float(
            row_factors[r, 0] * row_factors[r, 1] * row_factors[r, 2] * row_factors[r, 3]
        )
        for c in range(column_factors.shape[0]):
            busiest = 1.0
            possible = True
            for axis in range(AXES):
                parts[axis] = row_factors[r, axis] * column_factors[c, axis]
                if parts[axis] > sizes[axis]:
                    possible = False
                    break
                busiest *= float((sizes[axis] + parts[axis] - 1) // parts[axis])
            if not possible:
                continue
            occupancy = work / (busiest * cores)
            if occupancy < min(best[0], least_occupancy):
                continue
            g, m, k, n = parts[0], parts[1], parts[2], parts[3]
            split = float(g * m * k * n)
            tile_m = float(sizes[0] * sizes[1] * sizes[2]) / float(g * m * k) * element_bytes[0]
            tile_w = float(sizes[0] * sizes[2] * sizes[3]) / float(g * k * n) * element_bytes[1]
            tile_o = float(sizes[0] * sizes[1] * sizes[3]) / float(g * m * n)
            tile_p = tile_o * element_bytes[2]
            tile_o = tile_o * element_bytes[3]
            if tile_m + tile_w + (tile_p if k > 1 else tile_o) > memory:
                continue
            used_columns = split / used_rows
            # A copy goes along the row to the columns that want it, and in each of them.
            hops = tile_m * (
                used_rows / float(row_factors[r, 3]) * column_span[c, 3]
                + used_columns * row_span[r, 3]
            )
            hops += tile_w * (
                used_rows / float(row_factors[r, 1]) * column_span[c, 1]
                + used_columns * row_span[r, 1]
            )
            # Every core that shares a sum takes its part of the columns from each other.
            hops += tile_p * (used_columns * row_pairs[r, 2] + used_rows * column_pairs[c, 2])
            touched = split * (tile_m + tile_w)
            if k > 1:
                touched += split * 2.0 * tile_p
            touched += split / float(k) * tile_o
            cost = hops + access_hops * touched
            if occupancy >= least_occupancy:
                better = best[0] < least_occupancy or cost < best[2]
            else:
                better = occupancy > best[0] or (occupancy == best[0] and cost < best[2])
            if better:
                best[0] = occupancy
                best[1] = hops
                best[2] = cost
                found_row = r
                found_column = c
    return found_row, found_column


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


# How much of which bank's memory boxes of a tensor take that is cut into blocks.


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
