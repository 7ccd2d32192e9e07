"""Dimensions of a topology: how devices are joined, what a link carries; those of a profile.

Conventions and sources: ``docs/topologies.md``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfmodel.base.errors import HardwareError, did_you_mean

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.hwprofiles.schema import Network

KINDS = ("ring", "fully-connected", "switch", "mesh", "torus", "fat-tree", "rail")
MOST_AXES = 3


@dataclass(frozen=True)
class Dimension:
    """One dimension of a topology.

    Parameters
    ----------
    kind : str
        One of `KINDS`. ``rail`` is a switch per position within the inner dimensions;
        ``fat-tree`` takes every device of every inner domain by an adapter of its own.
    shape : tuple of int
        Positions along each axis, x first: one to three for mesh and torus, else one.
    bandwidth : float
        Per device and direction, over all its links of this dimension [B/s].
    latency : float
        Of one hop, that is of one link [s].
    oversubscription : float
        Bandwidth into the leaf switches of a fat tree over that into its core, >= 1; of a
        rail, into its switches over that between them.
    name : str
        For tables and figures; the kind where empty.

    Raises
    ------
    HardwareError
        Unknown kind, a shape that does not suit it, a value out of its limits.
    """

    kind: str
    shape: tuple[int, ...]
    bandwidth: float
    latency: float
    oversubscription: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise HardwareError(
                f"unknown kind of dimension '{self.kind}'{did_you_mean(self.kind, KINDS)}"
            )
        object.__setattr__(self, "shape", _checked_shape(self.kind, self.shape))
        where = f"dimension '{self.label}'"
        _check_number(where, "bandwidth [B/s]", self.bandwidth, above=0.0)
        _check_number(where, "latency [s]", self.latency, least=0.0)
        _check_number(where, "oversubscription", self.oversubscription, least=1.0)
        if self.oversubscription != 1 and self.kind not in ("fat-tree", "rail"):
            raise HardwareError(
                f"{where} is a {self.kind} with oversubscription {self.oversubscription:g}; only "
                "a fat-tree and a rail have uplinks that can be oversubscribed"
            )

    @property
    def label(self) -> str:
        """Name, or the kind where there is none."""
        return self.name or self.kind

    @property
    def size(self) -> int:
        """Positions along all axes together."""
        return math.prod(self.shape)

    @property
    def links_per_device(self) -> int:
        """Ports of a device over which `bandwidth` is spread.

        A ring has 2, a mesh or torus 2 per axis (also at the edge of a mesh, whose outer
        ports stay empty), fully connected one per peer, a switch 1.
        """
        if self.kind == "fully-connected":
            return max(1, self.size - 1)
        if self.kind in ("ring", "mesh", "torus"):
            return 2 * len(self.shape)
        return 1

    @property
    def link_bandwidths(self) -> tuple[float, ...]:
        """Bandwidth of one link of each axis [B/s]; of a fat tree, of a device's adapter.

        Around a ring or torus axis of two positions both links lead to the same neighbour:
        they are one link of twice the bandwidth. A rail is drawn as one switch, so the
        devices' links have what its oversubscribed uplinks leave each of them.
        """
        link = self.bandwidth / self.links_per_device
        if self.kind == "rail":
            link /= self.oversubscription
        wraps = self.kind in ("ring", "torus")
        return tuple(link * 2 if wraps and side == 2 else link for side in self.shape)


def _checked_shape(kind: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape as whole numbers, as many as the kind has axes."""
    sides = (shape,) if isinstance(shape, int) else tuple(shape)
    text = "x".join(map(str, sides))
    for side in sides:
        if isinstance(side, bool) or not hasattr(side, "__index__") or side < 1:
            raise HardwareError(
                f"a {kind} of shape '{text}'; every side is a whole number of at least 1"
            )
    most = MOST_AXES if kind in ("mesh", "torus") else 1
    if not 1 <= len(sides) <= most:
        expected = f"1 to {most} sides" if most > 1 else "one side"
        raise HardwareError(f"a {kind} of shape '{text}'; a {kind} has {expected}")
    return tuple(int(side) for side in sides)


def _check_number(
    where: str, what: str, value: float, *, above: float = -math.inf, least: float = -math.inf
) -> None:
    limit = f"of at least {least:g}" if math.isfinite(least) else f"above {above:g}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > above and value >= least):
        raise HardwareError(f"{where}: {what} is {value!r}; it should be a finite number {limit}")


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
