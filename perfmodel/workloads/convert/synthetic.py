"""Small execution traces made to measure: chains of computation, collectives, a pipeline.

Their run times follow from pencil and paper, so that they test a simulator, a network or a
file's way through other tools. The idea, not the contents, is that of mlcommons/chakra's
``src/generator/generator.py``. As there, every node states that it runs on the device: some
versions of the feeder take a node that does not for one of the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import DataError, StrategyError, did_you_mean
from perfmodel.workloads.trace import (
    ABSENT,
    COLLECTIVE,
    COMPUTE,
    EVERYBODY,
    RECEIVE,
    SCALARS,
    SEND,
    Ragged,
    Trace,
    TraceBuilder,
    TraceSet,
)

LARGEST_TRACE = 20_000_000  # nodes of a rank
LARGEST_SET = 1_000_000  # ranks
LARGEST_WHOLE = 2**62
LARGEST_TIME = 1e9  # s
SCHEDULES = ("1f1b", "gpipe")
FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True)
class Work:
    """What a node computes.

    Attributes
    ----------
    duration : float
        [s]; counts where the simulation prices no operations.
    num_ops : int
        [FLOP]; `ABSENT`: not stated.
    tensor_size : int
        Memory traffic [B]; `ABSENT`: not stated.
    """

    duration: float = 0.0
    num_ops: int = ABSENT
    tensor_size: int = ABSENT

    def __post_init__(self) -> None:
        """Check every value."""
        if not (math.isfinite(self.duration) and 0 <= self.duration <= LARGEST_TIME):
            raise DataError(f"duration is {self.duration}; it should be 0 to {LARGEST_TIME:.0e} s")
        _check("num_ops", self.num_ops, ABSENT, LARGEST_WHOLE)
        _check("tensor_size", self.tensor_size, ABSENT, LARGEST_WHOLE)

    @property
    def columns(self) -> dict[str, Any]:
        """The values by column of a trace."""
        return {
            "duration": self.duration,
            "num_ops": self.num_ops,
            "tensor_size": self.tensor_size,
            "on_cpu": 0,
        }

    def twice(self) -> Work:
        """Return twice the work: a backward pass beside its forward pass."""
        amounts = (max(2 * number, ABSENT) for number in (self.num_ops, self.tensor_size))
        return Work(2 * self.duration, *amounts)


def dependent_compute(
    devices: int, nodes: int, num_ops: int = ABSENT, tensor_size: int = ABSENT, duration: float = 0
) -> TraceSet:
    """Return ranks that each compute one node after another.

    Takes `nodes` times the time of one node.

    Parameters
    ----------
    devices, nodes : int
        Ranks, and nodes of each; >= 1.
    num_ops, tensor_size, duration
        Of every node; see `Work`.

    Raises
    ------
    DataError
        A number is out of bounds.

    Examples
    --------
    >>> dependent_compute(4, 3, num_ops=2_000_000, tensor_size=3000).nodes
    12
    """
    _check("devices", devices, 1, LARGEST_SET)
    work = Work(duration, num_ops, tensor_size)
    trace = _uniform("COMP_NODE", COMPUTE, nodes, chained=True, **work.columns)
    return TraceSet((trace,) * devices)


def consecutive_groups(devices: int, size: int | None) -> list[range]:
    """Return groups of consecutive ranks; none where all ranks are one group.

    Raises
    ------
    StrategyError
        The ranks do not come out.
    """
    if size is None:
        return []
    if devices % size:
        raise StrategyError(f"--devices {devices} is not a multiple of --group-size {size}")
    return [range(first, first + size) for first in range(0, devices, size)]


def repeated_collectives(
    devices: int,
    kind: str,
    size: int,
    count: int,
    groups: Sequence[Sequence[int]] = (),
    *,
    chained: bool = True,
) -> TraceSet:
    """Return ranks whose collectives each wait for the one before, or for nothing.

    Takes `count` times the time of one collective, also where they wait for nothing if a rank runs
    one collective at a time.

    Parameters
    ----------
    devices : int
        >= 1.
    kind : str
        One of `perfmodel.base.collectives.TRACED`.
    size : int
        Buffer of a rank (all-gather: its shard) [B], >= 0.
    count : int
        Collectives of each rank, >= 1.
    groups : sequence of sequences of int, optional
        Ranks that communicate with each other; a rank in none of them does nothing. By
        default all ranks do.
    chained : bool, optional
        Whether they wait for each other.

    Raises
    ------
    DataError
        A number is out of bounds, the kind is unknown, or a rank is in two groups.
    """
    _check("devices", devices, 1, LARGEST_SET)
    _check("size", size, 0, LARGEST_WHOLE)
    if kind not in TRACED:
        raise DataError(f"collective '{kind}' is unknown{did_you_mean(kind, TRACED)}")
    columns = {
        "collective": TRACED.index(kind),
        "communication_size": size,
        "on_cpu": 0,
    }
    name = f"COMM_COLL_NODE_{kind.upper()}"

    def trace(group: str) -> Trace:
        return _uniform(name, COLLECTIVE, count, chained, group, **columns)

    if not groups:
        return TraceSet((trace(""),) * devices)
    traces = [TraceBuilder().build()] * devices
    named: dict[str, tuple[int, ...]] = {}
    seen: set[int] = set()
    for number, ranks in enumerate(groups, 1):
        named[str(number)] = tuple(ranks)
        own = trace(str(number))
        for rank in ranks:
            _check(f"a rank of group {number}", rank, 0, devices - 1)
            if rank in seen:
                raise DataError(f"rank {rank} is in two groups, or twice in one")
            seen.add(rank)
            traces[rank] = own
    return TraceSet(tuple(traces), named)


def pipeline(
    stages: int,
    micro_batches: int,
    forward: Work,
    backward: Work,
    size: int,
    schedule: str = "1f1b",
) -> TraceSet:
    """Return one rank per stage of a pipeline that trains with micro-batches.

    Activations go to the next stage, their gradients to the one before; a stage computes its
    passes in the order of the schedule. Takes (micro_batches + stages - 1) times forward and
    backward pass where messages take no time; a single micro-batch takes the sum of all passes
    and messages.

    Parameters
    ----------
    stages, micro_batches : int
        >= 1.
    forward, backward : Work
        Of one stage and micro-batch.
    size : int
        Of a message [B], >= 0.
    schedule : {"1f1b", "gpipe"}, optional
        One backward after each forward pass (Narayanan et al. 2021, figure 4), or all forward
        passes first (Huang et al. 2019).

    Raises
    ------
    DataError
        A number is out of bounds or the schedule unknown.
    """
    _check("stages", stages, 1, LARGEST_SET)
    _check("micro_batches", micro_batches, 1, LARGEST_TRACE // 6)
    if stages * micro_batches > LARGEST_TRACE // 6:
        raise DataError(
            f"{stages} stages with {micro_batches} micro-batches are more than {LARGEST_TRACE} "
            "nodes; fewer should be asked for"
        )
    _check("size", size, 0, LARGEST_WHOLE)
    if schedule not in SCHEDULES:
        raise DataError(f"schedule '{schedule}' is unknown{did_you_mean(schedule, SCHEDULES)}")
    work = {FORWARD: forward, BACKWARD: backward}
    return TraceSet(
        tuple(
            _stage(stage, stages, _passes(stage, stages, micro_batches, schedule), work, size)
            for stage in range(stages)
        )
    )


def _passes(stage: int, stages: int, micro_batches: int, schedule: str) -> list[tuple[str, int]]:
    """Return direction and micro-batch of a stage's passes, in the order they are computed."""
    ahead = micro_batches if schedule == "gpipe" else min(stages - stage - 1, micro_batches)
    order = [(FORWARD, batch) for batch in range(ahead)]
    for batch in range(micro_batches):
        if ahead + batch < micro_batches:
            order.append((FORWARD, ahead + batch))
        order.append((BACKWARD, batch))
    return order


def _stage(
    stage: int,
    stages: int,
    passes: Sequence[tuple[str, int]],
    work: dict[str, Work],
    size: int,
) -> Trace:
    """Return what a stage does: per pass receive, compute, send."""
    builder = TraceBuilder()
    last: list[int] = []
    for direction, batch in passes:
        step = 1 if direction == FORWARD else -1
        tag = 2 * batch + (direction == BACKWARD)
        parents = list(last)
        if 0 <= stage - step < stages:
            parents.append(
                builder.add(
                    f"COMM_RECV_NODE_{direction}_{batch}",
                    RECEIVE,
                    source=stage - step,
                    destination=stage,
                    tag=tag,
                    communication_size=size,
                    on_cpu=0,
                )
            )
        computed = builder.add(
            f"COMP_NODE_{direction}_{batch}", COMPUTE, data=parents, **work[direction].columns
        )
        last = [computed]
        if 0 <= stage + step < stages:
            builder.add(
                f"COMM_SEND_NODE_{direction}_{batch}",
                SEND,
                source=stage,
                destination=stage + step,
                tag=tag,
                communication_size=size,
                on_cpu=0,
                data=last,
            )
    return builder.build()


def _uniform(
    name: str, kind: int, count: int, chained: bool, group: str = "", **scalars: float
) -> Trace:
    """Return a trace of equal nodes; column by column, since there may be millions."""
    _check("the number of nodes", count, 1, LARGEST_TRACE)
    offsets = np.arange(count + 1, dtype=np.int64)
    none = Ragged(np.zeros(count + 1, np.int64), np.zeros(0, np.int64))
    columns: dict[str, Any] = {
        column: np.full(count, scalars.get(column, default), kind_of)
        for column, kind_of, default in SCALARS
    }
    return Trace(
        identifiers=np.arange(count, dtype=np.int64),
        names=[f"{name}_{i}" for i in range(count)],
        kinds=np.full(count, kind, np.int8),
        group=np.full(count, 0 if group else EVERYBODY, np.int32),
        involved=np.full(count, ABSENT, np.int32),
        data_parents=Ragged(np.maximum(offsets - 1, 0), offsets[:-2].copy()) if chained else none,
        control_parents=none,
        inputs=none,
        outputs=none,
        group_names=(group,) if group else (),
        **columns,
    )


def _check(name: str, value: int, least: int, most: int) -> None:
    """Refuse a number out of bounds."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise DataError(f"{name} is {value!r}; it should be a whole number")
    if not least <= value <= most:
        raise DataError(f"{name} is {value}; it should be {least} to {most}")
