"""Text workloads in both modes, and why their times differ.

Why ASTRA-sim 1.0 and our network model give a collective different times.

Rules of the simulator that are no physics, each with the condition under which it matters
(astra-sim 07d5d19, ``system/collective/*.cc``, ``system/Sys.cc``; analytical d27635b). They
say what holds, not how much it matters: the two times say that.

A text workload as ASTRA-sim 1.0 runs it beside our network model: where and why they differ.

Each collective is also timed alone in the network in both modes, so that reasons can be
given; what waiting makes of them, the two runs tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats
from perfmodel.base.errors import PerfModelError
from perfmodel.base.files import read_toml
from perfmodel.workloads.formats.astra_text import AstraTextWorkload
from perfmodel.workloads.formats.astra_text_machine import NativeNetwork, NativeSystem
from perfmodel.workloads.twins.astra_text.loop import (
    LogicalDimensions,
    layers_table,
    split_dimensions,
    system_table,
)
from perfmodel.workloads.twins.astra_text.native import NativeResult, run_machine, run_native
from perfmodel.workloads.twins.astra_text.physical import (
    Group,
    PhysicalResult,
    groups_of,
    run_physical,
)

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.astra_text.state import Layers, System

# Of one collective. Those of the first part make ASTRA-sim's time longer, those of the second
# shorter.
_WORDS = read_toml(Path(__file__).with_name("reasons.toml"))
LONGER, SHORTER, SMALL = _WORDS["longer"], _WORDS["shorter"], _WORDS["small"]
REASONS: dict[str, str] = {**LONGER, **SHORTER, **SMALL}
RUN_REASONS: dict[str, str] = _WORDS["run"]
"""Of a run, beside the times of its collectives."""
OUR_NAMES = {
    "ring": ("ring", "bidirectional_ring"),
    "direct": ("direct",),
    "halvingDoubling": ("halving_doubling",),
}
ALL_TO_ALL = "all_to_all"


@dataclass(frozen=True, slots=True)
class Simulator:
    """What decides which rules of ASTRA-sim 1.0 matter.

    Parameters
    ----------
    network : NativeNetwork
    system : NativeSystem
    dimensions : LogicalDimensions
    queues : int
        Per dimension.
    """

    network: NativeNetwork
    system: NativeSystem
    dimensions: LogicalDimensions
    queues: int

    @property
    def chunks_at_once(self) -> int:
        """Chunks that a dimension works on at once."""
        return self.queues * -(-self.system.active_chunks_per_dimension // self.queues)

    def reasons(self, group: Group, size: int, taken: str) -> tuple[str, ...]:
        """Return the names of the rules that change the time of a collective.

        Parameters
        ----------
        group : Group
        size : int
            As in the workload, scaled [B].
        taken : str
            Algorithm of our model.
        """
        found: set[str] = set()
        used = [d for d, flag in enumerate(group.involved) if flag]
        for dimension in used:
            found |= self._on_dimension(group.kind, dimension)
        chunks = -(-size // max(size // self.system.preferred_dataset_splits, 1))
        if chunks > self.chunks_at_once:
            found.add("serial_chunks")
        if min(chunks, self.chunks_at_once) > 1:
            found.add("chunks_at_once")
        if len(used) > 1:
            found.add("serial_dimensions")
            if self.system.inter_dimension_scheduling != "baseline":
                found.add("turning_dimensions")
        physical = self.dimensions.physical[used[0]]
        stated = self.system.implementation(group.kind)[physical]
        if len(used) == 1 and taken not in OUR_NAMES.get(stated, ()):
            found.add("stated_algorithm")
        return tuple(name for name in REASONS if name in (found or SMALL))

    def _on_dimension(self, kind: str, dimension: int) -> set[str]:
        """Return the rules that matter on one dimension."""
        physical = self.dimensions.physical[dimension]
        topology = self.network.topology[physical]
        algorithm = self.system.implementation(kind)[physical]
        members = self.dimensions.members[dimension]
        found = set()
        several = members > 2
        if several and topology == "FullyConnected" and algorithm != "direct":
            found.add("one_peer")
        if several and kind == ALL_TO_ALL and algorithm == "ring":
            found.add("relayed_blocks")
        if several and topology == "Switch" and algorithm == "direct":
            found.add("shared_port")
        if several and topology == "Ring" and algorithm != "ring":
            found.add("shared_ring")
        if topology == "Ring" and self.network.npus_count[physical] != members:
            found.add("split_ring")
        if self.network.memory_scale[physical] > 0:
            if self.network.memory_latency_nanoseconds[physical] > 0:
                found.add("memory_latency")
            if several and algorithm == "direct":
                found.add("shared_memory")
            if self._memory_is_slower(physical):
                found.add("slow_memory")
        return found

    def _memory_is_slower(self, dimension: int) -> bool:
        """Tell whether memory takes messages in more slowly than all links bring them."""
        network = self.network
        accesses = network.memory_scale[dimension]
        links = network.links_count[dimension] * network.link_bandwidth_gib_per_second[dimension]
        memory = network.memory_bandwidth_gb_per_second[dimension] * 1e9
        return memory < accesses * links * 2.0**30

    def run_reasons(self, result: PhysicalResult, passes: int) -> tuple[str, ...]:
        """Return the names of the rules that change a run, beside the times of collectives."""
        found = set()
        sent = result.links >= 0
        queueing = passes * int(np.bincount(result.links[sent]).max(initial=0)) > 1
        physical = self.dimensions.physical
        split = next((p for p in set(physical) if physical.count(p) > 1), None)
        if split is not None and self.network.topology[split] != "FullyConnected" and sent.any():
            found.add("shared_halves")
        if queueing and self.system.preferred_dataset_splits > 1:
            found.add("chunk_order")
        if queueing and self.chunks_at_once > 1:
            found.add("collectives_at_once")
        if queueing and sum(n > 1 for n in self.network.npus_count) > 1:
            found.add("following_dimensions")
        return tuple(name for name in RUN_REASONS if name in found)


MICRO = "MICRO"  # one collective and nothing else
WEIGHT_GRADIENT = 2  # whose collective that is


@dataclass(frozen=True, slots=True)
class ModeComparison:
    """Both modes of one workload; arrays by phase (forward, input, weight gradient) and layer.

    Attributes
    ----------
    native : NativeResult or None
        The exact mode; None where ASTRA-sim 1.0 would stop or does not cover the system.
    stopped : str
        Why, then; empty otherwise.
    physical : PhysicalResult
    exact_collective_time : float64[3, layers]
        Of one collective alone in the network, as ASTRA-sim 1.0 has it [s]; nan where there
        is none, or where the simulator would stop at it.
    reasons : tuple of 3 tuples of tuples of str
        Why that differs from our time, by phase and layer: names in
        `perfmodel.workloads.twins.astra_text.comparison.REASONS`.
    run_reasons : tuple of str
        What else can make the runs differ: names in
        `perfmodel.workloads.twins.astra_text.comparison.RUN_REASONS`.
    """

    native: NativeResult | None
    stopped: str
    physical: PhysicalResult
    exact_collective_time: Floats
    reasons: tuple[tuple[tuple[str, ...], ...], ...]
    run_reasons: tuple[str, ...]

    @property
    def ratio(self) -> Floats:
        """Our time of each collective alone over ASTRA-sim's; nan where either has none."""
        return _quotient(self.physical.collective_time, self.exact_collective_time)

    def largest_differences(self, count: int = 10) -> list[tuple[int, int]]:
        """Return phase and layer of collectives whose times alone differ, the most first.

        Of equal collectives, with equal reasons, only the first is named.
        """
        ours, exact = self.physical.collective_time, self.exact_collective_time
        apart = np.nan_to_num(np.abs(ours - exact)).ravel()
        found: dict[object, tuple[int, int]] = {}
        for place in np.argsort(-apart, kind="stable"):
            phase, layer = divmod(int(place), ours.shape[1])
            if len(found) == count or not apart[place] > 0:
                break
            key = (ours[phase, layer], exact[phase, layer], self.reasons[phase][layer])
            found.setdefault(key, (phase, layer))
        return list(found.values())


def compare_modes(
    workload: AstraTextWorkload,
    network: NativeNetwork,
    system: NativeSystem,
    *,
    passes: int = 1,
    communication_scale: float = 1.0,
    compute_scale: float = 1.0,
    queues_per_dimension: int = 1,
) -> ModeComparison:
    """Run a text workload in both modes and tell where they differ.

    Parameters
    ----------
    workload : AstraTextWorkload
    network : NativeNetwork
    system : NativeSystem
    passes, communication_scale, compute_scale, queues_per_dimension
        As of `perfmodel.workloads.twins.astra_text.native.run_native`.

    Returns
    -------
    ModeComparison
        Without the exact mode where ASTRA-sim 1.0 would stop.

    Raises
    ------
    FormatError, HardwareError, StrategyError
        As of `perfmodel.workloads.twins.astra_text.physical.run_physical`.

    Examples
    --------
    >>> from perfmodel.workloads.formats.astra_text import parse_astra_text
    >>> text = "MICRO 1 sum -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5"
    >>> one = (("Switch",), (8,), (1,), (25,), (500,), (0,), (0,), (500,), (370,), (0,))
    >>> system = NativeSystem(("direct",), ("direct",), ("direct",), ("direct",))
    >>> found = compare_modes(parse_astra_text(text), NativeNetwork(*one), system)
    >>> found.native.total_ns, round(found.physical.total_time * 1e9), found.reasons[2][0]
    (11799, 70384, ('shared_port',))
    """
    physical = run_physical(
        workload,
        network,
        system,
        passes=passes,
        communication_scale=communication_scale,
        compute_scale=compute_scale,
    )
    dimensions = split_dimensions(network.npus_count, workload.model_parallel_group)
    layers = layers_table(workload, dimensions, communication_scale, compute_scale)
    exact = np.full(layers.kind.shape, np.nan)
    native, stopped = None, ""
    try:
        machine = system_table(workload, network, system, dimensions, queues_per_dimension)
        exact = _times_alone(workload, layers, machine)
        native = run_native(
            workload,
            network,
            system,
            passes=passes,
            communication_scale=communication_scale,
            compute_scale=compute_scale,
            queues_per_dimension=queues_per_dimension,
        )
    except PerfModelError as error:
        stopped = str(error)
    simulator = Simulator(network, system, dimensions, queues_per_dimension)
    reasons: list[list[tuple[str, ...]]] = [[()] * workload.layers for _ in layers.kind]
    for group in groups_of(layers, dimensions):
        for phase, layer in np.argwhere(group.where & ~np.isnan(exact)).tolist():
            taken = physical.algorithm[phase][layer]
            size = int(layers.size[phase, layer])
            reasons[phase][layer] = simulator.reasons(group, size, taken)
    return ModeComparison(
        native,
        stopped,
        physical,
        exact,
        tuple(map(tuple, reasons)),
        simulator.run_reasons(physical, passes),
    )


def _times_alone(workload: AstraTextWorkload, layers: Layers, machine: System) -> Floats:
    """Return what each collective takes alone in the exact mode [s]; nan where it stops."""
    micro = replace(workload, policy=MICRO)
    times = np.full(layers.kind.shape, np.nan)
    known: dict[tuple[int, int, bytes], float] = {}
    there = (layers.kind >= 0) & (layers.involved & (machine.members > 1)).any(axis=2)
    for phase, layer in np.argwhere(there).tolist():
        kind, size = int(layers.kind[phase, layer]), int(layers.size[phase, layer])
        involved = layers.involved[phase, layer]
        key = kind, size, involved.tobytes()
        if key not in known:
            lone = _lone(layers, kind, size, involved)
            try:
                known[key] = run_machine(micro, lone, machine, 1).total_ns / 1e9
            except PerfModelError:
                known[key] = np.nan
        times[phase, layer] = known[key]
    return times


def _lone(layers: Layers, kind: int, size: int, involved: NDArray[np.bool_]) -> Layers:
    """Return a workload of one collective."""
    kinds = np.full((3, 1), -1, np.int64)
    kinds[WEIGHT_GRADIENT] = kind
    zero = np.zeros((3, 1), np.int64)
    off = np.zeros(1, np.bool_)
    flags = np.broadcast_to(involved, (3, 1, len(involved))).copy()
    return layers._replace(
        compute=zero,
        kind=kinds,
        size=zero + size,
        update=zero[0].copy(),
        involved=flags,
        checkpoint=off,
        initiates=off.copy(),
    )


def _quotient(ours: Floats, exact: Floats) -> Floats:
    """Return ours / exact, nan where there is nothing to compare."""
    quotient = np.full(ours.shape, np.nan)
    np.divide(ours, exact, out=quotient, where=exact > 0)
    return quotient
