"""What the real ASTRA-sim does with collectives of groups; see `twins.astra.stops`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfmodel.base.collectives import SIMULATED, TRACED
from perfmodel.base.units import counted
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem
from perfmodel.workloads.simulation.costs import node_text, states_collective
from perfmodel.workloads.trace import ABSENT, EVERYBODY, OtherPeers, Trace, TraceSet
from perfmodel.workloads.twins.astra.costs import RUN
from perfmodel.workloads.twins.astra.stops_of_nodes import starts_at_once, wait_for
from perfmodel.workloads.twins.astra.versions import (
    ABORTED,
    ALL_FIGURES,
    CRASHED,
    FAILED,
    LEAVING,
    NO_FIGURES,
    RUNNING,
    STARTING,
    AstraVersion,
    Stop,
)

COLUMNS = ("kinds", "group", "collective", "involved", "data_parents", "control_parents")


class Use(NamedTuple):
    """Collectives of a rank that have kind, group and involved dimensions in common.

    Attributes
    ----------
    kind : str
    group : int
        Position in the trace's `group_names`, or `EVERYBODY`.
    flags : tuple of bool, optional
        Involved dimensions that this version reads.
    position : int
        The first of them.
    starts : bool
        One begins before time passes.
    """

    kind: str
    group: int
    flags: tuple[bool, ...] | None
    position: int
    starts: bool


def group_stops(
    traces: TraceSet, network: AstraNetwork, system: AstraSystem, version: AstraVersion
) -> Iterator[Stop]:
    """Yield a stop for every reason; the first rank that has it is named."""
    found: dict[str, Stop] = {}
    waiting: dict[str, list[int]] = {}
    uses: dict[tuple[int, ...], list[Use]] = {}
    for rank, part in enumerate(traces.parts):
        trace = part.trace if isinstance(part, OtherPeers) else part
        key = tuple(
            id(getattr(trace, name)) for name in ("kinds", "group", "collective", "involved")
        )
        if key not in uses:
            uses[key] = _uses(trace, system, version)
        for reason, stop in _rank_stops(rank, trace, uses[key], traces, network, system, version):
            found.setdefault(reason, stop)
            waiting.setdefault(reason, []).append(rank)
    for reason, stop in found.items():
        if stop.kind == "never ends":
            ranks = wait_for(waiting[reason], traces)
            stop = replace(stop, ranks=None if len(ranks) == traces.devices else ranks)
        yield stop


def _uses(trace: Trace, system: AstraSystem, version: AstraVersion) -> list[Use]:
    """Return what collectives a trace has."""
    kinds = [TRACED.index(name) for name in RUN]
    rows = np.flatnonzero(states_collective(trace) & np.isin(trace.collective, kinds))
    starts = starts_at_once(trace, system)[rows]
    read = version.reads(trace.involved_attributes)
    involved = trace.involved[rows] if read else np.full(len(rows), ABSENT)
    columns = (trace.collective[rows], trace.group[rows], involved)
    unique, first, where = np.unique(
        np.stack(columns).astype(np.int64), axis=1, return_index=True, return_inverse=True
    )
    where = where.ravel()
    return [
        Use(
            TRACED[kind],
            group,
            trace.involved_dimensions[flags] if flags != ABSENT else None,
            int(rows[at]),
            bool(starts[where == number].any()),
        )
        for number, ((kind, group, flags), at) in enumerate(
            zip(unique.T.tolist(), first.tolist(), strict=True)
        )
    ]


def _rank_stops(
    rank: int,
    trace: Trace,
    uses: list[Use],
    traces: TraceSet,
    network: AstraNetwork,
    system: AstraSystem,
    version: AstraVersion,
) -> Iterator[tuple[str, Stop]]:
    """Yield what a rank's collectives do, each with a short name of the reason."""
    small: list[tuple[str, int]] = []
    usual = system.endpoint_delay_nanoseconds > 0 and not any(
        "oubling" in name for kind in SIMULATED for name in system.implementation(kind)
    )
    for use in uses:
        name = trace.group_names[use.group] if use.group != EVERYBODY else ""
        everybody = name == "" or (name == "0" and name not in traces.groups)
        members = range(traces.devices) if everybody else traces.groups.get(name)
        if usual and use.flags is None and members and len(members) > 1 and rank in members:
            if len(members) < network.devices:
                small.append((use.kind, use.group))
            continue
        text = node_text(trace, use.position, rank)
        if members is None:  # Workload.cc, extract_comm_group
            yield (
                "unknown",
                Stop(
                    kind="refuses",
                    what=f"{text} names communicator group '{name}', which has no list of ranks",
                    remedy="list it in the file of --comm-group-configuration",
                    stage=STARTING if use.starts else RUNNING,
                    exit_codes=(FAILED,),
                ),
            )
            continue
        if rank not in members:  # RingTopology.cc
            yield (
                "stranger",
                Stop(
                    kind="aborts",
                    what=f"{text} names group '{name}', of which rank {rank} is no member",
                    remedy="let a rank name its own groups",
                    stage=STARTING if use.starts else RUNNING,
                    exit_codes=(ABORTED,),
                ),
            )
            continue
        flagged = use.flags is not None and (everybody or version.dimensions_override_group)
        whole = len(members) == network.devices or flagged
        if not whole:
            small.append((use.kind, use.group))
        yield from _lonely(text, use, len(members), flagged, network)
        yield from _algorithms(text, use, len(members), whole, network, system, version)
        if whole and use.starts and system.endpoint_delay_nanoseconds == 0:
            yield (
                "delay",
                Stop(  # EventQueue.cpp:33
                    kind="aborts",
                    what=f'{text} begins at time 0 with "endpoint-delay": 0, and its event queue '
                    "asserts that time moves on",
                    remedy='set "endpoint-delay" to 1 or more',
                    stage=STARTING,
                    exit_codes=(ABORTED,),
                ),
            )
    if version.group_keeps_algorithm:
        yield from _freed_twice(rank, trace, small, system)


def _lonely(
    text: str, use: Use, members: int, flagged: bool, network: AstraNetwork
) -> Iterator[tuple[str, Stop]]:
    """Sys.cc, generate_collective: without a phase nothing ever says that it has ended."""
    nobody = flagged and not any((use.flags or ())[: network.dimensions])
    if not nobody and (flagged or members > 1):
        return
    reason = "involves no dimension" if nobody else "is of a group of one rank"
    yield (
        reason,
        Stop(
            kind="never ends",
            what=f"{text} {reason}, and nothing tells its rank that it has ended",
            remedy="leave it out",
            stage=RUNNING,
        ),
    )


def _algorithms(
    text: str,
    use: Use,
    members: int,
    whole: bool,
    network: AstraNetwork,
    system: AstraSystem,
    version: AstraVersion,
) -> Iterator[tuple[str, Stop]]:
    """HalvingDoubling.cc knows no all-to-all; a group alone can have its algorithm on main."""
    names = system.implementation(use.kind)
    if whole:
        sizes = dict(enumerate(network.npus_count))
        flags = use.flags or (True,) * network.dimensions
        used = {
            name: network.devices if name.startswith("one") else sizes[at]
            for at, name in enumerate(names[: network.dimensions])
            if at >= len(flags) or flags[at]
        }
    elif version.group_keeps_algorithm and len(names) == 1:
        used = {names[0]: members}
    else:
        return
    for name, count in used.items():
        if not name.lower().endswith("halvingdoubling"):
            continue
        if use.kind == "all_to_all":
            yield (
                "halving all-to-all",
                Stop(
                    kind="refuses",
                    what=f"{text} is an all-to-all by {name}: 'unknown communication type'",
                    remedy='set "all-to-all-implementation" to ring or direct',
                    stage=STARTING if use.starts else RUNNING,
                    exit_codes=(FAILED,),
                ),
            )
        elif count & (count - 1):
            yield (
                "halving",
                Stop(
                    kind="may crash",
                    what=f"{text} runs {name} on {counted(count, 'device')}, which is made for "
                    "powers of two",
                    remedy="use ring or direct",
                    stage=RUNNING,
                    exit_codes=(0, ABORTED, CRASHED),
                    printed=NO_FIGURES,
                ),
            )


def _freed_twice(
    rank: int, trace: Trace, small: list[tuple[str, int]], system: AstraSystem
) -> Iterator[tuple[str, Stop]]:
    """CommunicatorGroup.cc, get_collective_plan: groups share an algorithm, and each frees it.

    ~CommunicatorGroup frees the plans of every kind of collective that a group has run, and
    ~CollectivePlan their algorithms; a list with one entry hands out the same one each time.
    What a second free does depends on the heap: of the 60 runs of main in the reference data, 7
    of 20 with such a rank end as if nothing were wrong, and none of the 40 others crashes.
    """
    used = Counter(kind for kind, _ in set(small) if len(system.implementation(kind)) == 1)
    for kind in SIMULATED:
        if used[kind] < 2:
            continue
        groups = sorted(trace.group_names[group] for name, group in set(small) if name == kind)
        yield (
            "freed",
            Stop(
                kind="may crash",
                what=f"rank {rank} runs {kind} in groups {' and '.join(groups[:2])}, and frees "
                "their common algorithm twice when all is printed",
                remedy=f"do not mind the exit code, or give the network two dimensions and "
                f"{kind.replace('_', '-')}-implementation two entries",
                stage=LEAVING,
                exit_codes=(ABORTED, CRASHED, 0),
                printed=ALL_FIGURES,
            ),
        )
        return
