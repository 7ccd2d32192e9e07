"""Ranks that do the same at the same times, found by refining colours.

Two ranks start with one colour where their graphs are the same. A colour is split as long as
its ranks differ in what their collectives cost, in the colours of those whom they meet, or
in the colours of those with whom they exchange messages. Ranks of one final colour behave
alike, so one of them stands for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.workloads.simulation.graph import Rank
from perfmodel.workloads.simulation.meetings import Group, Messages
from perfmodel.workloads.simulation.rings import ring_pattern


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
