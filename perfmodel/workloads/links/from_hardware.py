"""The dimensions of a hardware profile's network for a number of devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from perfmodel.base.errors import HardwareError
from perfmodel.workloads.links.dimensions import Dimension

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.hwprofiles.schema import Network

# Topology of a profile's level -> kind of dimension and its number of axes.
KIND_OF = {
    "ring": ("ring", 1),
    "fully-connected": ("fully-connected", 1),
    "switch": ("switch", 1),
    "fat-tree": ("fat-tree", 1),
    "torus-2d": ("torus", 2),
    "torus-3d": ("torus", 3),
    "mesh-2d": ("mesh", 2),
}
# Links from a device to its nearest peer, over which a level's latency is spread.
NEAREST = {"switch": 2, "fat-tree": 4}


def dimensions_of_hardware(
    hardware: Hardware, devices: int, sides: Mapping[int, Sequence[int]]
) -> tuple[Dimension, ...]:
    """Return the network of a profile as dimensions; see `Topology.from_hardware`.

    A switch above the innermost level is a fat tree without oversubscription: every device
    has its own port into it. A level's latency, device to device, is spread over the links
    between two neighbours.

    Raises
    ------
    HardwareError
        The devices do not fill the levels, or sides do not suit a level.
    """
    where = f"hardware profile '{hardware.name}'"
    levels = hardware.system.network
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise HardwareError(f"a topology of {devices!r} devices; a whole number of at least 1")
    if not levels:
        raise HardwareError(f"{where} has no network level; [[system.network]] needs at least one")
    unknown = sorted(set(sides) - set(range(len(levels))))
    if unknown:
        raise HardwareError(f"sides of level {unknown[0]}; {where} has 0 to {len(levels) - 1}")
    sizes = _sizes(where, levels, devices)
    return tuple(
        _dimension(where, level, index, size, sides.get(index))
        for index, (level, size) in enumerate(zip(levels, sizes, strict=False))
    )


def _sizes(where: str, levels: tuple[Network, ...], devices: int) -> list[int]:
    """Return the positions of each level that the devices fill, innermost first."""
    sizes: list[int] = []
    whole = 1
    for level in levels:
        size = level.size or max(1, devices // whole)
        sizes.append(size)
        whole *= size
        if whole >= devices:
            break
    if whole != devices:
        raise HardwareError(f"{devices} devices do not fill {where}: {_filling(levels)}")
    return sizes


def _filling(levels: tuple[Network, ...]) -> str:
    """Say which numbers of devices fill the levels."""
    fixed = [level.size for level in levels if level.size]
    counts = list(itertools.accumulate(fixed, lambda a, b: a * b))
    names = ", ".join(f"{level.name} {level.size or 'any'}" for level in levels)
    right = " or ".join(map(str, counts)) or "any number"
    if not levels[-1].size and counts:
        right += f" or a multiple of {counts[-1]}"
    return f"its levels are {names}; right is {right} (or another system.network.<level>.size)"


def _dimension(
    where: str, level: Network, index: int, size: int, sides: Sequence[int] | None
) -> Dimension:
    if level.topology not in KIND_OF:
        raise HardwareError(f"{where}: a {level.topology} (level {index}) has no dimension kind")
    kind, axes = KIND_OF[level.topology]
    if kind == "switch" and index > 0:
        kind = "fat-tree"
    shape = near_cube(size, axes) if sides is None else tuple(sides)
    if len(shape) != axes or math.prod(shape) != size:
        raise HardwareError(
            f"sides {'x'.join(map(str, shape))} of level {index} of {where}; a "
            f"{level.topology} of {size} has {axes} whose product is {size}"
        )
    # Only a fat tree has uplinks; elsewhere every device shares what remains.
    over = level.oversubscription
    return Dimension(
        kind=kind,
        shape=shape,
        bandwidth=level.bandwidth if kind == "fat-tree" else level.bandwidth / over,
        latency=level.latency / NEAREST.get(kind, 1),
        oversubscription=over if kind == "fat-tree" else 1.0,
        name=level.name,
    )


def near_cube(size: int, axes: int) -> tuple[int, ...]:
    """Return side lengths as equal as possible, ascending: 8960 in three is (16, 20, 28).

    Parameters
    ----------
    size : int
        Product of the sides.
    axes : int
        Number of sides.
    """
    return min(_factorings(size, axes, 1), key=lambda sides: (sum(sides), sides[-1]))


def _factorings(size: int, axes: int, least: int) -> Iterable[tuple[int, ...]]:
    """Yield all ascending tuples of whole sides, none below `least`, with this product."""
    if axes == 1:
        yield (size,)
        return
    side = least
    while side**axes <= size:
        if size % side == 0:
            for rest in _factorings(size // side, axes - 1, side):
                yield (side, *rest)
        side += 1
