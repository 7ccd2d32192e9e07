"""Cuts of a topology: the bandwidth between some devices and all others.

Letters
    N   devices
    n   positions of an axis
    s   its stride, the devices of an inner domain
    B   bandwidth of a link [B/s]
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perfmodel.workloads.links.axes import FAT_TREE, FULL, RING, SWITCH, Axis


def cut_bandwidth(axes: tuple[Axis, ...], inside: NDArray[np.bool_]) -> float:
    """Return the bandwidth in one direction between some devices and all others.

    Parameters
    ----------
    axes : tuple of Axis
    inside : bool[N]
        The devices of one side. Every switch stands on the side that costs less, so that
        this is the largest flow from one side to the other (max-flow min-cut).

    Returns
    -------
    float
        [B/s].
    """
    total = 0.0
    for axis in axes:
        if axis.size == 1:
            continue
        if axis.kind == SWITCH:
            lines = inside.reshape(-1, axis.size, axis.stride)
            count = lines.sum(axis=1)
            total += axis.bandwidth * float(np.minimum(count, axis.size - count).sum())
        elif axis.kind == FAT_TREE:
            total += _fat_tree_cut(axis, inside)
        else:
            source, target = axis.ends(0)
            total += axis.bandwidth * float(np.count_nonzero(inside[source] & ~inside[target]))
    return total


def _fat_tree_cut(axis: Axis, inside: NDArray[np.bool_]) -> float:
    """Return the cut through the links of a fat tree, leaves and cores placed at best."""
    count = inside.reshape(-1, axis.size, axis.stride).sum(axis=2).astype(np.float64)
    # A leaf inside is left by the devices outside, and the other way round.
    leaf_inside = axis.bandwidth * (axis.stride - count)
    leaf_outside = axis.bandwidth * count
    core_inside = np.minimum(leaf_inside, leaf_outside + axis.core_bandwidth).sum(axis=1)
    core_outside = np.minimum(leaf_inside + axis.core_bandwidth, leaf_outside).sum(axis=1)
    return float(np.minimum(core_inside, core_outside).sum())


def smallest_halving(axes: tuple[Axis, ...]) -> float:
    """Return the smallest cut along the axes into ``floor(N / 2)`` devices and the rest.

    Notes
    -----
    Halving along an axis cuts all its lines in the middle. Where its number of positions is
    odd the middle slab is halved along another axis. For meshes and tori this is the
    bisection (Aroca & Fernández Anta 2014, "Bisection (Band)Width of Product Networks with
    Application to Data Centers"); for other products it is a cut that exists, and the
    tests compare it with all halvings of small networks.
    """
    used = tuple(axis for axis in axes if axis.size > 1)
    trees = tuple(axis for axis in used if axis.kind == FAT_TREE)
    return _halve(used, trees, axes[0].devices)


def _halve(axes: tuple[Axis, ...], trees: tuple[Axis, ...], devices: int) -> float:
    """Halve the slab of `devices` devices that spans these axes in a network with fat trees."""
    if not axes:
        return 0.0
    best = math.inf
    for chosen, axis in enumerate(axes):
        rest = axes[:chosen] + axes[chosen + 1 :]
        lines = devices // axis.size
        half = axis.size // 2
        if axis.kind == FAT_TREE:
            inner = math.prod(item.size for item in axes[:chosen])
            # Whole leaves change sides by their uplink; parts of leaves by their devices.
            leaf = axis.core_bandwidth if inner == axis.stride else axis.bandwidth * inner
            cost = lines // inner * half * min(leaf, axis.bandwidth * inner)
        else:
            cost = lines * _line_cut(axis, half)
        # Every device of the smaller half leaves the fat trees further out by its adapter.
        outer = [tree for tree in trees if tree.stride > axis.stride]
        cost += sum(tree.bandwidth * lines * half for tree in outer)
        if axis.size % 2:
            cost += _halve(rest, trees, lines)
        best = min(best, cost)
    return best


def _line_cut(axis: Axis, half: int) -> float:
    """Return the cut through one line of an axis with so many positions on one side."""
    if axis.kind == RING:
        return axis.bandwidth * (1 if axis.size == 2 else 2)
    if axis.kind == FULL:
        return axis.bandwidth * half * (axis.size - half)
    return axis.bandwidth * (half if axis.kind == SWITCH else 1)
