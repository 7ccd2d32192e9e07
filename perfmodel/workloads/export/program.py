"""In which order a device runs blocks and micro-batches, and the nodes that it makes.

`perfmodel.training.step.program.pass_program` orders one block's operations; `stage_slots` is the
pipeline schedule of one stage. `NodeList` holds nodes of a trace in the making, and the order that
a device keeps between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Texts
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.pipeline.actions import FORWARD, INPUT, Order
from perfmodel.training.step.program import ALL, GRADIENTS, INPUT_ONLY, WEIGHTS_ONLY, ProgramStep
from perfmodel.training.step.types import ProjectedOperation
from perfmodel.workloads.trace import COLLECTIVE as COLLECTIVE_NODE
from perfmodel.workloads.trace import COMPUTE, Trace, TraceBuilder


class Slot(NamedTuple):
    """One pass of one micro-batch through one model chunk.

    Attributes
    ----------
    forward : bool
    chunk : int
        Of the stage's own.
    micro_batch : int
    gradients : {"all", "input", "weights"}
        Of a backward pass: what it makes.
    """

    forward: bool
    chunk: int
    micro_batch: int
    gradients: str = ALL

    @property
    def sends(self) -> bool:
        """Whether its result goes to another chunk: gradients of weights do not."""
        return self.gradients != WEIGHTS_ONLY

    @property
    def completes(self) -> bool:
        """Whether the gradients of its weights are there once it has run."""
        return not self.forward and self.gradients != INPUT_ONLY


def in_pieces(
    program: Sequence[ProgramStep], shown: Callable[[ProjectedOperation], float]
) -> list[ProgramStep]:
    """Split communication of which a share is never hidden: that piece runs in its turn.

    It is the first where the communication precedes the product beside which it runs (a
    gather whose first part the product waits for), and otherwise the last.

    Parameters
    ----------
    program : sequence of ProgramStep
    shown : function
        Share of an operation's time that runs in its turn.

    Returns
    -------
    list of ProgramStep
    """
    pieces: list[tuple[int, ProgramStep]] = []
    for i, step in enumerate(program):
        share = shown(step.operation) if step.aside else 0.0
        if step.operation.collective == "point_to_point":
            share = float(share > 0.5)  # hops are not split
        if share >= 1:
            pieces.append((i, ProgramStep(step.operation)))
        elif share <= 0:
            pieces.append((i, step))
        else:
            ahead = step.first > i
            name = f"{step.operation.name}.{'first' if ahead else 'last'}"
            turn = ProgramStep(replace(_scaled(step.operation, share), name=name))
            rest = replace(step, operation=_scaled(step.operation, 1 - share))
            pieces += [(i, turn), (i, rest)] if ahead else [(i, rest), (i, turn)]
    where: dict[int, int] = {}
    for number, (i, _) in enumerate(pieces):
        where.setdefault(i, number)
    return [
        replace(step, first=where[step.first], last=where[step.last]) if step.aside else step
        for _, step in pieces
    ]


def _scaled(item: ProjectedOperation, share: float) -> ProjectedOperation:
    return replace(
        item, time=item.time * share, exposed=item.exposed * share, size=item.size * share
    )


def stage_slots(order: Order, stage: int, *, paired: bool = False) -> list[Slot]:
    """Return the passes of one stage in the order of its pipeline schedule.

    Parameters
    ----------
    order : Order
        Of all stages.
    stage : int
    paired : bool
        One forward pass more goes ahead of every backward pass that another follows, so that the
        two are of different micro-batches and can run side by side. Schedules that split backward
        passes stay as they are.

    Returns
    -------
    list of Slot
        One forward and one backward pass of every micro-batch and chunk of the stage, or two.
    """
    own = slice(*order.first[stage : stage + 2].tolist())
    chunks = np.flatnonzero(order.rank_of == stage).searchsorted(order.stage[own])
    columns = (order.kind[own], chunks, order.micro_batch[own])
    slots = [
        Slot(kind == FORWARD, chunk, micro_batch, GRADIENTS[kind])
        for kind, chunk, micro_batch in zip(*(it.tolist() for it in columns), strict=True)
    ]
    index, paired = 1, paired and not (order.kind == INPUT).any()
    while paired and index < len(slots):
        if slots[index].forward and not slots[index - 1].forward:
            slots[index - 1 : index + 1] = slots[index], slots[index - 1]
            index += 1
        index += 1
    return slots


# Whom a message goes to or comes from, as `NodeList.peers` has it; from the last one on, a stage.
NEXT_IN_RING, PREVIOUS_IN_RING, FIRST_STAGE = range(3)

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
    """Nodes of a stage; identifiers count from 0.

    Attributes
    ----------
    lane : str
        Collectives of one group and lane follow each other in the order in which they are
        added, on every rank: members that took them up in different orders would wait for
        each other for ever.
    peers : dict of int to int
        By node: whom its message goes to or comes from.

    Parameters
    ----------
    serial : bool
        All collectives follow each other, whatever their group and lane.
    """

    def __init__(self, serial: bool = False) -> None:
        self.serial = serial
        self.lane = ""
        self.peers: dict[int, int] = {}
        self._last: dict[tuple[str, str], int] = {}  # collective of each group and lane
        self._builder = TraceBuilder()
        self._add = self._builder.add

    def compute(
        self, name: str, parents: Parents, duration: float, flops: float, traffic: float
    ) -> int:
        """Add work of the device; without matrix FLOP it states 1, to have an intensity."""
        return self._add(
            name,
            COMPUTE,
            data=parents[0],
            control=parents[1],
            duration=duration,
            num_ops=max(1, round(flops)),
            tensor_size=max(1, round(traffic)),
            on_cpu=0,
        )

    def host(self, name: str, parents: Parents, duration: float) -> int:
        """Add time in which the device waits for the host."""
        data, control = parents
        return self._add(
            name,
            COMPUTE,
            data=data,
            control=control,
            duration=duration,
            num_ops=0,
            tensor_size=0,
            on_cpu=1,
        )

    def collectives(self, name: str, parents: Parents, item: ProjectedOperation) -> int:
        """Add all calls of a collective, one after another; return the last."""
        calls = max(1, round(item.count))
        size = item.size / item.members if item.collective == "all_gather" else item.size
        queue = ("", "") if self.serial else (item.group, self.lane)
        if queue in self._last:
            parents = both(parents, after(needing((self._last[queue],))))
        node = -1
        for _ in range(calls):
            node = self._add(
                name,
                COLLECTIVE_NODE,
                data=parents[0],
                control=parents[1],
                duration=item.time / calls,
                collective=TRACED.index(item.collective),
                communication_size=max(1, round(size)),
                group=item.group,
                on_cpu=0,
            )
            parents = needing((node,))
        self._last[queue] = node
        return node

    def message(
        self,
        kind: int,
        name: str,
        parents: Parents,
        size: float,
        duration: float,
        peer: int,
        tag: int,
    ) -> int:
        """Add a message to a peer (`SEND`), or the arrival of one from it (`RECEIVE`)."""
        node = self._add(
            name,
            kind,
            data=parents[0],
            control=parents[1],
            duration=duration,
            communication_size=max(1, round(size)),
            tag=tag,
            on_cpu=0,
        )
        self.peers[node] = peer
        return node

    def trace(self, metadata: Mapping[str, str]) -> Trace:
        """Return the nodes as a trace whose groups are kinds of groups.

        Raises
        ------
        StrategyError
            An operation is larger than a trace can say.
        """
        try:
            trace = self._builder.build(metadata)
        except OverflowError:
            raise StrategyError(
                "one operation has more FLOP or bytes than the 63 bits of an execution trace "
                "hold; use a smaller batch, shorter sequences or more devices"
            ) from None
        return replace(trace, names=Texts.of(trace.names), whole_microseconds=True)
