"""Execution traces run in time: `simulate`; why a run stands still: who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.simulation.costs import Costs, node_text
from perfmodel.workloads.simulation.graph import UNLIMITED, Graph, Rank, share_graphs
from perfmodel.workloads.simulation.hash_order import run_in_hash_order, same_numbers
from perfmodel.workloads.simulation.meetings import find_groups, match_messages
from perfmodel.workloads.simulation.plan import make_plan
from perfmodel.workloads.simulation.result import Simulation, class_figures
from perfmodel.workloads.simulation.symmetry import rank_classes
from perfmodel.workloads.trace import TraceSet

if TYPE_CHECKING:
    from perfmodel.workloads.simulation.plan import Plan

MOST_EXPLAINED = 5_000_000  # nodes that are run again to say which ranks wait for each other
MOST_RUN = 50_000_000  # nodes of all ranks that are run where one rank cannot stand for others
MOST_EXACT = 2.0**53  # whole numbers that float64 tells apart


def simulate(
    traces: TraceSet,
    costs: Costs,
    *,
    memory: bool = True,
    symmetry: bool = True,
    control_parents: str = "auto",
    issue_order: str = "identifier",
) -> Simulation:
    """Run what all ranks do.

    A rank does one thing at a time on its device, one in communication and one on its host;
    receives wait beside them. Whenever something ends, all its nodes whose parents have
    ended are looked through in ascending order of identifier, and begin where their
    resource is free.
    A collective runs from the moment its last member begins it, and takes the time that it
    takes alone; longer where the cost model has `contention` and others use its ports. Where it
    has a `machine`, that runs every rank and message by itself.
    What ends at one moment ends before anything begins; with `AstraCosts` one after another,
    as in ASTRA-sim.

    Parameters
    ----------
    traces : TraceSet
        One trace alone replays its communication as recorded.
    costs : Costs
        `AstraCosts`, `HardwareCosts` or `NetworkCosts`.
    memory : bool
        Also follow the tensors that nodes read and write.
    symmetry : bool
        Run ranks that behave alike once; the result is the same. Where ASTRA-sim's order of
        two events of one nanosecond follows from the numbers of ranks, every rank is run,
        up to `MOST_RUN` nodes.
    control_parents : {"auto", "obey", "ignore"}
        Whether nodes wait for their control parents; by default not in recordings, where
        they say which operation called which: PyTorch's, and traces alone whose control
        parents are no nodes.
    issue_order : {"identifier", "hash"}
        hash: ready nodes begin in the order in which ASTRA-sim began them before April 2025
        (`perfmodel.workloads.simulation.hash_order`), about 30,000 nodes/s.

    Returns
    -------
    Simulation

    Raises
    ------
    FormatError
        Parents are missing or wait for each other, collectives or messages do not fit
        together, a node cannot be priced.
    HardwareError
        The cost model does not cover the system.

    Examples
    --------
    >>> from perfmodel.workloads.twins.astra.collective import AstraNetwork, uniform_system
    >>> from perfmodel.workloads.twins.astra.costs import AstraCosts
    >>> from perfmodel.workloads.trace import COLLECTIVE, TraceBuilder
    >>> builder = TraceBuilder()
    >>> _ = builder.add("sum", COLLECTIVE, collective=0, communication_size=2**20)
    >>> network = AstraNetwork(("Ring",), (16,), (50.0,), (500.0,))
    >>> costs = AstraCosts(network, uniform_system(["ring"]))
    >>> result = simulate(TraceSet((builder.build(),) * 16), costs)
    >>> result.ticks("wall_time")[0], len(result.classes)
    (53710, 1)
    """
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.trace import schedule as kernel

    if not traces.devices:
        raise FormatError("a workload of no rank; it should have one trace at least")
    if traces.devices > 1:
        costs.check(traces.devices)
    if control_parents not in ("auto", "obey", "ignore"):
        raise DataError(f"control_parents '{control_parents}'; it should be auto, obey or ignore")
    if issue_order not in ("identifier", "hash"):
        raise DataError(f"issue_order '{issue_order}'; it should be identifier or hash")
    by_hash = issue_order == "hash"
    machine = costs.machine if traces.devices > 1 else None
    if by_hash and (costs.ports is not None or machine is not None):
        raise DataError("issue_order 'hash' knows no contention; it should be identifier")
    graphs, ranks = share_graphs(traces, costs, memory, control_parents)
    groups, of_rank = find_groups(traces, graphs, ranks, costs)
    messages = match_messages(graphs, ranks, costs)
    classes = np.arange(len(ranks))
    if symmetry and machine is None and not (by_hash and not same_numbers(ranks)):
        classes = rank_classes(ranks, groups, of_rank, messages)
    every = np.arange(len(ranks))
    plan = make_plan(
        graphs,
        ranks,
        groups,
        of_rank,
        messages,
        classes,
        costs,
        len(np.unique(classes)) == len(ranks),
    )
    _check_sum(plan, costs, ranks)
    if by_hash:
        start, end, order = run_in_hash_order(plan, graphs, ranks)
        tied = apart = False
    elif machine is not None:
        start, end, order = machine.run(plan, graphs, ranks, groups, of_rank, messages)
        tied = apart = False
    else:
        with kernel_work(nodes=plan.first[-1]):
            start, end, order, tied, apart = kernel.run_traces(**plan.arguments)
    stuck = bool(len(order) and order[-1] < 0)
    if by_hash and stuck:
        raise FormatError(
            f"in hash order {int((end < 0).sum())} nodes never end: ranks begin other "
            "collectives first and wait for each other, as in ASTRA-sim before April 2025; "
            "the order of identifiers may do"
        )
    finer = []
    if len(plan.representatives) < len(ranks):
        # In ASTRA-sim a rank's place in a ring decides when it ends, and its number may decide
        # what it sees first; ranks that stand for others would seem to wait for themselves.
        if apart and costs.whole and not (tied or stuck):
            finer.append(rank_classes(ranks, groups, of_rank, messages, by_place=True))
        if traces.nodes <= (MOST_EXPLAINED if stuck else MOST_RUN):
            finer.append(every)
    for again in finer:
        if not (stuck or ((tied or apart) and costs.whole)):
            break
        classes = again
        plan = make_plan(graphs, ranks, groups, of_rank, messages, classes, costs, by_place=True)
        with kernel_work(nodes=plan.first[-1]):
            start, end, order, tied, apart = kernel.run_traces(**plan.arguments)
        stuck = bool(len(order) and order[-1] < 0)
    if apart and not stuck and len(plan.representatives) == len(ranks):
        # No meeting says how members end that begin apart, but for rings: message by message.
        found = costs.run_apart(plan, graphs, ranks, groups, of_rank, messages)
        if found is not None:
            start, end, order = found
            apart = False
    if stuck:
        raise FormatError(explain_standstill(plan, graphs, ranks, start, end))

    figures = []
    for number, rank in enumerate(plan.representatives):
        own = slice(plan.first[number], plan.first[number + 1])
        figures.append(
            class_figures(graphs[ranks[rank].graph], ranks[rank], start[own], end[own], costs.whole)
        )
    _set_memory(figures, plan, graphs, ranks, start, end, order)
    return Simulation(
        representative=np.array(plan.representatives, np.int64)[classes],
        classes=tuple(figures),
        class_of_rank=classes,
        tick=costs.tick,
        whole=costs.whole,
        nodes=traces.nodes,
        contention=costs.ports is not None,
        together=apart and costs.whole,
    )


def _check_sum(plan: Plan, costs: Costs, ranks: Sequence[Rank]) -> None:
    """Raise where times could become inexact or leave the range of numbers."""
    time, instance_time = plan.arguments["time"], plan.arguments["instance_time"]
    total = float(time.sum() + instance_time.sum())
    if np.isfinite(total) and not (costs.whole and total >= MOST_EXACT):
        return
    lasts = time.copy()
    met = plan.arguments["instance_nodes"]
    lasts[met] = instance_time[plan.arguments["partner"][met]]
    node = int(lasts.argmax())
    number = int(np.searchsorted(plan.first, node, side="right")) - 1
    rank = ranks[plan.representatives[number]]
    position = int(rank.order[node - plan.first[number]])
    raise FormatError(
        f"durations add up to {total * costs.tick:.3g} s, which cannot be counted "
        + ("in whole nanoseconds; " if costs.whole else "; ")
        + f"longest is {node_text(rank.trace, position, plan.representatives[number])} with "
        f"{lasts[node] * costs.tick:.3g} s, whose duration, operations or size may be out of range"
    )


def _set_memory(
    figures: Sequence[Any],
    plan: Plan,
    graphs: Sequence[Graph],
    ranks: Sequence[Rank],
    start: Floats,
    end: Floats,
    order: Integers,
) -> None:
    """Set the peak memory of each class that has tensors."""
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.trace import schedule as kernel

    tensors = [graphs[ranks[rank].graph].tensors for rank in plan.representatives]
    if not any(tensors):
        return
    owner = np.searchsorted(plan.first, order, side="right") - 1
    if len(tensors) < 2**16:
        owner = owner.astype(np.uint16)  # sorted by radix
    by_class = order[np.argsort(owner, kind="stable")]
    for number, found in enumerate(tensors):
        if found is None:
            continue
        own = slice(plan.first[number], plan.first[number + 1])
        with kernel_work(nodes=0.2 * (own.stop - own.start)):
            figures[number].peak_memory = float(
                kernel.peak_memory(
                    by_class[own] - plan.first[number],
                    start[own],
                    end[own],
                    found.inputs.offsets,
                    found.inputs.values,
                    found.outputs.offsets,
                    found.outputs.values,
                    found.key,
                    found.size,
                    int(found.key.max(initial=-1)) + 1,
                )
            )


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
