"""The best split of a product over a rectangle of cores, by occupancy and by traffic times hops.

Axes
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
