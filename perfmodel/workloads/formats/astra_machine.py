"""What ASTRA-sim is told about a network and a system, and its networks as topologies.

``AstraNetwork`` holds a ``network.yml`` of the analytical backend and ``AstraSystem`` a
``system.json``. Units are the simulator's own, so that files and records read alike:
links in GiB/s (2**30 bytes), memory in GB/s (1e9 bytes), times in whole nanoseconds.

ASTRA-sim gives the bandwidth of a link in GiB/s and the latency of a hop in ns; a
`Dimension` the bandwidth of a device over all its links in B/s and the latency in s. Its
dimensions are joined like ours, position by position: a ``Switch`` further out is a rail.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.errors import FormatError, HardwareError, did_you_mean
from perfmodel.base.files import LONGEST_TEXT, shortened
from perfmodel.base.units import GIB
from perfmodel.workloads.formats.words import words_of
from perfmodel.workloads.links.dimensions import Dimension
from perfmodel.workloads.links.topology import Topology

UNAWARE_TOPOLOGIES = ("Ring", "FullyConnected", "Switch")  # numbered as in kernels.astra.phase
TOPOLOGIES = (*UNAWARE_TOPOLOGIES, "Mesh2D")
SCHEDULING_POLICIES = ("LIFO", "FIFO", "EXPLICIT")
COLLECTIVE_OPTIMIZATIONS = ("localBWAware", "baseline")
ALGORITHMS = ("ring", "direct", "halvingDoubling")  # numbered as in kernels.astra.phase
IMPLEMENTATIONS = (
    *ALGORITHMS,
    "doubleBinaryTree",
    "oneRing",
    "oneDirect",
    "oneHalvingDoubling",
)
LARGEST_WHOLE = 2**31 - 1  # the simulator's own int
LARGEST_NUMBER = 1e15
WINDOWED = re.compile(r"(direct|oneDirect)0*[1-9][0-9]{0,4}")


def check_whole(where: str, value: Any, least: int) -> None:
    """Raise unless a value is a whole number not below `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise HardwareError(
            f"{where} is {shortened(repr(value))}; it should be a whole number >= {least}"
        )
    if value > LARGEST_WHOLE:
        text = value if value < 10**LONGEST_TEXT else "far more"
        raise HardwareError(f"{where} is {text}; it should be at most {LARGEST_WHOLE}")


def check_number(where: str, value: Any, positive: bool) -> None:
    """Raise unless a value is a finite number, above zero or at least not below it."""
    bound = "> 0" if positive else ">= 0"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf or (positive and value == 0):
        raise HardwareError(
            f"{where} is {shortened(repr(value))}; it should be a finite number {bound}"
        )
    if value > LARGEST_NUMBER:
        raise HardwareError(
            f"{where} is {str(value)[:20]}…; it should be at most {LARGEST_NUMBER:g}"
        )


def check_name(where: str, value: Any, known: Iterable[str]) -> None:
    """Raise unless a value is one of the known names."""
    if value not in known:
        text = shortened(value)
        raise HardwareError(f"unknown {where} {shortened(repr(value))}{did_you_mean(text, known)}")


def check_implementation(name: Any) -> None:
    """Raise unless a collective implementation is one of ``IMPLEMENTATIONS``.

    ``direct`` and ``oneDirect`` may carry the most messages that a member keeps in flight:
    ``direct4``.
    """
    if not (isinstance(name, str) and WINDOWED.fullmatch(name)):
        check_name("collective implementation", name, IMPLEMENTATIONS)


def mesh_shape(members: int) -> tuple[int, int]:
    """Return width and height of the most nearly square mesh of so many devices.

    The width is the larger one; ids run along it first (row-major).
    """
    height = math.isqrt(members)
    while members % height:
        height -= 1
    return members // height, height


@dataclass(frozen=True, slots=True)
class AstraNetwork:
    """A network of ASTRA-sim's analytical backend, innermost dimension first.

    Attributes
    ----------
    topology : tuple of {"Ring", "FullyConnected", "Switch", "Mesh2D"}
        One name per dimension. ``Mesh2D`` is not in ASTRA-sim's main branch: the most
        nearly square mesh with row-major ids (see :func:`mesh_shape`).
    npus_count : tuple of int
        Devices along each dimension, > 1.
    bandwidth_gib_per_second : tuple of float
        Of one link and direction [GiB/s], 2**30 bytes per GiB.
    latency_nanoseconds : tuple of float
        Of one hop [ns].

    Raises
    ------
    HardwareError
        A name is unknown, a number not usable, or the tuples differ in length.
    """

    topology: tuple[str, ...]
    npus_count: tuple[int, ...]
    bandwidth_gib_per_second: tuple[float, ...]
    latency_nanoseconds: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check every value."""
        if not self.topology:
            raise HardwareError("a network needs at least one dimension")
        for name in ("npus_count", "bandwidth_gib_per_second", "latency_nanoseconds"):
            if len(getattr(self, name)) != len(self.topology):
                raise HardwareError(
                    f"{name} has {len(getattr(self, name))} entries, but topology has "
                    f"{len(self.topology)}; there should be one per dimension"
                )
        for dimension in range(len(self.topology)):
            at = f"of dimension {dimension}"
            check_name(f"topology {at}", self.topology[dimension], TOPOLOGIES)
            check_whole(f"npus_count {at}", self.npus_count[dimension], 2)
            bandwidth = self.bandwidth_gib_per_second[dimension]
            check_number(f"bandwidth {at}", bandwidth, positive=True)
            check_number(f"latency {at}", self.latency_nanoseconds[dimension], positive=False)
        if self.devices > LARGEST_WHOLE:
            raise HardwareError(
                f"npus_count of {self.dimensions} dimensions multiplies to more than "
                f"{LARGEST_WHOLE} devices; it should be at most that"
            )

    @property
    def dimensions(self) -> int:
        """Number of dimensions."""
        return len(self.topology)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.npus_count)


@dataclass(frozen=True, slots=True)
class AstraSystem:
    """The system layer of ASTRA-sim.

    Attributes
    ----------
    all_reduce_implementation, all_gather_implementation : tuple of str
        Algorithm per dimension, see :func:`check_implementation`.
    reduce_scatter_implementation, all_to_all_implementation : tuple of str
        Likewise.
    preferred_dataset_splits : int
        Chunks that a collective is cut into, >= 1.
    active_chunks_per_dimension : int
        Chunks that one dimension works on at once, >= 1.
    endpoint_delay_nanoseconds : int
        Before each message a device handles [ns]. The simulator aborts at 0.
    scheduling_policy : {"LIFO", "FIFO", "EXPLICIT"}
        Which of several waiting collectives goes first.
    collective_optimization : {"localBWAware", "baseline"}
        All-reduce over several dimensions as reduce-scatters, one all-reduce and
        all-gathers, or as whole all-reduces one after the other.
    local_memory_bandwidth_gb_per_second : float
        Of a device's memory [GB/s], 1e9 bytes per GB; > 0.
    peak_performance_teraflops : float
        Of a device [TFLOP/s], 1e12; only the roofline reads it.
    roofline_enabled, trace_enabled, track_local_memory : bool
        Switches of the simulator that change no collective.
    other : mapping of str to value
        Keys of the file that no collective depends on.

    Raises
    ------
    HardwareError
        A name is unknown or a number not usable.
    """

    all_reduce_implementation: tuple[str, ...]
    all_gather_implementation: tuple[str, ...]
    reduce_scatter_implementation: tuple[str, ...]
    all_to_all_implementation: tuple[str, ...]
    preferred_dataset_splits: int = 1
    active_chunks_per_dimension: int = 1
    endpoint_delay_nanoseconds: int = 10
    scheduling_policy: str = "LIFO"
    collective_optimization: str = "localBWAware"
    local_memory_bandwidth_gb_per_second: float = 1600.0
    peak_performance_teraflops: float = 0.0
    roofline_enabled: bool = False
    trace_enabled: bool = False
    track_local_memory: bool = False
    other: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        """Check every value."""
        for collective in SIMULATED:
            for name in self.implementation(collective):
                check_implementation(name)
        check_whole("preferred_dataset_splits", self.preferred_dataset_splits, 1)
        check_whole("active_chunks_per_dimension", self.active_chunks_per_dimension, 1)
        check_whole("endpoint_delay", self.endpoint_delay_nanoseconds, 0)
        check_name("scheduling_policy", self.scheduling_policy, SCHEDULING_POLICIES)
        check_name(
            "collective_optimization", self.collective_optimization, COLLECTIVE_OPTIMIZATIONS
        )
        check_number(
            "local_memory_bandwidth", self.local_memory_bandwidth_gb_per_second, positive=True
        )
        check_number("peak_performance", self.peak_performance_teraflops, positive=False)

    def implementation(self, collective: str) -> tuple[str, ...]:
        """Return the algorithms of a collective (one of ``SIMULATED``), one per dimension."""
        check_name("collective", collective, SIMULATED)
        algorithms: tuple[str, ...] = getattr(self, f"{collective}_implementation")
        return algorithms


def uniform_system(algorithms: Iterable[str], **settings: Any) -> AstraSystem:
    """Return a system that uses the same algorithms for all four collectives.

    Parameters
    ----------
    algorithms : iterable of str
        One per dimension, innermost first.
    **settings
        Further fields of :class:`AstraSystem`.
    """
    names = tuple(algorithms)
    return AstraSystem(names, names, names, names, **settings)


NANOSECOND = 1e-9
NAME_OF: dict[str, str] = words_of("astra_machine")["names"]
KIND_OF = {NAME_OF[kind]: kind for kind in ("ring", "fully-connected", "switch", "mesh")}
FAT_TREE_LINKS, RAIL_LINKS = 4, 2  # from a device to its nearest peer


def topology_of_astra(network: AstraNetwork) -> Topology:
    """Return a network of ASTRA-sim as a topology with the same links."""
    return Topology(
        tuple(
            _dimension(*entry)
            for entry in zip(
                network.topology,
                network.npus_count,
                network.bandwidth_gib_per_second,
                network.latency_nanoseconds,
                strict=True,
            )
        )
    )


def _dimension(name: str, size: int, bandwidth: float, latency: float) -> Dimension:
    """Return one dimension whose links have this bandwidth [GiB/s] and latency [ns]."""
    kind = KIND_OF[name]
    shape = mesh_shape(size) if kind == "mesh" else (size,)
    # A unit bandwidth says which share of it one link has.
    share = max(Dimension(kind, shape, 1.0, 0.0).link_bandwidths)
    return Dimension(kind, shape, bandwidth * GIB / share, latency * NANOSECOND)


def astra_of_topology(topology: Topology, *, rails: bool = False) -> AstraNetwork:
    """Return a topology as a network of ASTRA-sim.

    Parameters
    ----------
    topology : Topology
        A torus becomes one ring per axis, a rail a switch; what has one position is left
        out.
    rails : bool
        Write a fat tree without oversubscription as rails: a switch per position within the
        inner dimensions, with the same bandwidth per device and the same latency between
        neighbours. ASTRA-sim then routes messages that cross rails through the inner
        dimensions.

    Raises
    ------
    FormatError
        ASTRA-sim's analytical backend has no such dimension.
    """
    rows = [
        (NAME_OF[dimension.kind], size, link, dimension.latency)
        for index, given in enumerate(topology.dimensions)
        for dimension in [_as_rail(given) if rails and given.kind == "fat-tree" else given]
        for size, link in _parts(dimension, f"dimension {index} ('{dimension.label}')")
    ]
    if not rows:
        raise FormatError("one device has no network that ASTRA-sim could be told about")
    return AstraNetwork(
        topology=tuple(name for name, _, _, _ in rows),
        npus_count=tuple(size for _, size, _, _ in rows),
        bandwidth_gib_per_second=tuple(digits(link / GIB) for _, _, link, _ in rows),
        latency_nanoseconds=tuple(digits(latency / NANOSECOND) for _, _, _, latency in rows),
    )


def _as_rail(tree: Dimension) -> Dimension:
    """Return a fat tree as rails; one with oversubscription stays what it is."""
    if tree.oversubscription != 1.0:
        return tree
    latency = tree.latency * FAT_TREE_LINKS / RAIL_LINKS
    return Dimension("rail", tree.shape, tree.bandwidth, latency, name=tree.name)


def _parts(dimension: Dimension, where: str) -> list[tuple[int, float]]:
    """Return positions and link bandwidth [B/s] of what ASTRA-sim counts as dimensions."""
    if dimension.size == 1:
        return []
    known = "ASTRA-sim's analytical backend has Ring, FullyConnected, Switch and Mesh2D"
    if dimension.kind == "fat-tree":
        over = f" of oversubscription {dimension.oversubscription:g}"
        kind = dimension.kind + (over if dimension.oversubscription != 1 else "")
        raise FormatError(
            f"{where} is a {kind}; {known} only; a fat tree without oversubscription can be "
            "written as rails"
        )
    if dimension.kind == "mesh":
        square = mesh_shape(dimension.size)
        if dimension.shape != square:
            shape, expected = ("x".join(map(str, sides)) for sides in (dimension.shape, square))
            raise FormatError(
                f"{where} is a mesh of {shape}; {known} only, and its Mesh2D of "
                f"{dimension.size} is {expected}"
            )
        return [(dimension.size, dimension.link_bandwidths[0])]
    sides = zip(dimension.shape, dimension.link_bandwidths, strict=True)
    return [(side, link) for side, link in sides if side > 1]


def digits(value: float) -> float:
    """Return a number without the last bit's noise: 300.0, not 299.99999999999994."""
    return float(f"{value:.15g}")
