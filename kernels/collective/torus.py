"""What an algorithm loads the links of a ring, torus or mesh with, one dimension at a time.

A torus of thousands of chips is not numbered through: a job gets a slice of it, a block that is
as near to a cube as can be, and its compiler lays the axes of the job along the slice's sides.
So neighbours of a group are neighbours on the torus, whatever its stride, and what the axes
share is the links.

Letters
    p   positions of the group on the level, numbered along one dimension after the other
    k   dimensions, so that a chip has 2 k links
    e   positions of the group along a dimension
    S   bytes of a device [B]
    n   members of the group, s their stride: n s chips hold the group and what lies inside it
    c   side from which a slice closes on itself
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean

UNBOUNDED_SIDE = 16.0  # positions per dimension assumed for a torus of unknown size


@jit_lean
def slice_dimensions(row, members, stride):
    """Dimensions over which a group extends, 1 ... k.

    Two chips lie along one dimension, four along two, eight along three; the axes inside the
    group have their part: ``log n min(1, k / log(n s))``, binary logarithms.
    """
    bits = math.log2(members)
    return max(1.0, bits * min(1.0, row.dimensions / math.log2(members * stride)))


@jit_lean
def slice_links(row, members, stride):
    """Links of a chip that serve a group, 1 for a pair and at most 2 k.

    Notes
    -----
    A group fills one side of its slice after the other, a link for each end of a side: a pair has
    the link between the two. Four lie on a square, whose border is a ring of two links per chip,
    and a larger block has no more at its corners, until one of its sides closes; the last side
    is a line, of one link, until it closes. So c = 4 gives 1, 2, 3, ... 6 links for 2, 4, 8, ...
    64 chips of a 4 x 4 x 4 cube, and c = 16 gives 1, 2, 2, 2, 3, 3, 3, 4 for 2 ... 256 chips of
    a 16 x 16 plane. Between blocks the links grow with log n. The axes of a job share them by
    their logarithms, ``2 k log n / log(n s)``, a link for each doubling at most. Derived here
    from the slices that cloud.google.com/tpu/docs lists; jax-ml/scaling-book, tpus.md, says
    which close.
    """
    most = 2.0 * row.dimensions
    bits = math.log2(members)
    side = math.log2(row.closing_side)
    alone = 0.0
    for dimension in range(int(row.dimensions)):
        along = min(max(bits - dimension * side, 0.0), side)
        before = 1.0 if dimension + 1 < row.dimensions else side - 1.0  # of the second link
        alone += min(along, 1.0) + min(max(along - before, 0.0), 1.0)
    shared = most * bits / max(most, math.log2(members * stride))
    return min(alone, shared)


@jit_lean
def slice_hops(row, members, stride):
    """Links that a message passes along all dimensions of the group, one way."""
    dimensions = slice_dimensions(row, members, stride)
    return dimensions * (members ** (1.0 / dimensions) - 1.0)


@jit_lean
def slice_diameter(row, members, stride):
    """Links between the two members that are farthest apart; half a side where it closes."""
    dimensions = slice_dimensions(row, members, stride)
    side = members ** (1.0 / dimensions)
    return dimensions * min(side - 1.0, 0.5 * max(side, row.closing_side))


# What the group does on the level.
ONE_WAY = 0  # a ring in one sense of rotation: every neighbour, in one direction
EXCHANGE = 1  # all pairs, the same bytes
HALVING = 2  # with the partner at distance 1, 2, 4 ..., half of the bytes each time
DOUBLING = 3  # with the partner at distance 1, 2, 4 ..., all bytes
GROWING = 4  # with the partner at distance 1, 2, 4 ..., all bytes collected so far


@jit_lean
def mean_hops(extent):
    """Mean links between two positions of a closed ring, a position and itself included.

    e/4, for odd e (e - 1/e)/4 (Dally & Towles 2004, "Principles and Practices of
    Interconnection Networks", chapter 5). The middle link of a line carries
    twice as much per link as those of a ring, so half of the links stand for it.
    """
    whole = math.floor(extent + 0.5)
    if abs(extent - whole) < 1e-9 and whole % 2.0 == 1.0:
        return 0.25 * (whole - 1.0 / whole)
    return 0.25 * extent


@jit_lean
def traffic_share(pattern, row, positions, spacing):
    """Fraction of a device's bandwidth on a torus that a pattern of messages uses.

    Parameters
    ----------
    pattern : int
        ``ONE_WAY`` ... ``GROWING``.
    row : record of LEVEL
        The level.
    positions : float
        p, >= 2.
    spacing : float
        Distance of neighbouring positions, >= 1.

    Returns
    -------
    float
        Bytes that a device sends / (time of the busiest link x bandwidth of the device).

    Notes
    -----
    A link has 1/(2 k) of a device's bandwidth, both links to the only neighbour on a closed
    side of two 1/k. Messages over distance d load a link d times. With S = 1:
    exchange, the mean hops of the busiest dimension; halving, half of what is left in each of
    log2(e) steps; doubling, the distances 1 + 2 + ... = e - 1; growing, 1 + 4 + 16 + ... =
    (e^2 - 1)/3 blocks. Groups that interleave in the first dimension add up.
    """
    if row.closing_side > 0.0:
        return slice_share(pattern, row, positions, spacing)
    dimensions = row.dimensions
    side = UNBOUNDED_SIDE
    if row.domains > 0.0:
        side = row.domains ** (1.0 / dimensions)
    pair = row.wraps > 0.0 and abs(side - 2.0) < 1e-9
    link = (1.0 if pair else 0.5) / dimensions
    busy = 0.0
    share = 0.0
    passed = 1.0
    below = 1.0
    for dimension in range(int(dimensions)):
        above = below * side
        end = spacing * positions
        if dimension < dimensions - 1.0:  # the last one takes what is left
            end = min(end, above)
        start = max(spacing, below)
        extent = end / start
        if extent > 1.0 + 1e-9:
            crowd = start / below
            if pattern == ONE_WAY:
                share += link / crowd
            elif pattern == EXCHANGE:
                closed = row.wraps > 0.0 and end >= above * (1.0 - 1e-9)
                part = (1.0 if closed else 0.5) / dimensions
                busy = max(busy, mean_hops(extent) * crowd / part)
            elif pattern == HALVING:
                busy += 0.5 * math.log2(extent) / passed * crowd / link
            elif pattern == DOUBLING:
                busy += (extent - 1.0) * crowd / link
            else:
                busy += passed * (extent * extent - 1.0) / 3.0 * crowd / link
            passed *= extent
        below = above
    if pattern == ONE_WAY:
        return share
    if pattern == DOUBLING:
        return math.ceil(math.log2(positions)) / busy
    if pattern == GROWING:
        return (positions - 1.0) / busy
    return (1.0 - 1.0 / positions) / busy


@jit_lean
def slice_share(pattern, row, positions, spacing):
    """As `traffic_share`, of a group on a slice: its sides are equal, its links its own.

    A message over a distance still loads every link on its way. Parameters as there.
    """
    dimensions = slice_dimensions(row, positions, spacing)
    links = slice_links(row, positions, spacing)
    link = 0.5 / row.dimensions
    extent = positions ** (1.0 / dimensions)
    if pattern == ONE_WAY:  # on an open side the way back takes the other half
        return min(dimensions, links) * link
    if pattern == EXCHANGE:
        busy = mean_hops(extent) * dimensions / (links * link)
    elif pattern == HALVING:  # 1 - 1/e of the bytes over log2(e) steps, side after side
        sides = (1.0 - 1.0 / positions) / (1.0 - 1.0 / extent)
        busy = 0.5 * math.log2(extent) * sides / link
    elif pattern == DOUBLING:
        busy = dimensions * (extent - 1.0) / link
    else:
        busy = (positions - 1.0) * (extent + 1.0) / 3.0 / link
    sent = 1.0 - 1.0 / positions
    if pattern == DOUBLING:
        sent = math.ceil(math.log2(positions))
    elif pattern == GROWING:
        sent = positions - 1.0
    return min(sent / busy, links * link)


@jit_lean
def torus_hops(row, positions, spacing):
    """Links that a message passes along all dimensions of the group, one way: k (e - 1)."""
    if row.closing_side > 0.0:
        return slice_hops(row, positions, spacing)
    return row.dimensions * (positions ** (1.0 / row.dimensions) - 1.0)


@jit_lean
def torus_diameter(row, positions, spacing):
    """Links between the two positions that are farthest apart; half of them where it closes."""
    if row.closing_side > 0.0:
        return slice_diameter(row, positions, spacing)
    if row.wraps > 0.0 and positions >= row.domains > 0.0:
        side = positions ** (1.0 / row.dimensions)
        return row.dimensions * math.floor(side / 2.0 + 1e-9)
    return torus_hops(row, positions, spacing)
