"""Why a simulation stands still: who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.workloads.simulation.costs import node_text
from perfmodel.workloads.simulation.graph import UNLIMITED, Graph, Rank

if TYPE_CHECKING:
    from perfmodel.workloads.simulation.run import Plan

MOST_NAMED = 6
OWN_TURN = "waits for its turn"
# What helps where nothing but the number of queues makes ranks wait for each other.
ONE_ORDER = (
    "ranks take up communication in different orders; traces that keep one order, as "
    "'perfmodel workload chakra --serial-communication' writes them, or --streams per-group "
    "avoid it"
)


def explain_standstill(
    plan: Plan, graphs: Sequence[Graph], ranks: Sequence[Rank], start: Floats, end: Floats
) -> str:
    """Return one line that names nodes which wait for each other.

    Parameters
    ----------
    plan : Plan
    graphs : sequence of Graph
    ranks : sequence of Rank
    start, end : float64[nodes]
        As `run_traces` returns them; not all have ended.
    """
    waits = _Waits(plan, graphs, ranks, start, end)
    node = int(np.flatnonzero(end < 0)[0])
    path: list[int] = []
    seen: dict[int, int] = {}
    reasons = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node, reason = waits.next(node)
        reasons.append(reason)
    cycle = path[seen[node] :]
    texts = [
        f"{waits.text(member)} {reason}"
        for member, reason in zip(cycle, reasons[seen[node] :], strict=True)
    ]
    if len(texts) > MOST_NAMED:
        texts = [*texts[: MOST_NAMED - 1], f"… {len(texts) - MOST_NAMED} more", texts[-1]]
    left = int((end < 0).sum())
    hint = f" ({ONE_ORDER})" if OWN_TURN in reasons[seen[node] :] else ""
    return (
        f"{left} nodes never end, because nodes wait for each other: {' → '.join(texts)} → "
        f"{waits.text(cycle[0])}{hint}"
    )


class _Waits:
    """What each node that has not ended waits for."""

    def __init__(
        self,
        plan: Plan,
        graphs: Sequence[Graph],
        ranks: Sequence[Rank],
        start: Floats,
        end: Floats,
    ) -> None:
        self._plan = plan
        self._graphs = graphs
        self._ranks = ranks
        self._start = start
        self._end = end

    def text(self, node: int) -> str:
        """Return a node as messages name it."""
        rank, _, number = self._place(node)
        return node_text(rank.trace, int(rank.order[number]), self._rank(node))

    def next(self, node: int) -> tuple[int, str]:
        """Return what a node waits for, and how."""
        arguments = self._plan.arguments
        _, graph, number = self._place(node)
        if self._start[node] >= 0:  # it has begun: somebody else is missing
            if number in graph.messages:
                return int(arguments["partner"][node]), "waits for its message"
            instance = arguments["partner"][node]
            first, last = arguments["instance_first"][instance : instance + 2]
            members = arguments["instance_nodes"][first:last]
            absent = members[self._start[members] < 0]
            if absent.size:
                return int(absent[0]), "waits for another member"
            # All have begun, but each other's messages are not those that they wait for.
            others = members[(self._end[members] < 0) & (members != node)]
            return int(others[0]) if others.size else node, "waits for messages of"
        first = node - number
        lengths = np.diff(graph.child_offsets)
        parents = first + np.repeat(np.arange(graph.nodes), lengths)[graph.children == number]
        waiting = parents[self._end[parents] < 0]
        if waiting.size:
            return int(waiting[0]), "waits for its parent"
        own = slice(first, first + graph.nodes)
        holds = (
            (graph.resource == graph.resource[number])
            & (graph.resource != UNLIMITED)
            & (self._start[own] >= 0)
            & (self._end[own] < 0)
        )
        return first + int(np.flatnonzero(holds)[0]), OWN_TURN

    def _rank(self, node: int) -> int:
        """Return the rank of a node."""
        number = int(np.searchsorted(self._plan.first, node, side="right")) - 1
        return self._plan.representatives[number]

    def _place(self, node: int) -> tuple[Rank, Graph, int]:
        """Return a node's rank, graph and number."""
        rank = self._ranks[self._rank(node)]
        number = int(np.searchsorted(self._plan.first, node, side="right")) - 1
        return rank, self._graphs[rank.graph], int(node - self._plan.first[number])
