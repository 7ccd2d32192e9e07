"""Collectives as ASTRA-sim's congestion-aware analytical backend times them.

Links are shared here: of messages that need the same link, one waits. The backend knows
one dimension of Ring, FullyConnected or Switch, and here also the Mesh2D that its
tutorial adds; the simulation itself is :mod:`perfmodel.workloads.twins.astra.machine`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import HardwareError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem
from perfmodel.workloads.twins.astra.machine import LATEST, Machine


@dataclass(frozen=True)
class CongestionAwareRun:
    """One simulated collective.

    Attributes
    ----------
    finish_nanoseconds : ndarray of int, shape (rank,)
        When each rank is done [ns].
    link_bytes : ndarray of int, shape (link,)
        Carried by each directed link [B].
    link_source, link_target : ndarray of int, shape (link,)
        Nodes at its ends: ranks, then the switch where there is one.
    messages : int
        Messages sent by all ranks together.
    events : int
        Events simulated.
    """

    finish_nanoseconds: np.ndarray
    link_bytes: np.ndarray
    link_source: np.ndarray
    link_target: np.ndarray
    messages: int
    events: int


def congestion_aware_time(
    network: AstraNetwork, system: AstraSystem, collective: str, size: int
) -> tuple[int, int]:
    """Return the times at which the slowest and the fastest rank are done [ns].

    Parameters
    ----------
    network, system : AstraNetwork, AstraSystem
        See :func:`congestion_aware_run`.
    collective : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    size : int
        [B]: the shard of a rank for all-gather, the full buffer otherwise.

    Raises
    ------
    HardwareError
        As :func:`congestion_aware_run`.
    """
    finish = congestion_aware_run(network, system, collective, size).finish_nanoseconds
    return int(finish.max()), int(finish.min())


def congestion_aware_run(
    network: AstraNetwork, system: AstraSystem, collective: str, size: int
) -> CongestionAwareRun:
    """Simulate one collective of all devices, alone on the network.

    Parameters
    ----------
    network : AstraNetwork
        One dimension.
    system : AstraSystem
        One algorithm for the collective.
    collective : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    size : int
        [B]: the shard of a rank for all-gather, the full buffer otherwise.

    Returns
    -------
    CongestionAwareRun

    Raises
    ------
    HardwareError
        The network has several dimensions, the algorithm cannot do the collective on
        so many devices, the size is too small to be cut, or there are too many devices or
        messages.
    """
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
        raise HardwareError(f"size is {size!r}; it should be a whole number of bytes >= 0")
    machine = Machine(network, system)
    if size > LATEST // network.devices:
        raise HardwareError(f"size is {size} B; it should be {LATEST // network.devices} B at most")
    run = machine.run_collective(collective, int(size))
    if run.end.min() < 0:
        raise HardwareError(f"{collective} of {network.devices} devices never ends")
    there = np.flatnonzero(run.link_target >= 0)
    return CongestionAwareRun(
        run.end,
        run.link_bytes[there],
        run.link_source[there],
        run.link_target[there],
        run.messages,
        run.events,
    )
