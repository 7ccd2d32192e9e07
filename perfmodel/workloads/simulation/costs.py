"""What a simulation of execution traces asks about times: the interface of cost models.

All times are float64 in the model's own unit, `Costs.tick` seconds each: whole nanoseconds
where ASTRA-sim is repeated, seconds where hardware is priced. Below it: what no model can
run, columns of a trace and networks of another size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Flags, Floats, Integers
from perfmodel.base.errors import FormatError, HardwareError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem
from perfmodel.workloads.trace import ABSENT, COLLECTIVE, NODE_KINDS, Trace


@dataclass(frozen=True, slots=True)
class LocalCosts:
    """What the nodes of a trace cost that need no other rank; one entry per node.

    Attributes
    ----------
    times : float64[nodes]
        Of computation, loads, stores and replayed communication; 0 for all other nodes.
    skipped : bool[nodes]
        Nodes that begin and end at once and hold nothing.
    priced : bool[nodes]
        Computation whose time follows from operations and bytes; the next four columns
        hold 0 elsewhere.
    compute_bound : bool[nodes]
    compute_utilization, memory_utilization : float64[nodes]
        Fractions of the device's peak and of its memory bandwidth.
    operation_intensity : float64[nodes]
        [FLOP/B].
    """

    times: Floats
    skipped: Flags
    priced: Flags
    compute_bound: Flags
    compute_utilization: Floats
    memory_utilization: Floats
    operation_intensity: Floats


@dataclass(frozen=True, slots=True)
class Ring:
    """How members of collectives end that do so one by one.

    Attributes
    ----------
    even : bool[sizes]
        Members that begin together end together.
    rows : int64[sizes, RING_COLUMNS]
        Of those that go round a ring: see `kernels.astra.ranks.ring_rows`. `ABSENT`: they do
        not.
    times : int64[sizes, members]
        Of a message from each member's predecessor.
    order : int64[members]
        Places of the members in the order of the ring.
    """

    even: Flags
    rows: Integers
    times: Integers
    order: Integers

    @classmethod
    def empty(cls, sizes: int, like: Ring) -> Ring:
        """Return one of more sizes, of which nothing is known."""
        rows, times = (np.full((sizes, one.shape[1]), ABSENT) for one in (like.rows, like.times))
        return cls(np.ones(sizes, np.bool_), rows, times, like.order)

    def put(self, rows: Integers, other: Ring) -> None:
        """Set some of the sizes."""
        self.even[rows], self.rows[rows], self.times[rows] = other.even, other.rows, other.times


class Ports(Protocol):
    """What communication takes of the ports of devices into the levels of a network."""

    def occupancy(
        self, kind: int, sizes: Integers, members: tuple[int, ...]
    ) -> tuple[Floats, Floats, int]:
        """Return how long collectives keep links of each of their devices busy.

        Seconds and the links' part of a device's port, float64[sizes, levels], and which
        links these are: a number that groups on the same ones share.
        """

    def message_occupancy(
        self, sources: Integers, destinations: Integers, sizes: Integers
    ) -> tuple[Floats, Floats]:
        """Return the same of messages; a message has the links between its two ends."""


class Machine(Protocol):
    """What runs whole traces by itself: see `perfmodel.workloads.twins.astra.machine`."""

    def run(
        self,
        plan: Any,
        graphs: Sequence[Any],
        ranks: Sequence[Any],
        groups: Sequence[Any],
        of_rank: Sequence[Sequence[int]],
        messages: Any,
    ) -> tuple[Floats, Floats, Integers]:
        """Return begin and end of every node, and the order in which they ended."""


class Costs(Protocol):
    """A cost model of computation and communication.

    Attributes
    ----------
    tick : float
        Seconds per unit of its times.
    whole : bool
        Times are whole numbers.
    streams : {"one", "per-group"}
        All communication of a rank one after another, or each group by itself.
    ports : Ports or None
        Communication that runs at the same time shares ports; None: it does not.
    machine : Machine or None
        Runs traces message by message, so that nothing is asked for times of communication
        but whether it is possible; None: collectives are meetings that take a time.
    """

    tick: float
    whole: bool
    streams: str
    ports: Ports | None

    @property
    def machine(self) -> Machine | None:
        """Return what runs whole traces, if anything does."""

    def run_apart(
        self,
        plan: Any,
        graphs: Sequence[Any],
        ranks: Sequence[Any],
        groups: Sequence[Any],
        of_rank: Sequence[Sequence[int]],
        messages: Any,
    ) -> tuple[Floats, Floats, Integers] | None:
        """Run traces in which members of collectives begin apart; as `Machine.run`.

        None: members all end with the slowest, counted from the last to begin.
        """

    def check(self, ranks: int) -> None:
        """Raise unless so many ranks can be simulated."""

    def synchronised(self, trace: Trace) -> Flags:
        """Tell which collective nodes wait for the other members; others are local."""

    def local(self, trace: Trace) -> LocalCosts:
        """Return the costs of what needs no other rank."""

    def restriction(
        self, flags: tuple[bool, ...] | None, attributes: tuple[str, ...], in_group: bool
    ) -> tuple[bool, ...] | None:
        """Return the dimensions that a collective keeps to; None: its group decides.

        `flags` are those that its node states, in a trace of whose `involved_attributes` they
        are; `in_group`: it names a group.
        """

    def collective_times(
        self,
        kind: int,
        sizes: Integers,
        members: tuple[int, ...],
        involved: tuple[bool, ...] | None,
    ) -> Floats:
        """Return times of one collective (position in `TRACED`) at many sizes [B].

        `members` are in the order of their ring; `involved`: they differ in these network
        dimensions only.
        """

    def ring(
        self,
        kind: int,
        sizes: Integers,
        members: tuple[int, ...],
        involved: tuple[bool, ...] | None,
    ) -> Ring | None:
        """Return how members of the same collectives end; None: all with the slowest."""

    def collective_tail(self, members: tuple[int, ...]) -> float:
        """Return how long before its end a collective's last event is scheduled.

        It decides only which of two operations of a rank that end at one moment is seen
        first.
        """

    def slices(self, involved: tuple[bool, ...], ranks: int) -> Integers:
        """Return int64[groups, members]: ranks that differ in involved dimensions only."""

    def message_times(self, sources: Integers, destinations: Integers, sizes: Integers) -> Floats:
        """Return times of messages from rank to rank, sizes in B."""


def node_text(trace: Trace, position: int, rank: int | None = None) -> str:
    """Return a node as error messages name it."""
    name = str(trace.names[position])
    name = name if len(name) <= 60 else f"{name[:60]}…"
    before = "" if rank is None else f"rank {rank}, "
    return f"{before}node {trace.identifiers[position]} ({name})"


def empty_local(nodes: int) -> LocalCosts:
    """Return costs of 0 that a model fills in."""
    times, compute, memory, intensity = np.zeros((4, nodes))
    skipped, priced, bound = np.zeros((3, nodes), np.bool_)
    return LocalCosts(times, skipped, priced, bound, compute, memory, intensity)


def on_host(trace: Trace) -> Flags:
    """Tell which nodes run on the host."""
    flags: Flags = trace.on_cpu == 1
    return flags


def check_sizes(trace: Trace, where: Flags) -> None:
    """Raise unless all these communication nodes state a size."""
    missing = np.flatnonzero(where & (trace.communication_size < 0))
    if missing.size:
        raise FormatError(
            f"{node_text(trace, int(missing[0]))} states no comm_size; it should be a number "
            "of bytes"
        )


def states_collective(trace: Trace) -> Flags:
    """Tell which device nodes are collectives of a stated kind."""
    flags: Flags = (trace.kinds == COLLECTIVE) & (trace.collective != ABSENT) & ~on_host(trace)
    return flags


def coordinates_slices(involved: Sequence[bool], shape: Sequence[int]) -> Integers:
    """Return the groups of ranks that differ in the involved dimensions only.

    Parameters
    ----------
    involved : sequence of bool
        One flag per dimension, innermost first.
    shape : sequence of int
        Ranks along each dimension.

    Returns
    -------
    int64[groups, members]
    """
    ranks: Any = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(tuple(shape)[::-1])
    last = len(shape) - 1
    axes = [last - dimension for dimension in range(len(shape))]
    inside = [axes[dimension] for dimension in range(len(shape)) if involved[dimension]][::-1]
    outside = [axes[dimension] for dimension in range(len(shape)) if not involved[dimension]][::-1]
    members = int(np.prod([shape[last - axis] for axis in inside], dtype=np.int64))
    return ranks.transpose(outside + inside).reshape(-1, members)


LONGEST = 1e9  # [s]


def check_devices(ranks: int, network: AstraNetwork) -> None:
    """Raise unless a network of ASTRA-sim's files has a device for every rank.

    Raises
    ------
    HardwareError
    """
    if ranks != network.devices:
        raise HardwareError(
            f"the workload has {ranks} ranks, but npus_count of the network multiplies to "
            f"{network.devices}; they should be equal"
        )


def check_roofline(system: AstraSystem) -> None:
    """Raise if a system's roofline is on without a peak performance.

    Raises
    ------
    HardwareError
    """
    if system.roofline_enabled and not system.peak_performance_teraflops > 0:
        raise HardwareError("roofline-enabled is 1, but peak-perf is not above 0 TFLOP/s")


def check_columns(trace: Trace) -> None:
    """Raise unless all numbers are among those that a column may hold.

    Raises
    ------
    FormatError
        A duration is no time, or a kind of node or of collective, a group or involved
        dimensions do not exist.
    """
    wrong = np.flatnonzero(~((trace.duration >= 0) & (trace.duration <= LONGEST)))
    if wrong.size:
        position = int(wrong[0])
        raise FormatError(
            f"{node_text(trace, position)} lasts {trace.duration[position]:g} s; durations "
            f"should be 0 to {LONGEST:g} s"
        )
    for column, least, count, what in (
        (trace.kinds, 0, len(NODE_KINDS), "node type"),
        (trace.collective, ABSENT, len(TRACED), "kind of collective"),
        (trace.group, ABSENT, len(trace.group_names), "communicator group"),
        (trace.involved, ABSENT, len(trace.involved_dimensions), "list of involved dimensions"),
    ):
        if column.size and (column.min() < least or column.max() >= count):
            position = int(np.flatnonzero((column < least) | (column >= count))[0])
            raise FormatError(
                f"{node_text(trace, position)} has {what} {column[position]}; there are "
                f"{count}, numbered from 0"
            )


def check_involved(trace: Trace, where: Flags, dimensions: int) -> None:
    """Raise where collectives have fewer flags than the network has dimensions.

    ASTRA-sim reads on behind a list that is too short; flags of dimensions that the network
    does not have do no harm (Sys.cc).

    Parameters
    ----------
    trace : Trace
    where : bool[nodes]
        Collectives that run.
    dimensions : int

    Raises
    ------
    FormatError
    """
    short = [
        number for number, flags in enumerate(trace.involved_dimensions) if len(flags) < dimensions
    ]
    wrong = np.flatnonzero(where & np.isin(trace.involved, short)) if short else np.zeros(0)
    if wrong.size:
        position = int(wrong[0])
        flags = trace.involved_dimensions[trace.involved[position]]
        raise FormatError(
            f"{node_text(trace, position)}: involved dimensions {list(map(int, flags))} of a "
            f"collective; there should be one flag for each of the network's {dimensions} "
            "dimensions"
        )
