"""Candidate tiles and splits of a matrix product, and what each takes.

The docstring of `perfmodel.kernels.matmul.gemm.gemm_time` has the formulas. Loops over candidates
have no calls of libraries, no divisions by what may be zero and no early ends in them, so that
compiled code takes several at once, and no ``if`` on what differs between products or candidates,
so that NumPy does for all of them what is not compiled (`perfmodel.kernels.elementwise`).

The power limit of a device adds to a kernel: a short one runs at full clock, on the charge of the
regulators and within the averaging window of the limit; a long one at the rate that the limit lets
it keep up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.elementwise import chosen, larger, smaller, square_root
from perfmodel.kernels.matmul.tiles import POWER_OF_TWO_TILES


@jit
def heated_time(fast, loss, heat_time):
    """Time of a kernel that would take `fast` at full clock [s].

    Parameters
    ----------
    fast : float
        Time at full clock [s].
    loss : float
        Full rate over sustained rate, less 1; >= 0.
    heat_time : float
        Busy time after which the power limit is felt [s]; 0 under a steady load.

    Returns
    -------
    float
        ``fast (1 + loss fast / (fast + heat_time))``, which grows with `fast` (derived here).
    """
    return fast * (1.0 + loss * fast / (fast + heat_time))


@jit
def power_loss(device):
    """Full rate of a device over the rate that its power limit lets it keep up, less 1; >= 0."""
    return max(0.0, device.units * device.unit_rate / device.power_rate - 1.0)


@jit
def power_limited_time(flops, device):
    """Time below which rate and power limit don't let a product finish [s].

    Parameters
    ----------
    flops : float
        Of the whole product [FLOP].
    device : GemmDevice or GroupedDevice
        Has `units`, `unit_rate`, `power_rate` and `heat_time`.
    """
    full_rate = device.units * device.unit_rate
    return heated_time(flops / full_rate, power_loss(device), device.heat_time)


BOUND_COMPUTE = 0
BOUND_L2 = 1
BOUND_MEMORY = 2
BOUND_LATENCY = 3
BOUNDS = ("compute", "l2", "memory", "latency")

FRACTION_LIMIT = 2.0**52
"""From here on a float64 has no fractions: adding it rounds what is smaller to a whole number."""


@jit_inline
def ceiling(value):
    """Round up a number of 0 to 2^52; several at once in compiled loops, unlike ``math.ceil``."""
    whole = (value + FRACTION_LIMIT) - FRACTION_LIMIT
    return chosen(whole >= value, whole, whole + 1.0)


MOST_TILES = 32
"""Tiles or splits that have a place in a tile table."""
# Where the columns of a tile table begin, one behind the other.
COLUMNS = 16
_A, _B, _INVERSE_A, _INVERSE_B, NARROW, _STEP_COMPUTE, _STEP_LATENCY, _SIDE, _INVERSE_AREA = range(
    0, 9 * MOST_TILES, MOST_TILES
)
ROW, TIME, _LEAST, SPLIT, INVERSE_SPLIT, _SPLIT_TIME, _DEVICE = range(
    9 * MOST_TILES, COLUMNS * MOST_TILES, MOST_TILES
)
# What of the device stands in the last column.
(
    MEMORY_SECOND,
    L2_SECOND,
    RESIDENT_SECOND,
    ELEMENT_STEP,
    PORT_SECOND,
    CLUSTER_SHARE,
    PER_UNIT,
    LEAST_PART,
    FULL_RATE,
    POWER_LOSS,
) = range(_DEVICE, _DEVICE + 10)
ROUNDING = 1e-9  # so that ceil(m * (1/a)) of a multiple of a is exact

REFERENCE_TILE = 16384.0
"""Elements of the tile, 128 x 128, whose start and end `tile_latency` is."""


@jit
def stage_count(a, b, device):
    """Main-loop steps of a tile that are loaded ahead: what fits, what the library does."""
    step_bytes = (a + b) * device.k_step * device.operand_bytes
    return max(2.0, min(device.pipeline_stages, math.floor(device.scratchpad / step_bytes)))


@jit
def unit_step_rate(a, b, device):
    """Rate of one unit in the main loop of a tile [FLOP/s]."""
    return device.unit_rate / (1.0 + device.tile_half * (1.0 / a + 1.0 / b))


@jit
def tile_table(device, tiles, splits):
    """Return what tiles cost whatever the shape, of those that the device can run, and splits.

    Parameters
    ----------
    device : GemmDevice
    tiles : ndarray, shape (tile, 2)
    splits : ndarray, shape (split,)
        Parts of k, ascending, 1 first. At most ``MOST_TILES``, both.

    Returns
    -------
    table : ndarray, shape (COLUMNS * MOST_TILES,)
        Sides, their inverses, the shorter side, compute time and latency of a main-loop step
        [s], side of the square of C that a wave covers, inverse of its area, row in `tiles`;
        splits and their inverses; room for times of the shape at hand; what `Product` has of
        the device.
    count, parts : int
        Usable tiles, and splits.
    """
    table = np.zeros(COLUMNS * MOST_TILES)
    count = 0
    for i in range(tiles.shape[0]):
        a = tiles[i, 0]
        b = tiles[i, 1]
        if a * b > device.max_tile_area:
            continue
        if max(a, b) < device.matrix_side:
            continue
        if i >= POWER_OF_TWO_TILES and device.fine_tiles == 0.0:
            continue
        table[_A + count] = a
        table[_B + count] = b
        table[_INVERSE_A + count] = 1.0 / a
        table[_INVERSE_B + count] = 1.0 / b
        table[NARROW + count] = min(a, b)
        table[_STEP_COMPUTE + count] = 2.0 * a * b * device.k_step / unit_step_rate(a, b, device)
        table[_STEP_LATENCY + count] = device.load_latency / stage_count(a, b, device)
        table[_SIDE + count] = math.sqrt(device.units * a * b)
        table[ROW + count] = i
        table[_INVERSE_AREA + count] = 1.0 / (device.units * a * b)
        count += 1
    parts = 0
    while parts < splits.shape[0] and splits[parts] <= device.largest_split:
        table[SPLIT + parts] = splits[parts]
        table[INVERSE_SPLIT + parts] = 1.0 / splits[parts]
        parts += 1
    memory_second = 1.0 / device.memory_bandwidth
    element_step = device.k_step * device.operand_bytes
    table[MEMORY_SECOND] = memory_second
    table[L2_SECOND] = 1.0 / device.l2_bandwidth
    table[RESIDENT_SECOND] = min(1.0 / device.resident_bandwidth, memory_second)
    table[ELEMENT_STEP] = element_step
    table[PORT_SECOND] = element_step / device.unit_bandwidth
    table[CLUSTER_SHARE] = 1.0 - 1.0 / device.cluster
    table[PER_UNIT] = 1.0 / device.units
    table[LEAST_PART] = 1.0 / device.largest_split
    table[FULL_RATE] = device.units * device.unit_rate
    table[POWER_LOSS] = power_loss(device)
    return table, count, parts


class Product(NamedTuple):
    """What all tiles of one product have in common."""

    m: float
    n: float
    batch: float
    steps_of_k: float  # of the main loop
    a_bytes: float  # operands, once each [B]
    b_bytes: float
    missing: float  # share of them that the cache does not hold from one read to the next
    power_time: float  # that the power limit leaves at least [s]
    store_time: float  # of C [s]
    resident_time: float  # by which loads that a cache holds are faster, negative [s]
    memory_second: float  # [s/B]
    l2_second: float  # [s/B]
    element_step: float  # operand bytes of an element of a side of a tile, per main-loop step [B]
    port_second: float  # that they take [s]
    cluster_share: float  # of the loads of one operand that its cluster spares a unit
    per_unit: float  # one over the units
    least_part: float  # of k, one over the most parts that the library makes
    c_bytes: float  # C as it is stored, and read where it is added to [B]
    part_bytes: float  # an fp32 part of it written and read again [B]


class Work(NamedTuple):
    """What a product takes in one tile, whatever the split of k."""

    pieces: float  # tiles of C
    step_time: float  # of a main-loop step [s]
    tile_latency: float  # start and end of a wave [s]
    operand_time: float  # of all operands from L2 [s]
    loads: float  # from the device memory [B]


@jit_inline
def tile_work(i, product, device, table):
    """Work in tile `i` of a library of a GPU."""
    a = table[_A + i]
    b = table[_B + i]
    count = product.batch * ceiling(product.m * table[_INVERSE_A + i] - ROUNDING)
    count *= ceiling(product.n * table[_INVERSE_B + i] - ROUNDING)
    side = table[_SIDE + i]
    return _work(
        a, b, count, table[_STEP_COMPUTE + i], table[_STEP_LATENCY + i], side,
        table[_INVERSE_AREA + i], product, device,
    )  # fmt: skip


@jit
def panel_work(i, product, device, table):
    """Work in panel `i` of a systolic array: panels end at the array's edge, not at their own."""
    padded_m = device.array_side * ceiling(product.m / device.array_side)
    padded_n = device.array_side * ceiling(product.n / device.array_side)
    a = smaller(table[_A + i], padded_m)
    b = smaller(table[_B + i], padded_n)
    cut = (a < table[_A + i]) | (b < table[_B + i])
    alone = 2.0 * a * b * device.k_step / unit_step_rate(a, b, device)
    step_compute = chosen(cut, alone, table[_STEP_COMPUTE + i])
    count = product.batch * padded_m * padded_n / (a * b)
    side = square_root(device.units * a * b)
    return _work(
        a, b, count, step_compute, table[_STEP_LATENCY + i], side,
        1.0 / (side * side), product, device,
    )  # fmt: skip


@jit_inline
def _work(a, b, count, step_compute, step_latency, side, inverse_area, product, device):
    """Work in tiles or panels of sides `a` and `b`."""
    rows = smaller(product.m, a)
    columns = smaller(product.n, b)
    longer = larger(rows, columns)
    step_time = (rows + columns) * product.port_second
    step_time = larger(larger(step_time, step_compute), step_latency)
    # Units of a cluster share the loads of the longer operand side.
    loaded = rows + columns - product.cluster_share * longer
    tile_latency = device.tile_latency * rows * columns / REFERENCE_TILE
    operand_time = count * product.steps_of_k * loaded * product.element_step * product.l2_second
    a_again = product.n * smaller(product.m, side) * inverse_area - 1.0
    b_again = product.m * smaller(product.n, side) * inverse_area - 1.0
    loads = (
        product.a_bytes
        + product.b_bytes
        + product.missing * product.a_bytes * larger(a_again, 0.0)
        + product.missing * product.b_bytes * larger(b_again, 0.0)
    )
    return Work(count, step_time, tile_latency, operand_time, loads)


@jit_inline
def split_time(split, steps, stored, work, product, device):
    """Time of a tile with a split of k, and what bounds it; reduction apart.

    Parameters
    ----------
    split, steps : float
        Parts of k and main-loop steps of each.
    stored : float
        What becomes of C in L2 [B].
    """
    waves = work.pieces * split * product.per_unit
    if device.array_side > 0.0:
        waves = larger(waves, 1.0)
    else:
        waves = ceiling(waves - ROUNDING)
    unit_time = waves * (steps * work.step_time + work.tile_latency)
    l2_time = work.operand_time + stored * product.l2_second
    return _overlapped(unit_time, l2_time, work.loads, product, device)


@jit_inline
def least_split_time(work, product, device):
    """Time below which no split of k brings a tile: nothing is rounded up [s].

    Of two parts and more, however many, each unit has the steps that it would have of all
    shared out evenly, or those of one part of the most that the library makes.
    """
    share = work.pieces * product.per_unit
    waves = 2.0 * share
    waves = larger(waves, 1.0)
    share = larger(share, product.least_part)
    unit_time = product.steps_of_k * share * work.step_time + waves * work.tile_latency
    l2_time = work.operand_time + 2.0 * product.part_bytes * product.l2_second
    time, _ = _overlapped(unit_time, l2_time, work.loads, product, device)
    return (time + device.split_latency) * (1.0 - ROUNDING)


@jit_inline
def _overlapped(unit_time, l2_time, loads, product, device):
    """Time of compute, L2 and memory that partly hide each other [s]; the longest of them."""
    compute = larger(unit_time, product.power_time)
    load_time = loads * product.memory_second + product.resident_time
    memory_time = load_time + product.store_time
    busiest = larger(compute, l2_time)
    longest = larger(busiest, memory_time)
    hidden = smaller(larger(busiest, load_time), product.store_time)
    time = longest + device.overlap_loss * (compute + l2_time + memory_time - longest)
    bound = chosen(longest == l2_time, BOUND_L2, BOUND_COMPUTE)
    bound = chosen(longest == memory_time, BOUND_MEMORY, bound)
    return time + device.store_loss * hidden, bound


@jit_inline
def price_tiles(product, least_side, device, table, tiles):
    """Write the time of every tile without splits, and the least with them, into the table.

    Tiles with a side below `least_side` get none.
    """
    if device.array_side > 0.0:
        for i in range(tiles):
            _price(i, panel_work(i, product, device, table), product, least_side, device, table)
    else:
        for i in range(tiles):
            _price(i, tile_work(i, product, device, table), product, least_side, device, table)


@jit_inline
def _price(i, work, product, least_side, device, table):
    """Write the times of one tile."""
    usable = table[NARROW + i] >= least_side
    splittable = usable and work.pieces < 2.0 * device.units
    time, _ = split_time(1.0, product.steps_of_k, product.c_bytes, work, product, device)
    least = least_split_time(work, product, device)
    table[TIME + i] = time if usable else math.inf
    table[_LEAST + i] = least if splittable else math.inf


@jit_inline
def work_of(i, product, device, table):
    """Work in tile or panel `i`."""
    if device.array_side > 0.0:
        return panel_work(i, product, device, table)
    return tile_work(i, product, device, table)


@jit_inline
def best_split(best, tile, product, device, table, tiles, parts):
    """Find what is faster than the best tile without splits.

    Returns
    -------
    time : float
    tile : int
    split : float
        Those that were given, and 1, where nothing is.
    """
    split_taken = 1.0
    for i in range(tiles):
        if table[_LEAST + i] > best:
            continue
        work = work_of(i, product, device, table)
        for j in range(parts):
            split = table[SPLIT + j]
            stored = split * product.part_bytes
            steps = ceiling(product.steps_of_k * table[INVERSE_SPLIT + j] - ROUNDING)
            time, _ = split_time(split, steps, stored, work, product, device)
            few = work.pieces * (split - 1.0) < 2.0 * device.units
            table[_SPLIT_TIME + j] = time + device.split_latency if few else math.inf
        for j in range(1, parts):
            time = table[_SPLIT_TIME + j]
            if time < best or (time == best and i < tile):
                best = time
                tile = i
                split_taken = table[SPLIT + j]
    return best, tile, split_taken


@jit
def bound_of(split, work, product, device):
    """What the time of a candidate is spent on, one of the ``BOUND_`` codes."""
    stored = chosen(split > 1.0, split * product.part_bytes, product.c_bytes)
    steps = ceiling(product.steps_of_k / split - ROUNDING)
    return split_time(split, steps, stored, work, product, device)[1]
