"""Which phases a collective of ASTRA-sim has, and whether it can have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.errors import HardwareError
from perfmodel.workloads.formats.astra_machine import (
    IMPLEMENTATIONS,
    UNAWARE_TOPOLOGIES,
    AstraNetwork,
)

GROUP_DELAY = 10  # [ns] of groups, whatever the endpoint delay: MemBus.cc:54, Transmition::Fast
WHOLE_SYSTEM = ("oneRing", "oneDirect", "oneHalvingDoubling")


@dataclass(frozen=True, slots=True)
class LogicalDimension:
    """What one entry of a list of implementations works on.

    Attributes
    ----------
    algorithm : str
        Without the ``one`` of whole-system implementations.
    members, stride : int
        Devices, and the difference of neighbours' ids.
    index : int
        Of the network's dimension whose queue its phases wait in.
    """

    algorithm: str
    members: int
    stride: int
    index: int


def checked_algorithm(implementation: str) -> str:
    """Return an implementation of a system, or raise for one that limits messages in flight."""
    if implementation not in IMPLEMENTATIONS:
        raise HardwareError(
            f"{implementation} limits the messages in flight, which is not covered: no run of "
            "ASTRA-sim is known to check its times against; it should be "
            + implementation.rstrip("0123456789")
        )
    return implementation


def plain_algorithm(implementation: str) -> str:
    """Return the algorithm of an implementation, whether of a dimension or the whole system."""
    algorithm = checked_algorithm(implementation)
    plain = algorithm.removeprefix("one")
    return plain[0].lower() + plain[1:]


def logical_dimensions(
    network: AstraNetwork, implementation: Sequence[str]
) -> list[LogicalDimension]:
    """Return what each implementation works on: its dimension, or the whole system as one.

    GeneralComplexTopology.cc: an implementation over the whole system ends the list.
    """
    dimensions = []
    stride = 1
    for index, name in enumerate(implementation[: network.dimensions]):
        algorithm = checked_algorithm(name)
        if algorithm in WHOLE_SYSTEM:
            plain = plain_algorithm(algorithm)
            dimensions.append(LogicalDimension(plain, network.devices, 1, index))
            return dimensions
        members = network.npus_count[index]
        dimensions.append(LogicalDimension(algorithm, members, stride, index))
        stride *= members
    if len(implementation) != network.dimensions:
        raise HardwareError(
            f"{len(implementation)} collective implementations for {network.dimensions} "
            f"dimensions ({', '.join(implementation)}); there should be one per dimension, or "
            f"{WHOLE_SYSTEM[0]} for all"
        )
    return dimensions


def group_algorithm(implementation: Sequence[str], keeps_algorithm: bool) -> str:
    """Return the algorithm of a communicator group that leaves devices out: one flat ring.

    Parameters
    ----------
    implementation : sequence of str
    keeps_algorithm : bool
        See `AstraVersion.group_keeps_algorithm`.
    """
    if keeps_algorithm and len(implementation) == 1:
        return plain_algorithm(implementation[0])
    return "ring"


def phase_plan(
    collective: str, dimensions: Sequence[LogicalDimension], optimization: str
) -> NDArray[np.int64]:
    """Return the phases that a chunk passes, one row each (kernels' PLAN_COLUMNS).

    Sys.cc:819-982: all-gather from the outermost dimension inwards, the others outwards;
    an all-reduce that is aware of bandwidth scatters on the way out and gathers on the way
    back, and reduces whole only on the outermost dimension.
    """
    if collective == "all_reduce" and optimization == "localBWAware":
        inner = list(dimensions[:-1])
        steps = [("reduce_scatter", dimension) for dimension in inner]
        steps += [("all_reduce", dimensions[-1])]
        steps += [("all_gather", dimension) for dimension in reversed(inner)]
    elif collective == "all_gather":
        steps = [(collective, dimension) for dimension in reversed(dimensions)]
    else:
        steps = [(collective, dimension) for dimension in dimensions]
    return np.array(
        [
            (
                SIMULATED.index(kind),
                IMPLEMENTATIONS.index(dimension.algorithm),
                dimension.members,
                dimension.stride,
                dimension.index,
            )
            for kind, dimension in steps
        ],
        np.int64,
    )


def network_table(network: AstraNetwork) -> NDArray[np.float64]:
    """Return the network as the kernels read it (NETWORK_COLUMNS)."""
    for dimension, name in enumerate(network.topology):
        if name not in UNAWARE_TOPOLOGIES:
            raise HardwareError(
                f"topology {name} of dimension {dimension} is not known to the "
                "congestion-unaware engine; it should be " + ", ".join(UNAWARE_TOPOLOGIES)
            )
    return np.array(
        [
            (UNAWARE_TOPOLOGIES.index(name), members, bandwidth * 2**30 / 1e9, latency)
            for name, members, bandwidth, latency in zip(
                network.topology,
                network.npus_count,
                network.bandwidth_gib_per_second,
                network.latency_nanoseconds,
                strict=True,
            )
        ],
        np.float64,
    )


def check_algorithms(collective: str, dimensions: Sequence[LogicalDimension]) -> None:
    """Raise for algorithms that cannot do a collective on the dimensions that take part."""
    for dimension in dimensions:
        of = f"on {dimension.members} devices"
        is_power = math.log2(dimension.members).is_integer()
        if dimension.algorithm == "halvingDoubling" and collective == "all_to_all":
            raise HardwareError(
                "halvingDoubling cannot do all_to_all: ASTRA-sim exits with 'unknown "
                "communication type'; it should be ring or direct"
            )
        if dimension.algorithm in ("halvingDoubling", "doubleBinaryTree") and not is_power:
            raise HardwareError(f"{dimension.algorithm} {of}; it needs a power of two")
        if dimension.algorithm != "doubleBinaryTree":
            continue
        if collective != "all_reduce":
            raise HardwareError(f"doubleBinaryTree cannot do {collective}, only all_reduce")
        if len(dimensions) > 1 or dimension.index > 0:
            raise HardwareError("doubleBinaryTree is covered on dimension 0 alone")
