"""Distances of a topology in closed form.

Sources: Dally & Towles 2004, "Principles and Practices of Interconnection Networks",
chapter 5 (tori and meshes); the others by counting, see ``docs/topologies.md``.
"""

from __future__ import annotations

from perfmodel.workloads.links.axes import FAT_TREE, FULL, LINE, RING, Axis

FAT_TREE_HOPS = 4  # device, leaf, core, leaf, device
SWITCH_HOPS = 2


def diameter(axes: tuple[Axis, ...]) -> int:
    """Return the links of the longest route.

    Along axes the longest distances add up; a fat tree is passed in place of what lies
    within it.
    """
    longest = 0
    for axis in axes:
        if axis.size == 1:
            continue
        if axis.kind == FAT_TREE:
            longest = max(longest, FAT_TREE_HOPS)
        else:
            longest += _longest(axis)
    return longest


def average_hops(axes: tuple[Axis, ...]) -> float:
    """Return the mean links of a route over all ordered pairs of two devices."""
    mean = 0.0  # over all pairs, a device and itself included
    for axis in axes:
        if axis.kind == FAT_TREE:
            mean = mean / axis.size + FAT_TREE_HOPS * (1.0 - 1.0 / axis.size)
        else:
            mean += _mean(axis)
    devices = axes[0].devices
    return mean * devices / (devices - 1) if devices > 1 else 0.0


def _longest(axis: Axis) -> int:
    if axis.kind == RING:
        return axis.size // 2
    if axis.kind == LINE:
        return axis.size - 1
    return 1 if axis.kind == FULL else SWITCH_HOPS


def _mean(axis: Axis) -> float:
    """Return the mean distance along an axis over all pairs of positions, equal ones too."""
    n = axis.size
    if axis.kind == RING:
        return n / 4.0 if n % 2 == 0 else (n * n - 1) / (4.0 * n)
    if axis.kind == LINE:
        return (n * n - 1) / (3.0 * n)
    return (1 if axis.kind == FULL else SWITCH_HOPS) * (n - 1) / n
