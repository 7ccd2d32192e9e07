"""Collectives as explicit schedules: every message of every step, and its bytes on links.

A schedule knows positions in a group, not devices, and bytes, not seconds: it is what
`operation_loads` lays on a topology.

Letters
    n   members of the group, positions 0 .. n-1
    m   messages
    b   blocks
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.columns import Flags, Floats, Integers
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.workloads.links.topology import checked_devices
from perfmodel.workloads.schedules.algorithms import ALGORITHMS, LEVEL_CHOICES, Algorithm, Levels
from perfmodel.workloads.schedules.moves import REDUCER, Moves, relabel, totals

if TYPE_CHECKING:
    from perfmodel.workloads.links.topology import Topology

__all__ = ["REDUCER", "Schedule", "available", "schedule"]

EVERYONE = -1
MOST_MEMBERS = 2048  # messages grow with the square; beyond, closed forms are the tool

ROOTED = ("broadcast", "multicast", "gather", "scatter", "point_to_point")
OWNED_BY_SOURCE = ("all_gather", "gather")
OWNED_BY_TARGET = ("reduce_scatter", "scatter")


@dataclass(frozen=True)
class Schedule:
    """Messages of a collective, ordered by step, source and target.

    Parameters
    ----------
    collective, algorithm : str
    members : int
        n.
    size : float
        [B], nccl-tests convention, see :func:`schedule`.
    step : int64[m]
        From 0; a message of a step sends what its source held when the step began.
    source, target : int64[m]
        Positions; ``REDUCER`` (-1) is a switch that reduces or multicasts.
    bytes : float64[m]
        [B].
    reduces : bool[m]
        Whether the target adds the message to what it has.
    block_offsets : int64[m + 1]
        Message i carries ``blocks[block_offsets[i]:block_offsets[i + 1]]``.
    blocks : int64[...]
    block_bytes : float64[b]
        [B].
    block_origin, block_destination : int64[b]
        Who has the block at first (a part of it, to be added up, if -1: everyone), and who
        has to have it in the end (-1: all of ``receivers``).
    receivers : int64[...]
    """

    collective: str
    algorithm: str
    members: int
    size: float
    step: Integers
    source: Integers
    target: Integers
    bytes: Floats
    reduces: Flags
    block_offsets: Integers
    blocks: Integers
    block_bytes: Floats
    block_origin: Integers
    block_destination: Integers
    receivers: Integers

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.step[-1]) + 1 if self.step.size else 0

    def sent(self) -> Floats:
        """Bytes that every member sends, float64[n] [B]."""
        return self._per_member(self.source)

    def received(self) -> Floats:
        """Bytes that every member receives, float64[n] [B]."""
        return self._per_member(self.target)

    def pairs(self) -> tuple[Integers, Integers, Floats]:
        """Sources, targets and total bytes [B] of all pairs that exchange anything."""
        key = (self.source + 1) * (self.members + 1) + self.target + 1
        distinct, row = np.unique(key, return_inverse=True)
        source, target = np.divmod(distinct, self.members + 1)
        return source - 1, target - 1, totals(row, self.bytes, distinct.size)

    def _per_member(self, position: Integers) -> Floats:
        return totals(position + 1, self.bytes, self.members + 1)[1:]  # without the switch


def available(collective: str) -> tuple[str, ...]:
    """Names of the algorithms of a collective.

    Raises
    ------
    StrategyError
        The collective is not known.
    """
    if collective not in ALGORITHMS:
        raise StrategyError(
            f"unknown collective {collective!r}{did_you_mean(str(collective), ALGORITHMS)}"
        )
    return tuple(ALGORITHMS[collective])


def schedule(
    collective: str,
    algorithm: str,
    members: int,
    size: float | None = None,
    *,
    root: int = 0,
    domain: int | None = None,
    targets: Sequence[int] | None = None,
    inside: str | None = None,
    across: str | None = None,
) -> Schedule:
    """Messages that an algorithm sends to perform a collective.

    Parameters
    ----------
    collective : str
        all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, multicast, gather,
        scatter or point_to_point.
    algorithm : str
        One of ``available(collective)``.
    members : int
        n >= 1.
    size : float
        [B], nccl-tests convention: all-reduce, the buffer of a rank; all-gather, the whole
        output; reduce-scatter, the whole input; all-to-all, the whole send buffer of a rank;
        gather and scatter, the whole buffer of the root; otherwise the message.
    root : int
        Position that a rooted collective starts from or ends at.
    domain : int
        Neighbouring positions that form a domain of a two-level algorithm; divides n.
    targets : sequence of int
        Positions that a multicast goes to (only there).
    inside, across : str
        Algorithms inside and across domains of the hierarchical all-reduce, all-gather,
        reduce-scatter (ring unless said otherwise), broadcast (recursive_doubling), gather
        and scatter (direct).

    Returns
    -------
    Schedule

    Raises
    ------
    StrategyError
        Unknown names, a combination that makes no sense, or a number out of range.

    Notes
    -----
    ``direct`` and ``two_shot`` all-reduce are the same schedule; so are ``halving_doubling``
    and ``recursive_doubling`` all-gather. docs/contention.md lists steps, bytes and sources.
    """
    chosen = _algorithm(collective, algorithm)
    members = _count("members", members, 1, MOST_MEMBERS)
    levels = _levels(collective, algorithm, chosen, members, domain, inside, across)
    root = _count("root", root, 0, members - 1)
    if root and collective not in ROOTED:
        raise StrategyError(f"{collective} has no root, got root={root}")
    participants = _participants(collective, members, root, targets, levels)
    count = participants.size
    moved = chosen.build(count, levels) if levels else chosen.build(count)
    parts = chosen.parts(count)
    total, block_bytes = _sizes(collective, size, members, count, parts)
    origin, destination = _ownership(collective, members, participants, block_bytes.size)
    if collective in ROOTED:
        renamed = participants[:, None] if collective in ("gather", "scatter") else None
        moved = relabel(moved, participants, renamed)
    receivers = np.sort(participants) if collective != "gather" else participants[:1]
    return Schedule(
        collective,
        algorithm,
        members,
        total,
        *_messages(moved, members, block_bytes),
        block_bytes=block_bytes,
        block_origin=origin,
        block_destination=destination,
        receivers=receivers,
    )


def _algorithm(collective: str, algorithm: str) -> Algorithm:
    names = available(collective)
    if algorithm not in names:
        raise StrategyError(
            f"{collective} has no algorithm {algorithm!r}; it has: {', '.join(names)}"
        )
    return ALGORITHMS[collective][algorithm]


def _count(name: str, value: int, least: int, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise StrategyError(f"{name} must be a whole number, got {value!r}") from None
    if not least <= number <= most:
        raise StrategyError(f"{name} must lie between {least} and {most}, got {number}")
    return number


def _levels(
    collective: str,
    algorithm: str,
    chosen: Algorithm,
    members: int,
    domain: int | None,
    inside: str | None,
    across: str | None,
) -> Levels | None:
    if not chosen.two_level:
        for name, value in (("domain", domain), ("inside", inside), ("across", across)):
            if value is not None:
                raise StrategyError(
                    f"{algorithm} {collective} has no levels, leave {name}={value!r} out"
                )
        return None
    if domain is None:
        raise StrategyError(f"{algorithm} {collective} needs domain, the members of a domain")
    domain = _count("domain", domain, 1, members)
    if members % domain:
        raise StrategyError(f"domain must divide members, got {domain} and {members}")
    choices = LEVEL_CHOICES[collective]
    for name, value in (("inside", inside), ("across", across)):
        if value is not None and value not in choices:
            raise StrategyError(
                f"{name} of a {algorithm} {collective} is one of {', '.join(choices)}, "
                f"got {value!r}"
            )
    return Levels(domain, inside or choices[0], across or choices[0])


def _participants(
    collective: str,
    members: int,
    root: int,
    targets: Sequence[int] | None,
    levels: Levels | None,
) -> Integers:
    """Position in the group of every position of the algorithm, the root first."""
    if targets is not None and collective != "multicast":
        raise StrategyError(f"only a multicast has targets, got them for {collective}")
    if collective == "point_to_point" and members != 2:
        raise StrategyError(f"point_to_point has 2 members, got {members}")
    position = np.arange(members, dtype=np.int64)
    if collective == "multicast":
        if targets is None:
            raise StrategyError("a multicast needs targets, the positions that it goes to")
        listed = [_count("targets", target, 0, members - 1) for target in targets]
        if len(set(listed)) != len(listed) or root in listed:
            raise StrategyError(f"targets must be distinct and without the root, got {listed}")
        return np.array([root, *sorted(listed, key=lambda target: (target - root) % members)])
    if levels is None:
        return (position + root) % members
    # Turn domains and places, so that domains stay whole.
    domain = levels.domain
    return (position // domain + root // domain) % (members // domain) * domain + (
        position + root
    ) % domain


def _sizes(
    collective: str,
    size: float | None,
    members: int,
    count: int,
    parts: int,
) -> tuple[float, Floats]:
    """Size of the collective and of its blocks [B]."""
    if size is None:
        raise StrategyError(f"{collective} needs size, its bytes")
    if not isinstance(size, int | float | np.number) or not math.isfinite(size) or size < 0:
        raise StrategyError(f"size must be finite bytes >= 0, got {size!r}")
    size = float(size)
    if collective == "all_to_all":
        return size, np.full(members * members, size / members)
    if collective in OWNED_BY_SOURCE + OWNED_BY_TARGET:
        return size, np.full(count * parts, size / (count * parts))
    return size, np.full(parts, size / parts)


def _ownership(
    collective: str, members: int, participants: Integers, blocks: int
) -> tuple[Integers, Integers]:
    """Who has every block at first, and who in the end (EVERYONE for all)."""
    everyone = np.full(blocks, EVERYONE, dtype=np.int64)
    block = np.arange(blocks, dtype=np.int64)
    root = np.full(blocks, participants[0], dtype=np.int64)
    if collective == "all_to_all":
        return block // members, block % members
    if collective == "all_gather":
        return block % members, everyone
    if collective == "reduce_scatter":
        return everyone, block % members
    if collective == "gather":
        return block, root
    if collective == "scatter":
        return root, block
    if collective == "all_reduce":
        return everyone, everyone
    return root, everyone


def _messages(
    moved: Moves, members: int, block_bytes: Floats
) -> tuple[Integers, Integers, Integers, Floats, Flags, Integers, Integers]:
    """Join the moves of one step, source and target to messages; drop empty steps."""
    _, step = np.unique(moved.step, return_inverse=True)
    wide = members + 1
    key = (step * wide + moved.source + 1) * wide + moved.target + 1
    order = np.lexsort((moved.block, key))
    distinct, first = np.unique(key[order], return_index=True)
    offsets = np.append(first, key.size).astype(np.int64)
    blocks = moved.block[order]
    row = np.repeat(np.arange(distinct.size), np.diff(offsets))
    size = totals(row, block_bytes[blocks], distinct.size)
    rest, target = np.divmod(distinct, wide)
    step, source = np.divmod(rest, wide)
    reduces = moved.reduces[order][first]
    return step, source - 1, target - 1, size, reduces, offsets, blocks


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
