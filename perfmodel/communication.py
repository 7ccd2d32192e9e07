"""Times of collectives on a hardware profile; the labelled pair of `kernels.collective`.

Sizes follow nccl-tests: all-reduce, the buffer of one rank; all-gather, the
whole output; reduce-scatter, the whole input; all-to-all, the whole send
buffer of one rank; broadcast and point to point, the message. A group is the
ranks r, r + stride, ..., r + (members - 1) stride in a numbering where the
innermost network level is contiguous. Every level's ``size`` counts domains of
the level below (devices, on level 0). All groups of a shape run at once.

Numba is imported inside the functions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
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
)

# Keys of [calibration.network] that the kernel reads; docs/collectives.md defines them.
CONSTANTS = (
    "scale_up_efficiency",
    "scale_out_efficiency",
    "all_to_all_efficiency",
    "in_network_efficiency",
    "low_latency_fraction",
    "local_copy_fraction",
    "base_latency",
    "scale_up_hop_overhead",
    "scale_out_hop_overhead",
    "scale_up_step_overhead",
    "scale_out_step_overhead",
    "scale_up_pipeline_latency",
    "scale_out_pipeline_latency",
    "in_network_latency",
    "message_latency",
    "irregular_mesh_links",
    "scale_out_low_latency_limit",
)

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
        row[column.LOW_LATENCY_HOP] = network.latency + constants[f"{link}_hop_overhead"]
        row[column.HOP] = network.latency + constants[f"{link}_step_overhead"]
        row[column.PIPELINE_LATENCY] = constants[f"{link}_pipeline_latency"]
        row[column.LOW_LATENCY_FRACTION] = constants["low_latency_fraction"]
        if network.in_network_reduction:
            key = "scale_out_efficiency" if link == "scale_out" else "in_network_efficiency"
            row[column.IN_NETWORK_BANDWIDTH] = usable * constants[key]
            row[column.IN_NETWORK_LATENCY] = constants["in_network_latency"]
        row[column.BASE_LATENCY] = constants["base_latency"]
        row[column.LOCAL_COPY_FRACTION] = constants["local_copy_fraction"]
        row[column.ALL_TO_ALL_FRACTION] = (
            1.0 if link == "scale_out" else constants["all_to_all_efficiency"]
        )
        row[column.MESSAGE_LATENCY] = constants["message_latency"]
        if link == "scale_out":
            row[column.SCALE_OUT] = 1.0
            row[column.LOW_LATENCY_LIMIT] = constants["scale_out_low_latency_limit"]
        row[column.IRREGULAR_LINKS] = constants["irregular_mesh_links"]
    return table


def collective_times(
    hardware: Hardware,
    kind: Any,
    size: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
) -> NDArray[np.float64]:
    """Return completion times of collectives.

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

    Returns
    -------
    float64[rows]
        [s]; the arguments are broadcast together; 0 where ``members`` is 1.

    Raises
    ------
    StrategyError
        Unknown collective, a size that is negative or not finite, members or
        stride below one or not whole, shapes that do not broadcast.
    HardwareError
        See `network_table`.
    """
    from perfmodel.kernels.collective import collective_times as kernel

    codes = _codes(kind)
    sizes = np.atleast_1d(np.asarray(size, dtype=np.float64))
    if not np.all(np.isfinite(sizes) & (sizes >= 0.0)):
        bad = sizes[~(np.isfinite(sizes) & (sizes >= 0.0))].flat[0]
        raise StrategyError(f"collective size {bad} B; a size is finite and >= 0")
    columns = (codes, sizes, _whole(members, "members"), _whole(stride, "stride"))
    try:
        codes, sizes, ranks, steps = (
            np.ascontiguousarray(column).ravel() for column in np.broadcast_arrays(*columns)
        )
    except ValueError:
        shapes = ", ".join(str(column.shape) for column in columns)
        raise StrategyError(
            f"kind, size, members and stride have shapes {shapes}; they must broadcast together"
        ) from None
    times: NDArray[np.float64] = kernel(codes, sizes, ranks, steps, network_table(hardware))
    return times


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


def _codes(kind: Any) -> NDArray[np.int64]:
    """Turn names or codes of collectives into codes."""
    kinds = np.atleast_1d(np.asarray(kind))
    if kinds.dtype.kind in "US":
        lookup = {name: code for code, name in enumerate(COLLECTIVES)}
        unknown = sorted(set(kinds.ravel().tolist()) - set(lookup))
        if unknown:
            raise StrategyError(
                f"unknown collective '{unknown[0]}'{did_you_mean(str(unknown[0]), lookup)}"
            )
        return np.vectorize(lookup.__getitem__, otypes=[np.int64])(kinds)
    if kinds.dtype.kind not in "iu" or np.any((kinds < 0) | (kinds >= len(COLLECTIVES))):
        raise StrategyError(
            f"collective code {kinds.flat[0] if kinds.size == 1 else kinds}; codes are whole "
            f"numbers 0 to {len(COLLECTIVES) - 1}, names are {', '.join(COLLECTIVES)}"
        )
    return kinds.astype(np.int64)


def _whole(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """Return values as int64, at least one each."""
    array = np.atleast_1d(np.asarray(values))
    if array.dtype.kind not in "iuf":
        raise StrategyError(f"{name} of a group must be whole numbers >= 1, not {values!r}")
    bad = ~(np.isfinite(array) & (array >= 1) & (array == np.floor(array)))
    if np.any(bad):
        raise StrategyError(f"{name} of a group is {array[bad].flat[0]}; a whole number >= 1")
    return array.astype(np.int64)
