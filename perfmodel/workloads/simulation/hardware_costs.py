"""Costs of execution traces on real hardware: our own models of devices and networks.

Computation lasts as its trace states: measured, or predicted by our kernel models. Where a
trace states no time, or on request, it takes its roofline time at the rates that kernels
sustain. Collectives and messages are those of :mod:`perfmodel.compute.collectives`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Flags, Floats, Integers
from perfmodel.base.errors import FormatError, HardwareError, StrategyError
from perfmodel.compute.network import check_places
from perfmodel.workloads.simulation.costs import (
    LocalCosts,
    Ports,
    Ring,
    check_sizes,
    coordinates_slices,
    empty_local,
    on_host,
    states_collective,
)
from perfmodel.workloads.trace import COMPUTE, MEM_LOAD, MEM_STORE, Trace

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

STREAMS = ("one", "per-group")
COMPUTE_TIMES = ("auto", "recorded", "roofline")
# A collective of a trace: that of the network model, and whether the trace's size, which is
# what each device holds, is that of one of n parts of what the network model counts.
PRICED_AS = {
    "all_reduce": ("all_reduce", False),
    "reduce": ("broadcast", False),  # the same messages the other way round
    "all_gather": ("all_gather", True),
    "gather": ("gather", True),
    "scatter": ("scatter", True),
    "broadcast": ("broadcast", False),
    "all_to_all": ("all_to_all", False),
    "reduce_scatter": ("reduce_scatter", False),
    "reduce_scatter_block": ("reduce_scatter", False),
    "barrier": ("all_reduce", False),
}
MOST_PRICED = 10_000  # series of collectives whose times are kept
BARRIER = TRACED.index("barrier")
BARRIER_SIZE = 4  # [B]; NCCL's barriers are all-reduces of one number


class HardwareCosts:
    """Times on a hardware profile [s].

    Parameters
    ----------
    hardware : Hardware or str
        Ranks fill its network from the innermost level outwards.
    precision : str
        Whose matrix rate computation runs at.
    communication_streams : {"per-group", "one"}
        Collectives of a rank one after another, or those of different groups at the same
        time, as communicators of NCCL run.
    operation_flops : float
        FLOP per operation that a trace counts; 2 where it counts multiply-adds.
    element_bytes : float
        Bytes per byte that a trace states; 2 where it counts elements of 16 bits.
    compute : {"auto", "recorded", "roofline"}
        How long computation lasts: as recorded where the trace states a time above 0, and
        elsewhere its roofline time; always as recorded, 0 where nothing is; or its roofline
        time wherever operations and bytes are stated.
    contention : bool
        Communication that runs at the same time shares the ports of its devices max-min
        fairly (docs/contention.md); else it takes the time that it takes alone.

    Raises
    ------
    HardwareError
        The profile lacks a rate or a constant.
    StrategyError
        There is no such kind of streams or of compute times.
    """

    tick = 1.0
    whole = False
    machine = None  # collectives are meetings
    knows_rates = True  # those of the device, so that utilizations can be told

    def __init__(
        self,
        hardware: Hardware | str,
        precision: str = "bf16",
        communication_streams: str = "per-group",
        operation_flops: float = 1.0,
        element_bytes: float = 1.0,
        compute: str = "auto",
        contention: bool = False,
    ) -> None:
        if communication_streams not in STREAMS:
            raise StrategyError(
                f"communication streams '{communication_streams}'; known: {', '.join(STREAMS)}"
            )
        if compute not in COMPUTE_TIMES:
            raise StrategyError(f"compute times '{compute}'; known: {', '.join(COMPUTE_TIMES)}")
        for name, value in (("operation_flops", operation_flops), ("element_bytes", element_bytes)):
            if not 0 < value < np.inf:
                raise StrategyError(f"{name} is {value}; it should be a finite number above 0")
        self._priced: dict[tuple[str, int, int, bytes], Floats] = {}
        from perfmodel.hwprofiles import load_hardware

        hardware = load_hardware(hardware)
        self.hardware = hardware
        self.streams = communication_streams
        self.compute = compute
        self.ports: Ports | None = self if contention else None
        self._occupied: dict[tuple[str, int, int, bytes], tuple[Floats, Floats]] = {}
        self._shapes: dict[tuple[int, int], int] = {}
        self.operation_flops = float(operation_flops)
        self.element_bytes = float(element_bytes)
        self.peak = hardware.device.peak(precision)
        self.memory_bandwidth = hardware.device.memory.bandwidth
        constant = hardware.lookup("gemm", precision=precision, library="")
        self.sustained_peak = self.peak * constant("issue_efficiency")
        self.sustained_bandwidth = self.memory_bandwidth * hardware.calibrated(
            "stream", "memory_efficiency"
        )

    def check(self, ranks: int) -> None:
        """Raise unless the network has a place for every rank."""
        check_places(self.hardware, ranks, f"the workload has {ranks} ranks")

    def synchronised(self, trace: Trace) -> Flags:
        """Tell which nodes are collectives of a stated kind; others last as recorded."""
        flags = states_collective(trace)
        check_sizes(trace, flags & (trace.collective != BARRIER))
        return flags

    def local(self, trace: Trace) -> LocalCosts:
        """Return times of computation (see `compute`), loads and stores.

        Roofline: ``max(operations / sustained peak, bytes / sustained bandwidth)``; a load or
        store moves its bytes at the sustained bandwidth of the device's memory.

        Notes
        -----
        Utilizations are those of the time that a node takes, recorded or not, so one above 1
        says that a recording is from a faster device or a lower precision. A node counts as
        compute bound where its operations would take longer than its bytes.
        """
        costs = empty_local(trace.nodes)
        costs.times[:] = trace.duration
        moved = (trace.kinds == MEM_LOAD) | (trace.kinds == MEM_STORE)
        moved &= (trace.tensor_size >= 0) & ~on_host(trace)
        costs.times[moved] = (
            trace.tensor_size[moved] * self.element_bytes / self.sustained_bandwidth
        )
        stated = (trace.kinds == COMPUTE) & ~on_host(trace) & (trace.num_ops >= 0)
        stated &= trace.tensor_size >= 0
        rows = np.flatnonzero(stated)
        flops = trace.num_ops[rows] * self.operation_flops
        size = trace.tensor_size[rows] * self.element_bytes
        computing, moving = flops / self.sustained_peak, size / self.sustained_bandwidth
        times = np.maximum(computing, moving)
        recorded = trace.duration[rows]
        if self.compute == "recorded":
            times = recorded
        elif self.compute == "auto":
            times = np.where(recorded > 0, recorded, times)
        some = times > 0
        costs.times[rows] = times
        if not self.knows_rates:
            return costs
        costs.priced[rows] = True
        costs.compute_bound[rows] = (computing >= moving) & some
        for column, amount, rate in (
            (costs.compute_utilization, flops, self.peak),
            (costs.memory_utilization, size, self.memory_bandwidth),
        ):
            column[rows] = np.divide(amount, times * rate, out=np.zeros(len(rows)), where=some)
        costs.operation_intensity[rows] = np.divide(
            flops, size, out=np.zeros(len(rows)), where=size > 0
        )
        return costs

    def collective_times(
        self,
        kind: int,
        sizes: Integers,
        members: tuple[int, ...],
        involved: tuple[bool, ...] | None,
    ) -> Floats:
        """Return times of a collective [s]."""
        from perfmodel.compute.collectives import collective_times

        del involved  # the members say it all
        if len(members) < 2:
            return np.zeros(len(sizes))
        name, amounts = self._priced_as(kind, sizes, len(members))
        count, stride = self._shape(members)
        key = (name, count, stride, amounts.tobytes())  # many groups have one shape
        if key not in self._priced:
            times = collective_times(self.hardware, name, amounts, count, stride)
            if not np.isfinite(times).all():
                raise HardwareError(f"{name} among {count} ranks cannot run on this network")
            if len(self._priced) >= MOST_PRICED:
                self._priced.clear()
            self._priced[key] = times
        return self._priced[key]

    def run_apart(self, *whole: Any) -> None:
        """Return None: members all end with the slowest."""
        del whole

    def ring(
        self,
        kind: int,
        sizes: Integers,
        members: tuple[int, ...],
        involved: tuple[bool, ...] | None,
    ) -> Ring | None:
        """Return None: all members end with the slowest."""
        return None

    def _priced_as(self, kind: int, sizes: Integers, members: int) -> tuple[str, Floats]:
        """Return the network model's collective for one of a trace, and its sizes [B]."""
        name, is_part = PRICED_AS[TRACED[kind]]
        if kind == BARRIER:
            return name, np.full(len(sizes), float(BARRIER_SIZE))
        return name, np.maximum(sizes, 0) * (self.element_bytes * (members if is_part else 1))

    def occupancy(
        self, kind: int, sizes: Integers, members: tuple[int, ...]
    ) -> tuple[Floats, Floats, int]:
        """Return how long collectives keep links of their devices busy, by level [s]."""
        from perfmodel.compute.collectives import link_occupancies

        shape = self._shape(members) if len(members) > 1 else (1, 1)
        name, amounts = self._priced_as(kind, sizes, len(members))
        links = self._shapes.setdefault(shape, len(self._shapes))
        key = (name, *shape, amounts.tobytes())
        if key not in self._occupied:
            if len(self._occupied) >= MOST_PRICED:
                self._occupied.clear()
            self._occupied[key] = link_occupancies(self.hardware, name, amounts, *shape)
        return *self._occupied[key], links

    def collective_tail(self, members: tuple[int, ...]) -> float:
        """Return infinity: of what ends at one moment, what began first is seen first."""
        del members
        return np.inf

    def restriction(
        self, flags: tuple[bool, ...] | None, attributes: tuple[str, ...], in_group: bool
    ) -> tuple[bool, ...] | None:
        """Return the dimensions that a collective keeps to: those that its node states."""
        return flags

    def slices(self, involved: tuple[bool, ...], ranks: int) -> Integers:
        """Return the groups that keep to some levels of the network, innermost first."""
        levels = self.hardware.system.network
        sizes = [level.size for level in levels]
        inner = int(np.prod(sizes[:-1], dtype=np.int64))
        shape = [*sizes[:-1], ranks // inner]
        if len(involved) < len(levels) or inner * shape[-1] != ranks or not shape[-1]:
            raise FormatError(
                f"involved dimensions {list(map(int, involved))} on {ranks} ranks; the network "
                f"of '{self.hardware.name}' has {len(levels)} levels of "
                f"{', '.join(str(size or 'any') for size in sizes)} to fill"
            )
        return coordinates_slices(involved[: len(levels)], shape)

    def message_times(self, sources: Integers, destinations: Integers, sizes: Integers) -> Floats:
        """Return times of messages [s]; they cross the outermost level on which ranks differ."""
        from perfmodel.compute.collectives import collective_times

        stride = self._distance(sources, destinations)
        times = collective_times(
            self.hardware, "point_to_point", sizes * self.element_bytes, 2, stride
        )
        return np.where(sources == destinations, 0.0, times)

    def message_occupancy(
        self, sources: Integers, destinations: Integers, sizes: Integers
    ) -> tuple[Floats, Floats]:
        """Return how long messages keep a link of both their devices busy, by level [s]."""
        from perfmodel.compute.collectives import link_occupancies

        stride = self._distance(sources, destinations)
        amounts = np.where(sources == destinations, 0.0, sizes * self.element_bytes)
        return link_occupancies(self.hardware, "point_to_point", amounts, 2, stride)

    def _distance(self, sources: Integers, destinations: Integers) -> Integers:
        """Return strides of pairs as the network model takes them."""
        stride = np.ones(len(sources), np.int64)
        for domain in self._domains()[:-1]:
            stride[sources // domain != destinations // domain] = domain
        return stride

    def _domains(self) -> list[int]:
        """Return devices of a domain of each level; at least 2**31 for one without limit."""
        sizes = [level.size or 2**31 for level in self.hardware.system.network]
        return list(itertools.accumulate(sizes, lambda a, b: a * b))

    def _shape(self, members: Sequence[int]) -> tuple[int, int]:
        """Return number and stride of a group that has as many members in each domain.

        Evenly spaced groups keep their stride where they start with a domain; others are
        taken as if their members were spread evenly over the domains that they meet.
        """
        from perfmodel.compute.collectives import members_per_domain

        ranks = np.sort(np.array(members, np.int64))
        count = len(ranks)
        domains = self._domains()
        inside = [int(np.bincount(ranks // domain).max()) for domain in domains[:-1]]
        steps = np.unique(np.diff(ranks))
        if len(steps) == 1:
            own = members_per_domain(self.hardware, count, int(steps[0]))[:-1, 0]
            if own.tolist() == inside:
                return count, int(steps[0])
        for domain, most in zip(domains, inside, strict=False):
            if most < count:  # the innermost level that does not hold the whole group
                return count, max(1, domain // most)
        return count, 1
