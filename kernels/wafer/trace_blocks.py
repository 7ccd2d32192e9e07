"""Blocks of a matrix that move from the banks where they lie to those where they are used."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean


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
