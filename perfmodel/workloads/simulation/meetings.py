"""Which collectives of different ranks belong together, and which messages.

The k-th collective of a group on one member belongs to the k-th on every other, in
ascending order of identifiers; likewise the messages of one source, destination and tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import FormatError, HardwareError
from perfmodel.workloads.simulation.costs import Costs, Ring, node_text
from perfmodel.workloads.simulation.graph import Graph, Rank
from perfmodel.workloads.trace import SEND, TraceSet


@dataclass(slots=True)
class Group:
    """Ranks that perform a series of collectives together.

    Attributes
    ----------
    name : str
        As messages call it.
    members : int64[members]
        In the order of the ring.
    involved : tuple of bool or None
    slots : int64[members]
        The slot of each member that is this group; -1: it does not use it.
    times : float64[collectives]
    tail : float
        See `Costs.collective_tail`.
    ring : Ring or None
        How its collectives go round, where members may end one by one.
    row : int64[collectives]
        Which row of it each one is.
    different : bytes
        Equal for groups whose collectives take the same times.
    busy, part : float64[collectives, levels]
    links : int
        See `Ports.occupancy`; without contention there are no levels.
    """

    name: str
    members: Integers
    involved: tuple[bool, ...] | None
    slots: Integers
    times: Floats = field(default_factory=lambda: np.zeros(0))
    tail: float = 0.0
    ring: Ring | None = None
    row: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    different: bytes = b""
    busy: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    part: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    links: int = 0


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of all ranks: every send and every receive, one row each, by rank and number.

    Attributes
    ----------
    offsets : int64[ranks + 1]
        Where a rank's rows begin.
    peer_rank, peer_number : int64[rows]
        Rank and number of the node at the other end.
    times : float64[rows]
    busy, part : float64[rows, levels]
        See `Ports.message_occupancy`; without contention there are no levels.
    links : int64[rows]
        Equal for messages of a rank that pass the same links: those to or from one peer.
    """

    offsets: Integers
    peer_rank: Integers
    peer_number: Integers
    times: Floats
    busy: Floats
    part: Floats
    links: Integers


def find_groups(
    traces: TraceSet, graphs: Sequence[Graph], ranks: Sequence[Rank], costs: Costs
) -> tuple[list[Group], list[list[int]]]:
    """Return all groups, and for every rank the group of each of its slots.

    Raises
    ------
    FormatError
        A group has no list of members, a member lacks its collectives, or they differ in
        kind or size.
    """
    finder = _Finder(traces, costs)
    of_rank = []
    for number, rank in enumerate(ranks):
        found = []
        for slot, (name, involved) in enumerate(rank.slots):
            group, place = finder.find(number, rank, graphs[rank.graph], slot, name, involved)
            finder.groups[group].slots[place] = slot
            found.append(group)
        of_rank.append(found)
    series = _Series(graphs)
    for found_group in finder.groups:
        _agree(found_group, graphs, ranks, series)
        _price(found_group, graphs, ranks, series, costs)
    return finder.groups, of_rank


class _Finder:
    """Groups by what ranks call them."""

    def __init__(self, traces: TraceSet, costs: Costs) -> None:
        self.traces = traces
        self.costs = costs
        self.groups: list[Group] = []
        self._named: dict[str, tuple[int, dict[int, int]]] = {}
        self._sliced: dict[tuple[bool, ...], tuple[int, Integers, Integers]] = {}

    def find(
        self,
        number: int,
        rank: Rank,
        graph: Graph,
        slot: int,
        name: str,
        involved: tuple[bool, ...] | None,
    ) -> tuple[int, int]:
        """Return the index of a rank's group, and the rank's place among its members."""
        if involved is not None:
            return self._slice(number, rank, graph, slot, involved)
        if name not in self._named:
            if name and name not in self.traces.groups:
                raise FormatError(
                    f"{_first_node(number, rank, graph, slot)}: communicator group '{name}' has "
                    f"no list of ranks; known: {', '.join(list(self.traces.groups)[:8]) or 'none'}"
                )
            members = self.traces.groups[name] if name else range(self.traces.devices)
            array = np.array(members, np.int64)
            if len(set(members)) != len(array) or not len(array):
                raise FormatError(f"communicator group '{name}' should name different ranks")
            if array.min() < 0 or array.max() >= self.traces.devices:
                raise FormatError(
                    f"communicator group '{name}' names rank "
                    f"{next(m for m in members if not 0 <= m < self.traces.devices)}; the "
                    f"workload has ranks 0 to {self.traces.devices - 1}"
                )
            text = f"group '{name}'" if name else "the group of all ranks"
            self._named[name] = (len(self.groups), {rank: i for i, rank in enumerate(members)})
            self.groups.append(Group(text, array, None, np.full(len(array), -1)))
        index, places = self._named[name]
        if number not in places:
            raise FormatError(
                f"{_first_node(number, rank, graph, slot)} uses group '{name}', which has no "
                f"rank {number}; it has {', '.join(map(str, list(places)[:8]))}"
            )
        return index, places[number]

    def _slice(
        self, number: int, rank: Rank, graph: Graph, slot: int, involved: tuple[bool, ...]
    ) -> tuple[int, int]:
        """Return the group of ranks that differ in the involved dimensions only."""
        if involved not in self._sliced:
            try:
                slices = self.costs.slices(involved, self.traces.devices)
            except (FormatError, HardwareError) as error:
                raise FormatError(f"{_first_node(number, rank, graph, slot)}: {error}") from None
            flags = "".join("1" if flag else "0" for flag in involved)
            of_rank = np.empty(slices.size, np.int64)
            place = np.empty(slices.size, np.int64)
            of_rank[slices] = np.arange(len(slices))[:, None]
            place[slices] = np.arange(slices.shape[1])
            self._sliced[involved] = (len(self.groups), of_rank, place)
            for members in slices:
                empty = np.full(len(members), -1)
                text = f"the group of rank {members[0]} over dimensions {flags}"
                self.groups.append(Group(text, members, involved, empty))
        first, of_rank, place = self._sliced[involved]
        return int(first + of_rank[number]), int(place[number])


class _Series:
    """Kind and size of the collectives of a graph's slots, each worked out once."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._graphs = graphs
        self._known: dict[tuple[int, int], tuple[Any, Integers, Integers, Integers]] = {}

    def of(self, graph: int, slot: int) -> tuple[Any, Integers, Integers, Integers]:
        """Return kind and size of each, the different pairs, and which pair each one is."""
        key = (graph, slot)
        if key not in self._known:
            found = self._graphs[graph]
            nodes = found.by_slot[slot]
            pairs = np.stack(
                [
                    found.column("collective")[nodes].astype(np.int64),
                    found.column("communication_size")[nodes],
                ],
                axis=1,
            )
            different, which = np.unique(pairs, axis=0, return_inverse=True)
            self._known[key] = (nodes, pairs, different, np.reshape(which, -1))
        return self._known[key]


def _first_node(number: int, rank: Rank, graph: Graph, slot: int, index: int = 0) -> str:
    """Return a collective of a rank's slot as messages name it."""
    nodes = graph.by_slot[slot]
    return node_text(rank.trace, int(rank.order[nodes[index]]), number)


def _agree(group: Group, graphs: Sequence[Graph], ranks: Sequence[Rank], series: _Series) -> None:
    """Raise unless all members have the same collectives."""
    absent = np.flatnonzero(group.slots < 0)
    present = np.flatnonzero(group.slots >= 0)
    if not present.size:  # a slice that no rank uses
        return
    first = int(present[0])
    number = int(group.members[first])
    if absent.size:
        node = _first_node(
            number, ranks[number], graphs[ranks[number].graph], int(group.slots[first])
        )
        raise FormatError(
            f"{node} meets {group.name}, but rank {group.members[absent[0]]} has no such "
            "collective; every member should have it"
        )
    wanted_slot = int(group.slots[first])
    wanted = series.of(ranks[number].graph, wanted_slot)[1]
    checked = {(ranks[number].graph, wanted_slot)}
    for place, member in enumerate(group.members):
        key = (ranks[member].graph, int(group.slots[place]))
        if key in checked:
            continue
        checked.add(key)
        found = series.of(*key)[1]
        shorter = min(len(found), len(wanted))
        wrong = np.flatnonzero((found[:shorter] != wanted[:shorter]).any(axis=1))
        if not wrong.size and len(found) == len(wanted):
            continue
        at = int(wrong[0]) if wrong.size else shorter
        texts = []
        for who, slot, pairs in ((number, wanted_slot, wanted), (int(member), key[1], found)):
            if at < len(pairs):
                node = _first_node(who, ranks[who], graphs[ranks[who].graph], slot, at)
                texts.append(f"{node}: {TRACED[pairs[at, 0]]} of {pairs[at, 1]} B")
            else:
                texts.append(f"rank {who}: none")
        raise FormatError(
            f"collective {at + 1} of {group.name} differs between its members: "
            f"{'; '.join(texts)}; kind and size should agree"
        )


def _price(
    group: Group, graphs: Sequence[Graph], ranks: Sequence[Rank], series: _Series, costs: Costs
) -> None:
    """Set the times of a group's collectives."""
    if group.slots.max() < 0:
        return
    number, slot = int(group.members[0]), int(group.slots[0])
    _, pairs, different, which = series.of(ranks[number].graph, slot)
    members = tuple(group.members.tolist())
    times = np.empty(len(different))
    ring: Ring | None = None
    busy = part = np.zeros((len(different), 0))
    links = 0
    for kind in np.unique(different[:, 0]):
        rows = np.flatnonzero(different[:, 0] == kind)
        try:
            times[rows] = costs.collective_times(
                int(kind), different[rows, 1], members, group.involved
            )
            own_ring = costs.ring(int(kind), different[rows, 1], members, group.involved)
            if own_ring is not None:
                ring = ring or Ring.empty(len(different), own_ring)
                ring.put(rows, own_ring)
            if costs.ports is not None:
                own, own_part, links = costs.ports.occupancy(int(kind), different[rows, 1], members)
                if not busy.size:
                    busy, part = np.zeros((2, len(different), own.shape[1]))
                busy[rows], part[rows] = own, own_part
        except HardwareError as error:
            at = int(np.flatnonzero(pairs[:, 0] == kind)[0])
            node = _first_node(number, ranks[number], graphs[ranks[number].graph], slot, at)
            raise FormatError(f"{node}, {TRACED[kind]} of {group.name}: {error}") from None
    group.times = times[which]
    group.tail = costs.collective_tail(members)
    group.ring, group.row = ring, which
    group.different = np.append(times, group.tail).tobytes()
    if ring is not None:
        group.different += ring.even.tobytes()
    if costs.ports is not None:
        group.busy, group.part, group.links = busy[which], part[which], links
        group.different += busy.tobytes() + part.tobytes() + str(links).encode()


def match_messages(graphs: Sequence[Graph], ranks: Sequence[Rank], costs: Costs) -> Messages | None:
    """Return both ends of all messages; None where there are none.

    Raises
    ------
    FormatError
        A send has no receive or a receive no send, their sizes differ, or a rank sends for
        another.
    """
    counts = [len(graphs[rank.graph].messages) for rank in ranks]
    offsets = np.zeros(len(ranks) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    if not offsets[-1]:
        return None
    owner = np.repeat(np.arange(len(ranks)), counts)
    number = np.concatenate([graphs[rank.graph].messages for rank in ranks])

    def column(name: str) -> Integers:
        parts = []
        for rank in ranks:
            positions = rank.order[graphs[rank.graph].messages]
            parts.append(rank.column(name)[positions])
        return np.concatenate(parts).astype(np.int64)

    def text(row: int) -> str:
        rank = ranks[owner[row]]
        return node_text(rank.trace, int(rank.order[number[row]]), int(owner[row]))

    sends = column("kinds") == SEND
    source, destination = column("source"), column("destination")
    source = np.where(sends & (source < 0), owner, source)
    destination = np.where(~sends & (destination < 0), owner, destination)
    tag = np.maximum(column("tag"), 0)
    size = column("communication_size")
    own = np.where(sends, source, destination)
    other = np.where(sends, destination, source)
    for wrong, reason in (
        (own != owner, "moves data of rank {own}; it should be that of its own rank"),
        ((other < 0) | (other >= len(ranks)), "has a peer {other} that is no rank"),
        (sends & (size < 0), "states no comm_size; it should be a number of bytes"),
    ):
        rows = np.flatnonzero(wrong)
        if rows.size:
            row = int(rows[0])
            raise FormatError(f"{text(row)} {reason.format(own=own[row], other=other[row])}")

    begin, finish = np.flatnonzero(sends), np.flatnonzero(~sends)
    begin = begin[np.lexsort((number[begin], tag[begin], destination[begin], source[begin]))]
    finish = finish[np.lexsort((number[finish], tag[finish], destination[finish], source[finish]))]
    keys = np.stack([source, destination, tag], axis=1)
    _check_ends(keys, begin, finish, text)
    wrong_size = np.flatnonzero((size[finish] >= 0) & (size[finish] != size[begin]))
    if wrong_size.size:
        row = int(wrong_size[0])
        raise FormatError(
            f"{text(begin[row])} sends {size[begin[row]]} B, but {text(finish[row])} receives "
            f"{size[finish[row]]} B; sizes should agree"
        )
    peer = np.empty(len(owner), np.int64)
    peer[begin], peer[finish] = finish, begin
    times = np.zeros(len(owner))
    times[begin] = costs.message_times(source[begin], destination[begin], size[begin])
    times[finish] = times[begin]
    busy = part = np.zeros((len(owner), 0))
    links = np.zeros(len(owner), np.int64)
    if costs.ports is not None:
        sent = size[np.where(sends, np.arange(len(owner)), peer)]
        busy, part = costs.ports.message_occupancy(source, destination, sent)
        if (part < 1.0).any():
            links = _first_seen(owner, owner[peer])
    return Messages(offsets, owner[peer], number[peer], times, busy, part, links)


def _first_seen(owner: Integers, peer: Integers) -> Integers:
    """Return a number for each peer of a rank, in the order in which the rank meets them."""
    known: dict[tuple[int, int], int] = {}
    met: dict[int, int] = {}
    found = np.empty(len(owner), np.int64)
    for row, pair in enumerate(zip(owner.tolist(), peer.tolist(), strict=True)):
        if pair not in known:
            known[pair] = met.get(pair[0], 0)
            met[pair[0]] = known[pair] + 1
        found[row] = known[pair]
    return found


def _check_ends(keys: Integers, begin: Integers, finish: Integers, text: Any) -> None:
    """Raise unless every send has its receive and the other way round."""
    shorter = min(len(begin), len(finish))
    wrong = np.flatnonzero((keys[begin[:shorter]] != keys[finish[:shorter]]).any(axis=1))
    if not wrong.size and len(begin) == len(finish):
        return
    at = int(wrong[0]) if wrong.size else shorter
    ends = []
    for rows, mine, theirs in ((begin, "sends", "receives"), (finish, "receives", "sends")):
        if at < len(rows):
            ends.append((tuple(keys[rows[at]]), int(rows[at]), mine, theirs))
    (source, destination, tag), row, mine, theirs = min(ends)
    peer = destination if mine == "sends" else source
    raise FormatError(
        f"{text(row)} {mine} from rank {source} to rank {destination} with tag {tag}, but "
        f"rank {peer} never {theirs} it"
    )
