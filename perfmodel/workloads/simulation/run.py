"""Execution traces run in time: `simulate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.simulation.contention import flows_on_ports, no_flows
from perfmodel.workloads.simulation.costs import Costs, node_text
from perfmodel.workloads.simulation.deadlock import explain_standstill
from perfmodel.workloads.simulation.graph import Graph, Rank
from perfmodel.workloads.simulation.hash_order import run_in_hash_order, same_numbers
from perfmodel.workloads.simulation.meetings import Group, Messages, find_groups, match_messages
from perfmodel.workloads.simulation.result import Simulation
from perfmodel.workloads.simulation.rings import RingColumns, ring_pattern
from perfmodel.workloads.simulation.sharing import share_graphs
from perfmodel.workloads.simulation.statistics import class_figures
from perfmodel.workloads.simulation.symmetry import met_by, rank_classes
from perfmodel.workloads.trace import TraceSet

MOST_EXPLAINED = 5_000_000  # nodes that are run again to say which ranks wait for each other
MOST_RUN = 50_000_000  # nodes of all ranks that are run where one rank cannot stand for others
MOST_EXACT = 2.0**53  # whole numbers that float64 tells apart


@dataclass(frozen=True, slots=True)
class Plan:
    """What the kernel runs: one rank of each class.

    Attributes
    ----------
    representatives : list of int
        Rank of each class.
    first : int64[classes + 1]
        Where the nodes of each begin in arrays over all of them.
    arguments : dict of str to array or int
        Of `kernels.trace.schedule.run_traces`.
    """

    representatives: list[int]
    first: Integers
    arguments: dict[str, Any]


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
    plan = _plan(
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
        plan = _plan(graphs, ranks, groups, of_rank, messages, classes, costs, by_place=True)
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


def _plan(
    graphs: Sequence[Graph],
    ranks: Sequence[Rank],
    groups: Sequence[Group],
    of_rank: Sequence[Sequence[int]],
    messages: Messages | None,
    classes: Integers,
    costs: Costs,
    by_place: bool = False,
) -> Plan:
    """Return what the kernel needs to run the first rank of each class.

    `by_place`: ranks of a class see the same around each ring, so that members may end apart.
    """
    representatives = np.unique(classes, return_index=True)[1].tolist()
    used = sorted({ranks[rank].graph for rank in representatives})
    static_first = dict(zip(used, _starts([graphs[graph].nodes for graph in used]), strict=False))
    edges = dict(zip(used, _starts([len(graphs[g].children) for g in used]), strict=False))
    first = _starts([graphs[ranks[rank].graph].nodes for rank in representatives])

    time = np.zeros(first[-1])
    partner = np.full(first[-1], -1, np.int64)
    blocks: dict[bytes, int] = {}
    instance_time: list[Floats] = []
    tail: list[Floats] = []
    rings = RingColumns(by_place)
    instances = 0

    def node_of(group: Group) -> Callable[[int], Integers]:
        def nodes_at(place: int) -> Integers:
            number = classes[group.members[place]]
            by_slot = graphs[ranks[representatives[number]].graph].by_slot
            nodes: Integers = first[number] + by_slot[group.slots[place]]
            return nodes

        return nodes_at

    for number, rank in enumerate(representatives):
        graph, begin = graphs[ranks[rank].graph], first[number]
        time[begin : first[number + 1]] = graph.local.times
        for slot, index in enumerate(of_rank[rank]):
            group = groups[index]
            key = group.different + b"|"
            if by_place and group.ring is not None:
                key += ring_pattern(group, classes)[0]
            else:
                key += met_by(group, classes)
            if key not in blocks:
                blocks[key] = instances
                instances += len(group.times)
                instance_time.append(group.times)
                tail.append(np.full(len(group.times), group.tail))
                rings.add(group, node_of(group))
            nodes = graph.by_slot[slot]
            partner[begin + nodes] = blocks[key] + np.arange(len(nodes))
        if messages is not None:
            rows = slice(messages.offsets[rank], messages.offsets[rank + 1])
            nodes = begin + graph.messages
            partner[nodes] = first[classes[messages.peer_rank[rows]]] + messages.peer_number[rows]
            time[nodes] = messages.times[rows]
    meeting = [
        first[number] + graphs[ranks[rank].graph].collectives
        for number, rank in enumerate(representatives)
    ]
    met = np.concatenate([np.zeros(0, np.int64), *meeting])
    met = met[np.argsort(partner[met], kind="stable")]
    instance_first = np.zeros(instances + 1, np.int64)
    np.cumsum(np.bincount(partner[met], minlength=instances), out=instance_first[1:])

    def joined(name: str) -> Integers:
        columns = [getattr(graphs[graph], name) for graph in used]
        return columns[0] if len(columns) == 1 else np.concatenate(columns)

    offsets = [graphs[graph].child_offsets + edges[graph] for graph in used]
    resource = joined("resource")
    arguments = {
        "static_first": np.array([static_first[ranks[r].graph] for r in representatives], np.int64),
        "first": first,
        "child_first": np.concatenate([column[:-1] for column in offsets]),
        "child_end": np.concatenate([column[1:] for column in offsets]),
        "children": joined("children"),
        "parents": joined("parents"),
        "resource": resource,
        "role": joined("role"),
        "time": time,
        "partner": partner,
        "instance_first": instance_first,
        "instance_nodes": met,
        "instance_time": np.concatenate([np.zeros(0), *instance_time]),
        "tail": np.concatenate([np.zeros(0), *tail]),
        "rings": rings.columns(),
        "resources": int(resource.max(initial=0)) + 1,
        "together": not costs.whole,
        "flows": no_flows(),
    }
    if costs.ports is not None:
        arguments["flows"] = flows_on_ports(
            graphs, ranks, groups, of_rank, messages, representatives, first, partner, instances
        )
    return Plan(representatives, first, arguments)


def _starts(lengths: Sequence[int]) -> Integers:
    """Return where each of several pieces begins, and where the last one ends."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


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
