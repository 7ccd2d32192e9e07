"""Routes of messages over networks of several dimensions, and the loads of their links.

A network is a table of axes, innermost first. Devices count in mixed radix: an axis of
``SIZE`` positions has the stride of all positions within it. Links have numbers that
follow from device and axis by arithmetic, so that nothing of the network is stored but
the table. Routes go axis after axis (dimension order), the shorter way round a ring.

Letters
    N   devices
    M   messages
    L   directed links
    n   positions of an axis
    s   its stride
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit

# Columns of a table of axes, int64.
KIND = 0  # one of the codes below
SIZE = 1  # n >= 1
STRIDE = 2  # s
FIRST_LINK = 3  # number of the first link of the axis
COLUMNS = 4

RING = 0  # N links clockwise by source, then N anticlockwise (none where n = 2)
LINE = 1  # N (n-1) / n links upwards by source, then as many downwards by target
FULL = 2  # N (n-1): by source, then by the distance to the target modulo n
SWITCH = 3  # N up by source, N down by target
FAT_TREE = 4  # N up, N down; then N/s leaf to core, N/s core to leaf


@jit
def first_axis(axes, source, target):
    """Return the first axis that a message uses.

    A fat tree takes a message from the source's own adapter to the target's, so what lies
    within the outermost fat tree that the message crosses is skipped.
    """
    for axis in range(axes.shape[0] - 1, 0, -1):
        if axes[axis, KIND] == FAT_TREE:
            size = axes[axis, SIZE]
            stride = axes[axis, STRIDE]
            if source // stride % size != target // stride % size:
                return axis
    return 0


@jit
def hop_count(axes, source, target):
    """Count the links from one device to another.

    Parameters
    ----------
    axes : int64[axes, COLUMNS]
    source, target : int

    Returns
    -------
    int
        0 where source and target are one.
    """
    hops = 0
    for axis in range(first_axis(axes, source, target), axes.shape[0]):
        kind = axes[axis, KIND]
        size = axes[axis, SIZE]
        stride = axes[axis, STRIDE]
        distance = abs(target // stride % size - source // stride % size)
        if distance == 0:
            continue
        if kind == LINE:
            hops += distance
        elif kind == RING:
            hops += min(distance, size - distance)
        elif kind == FULL:
            hops += 1
        elif kind == SWITCH:
            hops += 2
        else:
            hops += 4
    return hops


@jit
def write_route(axes, devices, source, target, links, at):
    """Write the links of a route, in order.

    Parameters
    ----------
    axes : int64[axes, COLUMNS]
    devices : int
        N.
    source, target : int
    links : int64[:]
        Written from `at` on; there is room for `hop_count` more.
    at : int

    Returns
    -------
    int
        `at` after the last link.

    Notes
    -----
    Dimension-order routing, minimal on a ring with ties clockwise: Dally & Towles 2004,
    "Principles and Practices of Interconnection Networks", section 8.4.2.
    """
    current = source
    for axis in range(first_axis(axes, source, target), axes.shape[0]):
        kind = axes[axis, KIND]
        size = axes[axis, SIZE]
        stride = axes[axis, STRIDE]
        base = axes[axis, FIRST_LINK]
        position = current // stride % size
        goal = target // stride % size
        if position == goal:
            continue
        if kind == RING:
            forward = (goal - position) % size
            clockwise = 2 * forward <= size
            for _ in range(forward if clockwise else size - forward):
                if clockwise:
                    links[at] = base + current
                    current += stride if position < size - 1 else -stride * (size - 1)
                    position = (position + 1) % size
                else:
                    links[at] = base + devices + current
                    current += -stride if position > 0 else stride * (size - 1)
                    position = (position - 1) % size
                at += 1
        elif kind == LINE:
            # A line of n positions has n-1 links, numbered like positions of a shorter line.
            line = current // (stride * size) * stride * (size - 1) + current % stride
            while position < goal:
                links[at] = base + line + stride * position
                position += 1
                at += 1
            down = base + devices // size * (size - 1)
            while position > goal:
                position -= 1
                links[at] = down + line + stride * position
                at += 1
            current += stride * (goal - current // stride % size)
        elif kind == FULL:
            links[at] = base + current * (size - 1) + (goal - position) % size - 1
            current += stride * (goal - position)
            at += 1
        elif kind == SWITCH:
            links[at] = base + current
            current += stride * (goal - position)
            links[at + 1] = base + devices + current
            at += 2
        else:
            domain = stride * size
            arrived = current - current % domain + target % domain
            leaves = base + 2 * devices
            links[at] = base + current
            links[at + 1] = leaves + current // stride
            links[at + 2] = leaves + devices // stride + arrived // stride
            links[at + 3] = base + devices + arrived
            current = arrived
            at += 4
    return at


@jit
def hop_counts(axes, sources, targets):
    """Count the links of every message; int64[M]."""
    hops = np.empty(sources.size, dtype=np.int64)
    for message in range(sources.size):
        hops[message] = hop_count(axes, sources[message], targets[message])
    return hops


@jit
def write_routes(axes, devices, sources, targets, offsets):
    """Write the links of all routes one after the other.

    Parameters
    ----------
    axes : int64[axes, COLUMNS]
    devices : int
    sources, targets : int64[M]
    offsets : int64[M + 1]
        Running sums of `hop_counts`.

    Returns
    -------
    int64[offsets[-1]]
        Links of message m from ``offsets[m]`` to ``offsets[m + 1]``.
    """
    links = np.empty(offsets[-1], dtype=np.int64)
    for message in range(sources.size):
        write_route(axes, devices, sources[message], targets[message], links, offsets[message])
    return links


@jit
def add_loads(axes, devices, diameter, sources, targets, sizes, loads):
    """Add the bytes of messages to every link of their routes.

    Parameters
    ----------
    axes : int64[axes, COLUMNS]
    devices, diameter : int
        N, and the longest route.
    sources, targets : int64[M]
    sizes : float64[M]
        [B].
    loads : float64[L]
        Bytes over each link, added to.
    """
    links = np.empty(diameter, dtype=np.int64)
    for message in range(sources.size):
        size = sizes[message]
        if size > 0.0:
            count = write_route(axes, devices, sources[message], targets[message], links, 0)
            for at in range(count):
                loads[links[at]] += size
