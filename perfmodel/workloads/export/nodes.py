"""Nodes of a trace in the making, and the order that a device keeps between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import StrategyError
from perfmodel.workloads.export.types import ProjectedOperation
from perfmodel.workloads.trace import ABSENT, COMPUTE, RECEIVE, SEND, Ragged
from perfmodel.workloads.trace import COLLECTIVE as COLLECTIVE_NODE

# Whom a message goes to or comes from, as `NodeList.peers` has it; from the last one on, a stage.
NEXT_IN_RING, PREVIOUS_IN_RING, FIRST_STAGE = 1, 2, 3  # 0: it is no message

# Identifiers that a node waits for: whose results it needs, and what merely comes first.
Parents = tuple[tuple[int, ...], tuple[int, ...]]
NOBODY: Parents = ((), ())


def both(first: Parents, second: Parents) -> Parents:
    """Wait for all of two sets of parents."""
    return (
        tuple(dict.fromkeys((*first[0], *second[0]))),
        tuple(dict.fromkeys((*first[1], *second[1]))),
    )


def needing(nodes: Iterable[int]) -> Parents:
    """Wait for the results of nodes."""
    return (tuple(nodes), ())


def after(parents: Parents) -> Parents:
    """Come behind all of these nodes, needing no result."""
    return ((), tuple(dict.fromkeys((*parents[0], *parents[1]))))


class NodeList:
    """Columns of the nodes of a stage, one entry per node; identifiers count from 0.

    Attributes
    ----------
    group_kinds : dict of str to int
        Kinds of groups that its collectives use, numbered in order of first use.
    lane : str
        Collectives of one group and lane follow each other in the order in which they are
        added, on every rank: members that took them up in different orders would wait for
        each other for ever.

    Parameters
    ----------
    serial : bool
        All collectives follow each other, whatever their group and lane.
    """

    def __init__(self, serial: bool = False) -> None:
        self.serial = serial
        self.lane = ""
        self._last: dict[tuple[str, str], int] = {}  # collective of each group and lane
        self.names: list[str] = []
        self.kinds: list[int] = []
        self.duration: list[float] = []
        self.num_ops: list[int] = []
        self.tensor_size: list[int] = []
        self.collective: list[int] = []
        self.communication_size: list[int] = []
        self.group: list[int] = []
        self.peers: list[int] = []
        self.tag: list[int] = []
        self.on_cpu: list[int] = []
        self.data: list[Sequence[int]] = []
        self.control: list[Sequence[int]] = []
        self.group_kinds: dict[str, int] = {}

    def _add(
        self,
        name: str,
        kind: int,
        parents: Parents,
        duration: float,
        *,
        operations: int = ABSENT,
        traffic: int = ABSENT,
        collective: int = ABSENT,
        size: int = ABSENT,
        group: int = ABSENT,
        peer: int = 0,
        tag: int = ABSENT,
        host: bool = False,
    ) -> int:
        self.names.append(name)
        self.kinds.append(kind)
        self.duration.append(duration)
        self.num_ops.append(operations)
        self.tensor_size.append(traffic)
        self.collective.append(collective)
        self.communication_size.append(size)
        self.group.append(group)
        self.peers.append(peer)
        self.tag.append(tag)
        self.on_cpu.append(int(host))
        self.data.append(parents[0])
        self.control.append(parents[1])
        return len(self.names) - 1

    def compute(
        self, name: str, parents: Parents, duration: float, flops: float, traffic: float
    ) -> int:
        """Add work of the device; without matrix FLOP it states 1, to have an intensity."""
        operations = max(1, round(flops))
        return self._add(
            name, COMPUTE, parents, duration, operations=operations, traffic=max(1, round(traffic))
        )

    def host(self, name: str, parents: Parents, duration: float) -> int:
        """Add time in which the device waits for the host."""
        return self._add(name, COMPUTE, parents, duration, operations=0, traffic=0, host=True)

    def collectives(self, name: str, parents: Parents, item: ProjectedOperation) -> int:
        """Add all calls of a collective, one after another; return the last."""
        calls = max(1, round(item.count))
        size = item.size / item.members if item.collective == "all_gather" else item.size
        group = self.group_kinds.setdefault(item.group, len(self.group_kinds))
        queue = ("", "") if self.serial else (item.group, self.lane)
        if queue in self._last:
            parents = both(parents, after(needing((self._last[queue],))))
        node = -1
        for _ in range(calls):
            node = self._add(
                name,
                COLLECTIVE_NODE,
                parents,
                item.time / calls,
                collective=TRACED.index(item.collective),
                size=max(1, round(size)),
                group=group,
            )
            parents = needing((node,))
        self._last[queue] = node
        return node

    def send(
        self, name: str, parents: Parents, size: float, duration: float, peer: int, tag: int
    ) -> int:
        """Add a message to a peer."""
        return self._add(
            name, SEND, parents, duration, size=max(1, round(size)), peer=peer, tag=tag
        )

    def receive(
        self, name: str, parents: Parents, size: float, duration: float, peer: int, tag: int
    ) -> int:
        """Add the arrival of a message from a peer."""
        return self._add(
            name, RECEIVE, parents, duration, size=max(1, round(size)), peer=peer, tag=tag
        )

    def columns(self) -> dict[str, Any]:
        """Return the columns that all ranks of a stage share, by their names in `Trace`.

        Raises
        ------
        StrategyError
            An operation is larger than a trace can say.
        """
        kinds: dict[str, tuple[list[Any], Any]] = {
            "kinds": (self.kinds, np.int8),
            "duration": (self.duration, np.float64),
            "num_ops": (self.num_ops, np.int64),
            "tensor_size": (self.tensor_size, np.int64),
            "collective": (self.collective, np.int8),
            "communication_size": (self.communication_size, np.int64),
            "group": (self.group, np.int32),
            "tag": (self.tag, np.int32),
            "on_cpu": (self.on_cpu, np.int8),
        }
        try:
            columns: dict[str, NDArray[Any]] = {
                name: np.array(values, kind) for name, (values, kind) in kinds.items()
            }
        except OverflowError:
            raise StrategyError(
                "one operation has more FLOP or bytes than the 63 bits of an execution trace "
                "hold; use a smaller batch, shorter sequences or more devices"
            ) from None
        return columns

    def parents(self) -> tuple[Ragged, Ragged]:
        """Return data and control parents."""
        return Ragged.from_lists(self.data), Ragged.from_lists(self.control)
