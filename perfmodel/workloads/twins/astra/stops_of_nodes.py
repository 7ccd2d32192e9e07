"""At which nodes the real ASTRA-sim stops; see `perfmodel.workloads.twins.astra.stops`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Flags, Integers
from perfmodel.workloads.formats.astra_machine import AstraSystem
from perfmodel.workloads.simulation.costs import node_text, on_host
from perfmodel.workloads.trace import (
    ABSENT,
    COLLECTIVE,
    COMPUTE,
    MEM_LOAD,
    MEM_STORE,
    METADATA,
    NODE_KINDS,
    PEERS,
    RECEIVE,
    SEND,
    OtherPeers,
    Trace,
    TraceSet,
)
from perfmodel.workloads.twins.astra.costs import BROADCAST, RUN
from perfmodel.workloads.twins.astra.versions import (
    ABORTED,
    ALL_FIGURES,
    FAILED,
    NO_FIGURES,
    REPORTING,
    RUNNING,
    STARTING,
    WALL_TIME,
    AstraVersion,
    Stop,
)

INVALID = NODE_KINDS.index("INVALID")
# How the simulator says that something is wrong, which decides how it ends.
THROWS, ASSERTS, EXITS, WAITS, ENDLESS, COUNTS = range(6)
DEVICE, HOST, COMMUNICATION, MEMORY, UNLIMITED = range(5)  # resources of a rank


@dataclass(frozen=True, slots=True)
class Rule:
    """Nodes at which the simulator stops.

    Attributes
    ----------
    nodes : bool[nodes]
    does : int
        `THROWS`, `ASSERTS`, `EXITS`, `WAITS`, `ENDLESS` or `COUNTS`.
    reason, remedy : str
        After the node in a sentence, and what would mend it.
    when_ends : bool
        It stops when the node ends, not when it begins.
    """

    nodes: Flags
    does: int
    reason: str
    remedy: str
    when_ends: bool = False


def node_stops(traces: TraceSet, system: AstraSystem, version: AstraVersion) -> Iterator[Stop]:
    """Yield a stop for every reason, with the ranks that have it."""
    found: dict[str, tuple[Stop, list[int]]] = {}
    known: dict[tuple[int, ...], list[Stop]] = {}
    nodes: dict[tuple[int, ...], Integers] = {}
    balance = np.zeros(1, np.uint64)
    for rank, part in enumerate(traces.parts):
        trace = part.trace if isinstance(part, OtherPeers) else part
        key = tuple(id(getattr(trace, name)) for name in _COLUMNS)
        if key not in known:
            known[key] = [
                _stop(rank, trace, rule, system) for rule in _rules(trace, system, version)
            ]
            known[key] += _statistics_stops(rank, trace, version)
            nodes[key] = _message_nodes(trace)
        messages = _messages(rank, part, nodes[key])
        peers = _peer_rules(rank, trace, messages, traces.devices)
        for stop in (*known[key], *(_stop(rank, trace, rule, system) for rule in peers)):
            found.setdefault(stop.remedy, (stop, []))[1].append(rank)
        balance += _mixed(messages)
    if balance.any():
        yield from _unsent(traces)
    for stop, ranks in found.values():
        yield _of_ranks(stop, ranks, traces)


# Those that rules read, but for peers.
_COLUMNS = (
    *("identifiers", "kinds", "num_ops", "tensor_size", "collective", "communication_size"),
    *("tag", "on_cpu", "data_parents", "control_parents"),
)


def _rules(trace: Trace, system: AstraSystem, version: AstraVersion) -> Iterator[Rule]:
    """Yield where nodes of a trace stop the simulator, but for whom messages go to."""
    for make in (_computation_rules, _communication_rules, _other_rules):
        yield from (rule for rule in make(trace, system, version) if rule.nodes.any())


def _computation_rules(trace: Trace, system: AstraSystem, version: AstraVersion) -> Iterator[Rule]:
    """Workload.cc, issue_comp: the roofline reads both attributes, and divides by them."""
    if not system.roofline_enabled:
        return
    device = (trace.kinds == COMPUTE) & ~on_host(trace)
    yield Rule(
        device & ((trace.num_ops == ABSENT) | (trace.tensor_size == ABSENT)),
        THROWS,
        "does not state num_ops and tensor_size, which the roofline needs (here its duration is "
        "replayed)",
        'state both of every computation of the device, or set "roofline-enabled": 0',
    )
    yield Rule(
        device & (trace.num_ops == 0) & (trace.tensor_size > 0),
        COUNTS,
        "has no operations, and the roofline's time is 0 / 0 (here its bytes count)",
        "state an operation, or a tensor_size of 0",
    )
    operations, size = trace.num_ops.astype(np.float64), trace.tensor_size.astype(np.float64)
    seconds = np.maximum(
        operations / (system.peak_performance_teraflops * 1e12),
        size / (system.local_memory_bandwidth_gb_per_second * 1e9),
    )
    yield Rule(  # EventQueue.cpp:33
        device & (operations > 0) & (size > 0) & (seconds < 1e-9) & starts_at_once(trace, system),
        ASSERTS,
        "takes less than a nanosecond at time 0, and its event queue asserts that time moves on",
        "give the first computation of every rank a nanosecond at least",
    )


def _communication_rules(
    trace: Trace, system: AstraSystem, version: AstraVersion
) -> Iterator[Rule]:
    """Workload.cc, issue_comm and what it calls; Sys.cc, generate_collective."""
    kinds, size = trace.kinds, trace.communication_size
    talks = np.isin(kinds, (SEND, RECEIVE, COLLECTIVE))
    host = on_host(trace)
    collective = (kinds == COLLECTIVE) & ~host
    yield Rule(
        talks & host,
        THROWS,
        "is communication on the host (is_cpu_op): 'Comm node should not be on CPU'",
        "state is_cpu_op false",
    )
    yield Rule(
        collective & ~np.isin(trace.collective, [*map(TRACED.index, RUN), BROADCAST]),
        THROWS,
        "is no collective that it knows: 'Unsupported collective comm type'",
        "use " + ", ".join((*RUN, "broadcast")),
    )
    yield Rule(
        talks & ~host & (size == ABSENT), THROWS, "states no comm_size", "state its size in bytes"
    )
    yield Rule(
        (kinds != COLLECTIVE) & talks & ~host & (trace.tag == ABSENT),
        THROWS,
        "states no comm_tag",
        "state the tag of every message",
    )
    gathers = collective & (trace.collective == TRACED.index("all_gather"))
    yield Rule(
        gathers & (size == 0),
        WAITS,
        "gathers 0 B in no chunk, which never ends",
        "leave it out, or let it have a byte per preferred-dataset-splits",
    )
    splits = system.preferred_dataset_splits
    yield Rule(
        gathers & (size > 0) & (size < splits),
        ENDLESS,
        f"gathers fewer bytes than preferred-dataset-splits ({splits}), in chunks of 0 B "
        "without an end",
        "gather at least as many bytes as there are splits",
    )
    # BasicTopology.cpp, send
    yield Rule(
        (kinds == SEND) & ~host & (size == 0),
        ASSERTS,
        "sends 0 B, and its network asserts that no message is empty",
        "leave it out, or send a byte",
    )


def _other_rules(trace: Trace, system: AstraSystem, version: AstraVersion) -> Iterator[Rule]:
    kinds = trace.kinds
    # AnalyticalRemoteMemory.cc, issue
    yield Rule(
        np.isin(kinds, (MEM_LOAD, MEM_STORE)),
        EXITS,
        "loads or stores remote memory, which NO_MEMORY_EXPANSION refuses",
        "state a remote memory in its memory file, or leave the node out",
    )
    if not version.counts_host:  # Statistics.cc, get_operator_type
        yield Rule(
            kinds == METADATA,
            ASSERTS,
            "is a METADATA node, which its statistics do not know",
            "leave METADATA nodes out",
        )
    if system.track_local_memory:  # LocalMemUsageTracker.cc, recordReads and recordWrites
        for name, first in zip(("inputs", "outputs"), trace.unlisted, strict=True):
            if first != ABSENT:
                yield Rule(
                    np.arange(trace.nodes) == first,
                    THROWS,
                    f"has no attribute '{name}', which \"track-local-mem\": 1 needs of every node",
                    f"let every node have {name}, without a value where there are none, or set "
                    '"track-local-mem": 0',
                    when_ends=True,
                )
                return


class Messages(NamedTuple):
    """Ends of the messages of a rank.

    Attributes
    ----------
    nodes : int64[messages]
        Positions.
    sends : bool[messages]
    source, destination, tag, size : integers[messages]
    """

    nodes: Integers
    sends: Flags
    source: Any
    destination: Any
    tag: Any
    size: Integers


def _message_nodes(trace: Trace) -> Integers:
    """Return the positions of messages."""
    return np.flatnonzero(np.isin(trace.kinds, (SEND, RECEIVE)) & ~on_host(trace))


def _messages(rank: int, part: Trace | OtherPeers, nodes: Integers) -> Messages | None:
    """Return a rank's messages; the side that a node does not state is its own."""
    if not nodes.size:
        return None
    if isinstance(part, OtherPeers):
        trace = part.trace
        source, destination = (part.column(name)[nodes] for name in PEERS)
    else:
        trace, source, destination = part, part.source[nodes], part.destination[nodes]
    sends = trace.kinds[nodes] == SEND
    return Messages(
        nodes,
        sends,
        np.where(sends & (source == ABSENT), rank, source),
        np.where(~sends & (destination == ABSENT), rank, destination),
        trace.tag[nodes],
        trace.communication_size[nodes],
    )


def _peer_rules(rank: int, trace: Trace, messages: Messages | None, ranks: int) -> Iterator[Rule]:
    """Yield where messages have ends that the simulator refuses: Workload.cc, issue_send_comm."""
    if messages is None:
        return
    nodes, sends, source, destination, _, _ = messages
    own, other = np.where(sends, source, destination), np.where(sends, destination, source)
    absent = other == ABSENT
    for wrong, does, reason, remedy in (
        (
            own != rank,
            THROWS,
            "moves data of another rank: 'node should be issued by the sender' or receiver",
            "let each rank send and receive its own messages",
        ),
        (absent, THROWS, "names no rank at its other end", "state comm_src and comm_dst"),
        (
            sends & ~absent & ((other < 0) | (other >= ranks) | (other == rank)),
            ASSERTS,
            "sends to itself or to a rank that is not there",
            "send to other ranks",
        ),
    ):
        if wrong.any():
            flags = np.zeros(trace.nodes, np.bool_)
            flags[nodes[wrong]] = True
            yield Rule(flags, does, reason, remedy)


def _mixed(messages: Messages | None) -> Any:
    """Return a number per rank; over all ranks they sum to 0 where each message has both ends."""
    total = np.zeros(1, np.uint64)
    if messages is None:
        return total
    mixed = np.zeros(len(messages.nodes), np.uint64)
    for column in messages[2:]:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    total += mixed[messages.sends].sum(dtype=np.uint64)  # arrays wrap around without a warning
    total -= mixed[~messages.sends].sum(dtype=np.uint64)
    return total


def _unsent(traces: TraceSet) -> Iterator[Stop]:
    """Yield a stop if there are messages that nobody sends: their ranks wait for ever.

    A message that nobody receives stops nobody (CallbackTracker.cc: each end by itself).
    """
    sent: Counter[tuple[int, ...]] = Counter()
    received: list[tuple[int, int, tuple[int, ...]]] = []
    for rank, part in enumerate(traces.parts):
        trace = part.trace if isinstance(part, OtherPeers) else part
        messages = _messages(rank, part, _message_nodes(trace))
        if messages is not None:
            keys = zip(*(column.tolist() for column in messages[2:]), strict=True)
            for row, sends, key in zip(*(c.tolist() for c in messages[:2]), keys, strict=True):
                if sends:
                    sent[key] += 1
                else:
                    received.append((rank, row, key))
    lonely = []
    for rank, row, key in received:
        sent[key] -= 1
        if sent[key] < 0:
            lonely.append((rank, row, key))
    if not lonely:
        return
    rank, row, (source, _, tag, size) = lonely[0]
    ranks = wait_for(sorted({rank for rank, _, _ in lonely}), traces)
    yield Stop(
        kind="never ends",
        what=f"{node_text(traces.traces[rank], row, rank)} waits for {size} B with tag {tag} from "
        f"rank {source}, which sends no such message",
        remedy="let the two ends agree in tag and size",
        stage=RUNNING,
        ranks=None if len(ranks) == traces.devices else ranks,
    )


def _statistics_stops(rank: int, trace: Trace, version: AstraVersion) -> Iterator[Stop]:
    """Statistics.cc, extract_comp_comm_overlap: types other than GPU and COMM throw."""
    if version.counts_host:
        return
    unknown = (trace.kinds == INVALID) | ((trace.kinds == COMPUTE) & on_host(trace))
    if not unknown.any():
        return
    position = _first(trace, unknown)
    name = "a node of the host" if trace.kinds[position] == COMPUTE else "an INVALID node"
    yield Stop(
        kind="loses statistics",
        what=f"{node_text(trace, position, rank)} is {name}, and 'Only GPU and COMM types are "
        "supported for overlap extraction': cycles are printed, times are not",
        remedy="leave such nodes out (perfmodel workload chakra --for astra-sim does)",
        stage=REPORTING,
        exit_codes=_codes(_last_ends(trace)),
        printed=WALL_TIME,
    )


def _stop(rank: int, trace: Trace, rule: Rule, system: AstraSystem) -> Stop:
    """Return how the simulator ends where a rule holds."""
    at_start = rule.nodes & starts_at_once(trace, system)
    text = node_text(trace, _first(trace, at_start if at_start.any() else rule.nodes), rank)
    kind, stage = "aborts", RUNNING
    codes: tuple[int, ...] = (ABORTED,)
    if rule.does == EXITS:
        kind, codes = "refuses", (FAILED,)
    elif rule.does == ASSERTS:
        stage = STARTING if at_start.any() else RUNNING
    elif rule.does in (WAITS, ENDLESS):
        kind, codes = "never ends", (0,) if rule.does == WAITS else ()
    elif rule.does == COUNTS:
        kind, codes = "counts nonsense", (0,)
    elif rule.when_ends:
        kinds = trace.kinds[rule.nodes]
        codes = _codes(kinds)
        if at_start.any():  # what ends first need not be the node that is named
            begun = trace.kinds[starts_at_once(trace, system)]
            codes = (ABORTED,) if (begun == SEND).any() else (0,)
    elif at_start.any():
        stage = STARTING
    else:
        codes = _codes(trace.kinds[_parents(trace, _first(trace, rule.nodes))])
    if kind == "aborts" and codes[0] == 0:
        kind = "never ends"
    return Stop(
        kind=kind,
        what=f"{text} {rule.reason}",
        remedy=rule.remedy,
        stage=stage,
        exit_codes=codes,
        printed=ALL_FIGURES if rule.does == COUNTS else NO_FIGURES,
    )


def _codes(ended: Any) -> tuple[int, ...]:
    """Return how the process ends if an exception follows the end of one of such nodes."""
    messages = np.isin(ended, (SEND, RECEIVE))
    if not messages.any():
        return (0,)
    return (ABORTED,) if messages.all() else (0, ABORTED)


def starts_at_once(trace: Trace, system: AstraSystem) -> Flags:
    """Tell which nodes a rank begins before time passes: Workload.cc, issue_dep_free_nodes.

    Of those that wait for nobody, a resource takes the one with the smallest identifier.
    """
    starts = np.zeros(trace.nodes, np.bool_)
    lengths = np.diff(trace.data_parents.offsets) + np.diff(trace.control_parents.offsets)
    free = np.flatnonzero(lengths == 0)
    free = free[np.argsort(trace.identifiers[free], kind="stable")]
    kinds = trace.kinds[free]
    resource = np.full(len(free), UNLIMITED)
    resource[kinds == COMPUTE] = DEVICE
    resource[np.isin(kinds, (SEND, COLLECTIVE))] = COMMUNICATION
    resource[np.isin(kinds, (MEM_LOAD, MEM_STORE))] = MEMORY
    resource[on_host(trace)[free] & (kinds == COMPUTE)] = HOST
    skipped = (resource == DEVICE) & system.roofline_enabled & (trace.tensor_size[free] == 0)
    starts[free[resource == UNLIMITED]] = True
    for limited in (DEVICE, HOST, COMMUNICATION, MEMORY):
        rows = np.flatnonzero(resource == limited)
        holds = np.flatnonzero(~skipped[rows])
        starts[free[rows[: holds[0] + 1 if holds.size else None]]] = True
    return starts


def _first(trace: Trace, nodes: Flags) -> int:
    """Return the position of the node with the smallest identifier."""
    rows = np.flatnonzero(nodes)
    return int(rows[trace.identifiers[rows].argmin()])


def _parents(trace: Trace, position: int) -> Any:
    """Return the positions of a node's parents."""
    names = np.concatenate([trace.data_parents[position], trace.control_parents[position]])
    return np.flatnonzero(np.isin(trace.identifiers, names))


def _last_ends(trace: Trace) -> Any:
    """Return the kinds of nodes that nobody waits for."""
    parents = np.concatenate([trace.data_parents.values, trace.control_parents.values])
    return trace.kinds[~np.isin(trace.identifiers, parents)]


def _of_ranks(stop: Stop, ranks: list[int], traces: TraceSet) -> Stop:
    """Return a stop with the ranks whose figures it takes: all where the process ends."""
    if len(ranks) > 1:
        others = f", and likewise on {len(ranks) - 1} other ranks"
        stop = replace(stop, what=stop.what + others)
    if stop.stage == REPORTING:
        return replace(stop, ranks=None if len(ranks) == traces.devices else tuple(ranks))
    if stop.exit_codes != (0,) or stop.printed == ALL_FIGURES:
        return stop
    waiting = wait_for(ranks, traces)
    return replace(stop, ranks=None if len(waiting) == traces.devices else waiting)


def wait_for(ranks: list[int], traces: TraceSet) -> tuple[int, ...]:
    """Return the ranks that never end if these do not: they share a group, or receive from one."""
    stuck = set(ranks)
    if len(stuck) == traces.devices:
        return tuple(sorted(stuck))
    partners: list[set[int]] = [set() for _ in range(traces.devices)]
    for rank in range(traces.devices):
        trace = traces.traces[rank]
        rows = (trace.kinds == COLLECTIVE) & ~on_host(trace)
        for group in np.unique(trace.group[rows]).tolist():
            name = trace.group_names[group] if group != ABSENT else ""
            partners[rank].update(traces.groups.get(name, ()) if name else range(traces.devices))
        receives = (trace.kinds == RECEIVE) & (trace.source >= 0)
        partners[rank].update(np.unique(trace.source[receives]).tolist())
    while True:
        more = {r for r in range(traces.devices) if r not in stuck and partners[r] & stuck}
        if not more:
            return tuple(sorted(stuck))
        stuck |= more
