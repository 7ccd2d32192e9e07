"""One dimension of a topology: how its devices are joined, and what one link carries.

Conventions and sources: ``docs/topologies.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.base.errors import HardwareError, did_you_mean

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
