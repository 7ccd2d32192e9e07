"""What the event loop is told: one rank of each class, collectives and ports numbered.

A device has one port into every level of the network, with the bandwidth that the profile's
network model gives a device there, oversubscription included: shared uplinks are thereby
shared already, as that model has every device use its part at once. What leaves and what
arrives do not meet. Where a group has only some of a device's links into a level (tori, full
connections), these are a port of their own within the whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.workloads.simulation.costs import Costs
from perfmodel.workloads.simulation.graph import Graph, Rank
from perfmodel.workloads.simulation.meetings import Group, Messages
from perfmodel.workloads.simulation.symmetry import RingColumns, met_by, ring_pattern

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.trace.contention import Flows


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


def make_plan(
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


OUT, IN = 0, 1
WHOLE_PORT = -1


def no_flows() -> Flows:
    """Return that nothing shares anything."""
    from perfmodel.kernels.workloads.trace.contention import Flows

    none, nothing = np.zeros(0, np.int64), np.zeros(0)
    return Flows(np.zeros(1, np.int64), none, nothing, nothing, none, none, 0)


def flows_on_ports(
    graphs: Sequence[Graph],
    ranks: Sequence[Rank],
    groups: Sequence[Group],
    of_rank: Sequence[Sequence[int]],
    messages: Messages | None,
    representatives: Sequence[int],
    first: Integers,
    partner: Integers,
    instances: int,
) -> Flows:
    """Return what shares ports when one rank of each class runs.

    Ports are those of the ranks that run. Ranks of one class use theirs alike, so what holds
    for one of them holds for all.

    Parameters
    ----------
    graphs, ranks, groups, of_rank, messages
        As in `perfmodel.workloads.simulation.run`.
    representatives : sequence of int
        Ranks that run.
    first, partner : int64
        As in `kernels.trace.schedule`.
    instances : int
        Collectives that run.
    """
    uses = _Uses()
    of_send = np.full(len(partner), -1, np.int64)
    sends: list[Integers] = []
    count = instances
    for number, rank in enumerate(representatives):
        for slot, index in enumerate(of_rank[rank]):
            group = groups[index]
            nodes = first[number] + graphs[ranks[rank].graph].by_slot[slot]
            for way in (OUT, IN):
                links = np.full(len(nodes), group.links)
                uses.add(partner[nodes], number, way, links, group.busy, group.part)
        if messages is not None:
            nodes, rows = _rows(graphs, ranks, messages, rank, first[number], sending=True)
            flows = count + np.arange(len(nodes))
            of_send[nodes] = flows
            count += len(nodes)
            sends.append(nodes)
            uses.add(flows, number, OUT, messages.links[rows], *_of(messages, rows))
    if messages is not None:
        for number, rank in enumerate(representatives):
            nodes, rows = _rows(graphs, ranks, messages, rank, first[number], sending=False)
            flows = of_send[partner[nodes]]
            uses.add(flows, number, IN, messages.links[rows], *_of(messages, rows))
    event = np.concatenate([-1 - np.arange(instances), *sends]).astype(np.int64)
    return uses.flows(event, of_send)


def _rows(
    graphs: Sequence[Graph],
    ranks: Sequence[Rank],
    messages: Messages,
    rank: int,
    begin: int,
    sending: bool,
) -> tuple[Integers, Integers]:
    """Return a rank's sends or receives: dynamic indices, and rows of the messages."""
    from perfmodel.kernels.workloads.trace.schedule import SEND

    graph = graphs[ranks[rank].graph]
    chosen = (graph.role[graph.messages] == SEND) == sending
    rows = np.arange(messages.offsets[rank], messages.offsets[rank + 1])
    return begin + graph.messages[chosen], rows[chosen]


def _of(messages: Messages, rows: Integers) -> tuple[Floats, Floats]:
    return messages.busy[rows], messages.part[rows]


class _Uses:
    """What flows take of ports, collected."""

    def __init__(self) -> None:
        self._entries: list[Integers] = [np.zeros((0, 5), np.int64)]
        self._busy: list[Floats] = [np.zeros(0)]
        self._transfer: list[tuple[Integers, Floats]] = []

    def add(
        self, flows: Integers, number: int, way: int, links: Integers, busy: Floats, part: Floats
    ) -> None:
        """Add flows through a rank's ports, on every level; `busy` as of `Ports.occupancy`."""
        if not len(flows):
            return
        self._transfer.append((flows, busy.max(axis=1)))
        for level in range(busy.shape[1]):
            for own, seconds in (
                (False, busy[:, level] * part[:, level]),
                (True, np.where(part[:, level] < 1.0, busy[:, level], 0.0)),
            ):
                some = np.flatnonzero(seconds > 0)
                entries = np.full((len(some), 5), WHOLE_PORT, np.int64)
                entries[:, 0] = flows[some]
                entries[:, 1:4] = number, way, level
                if own:
                    entries[:, 4] = links[some]
                self._entries.append(entries)
                self._busy.append(seconds[some])

    def flows(self, event: Integers, of_send: Integers) -> Flows:
        """Return all of it; ports that a single flow uses are left out."""
        from perfmodel.kernels.workloads.trace.contention import Flows

        entries, busy = np.concatenate(self._entries), np.concatenate(self._busy)
        transfer = np.zeros(len(event))
        for flows, seconds in self._transfer:
            transfer[flows] = seconds
        _, port, users = np.unique(entries[:, 1:], axis=0, return_inverse=True, return_counts=True)
        port = np.reshape(port, -1)
        met = np.flatnonzero(users[port] > 1)
        met = met[np.argsort(entries[met, 0], kind="stable")]
        flow = entries[met, 0]
        first = np.searchsorted(flow, np.arange(len(event) + 1))
        meets = np.diff(first) > 0
        use = busy[met] / transfer[flow]
        return Flows(
            first.astype(np.int64),
            port[met].astype(np.int64),
            use,
            np.where(meets, transfer, 0.0),
            event,
            of_send,
            len(users),
        )
