"""Traces run as ASTRA-sim did before April 2025: ready nodes begin in hash order.

Those releases looked through ready nodes in the order of a ``std::unordered_set``, which
depends on the numbers of the nodes, on the order in which they became ready, and on
libstdc++. Ranks with other numbers may begin other collectives first, and then stand still.

Sources: libstdc++, `bits/hashtable.h` (``_M_insert_bucket_begin``, ``_M_rehash_aux``) and
`bits/hashtable_policy.h` (``_Prime_rehash_policy``); Chakra's feeder,
`feeder_v3/dependancy_solver.cpp`; ASTRA-sim, `workload/Workload.cc`
(``issue_dep_free_nodes``) and `system/Sys.cc` (a collective's messages are tagged with the
number of collectives that its rank began before).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import FormatError
from perfmodel.workloads.simulation.graph import UNLIMITED, Graph, Rank

if TYPE_CHECKING:
    from perfmodel.workloads.simulation.plan import Plan

# Buckets after each growth, when numbers are added one by one.
BUCKETS = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061,
           712697, 1447153, 2938679, 5967347, 12117689)  # fmt: skip


class HashSet:
    """A ``std::unordered_set<uint64_t>`` of libstdc++, as to the order of what is in it.

    A number in an empty bucket comes first of all; in another, first of its bucket. When
    there are as many numbers as buckets, there become more, and all are put in again.

    Examples
    --------
    >>> numbers = HashSet()
    >>> for number in (1, 2, 14, 3):
    ...     numbers.add(number)
    >>> list(numbers)
    [3, 2, 14, 1]
    """

    __slots__ = ("_buckets", "_growths", "_modulus", "_numbers")

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}  # in either, what was added last comes first
        self._growths = iter(BUCKETS)
        self._modulus = 0
        self._numbers: set[int] = set()

    def add(self, number: int) -> None:
        """Add a number."""
        if number in self._numbers:
            return
        if len(self._numbers) == self._modulus:
            self._grow()
        self._numbers.add(number)
        self._buckets.setdefault(number % self._modulus, []).append(number)

    def remove(self, number: int) -> None:
        """Remove a number."""
        self._numbers.remove(number)
        bucket = self._buckets[number % self._modulus]
        bucket.remove(number)
        if not bucket:
            del self._buckets[number % self._modulus]

    def __iter__(self) -> Iterator[int]:
        for bucket in reversed(self._buckets.values()):
            yield from reversed(bucket)

    def _grow(self) -> None:
        """Put all numbers into more buckets."""
        numbers = list(self)
        self._modulus = next(self._growths, 0)
        if not self._modulus:
            raise FormatError(f"a rank has more than {BUCKETS[-1]} nodes; hash order covers fewer")
        self._buckets = {}
        for number in numbers:
            self._buckets.setdefault(number % self._modulus, []).append(number)


class _Rank:
    """A rank as Chakra's feeder holds it.

    Attributes
    ----------
    ready : HashSet
        Identifiers.
    number : dict of int to int
        Identifier to the node's number.
    busy : set of int
        Resources in use.
    in_flight, begun : int
        Nodes under way; collectives begun so far.
    """

    def __init__(self, rank: Rank, graph: Graph) -> None:
        trace = rank.trace
        self.identifiers = trace.identifiers[rank.order].tolist()
        self.number = {identifier: node for node, identifier in enumerate(self.identifiers)}
        self.ready = HashSet()
        self.busy: set[int] = set()
        self.in_flight = self.begun = 0
        self._children: dict[int, HashSet] = {}
        self._waiting: dict[int, int] = {}
        lists = [trace.data_parents]
        if len(graph.trace.control_parents.values):  # else there are none, or they are ignored
            lists.append(trace.control_parents)
        known = HashSet()  # the keys of a map that says which parents a node waits for
        for place, identifier in enumerate(trace.identifiers.tolist()):
            parents = HashSet()
            for of_kind in lists:
                for parent in of_kind[place].tolist():
                    parents.add(parent)
            known.add(identifier)
            for parent in parents:
                known.add(parent)
                self._children.setdefault(parent, HashSet()).add(identifier)
                self._waiting[identifier] = self._waiting.get(identifier, 0) + 1
        for identifier in known:
            if identifier not in self._waiting:
                self.ready.add(identifier)

    def finish(self, node: int) -> None:
        """Let children begin that waited for this node only."""
        for child in self._children.pop(self.identifiers[node], ()):
            self._waiting[child] -= 1
            if not self._waiting[child]:
                self.ready.add(child)


def same_numbers(ranks: Sequence[Rank]) -> bool:
    """Return whether ranks that share a graph have the same identifiers in the same order."""
    first: dict[int, Rank] = {}
    return all(
        rank.trace.identifiers is first.setdefault(rank.graph, rank).trace.identifiers
        or np.array_equal(rank.trace.identifiers, first[rank.graph].trace.identifiers)
        for rank in ranks
    )


def run_in_hash_order(
    plan: Plan, graphs: Sequence[Graph], ranks: Sequence[Rank]
) -> tuple[Floats, Floats, Integers]:
    """Run the operations of all ranks; arguments and results as of `run_traces`.

    Parameters
    ----------
    plan : Plan
    graphs : sequence of Graph
    ranks : sequence of Rank

    Returns
    -------
    start, end : float64[nodes]
        `NOT_YET` where a node never begins or ends.
    order : int64[nodes]
        Nodes in the order in which they ended; -1 behind the last.
    """
    return _Run(plan, graphs, ranks).run()


class _Run:
    """Events of all ranks, earliest first, then in the order in which they were scheduled."""

    def __init__(self, plan: Plan, graphs: Sequence[Graph], ranks: Sequence[Rank]) -> None:
        from perfmodel.kernels.workloads.trace.schedule import NOT_YET

        self.first = plan.first.tolist()
        chosen = [ranks[rank] for rank in plan.representatives]
        self.ranks = [_Rank(rank, graphs[rank.graph]) for rank in chosen]
        shared = [graphs[rank.graph] for rank in chosen]
        self.role = [role for graph in shared for role in graph.role.tolist()]
        self.resource = [resource for graph in shared for resource in graph.resource.tolist()]
        self.owner = np.repeat(np.arange(len(chosen)), np.diff(plan.first)).tolist()
        self.said: list[tuple[int, int]] = []  # kind and size of a collective
        for graph in shared:
            columns = [graph.column(name) for name in ("collective", "communication_size")]
            self.said += zip(*(column.tolist() for column in columns), strict=True)
        given = plan.arguments
        self.time, self.partner = given["time"].tolist(), given["partner"].tolist()
        self.instance_time, self.tail = given["instance_time"].tolist(), given["tail"].tolist()
        begins = given["instance_first"].tolist()
        self.members = [
            tuple(self.owner[node] for node in given["instance_nodes"][begin:end].tolist())
            for begin, end in pairwise(begins)
        ]
        self.start = np.full(len(self.role), NOT_YET)
        self.end = np.full(len(self.role), NOT_YET)
        self.ended: list[int] = []
        self.events: list[tuple[float, float, int, tuple[int, ...]]] = []
        self.scheduled = count()
        self.meetings: dict[tuple[object, ...], list[int]] = {}

    def run(self) -> tuple[Floats, Floats, Integers]:
        """Run until nothing is left to happen."""
        for rank in range(len(self.ranks)):
            self._look_through(rank, 0.0)
        while self.events:
            now, _, _, nodes = heapq.heappop(self.events)
            finished = [*nodes]
            for node in nodes:
                self._finish(node, now)
                if self._is_awaited(node):
                    finished.append(self.partner[node])
                    self._finish(self.partner[node], now)
            for node in finished:
                self._look_through(self.owner[node], now)
        order = np.full(len(self.role), -1, np.int64)
        order[: len(self.ended)] = self.ended
        return self.start, self.end, order

    def _look_through(self, number: int, now: float) -> None:
        """Begin a rank's ready nodes whose resource is free."""
        from perfmodel.kernels.workloads.trace.schedule import INSTANT

        rank, first = self.ranks[number], self.first[number]
        again = True
        while again:
            again = False
            for identifier in list(rank.ready):
                node = first + rank.number[identifier]
                resource = self.resource[node]
                if resource in rank.busy:
                    continue
                rank.ready.remove(identifier)
                self.start[node] = now
                if self.role[node] == INSTANT:
                    self.end[node] = now
                    self.ended.append(node)
                    rank.finish(node - first)
                    again = True
                    continue
                rank.in_flight += 1
                if resource != UNLIMITED:
                    rank.busy.add(resource)
                self._begin(node, now)
            # ASTRA-sim would never look again at a rank that has nothing in flight.
            again = again and not rank.in_flight

    def _begin(self, node: int, now: float) -> None:
        """Schedule the end of a node that begins."""
        from perfmodel.kernels.workloads.trace.schedule import COLLECTIVE, RECEIVE

        role, partner = self.role[node], self.partner[node]
        if role == COLLECTIVE:
            rank = self.ranks[self.owner[node]]
            key = (self.members[partner], rank.begun, *self.said[node])
            rank.begun += 1
            present = self.meetings.setdefault(key, [])
            present.append(node)
            if len(present) == len(self.members[partner]):
                finish = now + self.instance_time[partner]
                self._schedule(finish, max(now, finish - self.tail[partner]), tuple(present))
        elif role != RECEIVE:
            self._schedule(now + self.time[node], now, (node,))
        elif self.end[partner] >= 0.0:
            self._schedule(now, now, (node,))

    def _schedule(self, finish: float, made: float, nodes: tuple[int, ...]) -> None:
        """Add an event."""
        heapq.heappush(self.events, (finish, made, next(self.scheduled), nodes))

    def _finish(self, node: int, now: float) -> None:
        """End a node."""
        rank = self.ranks[self.owner[node]]
        self.end[node] = now
        self.ended.append(node)
        rank.in_flight -= 1
        rank.busy.discard(self.resource[node])
        rank.finish(node - self.first[self.owner[node]])

    def _is_awaited(self, node: int) -> bool:
        """Return whether a receiver waits for what this node sent."""
        from perfmodel.kernels.workloads.trace.schedule import SEND

        if self.role[node] != SEND:
            return False
        other = self.partner[node]
        return bool(self.start[other] >= 0.0 and self.end[other] < 0.0)
