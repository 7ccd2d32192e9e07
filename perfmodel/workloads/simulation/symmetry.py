"""Ranks that do the same at the same times, found by refining colours.

Two ranks start with one colour where their graphs are the same. A colour is split as long as
its ranks differ in what their collectives cost, in the colours of those whom they meet, or
in the colours of those with whom they exchange messages. Ranks of one final colour behave
alike, so one of them stands for all. Where members of a ring end one by one, what repeats
around it counts too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Flags, Integers
from perfmodel.workloads.simulation.graph import Rank
from perfmodel.workloads.simulation.meetings import Group, Messages
from perfmodel.workloads.trace import ABSENT

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.trace.schedule import Rings


def ring_pattern(group: Group, colours: Integers) -> tuple[bytes, Integers]:
    """Return what repeats around a group's ring, and the place of each member in it.

    Members at one place of equal patterns see the same around them, whoever they are.

    Parameters
    ----------
    group : Group
        With a ring.
    colours : int64[ranks]

    Returns
    -------
    pattern : bytes
        Colours, slots and hops of the shortest part that repeats.
    places : int64[members]
    """
    assert group.ring is not None
    order, times = group.ring.order, group.ring.times
    around = [colours[group.members[order]], group.slots[order]]
    if not group.ring.even.all():
        around += list(times)
    rows = np.column_stack(around)
    members = len(order)
    period = next(
        part
        for part in range(1, members + 1)
        if members % part == 0 and (rows[part:] == rows[:-part]).all()
    )
    places = np.empty(members, np.int64)
    places[order] = np.arange(members) % period
    return rows[:period].tobytes(), places


class RingColumns:
    """The rings of groups, one group after another.

    Parameters
    ----------
    known : bool
        Ranks that stand for others see the same around them; else nothing is said of any ring.
    """

    def __init__(self, known: bool) -> None:
        self._known = known
        self._even: list[Flags] = []
        self._of: list[Integers] = []
        self._rows: list[Integers] = []
        self._first: list[Integers] = []
        self._times: list[Integers] = []
        self._place_first: list[Integers] = []
        self._places: list[Integers] = []
        self._ends = [0, 0, 0]  # rows, times and places so far

    def add(self, group: Group, node_of: Callable[[int], Integers]) -> None:
        """Add a group's collectives, which are the next instances.

        Parameters
        ----------
        group : Group
        node_of : callable
            Place among the members -> int64[collectives], dynamic indices of the nodes with
            which that member, or who stands for it, takes part.
        """
        ring, count = group.ring, len(group.times)
        self._even.append(np.ones(count, np.bool_) if ring is None else ring.even[group.row])
        if ring is None or not self._known or (ring.rows == ABSENT).all():
            self._of.append(np.full(count, ABSENT))
            self._place_first.append(np.zeros(count, np.int64))
            return
        row, time, place = self._ends
        sizes, members = ring.times.shape
        self._of.append(np.where(ring.rows[group.row, 0] == ABSENT, ABSENT, row + group.row))
        self._rows.append(ring.rows)
        self._first.append(time + np.arange(sizes) * members)
        self._times.append(ring.times.reshape(-1))
        self._place_first.append(place + np.arange(count) * members)
        self._places.append(np.stack([node_of(at) for at in ring.order], axis=1).reshape(-1))
        self._ends = [row + sizes, time + ring.times.size, place + count * members]

    def columns(self) -> Rings:
        """Return all of them."""
        from perfmodel.kernels.workloads.astra.ranks import RING_COLUMNS
        from perfmodel.kernels.workloads.trace.schedule import Rings

        def joined(parts: list[Integers]) -> Integers:
            return np.concatenate([np.zeros(0, np.int64), *parts])

        return Rings(
            joined(self._of),
            np.concatenate([np.zeros((0, RING_COLUMNS), np.int64), *self._rows]),
            joined(self._first),
            joined(self._times),
            np.concatenate([np.zeros(0, np.bool_), *self._even]),
            joined(self._place_first),
            joined(self._places),
        )


def rank_classes(
    ranks: Sequence[Rank],
    groups: Sequence[Group],
    of_rank: Sequence[Sequence[int]],
    messages: Messages | None,
    by_place: bool = False,
) -> Integers:
    """Return each rank's class, numbered from 0 in the order of their first ranks.

    Parameters
    ----------
    ranks : sequence of Rank
    groups : sequence of Group
    of_rank : sequence of sequence of int
        Group of each slot of a rank.
    messages : Messages or None
    by_place : bool
        Ranks of a class also see the same around each ring: see `ring_pattern`.

    Returns
    -------
    int64[ranks]
    """
    colours = _numbered([rank.graph for rank in ranks])
    while True:
        places: dict[tuple[int, int], int] = {}
        around = []
        for group in groups:
            if by_place and group.ring is not None:
                pattern, own = ring_pattern(group, colours)
                places |= zip(
                    zip(group.members.tolist(), group.slots.tolist(), strict=True),
                    own.tolist(),
                    strict=True,
                )
            else:
                pattern = met_by(group, colours)
            around.append((group.different, pattern))
        met = _numbered(around)
        said = [
            (
                colour,
                tuple(
                    (met[group], places.get((rank, slot), 0))
                    for slot, group in enumerate(of_rank[rank])
                ),
                b"" if messages is None else _exchanged(messages, rank, colours),
            )
            for rank, colour in enumerate(colours.tolist())
        ]
        finer = _numbered(said)
        if finer.max(initial=-1) == colours.max(initial=-1):
            return colours
        colours = finer


def met_by(group: Group, colours: Integers) -> bytes:
    """Return which colours meet in a group, each with the slot in which it does."""
    return np.unique((colours[group.members] << 32) + group.slots).tobytes()


def _exchanged(messages: Messages, rank: int, colours: Integers) -> bytes:
    """Return with whom a rank exchanges which messages."""
    rows = slice(messages.offsets[rank], messages.offsets[rank + 1])
    return (
        colours[messages.peer_rank[rows]].tobytes()
        + messages.peer_number[rows].tobytes()
        + messages.times[rows].tobytes()
        + messages.busy[rows].tobytes()
        + messages.part[rows].tobytes()
        + messages.links[rows].tobytes()
    )


def _numbered(keys: Sequence[object]) -> Integers:
    """Return a number per different key, in the order of first appearance."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
