"""Which communication shares which ports: what `kernels.trace.contention` is told.

A device has one port into every level of the network, with the bandwidth that the profile's
network model gives a device there, oversubscription included: shared uplinks are thereby
shared already, as that model has every device use its part at once. What leaves and what
arrives do not meet. Where a group has only some of a device's links into a level (tori, full
connections), these are a port of their own within the whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.workloads.simulation.graph import Graph, Rank
from perfmodel.workloads.simulation.meetings import Group, Messages

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.trace.contention import Flows

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
