"""Execution traces of a projected strategy: what every rank does in one training step.

Ranks of one pipeline stage do the same; they share all columns but those that name their
groups and peers. Which ranks are a group follows from the order of the axes (`mapping`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.memory import check_memory
from perfmodel.training.step.groups import RankGroups, rank_groups
from perfmodel.training.step.types import ProjectedWorkload
from perfmodel.workloads.export.program import FIRST_STAGE, NEXT_IN_RING, PREVIOUS_IN_RING
from perfmodel.workloads.export.stage import stage_nodes
from perfmodel.workloads.formats.chakra.files import NODE_BYTES, check_size
from perfmodel.workloads.trace import ABSENT, SEND, OtherPeers, RankTraces, Trace, TraceSet

GRANULARITIES = ("operation", "layer")


EACH_LAYER = {"operation": 35, "layer": 18}
"""Nodes of a micro-batch, both passes, by granularity, about."""


def check_traces(workload: ProjectedWorkload, granularity: str) -> None:
    """Refuse, before it is begun, what takes longer or more disk than somebody may have meant.

    Raises
    ------
    DataError
        As of `perfmodel.base.memory.check_amount` and `check_memory`.
    """
    strategy, devices = workload.strategy, workload.devices
    batches = strategy["global_batch_size"] / strategy["micro_batch_size"]
    batches /= strategy["data_parallel"]
    layers = workload.model.num_layers / strategy["pipeline_parallel"]
    nodes = batches * layers * EACH_LAYER.get(granularity, EACH_LAYER["operation"])
    check_size(devices, nodes * devices)
    held = NODE_BYTES * nodes * strategy["pipeline_parallel"]
    check_memory(f"traces of {devices:,} ranks", held, "ask for fewer sequences")


def projected_traces(
    workload: ProjectedWorkload,
    *,
    granularity: str = "operation",
    numbered_groups: bool = True,
    serial_communication: bool = False,
) -> TraceSet:
    """Return the execution traces of all ranks for one training step.

    Parameters
    ----------
    workload : ProjectedWorkload
    granularity : {"operation", "layer"}
        A compute node for every operation, or one for every layer and phase.
    numbered_groups : bool
        Name communicator groups "1", "2", … as ASTRA-sim's main branch requires (it reads
        names as numbers), instead of "tensor 0", "data 3", ….
    serial_communication : bool
        Let collectives of a rank follow each other in one order whatever their group, not
        only those of one group. A simulator that runs one collective at a time, as
        ASTRA-sim's does, can otherwise have ranks wait for each other: where groups on
        different links take different times, they become ready in different orders.

    Returns
    -------
    TraceSet
        Compute nodes state matrix FLOP, memory traffic and predicted time. Nodes without
        matrix products state 1 FLOP, so that a roofline prices their bytes. Communication
        states its buffer (all-gather: the shard) and its predicted time.

    Raises
    ------
    StrategyError
        No such granularity.

    Notes
    -----
    Dependencies are the framework's overlap: communication that it hides starts with the
    operations beside which it runs and has to end before what follows them; a gradient is
    reduced when the backward pass of its block has ended; parameters are gathered one block
    ahead. Data parents say what needs whose result, control parents the order of passes.
    A collective that is pipelined with its own product runs beside it in all but one piece,
    which comes ahead of the product or behind it; by layers, what the projection found
    exposed comes in its turn. With ZeRO-2 and 3 a backward pass ends when its gradients are
    reduced. Computation is not slowed down by communication beside it. Where
    expert exchanges hide behind another micro-batch, a forward and a backward pass run side
    by side, after one more forward pass ahead of them. Waiting for the host is a host node.
    """
    if granularity not in GRANULARITIES:
        raise StrategyError(
            f"granularity: '{granularity}' is not one of {', '.join(GRANULARITIES)}"
            + did_you_mean(granularity, GRANULARITIES)
        )
    groups = rank_groups(workload.strategy)
    stages = [
        stage_nodes(workload, number, layers=granularity == "layer", serial=serial_communication)
        for number in range(len(workload.stages))
    ]
    templates = [stage.trace(_metadata(workload, number)) for number, stage in enumerate(stages)]
    used = sorted({kind for template in templates for kind in template.group_names})
    names = _names(groups, used, numbered_groups)
    messages = [np.array(list(stage.peers), np.int64) for stage in stages]
    peers = [np.array(list(stage.peers.values()), np.int64) for stage in stages]
    parts: list[Trace | OtherPeers] = []
    shared: dict[tuple[int, tuple[str, ...]], Trace] = {}
    for rank in range(workload.devices):
        number = int(groups.stage[rank])
        kinds = templates[number].group_names
        own = tuple(names[kind][groups.number[kind][rank]] for kind in kinds)
        if (number, own) not in shared:
            shared[number, own] = replace(templates[number], group_names=own)
        trace = shared[number, own]
        if messages[number].size:
            parts.append(_with_peers(trace, messages[number], peers[number], groups, rank))
        else:
            parts.append(trace)
    members = {
        name: tuple(row.tolist())
        for kind in used
        for name, row in zip(names[kind], groups.members[kind], strict=True)
    }
    return TraceSet(RankTraces(parts), members)


def _names(groups: RankGroups, kinds: Sequence[str], numbered: bool) -> Mapping[str, list[str]]:
    """Name every group of the kinds that are used."""
    names, first = {}, 1
    for kind in kinds:
        count = len(groups.members[kind])
        words = kind.replace("_", " ")
        names[kind] = [str(first + i) if numbered else f"{words} {i}" for i in range(count)]
        first += count
    return names


def _metadata(workload: ProjectedWorkload, stage: int) -> dict[str, str]:
    """Return what the traces of a stage say of themselves."""
    about = {
        "model": workload.model.name,
        "hardware": workload.hardware,
        "framework": workload.framework.name,
        "stage": str(stage),
    }
    return about | {name: str(value) for name, value in workload.strategy.items()}


def _with_peers(
    trace: Trace, messages: Integers, peers: Integers, groups: RankGroups, rank: int
) -> OtherPeers:
    """Return what a rank does, with the peers of its messages."""
    ring = groups.members["context"][groups.number["context"][rank]]
    place = int(np.flatnonzero(ring == rank)[0])
    first = rank - int(groups.stage[rank]) * groups.pipeline_stride
    stages = np.arange(int(groups.stage.max()) + 1) * groups.pipeline_stride + first
    ranks = np.full(FIRST_STAGE + stages.size, ABSENT, np.int32)
    ranks[NEXT_IN_RING], ranks[PREVIOUS_IN_RING] = ring[(place + 1) % len(ring)], ring[place - 1]
    ranks[FIRST_STAGE:] = stages
    other, here = ranks[peers], np.full(len(peers), rank, np.int32)
    sends = trace.kinds[messages] == SEND
    return OtherPeers(trace, messages, np.where(sends, here, other), np.where(sends, other, here))
