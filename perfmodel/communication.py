"""Times of collectives on a hardware profile; the labelled pair of `kernels.collective`.

Sizes follow nccl-tests: all-reduce, the buffer of one rank; all-gather, the
whole output; reduce-scatter, the whole input; all-to-all, the whole send
buffer of one rank; gather and scatter, the whole buffer of the root; otherwise the
message. A group is the
ranks r, r + stride, ..., r + (members - 1) stride in a numbering where the
innermost network level is contiguous. Every level's ``size`` counts domains of
the level below (devices, on level 0). All groups of a shape run at once.

Numba is imported inside the functions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import HardwareError, StrategyError, did_you_mean

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.hwprofiles.hardware import Network

# Codes of kernels.collective, by name; test_communication compares the two.
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "point_to_point",
    "multicast",
    "gather",
    "scatter",
)

ALGORITHMS = (
    "ring",
    "bidirectional_ring",
    "direct",
    "halving_doubling",
    "recursive_doubling",
    "double_binary_tree",
    "hierarchical",
    "in_network",
    "one_shot",
    "two_shot",
    "rail_aligned",
)
PROTOCOLS = ("low_latency", "low_latency_128", "simple")
_REDUCTIONS = ("ring", "bidirectional_ring", "direct", "halving_doubling", "recursive_doubling")
_COPIES = ("ring", "direct", "recursive_doubling", "double_binary_tree", "hierarchical")
# Algorithms by collective; test_communication compares them with the kernel.
ALGORITHMS_OF: Mapping[str, tuple[str, ...]] = {
    "all_reduce": (
        *(name for name in _REDUCTIONS if name != "direct"),
        *("double_binary_tree", "hierarchical", "in_network", "one_shot", "two_shot"),
    ),
    "all_gather": (*_REDUCTIONS, "hierarchical", "in_network"),
    "reduce_scatter": (*_REDUCTIONS, "hierarchical", "in_network"),
    "all_to_all": ("direct", "hierarchical", "rail_aligned"),
    "broadcast": (*_COPIES, "in_network"),
    "point_to_point": ("direct",),
    "multicast": (*_COPIES, "in_network"),
    "gather": ("direct", "recursive_doubling"),
    "scatter": ("direct", "recursive_doubling"),
}

# Keys of [calibration.network] that the kernel reads; docs/collectives.md defines them.
CONSTANTS = (
    "scale_up_efficiency",
    "scale_out_efficiency",
    "all_to_all_efficiency",
    "in_network_efficiency",
    "low_latency_fraction",
    "low_latency_128_fraction",
    "local_copy_fraction",
    "base_latency",
    "spread_latency",
    "low_latency_128_latency",
    "simple_latency",
    "in_network_latency",
    "pairwise_latency",
    "pairwise_spread_latency",
    "pairwise_simple_latency",
    "scale_up_hop_overhead",
    "scale_out_hop_overhead",
    "scale_out_hop_128_overhead",
    "scale_up_step_overhead",
    "scale_out_step_overhead",
    "scale_up_pipeline_latency",
    "scale_out_pipeline_latency",
    "in_network_pipeline_latency",
    "pairwise_pipeline_latency",
    "message_latency",
    "irregular_mesh_links",
    "scale_out_low_latency_limit",
    "tuned_low_latency_fraction",
    "tuned_in_network_fraction",
)
# What NCCL's topology search finds of a link's datasheet bandwidth: 20 of 25 GB/s per NVLink
# (src/graph/topo.h), the same share on later links.
TUNED_LINK_FRACTION = 0.8
BUS_NAMES = ("pcie", "pci")
# Data bytes over bytes sent where adapters are the bottleneck: 8 of 16 with a flag for every
# word, 120 of 128 with a flag per line (NCCL src/include/device.h).
ADAPTER_LOW_LATENCY_FRACTION = 0.5
ADAPTER_LOW_LATENCY_128_FRACTION = 120.0 / 128.0

DIMENSIONS = {"ring": 1, "torus-2d": 2, "torus-3d": 3, "mesh-2d": 2}


def is_scale_out(network: Network, level: int) -> bool:
    """Tell whether a level is reached through adapters (True) or device links (False).

    The innermost level and every level whose topology is made of the devices'
    own links (ring, torus, mesh, fully connected) is scale-up; a switch or fat
    tree above the innermost level is scale-out.
    """
    return level > 0 and network.topology in ("switch", "fat-tree")


def network_table(hardware: Hardware) -> NDArray[np.float64]:
    """Return the network of a profile in the form that the kernel reads.

    Parameters
    ----------
    hardware : Hardware
        A profile with ``[calibration.network]``.

    Returns
    -------
    float64[levels, COLUMNS]
        One row per level, innermost first; columns are defined in
        :mod:`perfmodel.kernels.collective_hierarchy`.

    Raises
    ------
    HardwareError
        The profile lacks a constant, or a topology is unknown.
    """
    constants = {key: hardware.calibrated("network", key) for key in CONSTANTS}
    return table_of(hardware.system.network, constants, f"hardware profile '{hardware.name}'")


def table_of(
    levels: tuple[Network, ...], constants: Mapping[str, float], where: str
) -> NDArray[np.float64]:
    """Build the kernel's network table from levels and the constants named in `CONSTANTS`.

    Raises
    ------
    HardwareError
        There is no level, or a topology is unknown.
    """
    from perfmodel.kernels import collective_hierarchy as column

    if not levels:
        raise HardwareError(f"{where} has no network level; [[system.network]] needs at least one")
    table = np.zeros((len(levels), column.COLUMNS))
    for level, network in enumerate(levels):
        link = "scale_out" if is_scale_out(network, level) else "scale_up"
        usable = network.bandwidth / network.oversubscription
        row = table[level]
        row[column.SIZE] = network.size
        row[column.BANDWIDTH] = usable * constants[f"{link}_efficiency"]
        row[column.DIMENSIONS] = 1.0
        if network.topology in DIMENSIONS:
            row[column.TOPOLOGY] = column.TORUS
            row[column.DIMENSIONS] = DIMENSIONS[network.topology]
            row[column.WRAPS] = 0.0 if network.topology == "mesh-2d" else 1.0
        elif network.topology == "fully-connected":
            row[column.TOPOLOGY] = column.FULLY_CONNECTED
        elif network.topology in ("switch", "fat-tree"):
            row[column.TOPOLOGY] = column.SWITCH
        else:
            known = ("switch", "fat-tree", "fully-connected", *DIMENSIONS)
            raise HardwareError(
                f"{where}: unknown topology '{network.topology}' of network level {level}"
                f"{did_you_mean(network.topology, known)}"
            )
        hop = network.latency + constants[f"{link}_hop_overhead"]
        row[column.LOW_LATENCY_HOP] = hop
        row[column.LOW_LATENCY_128_HOP] = hop
        if link == "scale_out":
            row[column.LOW_LATENCY_128_HOP] += constants["scale_out_hop_128_overhead"]
        row[column.HOP] = network.latency + constants[f"{link}_step_overhead"]
        row[column.PIPELINE_LATENCY] = constants[f"{link}_pipeline_latency"]
        row[column.TUNED_BANDWIDTH] = TUNED_LINK_FRACTION * usable
        row[column.PAIRWISE_FRACTION] = 1.0
        row[column.LINK_CLASS] = column.DEVICE_LINK
        row[column.LOW_LATENCY_FRACTION] = constants["low_latency_fraction"]
        row[column.LOW_LATENCY_128_FRACTION] = constants["low_latency_128_fraction"]
        if link == "scale_out":
            if constants["low_latency_fraction"] < 1.0:  # 1: there is one protocol only
                row[column.LOW_LATENCY_FRACTION] = ADAPTER_LOW_LATENCY_FRACTION
            row[column.LINK_CLASS] = column.ADAPTER
            row[column.TUNED_BANDWIDTH] = usable
            row[column.LOW_LATENCY_128_FRACTION] = ADAPTER_LOW_LATENCY_128_FRACTION
            row[column.LOW_LATENCY_LIMIT] = constants["scale_out_low_latency_limit"]
            row[column.PAIRWISE_PIPELINE_LATENCY] = constants["scale_out_pipeline_latency"]
        else:
            row[column.PAIRWISE_PIPELINE_LATENCY] = constants["pairwise_pipeline_latency"]
            row[column.PAIRWISE_FRACTION] = constants["all_to_all_efficiency"]
            if network.name in BUS_NAMES:
                row[column.LINK_CLASS] = column.BUS
        if network.in_network_reduction:
            key = "scale_out_efficiency" if link == "scale_out" else "in_network_efficiency"
            row[column.IN_NETWORK_BANDWIDTH] = usable * constants[key]
            row[column.IN_NETWORK_PIPELINE_LATENCY] = constants["in_network_pipeline_latency"]
        row[column.MESSAGE_LATENCY] = constants["message_latency"]
        row[column.IRREGULAR_LINKS] = constants["irregular_mesh_links"]
    _set_facts(table[0], levels[0], constants)
    return table


def _set_facts(
    facts: NDArray[np.float64], innermost: Network, constants: Mapping[str, float]
) -> None:
    """Fill the columns of row 0 that hold for the whole network."""
    from perfmodel.kernels import collective_hierarchy as column

    base = constants["base_latency"]
    if facts[column.LINK_CLASS] == column.BUS:  # a bus may reorder what it writes
        facts[column.LOW_LATENCY_128_FRACTION] = 0.0
    facts[column.BASE_LATENCY] = base
    facts[column.LOW_LATENCY_128_BASE] = base + constants["low_latency_128_latency"]
    facts[column.SIMPLE_BASE] = base + constants["simple_latency"]
    facts[column.IN_NETWORK_BASE] = base + constants["in_network_latency"]
    facts[column.PAIRWISE_BASE] = base + constants["pairwise_latency"]
    facts[column.PAIRWISE_SIMPLE_BASE] = base + constants["pairwise_simple_latency"]
    facts[column.SPREAD_LATENCY] = constants["spread_latency"]
    facts[column.PAIRWISE_SPREAD_LATENCY] = constants["pairwise_spread_latency"]
    facts[column.LOCAL_COPY_FRACTION] = constants["local_copy_fraction"]
    tuned = constants["tuned_low_latency_fraction"] * facts[column.TUNED_BANDWIDTH]
    facts[column.TUNED_LOW_LATENCY_BANDWIDTH] = tuned
    if innermost.in_network_reduction:
        facts[column.TUNED_IN_NETWORK_FRACTION] = constants["tuned_in_network_fraction"]


@dataclass(frozen=True, slots=True)
class CollectiveResult:
    """Priced collectives, one row each.

    Attributes
    ----------
    time : float64[rows]
        Completion time [s]; 0 for a single member or nothing to send, infinite where the
        algorithm or the protocol needs what the network lacks.
    algorithm, protocol : int8[rows]
        Positions in `ALGORITHMS` and `PROTOCOLS` of what runs; -1 where nothing does.
    """

    time: NDArray[np.float64]
    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]


def algorithms_of(kind: str) -> tuple[str, ...]:
    """Return the algorithms that perform a collective.

    Raises
    ------
    StrategyError
        Unknown collective.

    Examples
    --------
    >>> algorithms_of("all_to_all")
    ('direct', 'hierarchical', 'rail_aligned')
    """
    return ALGORITHMS_OF[COLLECTIVES[int(_codes(kind, COLLECTIVES, "collective")[0])]]


def collective_choices(
    hardware: Hardware,
    kind: Any,
    size: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
    algorithm: Any = "auto",
    protocol: Any = "auto",
) -> CollectiveResult:
    """Price collectives, and say which algorithm and protocol run.

    Parameters
    ----------
    hardware : Hardware
        A profile with ``[calibration.network]``.
    kind : str, int, or array of these
        Names in `COLLECTIVES` or their codes.
    size : array of float
        [B], nccl-tests convention (see the module).
    members : array of int
        Ranks of a group, >= 1.
    stride : array of int
        Distance between neighbouring ranks of a group, >= 1.
    algorithm : str, int, or array of these
        Names in `ALGORITHMS` or their codes; "auto" or -1: what the device's library takes.
    protocol : str, int, or array of these
        Names in `PROTOCOLS` or their codes; "auto" or -1: with a given algorithm the
        fastest, else what the library takes.

    Returns
    -------
    CollectiveResult
        The arguments are broadcast together, then flattened.

    Raises
    ------
    StrategyError
        Unknown collective, algorithm or protocol, an algorithm that does not perform the
        collective, a size that is negative or not finite, members or stride below one or
        not whole, shapes that do not broadcast.
    HardwareError
        See `network_table`.
    """
    from perfmodel.kernels import collective as kernels

    sizes = np.atleast_1d(np.asarray(size, dtype=np.float64))
    if not np.all(np.isfinite(sizes) & (sizes >= 0.0)):
        bad = sizes[~(np.isfinite(sizes) & (sizes >= 0.0))].flat[0]
        raise StrategyError(f"collective size {bad} B; a size is finite and >= 0")
    columns = {
        "kind": _codes(kind, COLLECTIVES, "collective"),
        "size": sizes,
        "members": _whole(members, "members"),
        "stride": _whole(stride, "stride"),
        "algorithm": _codes(algorithm, ALGORITHMS, "algorithm", auto=True),
        "protocol": _codes(protocol, PROTOCOLS, "protocol", auto=True),
    }
    try:
        codes, sizes, ranks, steps, algorithms, protocols = (
            np.ascontiguousarray(column).ravel()
            for column in np.broadcast_arrays(*columns.values())
        )
    except ValueError:
        shapes = ", ".join(str(column.shape) for column in columns.values())
        raise StrategyError(
            f"{', '.join(columns)} have shapes {shapes}; they must broadcast together"
        ) from None
    _check_algorithms(codes, algorithms)
    network = network_table(hardware)
    chosen = algorithms >= 0
    if not chosen.any() and np.all(protocols < 0):
        return CollectiveResult(*kernels.collective_choices(codes, sizes, ranks, steps, network))
    time, taken, spoken = kernels.collective_choices(codes, sizes, ranks, steps, network)
    named = chosen | (protocols >= 0)
    algorithms = np.where(chosen, algorithms, taken)[named]
    given = (codes[named], algorithms.astype(np.int64), protocols[named], sizes[named])
    time[named], spoken[named] = kernels.algorithm_times(
        *given, ranks[named], steps[named], network
    )
    taken[named] = np.where(spoken[named] < 0, -1, algorithms)
    return CollectiveResult(time, taken, spoken)


def collective_times(
    hardware: Hardware,
    kind: Any,
    size: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
    algorithm: Any = "auto",
    protocol: Any = "auto",
) -> NDArray[np.float64]:
    """Return completion times of collectives; see `collective_choices`.

    Returns
    -------
    float64[rows]
        [s].
    """
    return collective_choices(hardware, kind, size, members, stride, algorithm, protocol).time


def members_per_domain(
    hardware: Hardware, members: ArrayLike, stride: ArrayLike
) -> NDArray[np.int64]:
    """Count the members of groups inside one domain of every network level.

    Parameters
    ----------
    hardware : Hardware
    members, stride : array of int
        As in `collective_times`.

    Returns
    -------
    int64[levels, rows]
        1 ... members; the last level holds all of them.

    Raises
    ------
    StrategyError
        Members or stride below one or not whole.

    Examples
    --------
    64 ranks 4 apart on nodes of 8: two per node.

    >>> from perfmodel.hwprofiles import load_hardware
    >>> members_per_domain(load_hardware("dgx-h100"), 64, 4)[:, 0].tolist()
    [2, 64]
    """
    ranks, steps = np.broadcast_arrays(_whole(members, "members"), _whole(stride, "stride"))
    ranks, steps = ranks.ravel(), steps.ravel()
    counts = np.empty((len(hardware.system.network), ranks.size), dtype=np.int64)
    domain = 1
    for level, network in enumerate(hardware.system.network):
        domain *= network.size
        counts[level] = np.clip(domain // steps, 1, ranks) if domain else ranks
    counts[-1] = ranks
    return counts


def outermost_level(hardware: Hardware, members: ArrayLike, stride: ArrayLike) -> NDArray[np.int64]:
    """Return the outermost network level that groups cross; -1 for a single member.

    Raises
    ------
    StrategyError
        Members or stride below one or not whole.
    """
    counts = members_per_domain(hardware, members, stride)
    return np.where(counts[-1] > 1, np.argmax(counts == counts[-1], axis=0), -1)


def overlap_compute_tax(
    hardware: Hardware, members: ArrayLike, stride: ArrayLike
) -> NDArray[np.float64]:
    """Return the fraction of compute throughput that a running collective takes.

    Its kernels occupy compute units and memory bandwidth; more of them while
    device links are driven than for adapters alone.

    Parameters
    ----------
    hardware : Hardware
    members, stride : array of int
        As in `collective_times`.

    Returns
    -------
    float64[rows]
        0 ... 1; 0 where ``members`` is 1.

    Raises
    ------
    StrategyError
        Members or stride below one or not whole.
    HardwareError
        The profile lacks ``overlap_compute_tax`` or ``overlap_compute_tax_scale_out``.
    """
    inside = members_per_domain(hardware, members, stride)[0]
    crossed = outermost_level(hardware, members, stride)
    scale_out = np.array(
        [is_scale_out(network, level) for level, network in enumerate(hardware.system.network)]
    )
    up = hardware.calibrated("network", "overlap_compute_tax")
    out = hardware.calibrated("network", "overlap_compute_tax_scale_out")
    only_adapters = scale_out[crossed] & (inside == 1)
    return np.where(crossed < 0, 0.0, np.where(only_adapters, out, up))


def _codes(values: Any, names: Sequence[str], what: str, auto: bool = False) -> NDArray[np.int64]:
    """Turn names or codes into codes; -1 for "auto" where that is allowed."""
    array = np.atleast_1d(np.asarray(values))
    lowest = -1 if auto else 0
    if array.dtype.kind in "US":
        lookup = {name: code for code, name in enumerate(names)}
        if auto:
            lookup["auto"] = -1
        unknown = sorted(set(array.ravel().tolist()) - set(lookup))
        if unknown:
            hint = did_you_mean(str(unknown[0]), lookup)
            raise StrategyError(f"unknown {what} '{unknown[0]}'{hint}")
        return np.vectorize(lookup.__getitem__, otypes=[np.int64])(array)
    if array.dtype.kind not in "iu" or np.any((array < lowest) | (array >= len(names))):
        raise StrategyError(
            f"{what} code {array.flat[0] if array.size == 1 else array}; codes are whole "
            f"numbers 0 to {len(names) - 1}, names are {', '.join(names)}"
        )
    return array.astype(np.int64)


def _check_algorithms(kinds: NDArray[np.int64], algorithms: NDArray[np.int64]) -> None:
    """Raise StrategyError where an algorithm does not perform the collective."""
    for kind, code in {
        (int(kind), int(code)) for kind, code in zip(kinds, algorithms, strict=True) if code >= 0
    }:
        collective, algorithm = COLLECTIVES[kind], ALGORITHMS[code]
        if algorithm not in ALGORITHMS_OF[collective]:
            raise StrategyError(
                f"no {algorithm} algorithm for {collective}; it has "
                f"{', '.join(ALGORITHMS_OF[collective])}"
            )


def _whole(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """Return values as int64, at least one each."""
    array = np.atleast_1d(np.asarray(values))
    if array.dtype.kind not in "iuf":
        raise StrategyError(f"{name} of a group must be whole numbers >= 1, not {values!r}")
    bad = ~(np.isfinite(array) & (array >= 1) & (array == np.floor(array)))
    if np.any(bad):
        raise StrategyError(f"{name} of a group is {array[bad].flat[0]}; a whole number >= 1")
    return array.astype(np.int64)
