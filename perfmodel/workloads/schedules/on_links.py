"""Explicit schedules of collectives laid on a topology: exact link loads and times.

Formulas and sources: ``docs/contention.md``. Numba is imported inside the functions that
need it.

Letters
    g   groups that run the same collective at the same time
    n   members of a group
    m   messages of all groups, ordered by step
    r   distinct routes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError
from perfmodel.workloads.links.topology import Topology
from perfmodel.workloads.schedules.moves import totals
from perfmodel.workloads.schedules.schedule import REDUCER, Schedule, schedule

Groups = Sequence[int] | Sequence[Sequence[int]] | Integers

REDUCING = ("switch", "rail")  # kinds of dimensions whose one switch joins a whole group


@dataclass(frozen=True)
class Messages:
    """Messages of a schedule on their routes.

    Parameters
    ----------
    step : int64[m]
        Ascending.
    bytes : float64[m]
        [B].
    route : int64[m]
    offsets : int64[r + 1]
        Route i passes ``links[offsets[i]:offsets[i + 1]]``.
    links : int64[...]
    latency : float64[r]
        Of all hops of a route [s].
    """

    step: Integers
    bytes: Floats
    route: Integers
    offsets: Integers
    links: Integers
    latency: Floats


def scheduled_time(
    topology: Topology,
    collective: str,
    algorithm: str,
    size: float | None,
    groups: Groups,
    *,
    pipelined: bool = False,
    **options: Any,
) -> float:
    """Time of a collective, message by message, on a topology.

    Parameters
    ----------
    topology : Topology
    collective, algorithm, size
        As for :func:`perfmodel.workloads.schedules.schedule.schedule`.
    groups : sequence of int, or sequence of such sequences
        Devices of the group by position; several groups of one size run at the same time
        and share links.
    pipelined : bool
        Whether the steps overlap in ever smaller chunks.
    **options
        Root, domain, targets, traffic, inside, across: as for ``schedule``.

    Returns
    -------
    float
        [s]. Step after step, ``sum(max(load / bandwidth) + longest latency)``; pipelined,
        ``sum(longest latency) + max(load of all steps / bandwidth)``, the limit that no
        number of chunks beats.

    Raises
    ------
    StrategyError
        The schedule does not exist, or a group does not suit the topology.

    Examples
    --------
    >>> from perfmodel.workloads.links.topology import Dimension
    >>> ring = Topology((Dimension("ring", 4, 100e9, 1e-6),))
    >>> round(scheduled_time(ring, "all_reduce", "ring", 4e9, range(4)) * 1e3, 3)
    120.006
    """
    plan = schedule(collective, algorithm, group_size(groups), size, **options)
    messages = messages_on(topology, plan, groups)
    transfer, latency = _steps(topology, messages)
    if pipelined:
        return float(latency.sum()) + topology.load_time(_loads(topology, messages))
    return float(transfer.sum() + latency.sum())


def step_times(
    topology: Topology,
    collective: str,
    algorithm: str,
    size: float | None,
    groups: Groups,
    **options: Any,
) -> Floats:
    """Times of the steps one by one, float64[steps] [s]; see :func:`scheduled_time`."""
    plan = schedule(collective, algorithm, group_size(groups), size, **options)
    transfer, latency = _steps(topology, messages_on(topology, plan, groups))
    return transfer + latency


def link_loads(
    topology: Topology,
    collective: str,
    algorithm: str,
    size: float | None,
    groups: Groups,
    **options: Any,
) -> Floats:
    """Bytes that a collective brings over every link, float64[links] [B].

    Parameters are those of :func:`scheduled_time`. ``topology.load_time`` of the result is
    the bandwidth bound of this algorithm: no order of its messages takes less.
    """
    plan = schedule(collective, algorithm, group_size(groups), size, **options)
    return _loads(topology, messages_on(topology, plan, groups))


def messages_on(topology: Topology, plan: Schedule, groups: Groups) -> Messages:
    """Lay a schedule on the devices of one or more groups.

    Parameters
    ----------
    topology : Topology
    plan : Schedule
    groups : sequence of int, or sequence of such sequences
        Devices by position.

    Raises
    ------
    StrategyError
        Groups of another size than the schedule, a device that does not exist or stands
        twice in a group, or a reduction in a switch that does not join the group.
    """
    devices = _devices(topology, groups, plan.members)
    source, target, _ = plan.pairs()
    wide = plan.members + 1
    pair = np.searchsorted(
        (source + 1) * wide + target + 1, (plan.source + 1) * wide + plan.target + 1
    )
    offsets, links = _routes(topology, devices, source, target)
    count = devices.shape[0]
    hops = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    return Messages(
        step=np.repeat(plan.step, count),
        bytes=np.repeat(plan.bytes, count),
        route=(pair[:, None] + source.size * np.arange(count)).ravel(),
        offsets=offsets,
        links=links,
        latency=totals(hops, topology.link_latency[links], offsets.size - 1),
    )


def group_size(groups: Groups) -> int:
    """Members of a group, or of each of several groups.

    Raises
    ------
    StrategyError
        Not whole numbers, none, or groups of different sizes.
    """
    return int(_table(groups).shape[-1])


def _table(groups: Groups) -> Integers:
    try:
        table = np.asarray(groups)
    except ValueError:  # rows of different lengths
        table = np.empty(0)
    if table.ndim not in (1, 2) or table.size == 0 or table.dtype.kind not in "iu":
        raise StrategyError(
            "groups must be whole numbers of devices, one list or several of equal length"
        )
    return table.astype(np.int64)


def _devices(topology: Topology, groups: Groups, members: int) -> Integers:
    """Return the devices as int64[g, n]."""
    table = np.atleast_2d(_table(groups))
    if table.shape[1] != members:
        raise StrategyError(f"a schedule of {members} members on a group of {table.shape[1]}")
    last = topology.device_count - 1
    outside = (table < 0) | (table > last)
    if outside.any():
        raise StrategyError(f"device {table[outside][0]} does not exist; ids are 0 to {last}")
    ordered = np.sort(table, axis=1)
    twice = ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]]
    if twice.size:
        raise StrategyError(f"device {twice[0]} stands twice in a group")
    return table


def _routes(
    topology: Topology, devices: Integers, source: Integers, target: Integers
) -> tuple[Integers, Integers]:
    """Routes of all pairs of positions in all groups, pairs fastest."""
    virtual = (source == REDUCER) | (target == REDUCER)
    if not virtual.any():
        return topology.routes(devices[:, source].ravel(), devices[:, target].ravel())
    if not virtual.all():
        raise StrategyError("a schedule either reduces in the switch or does not")
    rows = [_switch_links(topology, group, source, target) for group in devices]
    links = np.concatenate(rows)
    return np.arange(links.size + 1, dtype=np.int64), links


def _switch_links(
    topology: Topology, group: Integers, source: Integers, target: Integers
) -> Integers:
    """Link of every message between a member and the switch that joins the group."""
    places = topology.coordinates(group)
    axes = [index for index, item in enumerate(topology.dimensions) for _ in item.shape]
    crossed = {axes[axis] for axis in np.flatnonzero(np.ptp(places, axis=0))}
    kinds = [topology.dimensions[index].kind for index in crossed]
    if len(crossed) != 1 or kinds[0] not in REDUCING:
        raise StrategyError(
            f"devices {group.tolist()} have no common switch that reduces; in_network needs a "
            f"group inside one dimension of kind {' or '.join(REDUCING)}"
        )
    up, down = topology.switch_links(group, crossed.pop())
    return np.where(source == REDUCER, down[target], up[source])


def _steps(topology: Topology, messages: Messages) -> tuple[Floats, Floats]:
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.links import steps as kernel

    with kernel_work(messages=messages.step.size):
        transfer, latency = kernel.step_times(
            messages.step,
            messages.bytes,
            messages.route,
            messages.offsets,
            messages.links,
            topology.link_bandwidth,
            messages.latency,
        )
    return transfer, latency


def _loads(topology: Topology, messages: Messages) -> Floats:
    routes = messages.offsets.size - 1
    per_route = totals(messages.route, messages.bytes, routes)
    per_entry = np.repeat(per_route, np.diff(messages.offsets))
    return totals(messages.links, per_entry, topology.link_count)
