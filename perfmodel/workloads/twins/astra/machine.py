"""Whole traces as ASTRA-sim's machine runs them: message by message, every rank by itself.

:mod:`perfmodel.kernels.workloads.astra.machine` runs; here is written what it is told: the phases
of collectives, their messages, and what each rank does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.collectives import SIMULATED, TRACED
from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import FormatError, HardwareError
from perfmodel.workloads.formats.astra_machine import (
    IMPLEMENTATIONS,
    AstraNetwork,
    AstraSystem,
    check_name,
    mesh_shape,
)
from perfmodel.workloads.simulation.costs import node_text
from perfmodel.workloads.simulation.graph import Graph, Rank
from perfmodel.workloads.simulation.meetings import Group, Messages
from perfmodel.workloads.trace import SEND
from perfmodel.workloads.twins.astra.plan import (
    GROUP_DELAY,
    LogicalDimension,
    check_algorithms,
    group_algorithm,
    logical_dimensions,
    network_table,
    phase_plan,
)
from perfmodel.workloads.twins.astra.versions import DEFAULT_VERSION, AstraVersion

SHARED = ("Ring", "FullyConnected", "Switch", "Mesh2D")  # numbered as in kernels.astra
MOST_DEVICES = 8192
MOST_CROSSINGS = 500_000_000  # of links by messages: some minutes
MOST_AT_ONCE = 20_000_000  # messages under way or expected: some gigabytes of memory
LATEST = 2**62  # [ns]
GROUP_TAG = 1_000_000  # of a group's first chunk, times its id: CommunicatorGroup.cc, `set_id`
BYTES_PER_GIB = 2**30
NANOSECONDS_PER_SECOND = 1e9
RING, DIRECT, HALVING_DOUBLING, DOUBLE_TREE = range(4)  # as in IMPLEMENTATIONS
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = range(4)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a collective: `kernels.astra.machine_state` has its columns.

    Attributes
    ----------
    row : tuple of int
        Up to PHASE_ADDING.
    sizes : tuple of int
        Of a member's messages; one where they are alike [B].
    sends, parallel : int
        Messages of a member; with how many it starts.
    crossings : float
        Of links by the messages of a member, about.
    """

    row: tuple[int, ...]
    sizes: tuple[int, ...]
    sends: int
    parallel: int
    crossings: float


@dataclass(frozen=True, slots=True)
class MachineRun:
    """What came out of a run.

    Attributes
    ----------
    start, end, order : int64[nodes]
        As of `kernels.astra.machine.run_machine`.
    link_bytes : int64[links]
        Carried [B].
    link_source, link_target : int64[links]
        Nodes at its ends: ranks, then the switch where there is one; -1: no such link.
    messages, events : int
        Sent; that happened.
    """

    start: Integers
    end: Integers
    order: Integers
    link_bytes: Integers
    link_source: Integers
    link_target: Integers
    messages: int
    events: int


class _Workload(NamedTuple):
    """What ranks do, as `kernels.astra.machine.run_machine` is told."""

    static_first: Integers
    first: Integers
    static: Integers
    children: Integers
    resources: int
    what: Integers
    place: Integers


class Machine:
    """ASTRA-sim's machine on a network and a system, to which collectives are told.

    Parameters
    ----------
    network : AstraNetwork
        One dimension where links are shared.
    system : AstraSystem
    version : AstraVersion
        State of the simulator: how groups are run and their messages told apart.
    shared : bool
        Messages share links, first in, first out (the congestion-aware backend); otherwise each
        takes its own time, whatever else is under way (congestion-unaware).

    Raises
    ------
    HardwareError
        Links are shared, and the network has several dimensions or too many devices.
    """

    def __init__(
        self,
        network: AstraNetwork,
        system: AstraSystem,
        version: AstraVersion = DEFAULT_VERSION,
        *,
        shared: bool = True,
    ) -> None:
        if shared and network.dimensions != 1:
            raise HardwareError(
                "the congestion-aware backend knows networks of one dimension; this one has "
                f"{network.dimensions}: use the congestion-unaware backend"
            )
        if shared and network.devices > MOST_DEVICES:
            raise HardwareError(
                f"{network.devices} devices; the congestion-aware backend covers "
                f"{MOST_DEVICES} at most"
            )
        self.network = network
        self.system = system
        self.version = version
        self.shared = shared
        self.most_crossings = MOST_CROSSINGS
        self._known: dict[Any, tuple[list[Phase], int]] = {}

    # Collectives -----------------------------------------------------------------

    def collective(
        self,
        collective: str,
        size: int,
        members: Sequence[int] | None = None,
        involved: Sequence[bool] | None = None,
    ) -> tuple[list[Phase], int]:
        """Return the phases of a collective's chunks, and how many chunks there are.

        Parameters
        ----------
        collective : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
        size : int
            [B], >= 0.
        members : sequence of int, optional
            Of a communicator group that is not the whole system.
        involved : sequence of bool, optional
            Dimensions that take part; by default all.

        Raises
        ------
        HardwareError
            The simulator itself stops there.
        """
        key = (
            collective,
            size,
            None if members is None else tuple(members),
            None if involved is None else tuple(involved),
        )
        if key not in self._known:
            self._known[key] = self._new_collective(collective, size, members, involved)
        return self._known[key]

    def _new_collective(
        self,
        collective: str,
        size: int,
        members: Sequence[int] | None,
        involved: Sequence[bool] | None,
    ) -> tuple[list[Phase], int]:
        from perfmodel.kernels.workloads.astra.phase import chunk_size_and_count, final_size

        check_name("collective", collective, SIMULATED)
        splits = self.system.preferred_dataset_splits
        kind = SIMULATED.index(collective)
        chunk, chunks = chunk_size_and_count(kind, size, splits, self.network.devices)
        if chunk == 0:
            raise HardwareError(
                f"size {size} B cannot be simulated: it has fewer bytes than "
                f"preferred_dataset_splits {splits}; it should be larger"
            )
        if members is not None:
            ring = np.array(members)
            algorithm = group_algorithm(
                self.system.implementation(collective), self.version.group_keeps_algorithm
            )
            check_algorithms(collective, [LogicalDimension(algorithm, len(members), 1, 0)])
            number = IMPLEMENTATIONS.index(algorithm)
            if number == DOUBLE_TREE:
                raise HardwareError(
                    "doubleBinaryTree in a group that leaves devices out: ASTRA-sim takes the "
                    "group's ring for a tree, and what it does then is not known; it should be "
                    "ring, direct or halvingDoubling"
                )
            of_group = (kind, number, len(members), 0, 0, GROUP_DELAY)
            return [self._phase(of_group, chunk, ring)], chunks
        phases = []
        for row in self._plan(collective, involved):
            of_kind, algorithm, count, stride, queue = row.tolist()
            numbers = (of_kind, algorithm, count, stride, queue)
            delay = self.system.endpoint_delay_nanoseconds
            phases.append(self._phase((*numbers, delay), chunk, np.arange(count) * stride))
            chunk = final_size(of_kind, chunk, count)
        return phases, chunks

    def _plan(self, collective: str, involved: Sequence[bool] | None) -> Integers:
        """Return the phases over the dimensions of the network (`plan.phase_plan`)."""
        names = self.system.implementation(collective)
        if self.shared and len(names) != 1:
            raise HardwareError(
                f"{len(names)} implementations of {collective}; a network of one dimension "
                "needs one"
            )
        dimensions = [
            dimension
            for dimension in logical_dimensions(self.network, names)
            if involved is None or involved[dimension.index]
        ]
        check_algorithms(collective, dimensions)
        return phase_plan(collective, dimensions, self.system.collective_optimization)

    def _phase(self, numbers: tuple[int, ...], size: int, ring: Integers) -> Phase:
        """Return a phase of kind, algorithm, members, stride, queue and delay.

        `ring`: ids of the members, in order; or such as are as far apart.
        """
        kind, algorithm, members, stride, queue, delay = numbers

        def hops(offset: int) -> float:
            return float(self._hops(ring, np.roll(ring, -offset)).mean())

        sends = _sends(kind, algorithm, members)
        parallel = members - 1 if algorithm == DIRECT else 1
        sizes = _message_sizes(kind, algorithm, members, size, sends)
        if min(sizes) == 0:
            name = SIMULATED[kind]
            raise HardwareError(
                f"a chunk of {size} B cannot be simulated: {IMPLEMENTATIONS[algorithm]} {name} of "
                f"{members} devices would send an empty message; it should be larger"
            )
        barrier = parallel if algorithm == DIRECT and kind == ALL_REDUCE else 0
        # AllToAll.cc `get_non_zero_latency_packets`: more of them in groups.
        direct = parallel if stride > 0 else parallel * (members - 1)
        halving = _rounds(members) - 1
        adding = {RING: members - 1, DIRECT: direct, HALVING_DOUBLING: halving, DOUBLE_TREE: 0}
        row = (algorithm, kind, members, stride, queue, delay, sends, parallel, barrier)
        if algorithm == RING:
            crossings = sends * hops(1)
        elif algorithm == DOUBLE_TREE:
            crossings = sum(
                2 * hops(1 << level) / (2 << level) for level in range(_rounds(members))
            )
        elif algorithm == DIRECT:
            offsets = np.unique(np.linspace(1, members - 1, 33).astype(np.int64))
            crossings = sends * float(np.mean([hops(int(offset)) for offset in offsets]))
        else:
            one_way = sum(hops(1 << level) for level in range(_rounds(members)))
            crossings = one_way * (2 if kind == ALL_REDUCE else 1)
        return Phase((*row, adding[algorithm]), sizes, sends, parallel, crossings)

    def _hops(self, source: Any, target: Any) -> Any:
        """Return how many links messages cross; 1 where they share none."""
        if not self.shared:
            return np.ones(len(source))
        ranks, topology = self.network.devices, self.network.topology[0]
        apart = np.abs(source - target)
        if topology == "Ring":
            return np.minimum(apart, ranks - apart)
        if topology == "Mesh2D":
            width, _ = mesh_shape(ranks)
            return np.abs(source % width - target % width) + np.abs(
                source // width - target // width
            )
        return np.full(len(source), 2 if topology == "Switch" else 1)

    # Runs ------------------------------------------------------------------------

    def run_collective(self, collective: str, size: int) -> MachineRun:
        """Run one collective of all devices, alone on the network; node = device.

        Raises
        ------
        HardwareError
            As :meth:`collective`; or there are too many messages.
        """
        from perfmodel.kernels.workloads.trace.schedule import COLLECTIVE

        ranks = self.network.devices
        facts = _Facts(self)
        call = facts.call(collective, size, None, None, -1, 0, ranks)
        workload = _Workload(
            static_first=np.zeros(ranks, np.int64),
            first=np.arange(ranks + 1),
            static=np.array([[0, 0, 0, 1, COLLECTIVE]]),
            children=np.zeros(0, np.int64),
            resources=2,
            what=np.full(ranks, call),
            place=np.arange(ranks),
        )
        facts.add_use(call, ranks)
        return self._run(workload, facts, 0)

    def run(
        self,
        plan: Any,
        graphs: Sequence[Graph],
        ranks: Sequence[Rank],
        groups: Sequence[Group],
        of_rank: Sequence[Sequence[int]],
        messages: Messages | None,
    ) -> tuple[Floats, Floats, Integers]:
        """Run the traces of all ranks.

        Parameters
        ----------
        plan : perfmodel.workloads.simulation.plan.Plan
            Every rank is one of its classes.
        graphs, ranks, groups, of_rank, messages
            As in `perfmodel.workloads.simulation.run`.

        Returns
        -------
        start, end : float64[nodes]
            [ns]; -1 where a node never begins or ends.
        order : int64[nodes]
            In which nodes ended; -1 behind the last.

        Raises
        ------
        FormatError
            A message is empty or goes to its own sender, or there are too many.
        """
        facts = _Facts(self)
        given = plan.arguments
        what = given["time"].astype(np.int64)
        place = np.zeros(len(what), np.int64)
        counters = [facts.new_counters(len(group.members)) for group in groups]
        places = [{rank: at for at, rank in enumerate(group.members.tolist())} for group in groups]
        series: dict[tuple[int, int], tuple[Any, Integers]] = {}
        for number, rank in enumerate(ranks):
            graph, begin = graphs[rank.graph], plan.first[number]
            for slot, index in enumerate(of_rank[number]):
                nodes, named = graph.by_slot[slot], bool(rank.slots[slot][0])
                if (rank.graph, slot) not in series:
                    series[rank.graph, slot] = _collectives_of(graph, nodes)
                different, which = series[rank.graph, slot]
                calls = [
                    facts.call_of(groups[index], index, named, kind, size, counters[index])
                    for kind, size in different
                ]
                for at, count in enumerate(np.bincount(which).tolist()):
                    facts.add_use(calls[at], count)
                what[begin + nodes] = np.array(calls, np.int64)[which]
                place[begin + nodes] = places[index][number]
        most_receives = 0
        if messages is not None:
            most_receives = self._tell_messages(plan, graphs, ranks, messages, facts, what)
        columns = ("child_first", "child_end", "parents", "resource", "role")
        workload = _Workload(
            static_first=given["static_first"],
            first=plan.first,
            static=np.stack([given[name] for name in columns], axis=1),
            children=given["children"],
            resources=given["resources"],
            what=what,
            place=place,
        )
        try:
            found = self._run(workload, facts, most_receives)
        except HardwareError as error:
            raise FormatError(str(error)) from None
        return found.start.astype(np.float64), found.end.astype(np.float64), found.order

    def _tell_messages(
        self,
        plan: Any,
        graphs: Sequence[Graph],
        ranks: Sequence[Rank],
        messages: Messages,
        facts: _Facts,
        what: Integers,
    ) -> int:
        """Set where sends and receives are among the facts; return most receives of a rank."""
        offsets = messages.offsets
        owner = np.repeat(np.arange(len(ranks)), np.diff(offsets))
        node, tag, size, sends = [], [], [], []
        for number, rank in enumerate(ranks):
            own = graphs[rank.graph].messages
            positions = rank.order[own]
            node.append(plan.first[number] + own)
            tag.append(rank.column("tag")[positions].astype(np.int64))
            size.append(rank.column("communication_size")[positions].astype(np.int64))
            sends.append(rank.column("kinds")[positions] == SEND)
        nodes, tags, sizes = np.concatenate(node), np.concatenate(tag), np.concatenate(size)
        sending = np.concatenate(sends)
        by_node = np.zeros(len(what), np.int64)
        by_node[nodes] = sizes
        sent = by_node[plan.first[messages.peer_rank] + messages.peer_number]
        sizes = np.where(sending, sizes, sent)
        wrong = np.flatnonzero(sending & ((sizes == 0) | (messages.peer_rank == owner)))
        if wrong.size:
            row = int(wrong[0])
            rank = ranks[owner[row]]
            position = int(rank.order[nodes[row] - plan.first[owner[row]]])
            reason = "is empty" if sizes[row] == 0 else "goes to its own sender"
            raise FormatError(
                f"{node_text(rank.trace, position, int(owner[row]))} sends a message that "
                f"{reason}: ASTRA-sim asserts that none does"
            )
        rows = np.stack([messages.peer_rank, np.maximum(tags, 0), sizes], axis=1)
        different, which = np.unique(rows, axis=0, return_inverse=True)
        records = [facts.message(*row) for row in different.tolist()]
        what[nodes] = np.array(records, np.int64)[np.reshape(which, -1)]
        hops = self._hops(owner[sending], messages.peer_rank[sending])
        facts.count(float(hops.sum()), int(sending.sum()))
        return int(np.bincount(owner[~sending], minlength=1).max(initial=0))

    def _run(self, workload: _Workload, facts: _Facts, most_receives: int) -> MachineRun:
        """Run a workload; `most_receives`: nodes of one rank."""
        from perfmodel.kernels.plain import plain
        from perfmodel.kernels.work import kernel_work
        from perfmodel.kernels.workloads.astra import machine as kernel
        from perfmodel.kernels.workloads.astra.transport import link_ends

        facts.check()
        active = self.system.active_chunks_per_dimension
        burst = 2 * facts.parallel * (active + 2) + 4 * active + 4 * most_receives + 32
        # A message under way and one that is expected; more are made where that is too few.
        cells = 2 * burst + 2 * facts.at_once
        nodes = int(workload.first[-1])
        with kernel_work(hops=facts.crossings + nodes):
            told = plain(np.array(facts.values, np.int64))
            start, end, order, link_bytes, events = kernel.run_machine(
                *workload,
                told,
                np.zeros((0, 4)) if self.shared else network_table(self.network),
                self.links,
                self.network.dimensions,
                facts.counters,
                cells,
                burst,
            )
            source, target = link_ends(told, self.links)
        return MachineRun(
            start, end, order, link_bytes, source, target, facts.messages, int(events)
        )

    @property
    def links(self) -> int:
        """Number of links, those that no message takes included."""
        if not self.shared:
            return 0
        ranks, topology = self.network.devices, self.network.topology[0]
        each = {"FullyConnected": ranks, "Mesh2D": 4}
        return ranks * each.get(topology, 2)


class _Facts:
    """What the kernel is told, as one list of numbers; equal records stand once."""

    def __init__(self, machine: Machine) -> None:
        network, system = machine.network, machine.system
        self.machine = machine
        topology, width = -1, 0
        if machine.shared:
            topology = SHARED.index(network.topology[0])
            width, _ = mesh_shape(network.devices)
        active = system.active_chunks_per_dimension
        self.values = [network.devices, topology, width, active]
        self.counters = 0
        self.crossings = 0.0
        self.parallel = 1
        self.messages = 0
        self._at_once: dict[int, int] = {}
        self._slowest = 0.0
        self._places: dict[Any, int] = {}
        self._calls: dict[int, tuple[list[Phase], int]] = {}

    def new_counters(self, members: int) -> int:
        """Return where the chunks that members of a group begin are counted."""
        from perfmodel.kernels.workloads.astra.machine_state import COUNTERS

        self.counters += members
        return COUNTERS + self.counters - members

    def call_of(
        self, group: Group, index: int, named: bool, kind: int, size: int, counter: int
    ) -> int:
        """Return the record of a collective of a group.

        Parameters
        ----------
        group : Group
        index : int
            Of the group.
        named : bool
            It is one by name; else all ranks.
        kind : int
            As in `TRACED`.
        size : int
            [B].
        counter : int
            Of the group's chunks.
        """
        members = group.members.tolist()
        if len(members) < 2:
            return self._record(("nothing",), (-1, -1, 0, 0, 0, 0))
        whole = group.involved is not None or len(members) == self.machine.network.devices
        place = ("call", index, kind, size)
        # Chunks of all ranks are counted with all others, or by themselves where an unnamed
        # group is one more group (Workload.cc, `initialize_comm_group` of af2492b).
        version = self.machine.version
        if group.involved is not None or (version.numbered_groups and not named):
            counter = -1
        tag = GROUP_TAG * (1 + index if version.numbered_groups else 1)
        if place not in self._places:
            self._places[place] = self.call(
                TRACED[kind],
                size,
                None if whole else members,
                group.involved,
                counter,
                0 if counter < 0 else tag,
                len(members),
            )
        return self._places[place]

    def call(
        self,
        collective: str,
        size: int,
        members: Sequence[int] | None,
        involved: Sequence[bool] | None,
        counter: int,
        tag: int,
        count: int,
    ) -> int:
        """Return the record of a collective.

        Parameters
        ----------
        collective, size, members, involved
            As for `Machine.collective`.
        counter : int
            Of `new_counters`; -1: all chunks that a rank began.
        tag : int
            Of the first chunk.
        count : int
            Ranks that take part.
        """
        phases, chunks = self.machine.collective(collective, size, members, involved)
        packets = [self._packets(phase.sizes) for phase in phases]
        rows = [(*phase.row, packet) for phase, packet in zip(phases, packets, strict=True)]
        first = self._record(("phases", tuple(rows)), [value for row in rows for value in row])
        ring = -1
        if members is not None:
            ring = self._record(("members", tuple(members)), members)
        numbers = (ring, counter, tag, chunks, first, len(phases))
        record = self._record(("call", numbers), numbers)
        self._calls[record] = (phases, chunks)
        self.parallel = max(self.parallel, *(phase.parallel for phase in phases))
        at_once = max(phase.parallel for phase in phases)
        at_once *= min(chunks, self.machine.system.active_chunks_per_dimension) * count
        key = counter if counter >= 0 else -1 - first
        self._at_once[key] = max(self._at_once.get(key, 0), at_once)
        return record

    def add_use(self, call: int, count: int) -> None:
        """Count the messages of ranks that begin a collective."""
        phases, chunks = self._calls.get(call, ([], 0))
        self.count(
            count * chunks * sum(phase.crossings for phase in phases),
            count * chunks * sum(phase.sends for phase in phases),
        )

    def count(self, crossings: float, messages: int) -> None:
        """Count messages, and links that they cross."""
        self.crossings += crossings
        self.messages += messages

    def message(self, peer: int, tag: int, size: int) -> int:
        """Return the record of a message between two ranks."""
        numbers = (peer, tag, self._packets((size,)))
        return self._record(("message", numbers), numbers)

    @property
    def at_once(self) -> int:
        """Most messages of collectives that are under way at once, about."""
        return sum(self._at_once.values())

    def check(self) -> None:
        """Raise where a run takes too long or too much memory, or times cannot be counted."""
        at_once = self.at_once
        if self.crossings > self.machine.most_crossings or at_once > MOST_AT_ONCE:
            raise HardwareError(
                f"{self.messages:,} messages, which cross links about {self.crossings:,.0f} times "
                f"and of which up to {at_once:,} are under way at once; at most "
                f"{self.machine.most_crossings:,} and {MOST_AT_ONCE:,} are simulated"
            )
        hops = self.machine.network.devices
        if self._slowest * self.messages * hops >= LATEST:
            raise HardwareError(
                f"one message takes {self._slowest:.3g} ns and there are {self.messages:,}: "
                "bandwidth or latency of the network is out of range"
            )

    def _packets(self, sizes: tuple[int, ...]) -> int:
        """Return the records of messages of these sizes, one behind the other."""
        from perfmodel.kernels.workloads.astra.phase import reduction_time

        network, system = self.machine.network, self.machine.system
        memory = float(system.local_memory_bandwidth_gb_per_second)
        numbers: list[int] = []
        for size in sizes:
            reduction = reduction_time(size, memory)
            transfer = max(
                size / (bandwidth * BYTES_PER_GIB / NANOSECONDS_PER_SECOND)
                for bandwidth in network.bandwidth_gib_per_second
            )
            flight = max(network.latency_nanoseconds) + transfer
            delay = max(system.endpoint_delay_nanoseconds, GROUP_DELAY)
            self._slowest = max(self._slowest, flight + reduction + delay)
            times = (min(transfer, LATEST), min(flight, LATEST), min(reduction, LATEST))
            numbers += [size, *map(int, times)]
        return self._record(("packets", sizes), numbers)

    def _record(self, key: Any, numbers: Sequence[int]) -> int:
        """Return where a record stands."""
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values += numbers
        return self._places[key]


def _collectives_of(graph: Graph, nodes: Integers) -> tuple[list[list[int]], Integers]:
    """Return the different kinds and sizes of collectives, and which ones nodes are."""
    columns = [graph.column(name)[nodes] for name in ("collective", "communication_size")]
    pairs = np.stack([column.astype(np.int64) for column in columns], axis=1)
    different, which = np.unique(pairs, axis=0, return_inverse=True)
    return different.tolist(), np.reshape(which, -1)


def _rounds(members: int) -> int:
    """Base-2 logarithm of a power of two."""
    return members.bit_length() - 1


def _sends(kind: int, algorithm: int, members: int) -> int:
    """Messages that a member sends per chunk (Ring.cc, AllToAll.cc, HalvingDoubling.cc).

    Over a tree they are two on average, to parent and children.
    """
    if algorithm == DOUBLE_TREE:
        return 2
    if algorithm == RING and kind == ALL_TO_ALL:
        return members * (members - 1) // 2
    one_way = _rounds(members) if algorithm == HALVING_DOUBLING else members - 1
    return 2 * one_way if kind == ALL_REDUCE else one_way


def _message_sizes(
    kind: int, algorithm: int, members: int, chunk: int, sends: int
) -> tuple[int, ...]:
    """Bytes of a member's messages [B]; one number where they are alike.

    Ring.cc; HalvingDoubling.cc, whose doubling starts from half of the last halving's
    message: rounded down, then doubled.
    """
    if algorithm == DOUBLE_TREE:
        return (chunk,)
    if algorithm != HALVING_DOUBLING:
        return (chunk if kind == ALL_GATHER else chunk // members,)
    if kind == ALL_GATHER:
        return tuple(chunk << step for step in range(sends))
    rounds = _rounds(members)
    halving = [chunk >> (step + 1) for step in range(rounds)]
    doubling = [2 * (chunk >> (rounds + 1)) << step for step in range(sends - rounds)]
    return (*halving, *doubling)
