"""Collectives that run at the same time and share links max-min fairly.

Formulas and sources: ``docs/contention.md``. Numba is imported inside the functions that
need it.

Letters
    o   operations
    f   flows
    k   stages
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError
from perfmodel.workloads.links.topology import Topology
from perfmodel.workloads.schedules.moves import totals
from perfmodel.workloads.schedules.on_links import Messages, group_size, messages_on
from perfmodel.workloads.schedules.schedule import schedule


@dataclass(frozen=True)
class Operation:
    """One collective of one group (or of several at once) that begins at some time.

    Parameters
    ----------
    collective, algorithm, size
        As for :func:`perfmodel.workloads.schedules.schedule.schedule`.
    devices : sequence of int, or sequence of such sequences
        Devices by position; several groups keep step with each other.
    start : float
        [s].
    pipelined : bool
        Whether its steps overlap: one flow per pair of devices carries the bytes of all
        steps. Otherwise a step begins when all messages of the one before have arrived.
    weight : float
        Share of its flows in a bottleneck relative to others, for example channels, > 0.
    options : mapping
        Root, domain, targets, traffic, inside, across: as for ``schedule``.

    Raises
    ------
    StrategyError
        A start or weight that is not finite or out of range.
    """

    collective: str
    algorithm: str
    size: float | None
    devices: Sequence[int] | Sequence[Sequence[int]] | Integers
    start: float = 0.0
    pipelined: bool = False
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.start) or self.start < 0:
            raise StrategyError(f"start must be finite seconds >= 0, got {self.start!r}")
        if not math.isfinite(self.weight) or self.weight <= 0:
            raise StrategyError(f"weight must be finite and above 0, got {self.weight!r}")


@dataclass(frozen=True)
class ConcurrentTimes:
    """What operations take on shared links.

    Parameters
    ----------
    start : float64[o]
        [s].
    finish : float64[o]
        With all others at work [s].
    alone : float64[o]
        Duration with the network to itself [s].
    """

    start: Floats
    finish: Floats
    alone: Floats

    @property
    def duration(self) -> Floats:
        """From start to finish, float64[o] [s]."""
        return self.finish - self.start

    @property
    def slowdown(self) -> Floats:
        """Duration over the duration alone, float64[o]; 1 where both are 0."""
        alone = np.where(self.alone > 0, self.alone, 1.0)
        return np.where(self.alone > 0, self.duration / alone, 1.0)


def concurrent_times(topology: Topology, operations: Sequence[Operation]) -> ConcurrentTimes:
    """Finish times of operations that share the links of a topology max-min fairly.

    Parameters
    ----------
    topology : Topology
    operations : sequence of Operation

    Returns
    -------
    ConcurrentTimes

    Raises
    ------
    StrategyError
        There is no operation, one has no schedule, or devices do not suit the topology.

    Notes
    -----
    Messages are fluids: at every moment their rates are the max-min fair ones of all that
    are under way (Bertsekas & Gallager 1992, §6.5.2), computed anew when one begins or
    ends. A step first passes the latency of its longest route, a pipelined operation the
    latencies of all its steps.
    """
    if not operations:
        raise StrategyError("contention needs one or more operations")
    staged = [_stages(topology, operation) for operation in operations]
    alone = [
        _finish_times(topology, [stages])[0] - operation.start
        for operation, stages in zip(operations, staged, strict=True)
    ]
    return ConcurrentTimes(
        start=np.array([float(operation.start) for operation in operations]),
        finish=_finish_times(topology, staged),
        alone=np.array(alone),
    )


@dataclass(frozen=True)
class _Stages:
    """Flows of one operation by stage, and what each stage waits for."""

    flow_bytes: Floats
    flow_stage: Integers
    offsets: Integers
    links: Integers
    delay: Floats
    start: float
    weight: float


def _stages(topology: Topology, operation: Operation) -> _Stages:
    plan = schedule(
        operation.collective,
        operation.algorithm,
        group_size(operation.devices),
        operation.size,
        **operation.options,
    )
    messages = messages_on(topology, plan, operation.devices)
    delay = np.zeros(plan.steps)
    np.maximum.at(delay, messages.step, messages.latency[messages.route])
    if operation.pipelined:
        return _in_one_stage(messages, delay, operation)
    offsets, links = _routes_of_flows(messages)
    stage = messages.step
    return _Stages(messages.bytes, stage, offsets, links, delay, operation.start, operation.weight)


def _in_one_stage(messages: Messages, delay: Floats, operation: Operation) -> _Stages:
    routes = messages.offsets.size - 1
    return _Stages(
        flow_bytes=totals(messages.route, messages.bytes, routes),
        flow_stage=np.zeros(routes, dtype=np.int64),
        offsets=messages.offsets,
        links=messages.links,
        delay=np.array([delay.sum()]),
        start=operation.start,
        weight=operation.weight,
    )


def _routes_of_flows(messages: Messages) -> tuple[Integers, Integers]:
    """Routes of the messages one by one, compressed rows."""
    lengths = np.diff(messages.offsets)[messages.route]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return offsets, messages.links[np.repeat(messages.offsets[messages.route], lengths) + within]


def _finish_times(topology: Topology, staged: Sequence[_Stages]) -> Floats:
    """Finish time of every operation when these ones share the network [s]."""
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.links import fluid as kernel

    stages = np.array([item.delay.size for item in staged])
    flows = np.array([item.flow_bytes.size for item in staged])
    first_stage = np.cumsum(stages) - stages
    after = np.arange(stages.sum()) - 1
    after[first_stage[stages > 0]] = -1
    entries = np.cumsum([0, *(item.links.size for item in staged)])
    offsets = [item.offsets[1:] + first for item, first in zip(staged, entries, strict=False)]
    with kernel_work(flows=flows.sum()):
        _, _, stage_finish = kernel.fluid_finish_times(
            np.concatenate([item.flow_bytes for item in staged]),
            np.concatenate([item.flow_stage for item in staged]) + np.repeat(first_stage, flows),
            np.concatenate([[0], *offsets]).astype(np.int64),
            np.concatenate([item.links for item in staged]),
            topology.link_bandwidth,
            np.full(flows.sum(), math.inf),
            np.repeat([float(item.weight) for item in staged], flows),
            np.repeat([float(item.start) for item in staged], stages),
            after,
            np.concatenate([item.delay for item in staged]),
        )
    # An operation without messages (one member) is over when it begins.
    finish = np.array([float(item.start) for item in staged])
    some = stages > 0
    finish[some] = stage_finish[(first_stage + stages - 1)[some]]
    return finish
