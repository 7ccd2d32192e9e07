"""Where a group lies on a torus that is handed out in slices, and which links serve it there.

A torus of thousands of chips is not numbered through: a job gets a slice of it, a block that is
as near to a cube as can be, and its compiler lays the axes of the job along the slice's sides.
So neighbours of a group are neighbours on the torus, whatever its stride, and what the axes
share is the links.

Letters
    n   members of the group, s their stride: n s chips hold the group and what lies inside it
    k   dimensions, so that a chip has 2 k links
    c   side from which a slice closes on itself
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean


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
