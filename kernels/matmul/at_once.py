"""Times of matrix products as NumPy does them for whole columns, where kernels are not compiled.

The formulas are those of `perfmodel.kernels.matmul.candidates`, over all products and candidates
at once (`perfmodel.kernels.elementwise`); here stands which candidate is the fastest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from perfmodel.kernels._jit import compiling
from perfmodel.kernels.elementwise import over_columns
from perfmodel.kernels.matmul import candidates, gemm
from perfmodel.kernels.matmul.candidates import BOUND_LATENCY, ROUNDING

ROWS_AT_ONCE = 2048
"""Products whose candidates the caches of a processor hold."""


def gemm_times(
    m: Any,
    n: Any,
    k: Any,
    batch: Any,
    output_bytes: Any,
    accumulate: Any,
    device: Any,
    tiles: Any,
    splits: Any,
) -> Any:
    """Return what `gemm.gemm_times` returns, by it where kernels are compiled."""
    columns = (m, n, k, batch, output_bytes, accumulate)
    if compiling():
        return gemm.gemm_times(*columns, device, tiles, splits)
    return times(columns, device, tiles, splits)


def times(columns: Any, device: Any, tiles: Any, splits: Any) -> Any:
    """Return what `gemm.gemm_times` returns, of its columns, without it."""
    m = columns[0]
    time, traffic = np.empty((2, m.size))
    tile, split = np.empty((2, m.size), np.int64)
    found = time, traffic, tile, split, np.empty(m.size, np.uint8)
    library = candidates.tile_table(device, tiles, splits)
    for first in range(0, m.size, ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        some = [column[rows, None] for column in np.broadcast_arrays(*columns)]
        for column, values in zip(found, _fastest(some, device, *library), strict=True):
            column[rows] = values
    return found


def _fastest(columns: Any, device: Any, table: Any, tiles: int, parts: int) -> Any:
    """What `gemm.gemm_time` returns of columns of shape (row, 1), each of shape (row,)."""
    product, found, stored = over_columns(gemm.product_of)(*columns, device, table)
    panels = device.array_side > 0.0
    work_in = over_columns(candidates.panel_work if panels else candidates.tile_work)
    work = work_in(np.arange(tiles), product, device, table)
    split_time = over_columns(candidates.split_time)
    time, _ = split_time(1.0, product.steps_of_k, product.c_bytes, work, product, device)
    least_side = over_columns(gemm.least_side)(columns[0], device)
    usable = table[candidates.NARROW : candidates.NARROW + tiles] >= least_side
    time = np.where(usable & (time < math.inf), time, math.inf)
    row = np.arange(time.shape[0])
    tile = time.argmin(axis=1)
    best, split = time[row, tile], np.ones(row.size)
    least = over_columns(candidates.least_split_time)(work, product, device)
    usable &= (work.pieces < 2.0 * device.units) & (least <= best[:, None])
    if parts > 1 and usable.any():
        _try_splits(best, tile, split, usable, work, product, device, table, parts)
    chosen = _of(work, row, tile), _of(product, row, 0)
    bound = over_columns(candidates.bound_of)(split, *chosen, device)
    time = device.launch_latency + best
    traffic = chosen[0].loads - (found + np.zeros_like(columns[0]))[:, 0] + stored[:, 0]
    columns = np.broadcast_arrays(*columns)
    m, n, k, batch = (column[:, 0] for column in columns[:4])
    priced = (m * n * k * batch < gemm.LARGEST_WORK) & (best < math.inf)
    bound = np.where(priced & (device.launch_latency <= best), bound, BOUND_LATENCY)
    return (
        np.where(priced, time, math.nan),
        np.where(priced, traffic, math.nan),
        np.where(priced, table[candidates.ROW + tile], 0),
        np.where(priced, split, 1),
        bound,
    )


def _try_splits(
    best: Any,
    tile: Any,
    split: Any,
    tried: Any,
    work: Any,
    product: Any,
    device: Any,
    table: Any,
    parts: int,
) -> None:
    """Write what is faster than the best tile without splits, as `candidates.best_split`."""
    row, of = np.nonzero(tried & (best < math.inf)[:, None])
    work, product = _of(work, row, of, True), _of(product, row, 0, True)
    by = table[candidates.SPLIT + 1 : candidates.SPLIT + parts]
    inverse = table[candidates.INVERSE_SPLIT + 1 : candidates.INVERSE_SPLIT + parts]
    steps = over_columns(candidates.ceiling)(product.steps_of_k * inverse - ROUNDING)
    stored = by * product.part_bytes
    time, _ = over_columns(candidates.split_time)(by, steps, stored, work, product, device)
    few = work.pieces * (by - 1.0) < 2.0 * device.units
    time = np.where(few, time + device.split_latency, math.inf)
    part = time.argmin(axis=1)
    time = time[np.arange(row.size), part]
    # Ascending time within a row, of equal ones the first tile: `lexsort` keeps their order.
    order = np.lexsort((time, row))
    order = order[np.unique(row[order], return_index=True)[1]]
    row, of, time, part = row[order], of[order], time[order], part[order]
    better = (time < best[row]) | ((time == best[row]) & (of < tile[row]))
    row = row[better]
    best[row], tile[row], split[row] = time[better], of[better], by[part[better]]


def _of(record: Any, row: Any, column: Any, stands: bool = False) -> Any:
    """Take what holds for some products, or products in some tiles, out of all."""
    taken = []
    for value in record:
        value = np.asarray(value)
        if value.ndim == 2:
            value = value[row, column if value.shape[1] > 1 else 0]
            value = value[:, None] if stands else value
        taken.append(value)
    return type(record)(*taken)
