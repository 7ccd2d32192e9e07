"""What an operation of a group brings over the links of a topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.links.checks import checked_devices
from perfmodel.workloads.schedules.algorithms import ALGORITHMS
from perfmodel.workloads.schedules.schedule import REDUCER, Schedule, available, schedule

if TYPE_CHECKING:
    from perfmodel.workloads.links.topology import Topology


def operation_schedule(
    topology: Topology,
    operation: str,
    algorithm: str | None,
    members: ArrayLike,
    size: float,
    domain: int | None = None,
) -> Schedule:
    """Return the messages of an operation of a group of devices.

    Parameters
    ----------
    topology : Topology
    operation : str
        As `perfmodel.workloads.schedules.schedule.schedule` knows it.
    algorithm : str, optional
        The first one that it has for the operation where left out.
    members : array of int
        Devices of the group, the root first.
    size : float
        [B], nccl-tests convention.
    domain : int, optional
        Members of a domain of a two-level algorithm; those that share the innermost
        dimension with the first member where left out.

    Raises
    ------
    StrategyError
        Unknown names, or what the algorithm cannot do.
    """
    devices = checked_devices(np.atleast_1d(np.asarray(members)), topology.device_count, "member")
    known = available(operation)
    chosen = known[0] if algorithm is None else algorithm
    if domain is None and chosen in known and ALGORITHMS[operation][chosen].two_level:
        innermost = devices // topology.dimensions[0].size
        domain = int(np.count_nonzero(innermost == innermost[0]))
    return schedule(operation, chosen, devices.size, size, domain=domain)


def operation_loads(
    topology: Topology, schedule: Schedule, members: ArrayLike
) -> NDArray[np.float64]:
    """Return the bytes that all messages of a schedule bring over every link.

    Parameters
    ----------
    topology : Topology
    schedule : Schedule
        From `perfmodel.workloads.schedules.schedule.schedule`.
    members : array of int
        Device of every position of the group.

    Returns
    -------
    float64[links]
        [B], all steps together.

    Raises
    ------
    StrategyError
        Not one device per position, a device twice, or a switch that reduces for a group
        that no single switch joins.
    """
    devices = np.atleast_1d(np.asarray(members))
    if devices.shape != (schedule.members,) or np.unique(devices).size != devices.size:
        raise StrategyError(
            f"a group of {schedule.members} members needs as many different devices, not "
            f"{devices.tolist()}"
        )
    up, down = schedule.target == REDUCER, schedule.source == REDUCER
    plain = ~(up | down)
    loads = topology.link_loads(
        devices[schedule.source[plain]], devices[schedule.target[plain]], schedule.bytes[plain]
    )
    if np.any(up | down):
        dimension = _joining_switch(topology, devices)
        to_switch, _ = topology.switch_links(devices[schedule.source[up]], dimension)
        _, from_switch = topology.switch_links(devices[schedule.target[down]], dimension)
        np.add.at(loads, to_switch, schedule.bytes[up])
        np.add.at(loads, from_switch, schedule.bytes[down])
    return loads


def _joining_switch(topology: Topology, devices: NDArray[np.int64]) -> int:
    """Return the dimension whose one switch joins all the devices."""
    places = topology.coordinates(devices)
    differ = np.flatnonzero(np.any(places != places[0], axis=0))
    axes = [i for i, item in enumerate(topology.dimensions) for _ in item.shape]
    dimension = axes[differ[0]] if differ.size == 1 else -1
    if dimension < 0 or topology.dimensions[dimension].kind not in ("switch", "rail"):
        raise StrategyError(
            "a switch reduces for devices that are all on it; these are not on one switch or rail"
        )
    return dimension
