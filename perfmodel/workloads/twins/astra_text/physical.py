"""Text workloads of ASTRA-sim 1.0 on our own network model: the physical answer.

The training loop is that of the exact mode (:mod:`perfmodel.workloads.twins.astra_text.native`):
the same order of work, the same collectives among the same devices, the same waits, update times
and 1 ns per step of the loop, so that whatever differs between the modes is communication. Of that,
this mode says:

- A collective lasts as long as :mod:`perfmodel.workloads.twins.astra_text.physical_network` says.
- Collectives that share links go one after another, each whole: two at once would take as
  long together. Which of several waiting ones is next, the workload's loop and the system's
  scheduling policy say, as in the exact mode; one under way is not interrupted.
- Collectives on different dimensions share no links and go at the same time. Both halves of
  a dimension that a model-parallel group splits share them, except those of a full
  connection, where every pair of devices has its own.
- An empty collective takes no time.

`comparison.compare_modes` says where the two modes differ, and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.columns import Floats, Integers
from perfmodel.workloads.formats.astra_text import AstraTextWorkload
from perfmodel.workloads.formats.astra_text_machine import NativeNetwork, NativeSystem
from perfmodel.workloads.twins.astra_text.loop import (
    LogicalDimensions,
    layers_table,
    split_dimensions,
)
from perfmodel.workloads.twins.astra_text.native import (
    MOST_PASSES,
    NativeResult,
    check_argument,
    run_machine,
)
from perfmodel.workloads.twins.astra_text.physical_network import PhysicalNetwork

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.astra_text.state import Layers, System

ALL_GATHER = "all_gather"
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class PhysicalResult:
    """A run of a text workload on our network model; times in seconds.

    Attributes
    ----------
    names : tuple of str
        Of the layers.
    total_time : float
        When everything has ended.
    pass_end : float64[passes]
        When each pass ended; empty for ``MICRO`` and ``DISTRIBUTED_INFERENCE``.
    collectives : int64[layers]
        Issued.
    compute_time, exposed_time, communication_time : float64[3, layers]
        Forward, input gradient, weight gradient. Exposed: the loop waited for it.
        Communication counts from the issue of a collective to its end, its waiting for
        others and the layer's update time included.
    collective_time : float64[3, layers]
        Of one collective alone in the network; nan where there is none.
    algorithm : tuple of 3 tuples of str
        What it runs, by phase and layer; "" where nothing is sent.
    links : int64[3, layers]
        Collectives of one number share links; -1 where nothing is sent.
    """

    names: tuple[str, ...]
    total_time: float
    pass_end: Floats
    collectives: Integers
    compute_time: Floats
    exposed_time: Floats
    communication_time: Floats
    collective_time: Floats
    algorithm: tuple[tuple[str, ...], ...]
    links: Integers

    @property
    def exposed_communication(self) -> float:
        """Time during which the device does not compute: total less computation [s].

        More than `exposed_time` sums up to where collectives of several layers are still
        under way after the last pass.
        """
        return self.total_time - float(self.compute_time.sum())


@dataclass(frozen=True, slots=True)
class Group:
    """Collectives of one kind among the same devices.

    Attributes
    ----------
    kind : str
        As in `perfmodel.compute.collectives`.
    involved : tuple of bool
        Logical dimensions on which members differ.
    dimensions : tuple of (int, int)
        On each of them: members, and the difference of neighbours' numbers.
    where : bool[3, layers]
    """

    kind: str
    involved: tuple[bool, ...]
    dimensions: tuple[tuple[int, int], ...]
    where: NDArray[np.bool_]


def run_physical(
    workload: AstraTextWorkload,
    network: NativeNetwork,
    system: NativeSystem,
    *,
    passes: int = 1,
    communication_scale: float = 1.0,
    compute_scale: float = 1.0,
) -> PhysicalResult:
    """Run a text workload's training loop on our network model.

    Parameters
    ----------
    workload : AstraTextWorkload
    network : NativeNetwork
    system : NativeSystem
        Its scheduling policy and its endpoint delay count; algorithms, chunks and the rules
        of queues do not.
    passes : int
        Training steps.
    communication_scale, compute_scale : float
        Factors on bytes and on compute times, as for the exact mode.

    Returns
    -------
    PhysicalResult

    Raises
    ------
    FormatError
        The loop cannot run; says at which layer and why.
    HardwareError
        The network is beyond what can be counted.
    StrategyError
        The workload's groups do not fit the network, or an argument is out of range.

    Examples
    --------
    >>> from perfmodel.workloads.formats.astra_text import parse_astra_text
    >>> text = "MICRO 1 sum -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5"
    >>> ring = NativeNetwork(("Ring",), (4,), (2,), (25,), (500,), (0,), (0,), (500,), (370,), (0,))
    >>> system = NativeSystem(("ring",), ("ring",), ("ring",), ("ring",))
    >>> run_physical(parse_astra_text(text), ring, system).total_time
    3.2361e-05
    """
    check_argument("passes", passes, MOST_PASSES)
    dimensions = split_dimensions(network.npus_count, workload.model_parallel_group)
    layers = layers_table(workload, dimensions, communication_scale, compute_scale)
    times = np.full(layers.kind.shape, np.nan)
    algorithm = np.full(layers.kind.shape, "", dtype="U32")
    machine = PhysicalNetwork(network, system)
    for group in groups_of(layers, dimensions):
        sizes = layers.size[group.where].astype(np.float64)
        if group.kind == ALL_GATHER:
            sizes *= math.prod(members for members, _ in group.dimensions)
        found = machine.times(group.kind, sizes, group.dimensions)
        times[group.where] = found.time
        algorithm[group.where] = found.algorithm
    links = _links(layers, dimensions, network)
    result = run_machine(workload, *_machine(layers, system, times, links), passes)
    return _seconds(result, times, algorithm, links)


def groups_of(layers: Layers, dimensions: LogicalDimensions) -> Iterator[Group]:
    """Yield the kinds of collectives that send something, with their groups.

    A workload's groups keep to the first dimensions or to the last ones, so that their
    members are evenly spaced.
    """
    members = np.array(dimensions.members)
    strides = np.cumprod([1, *members[:-1]])
    involved = layers.involved & (members > 1)
    for kind, name in enumerate(SIMULATED):
        there = (layers.kind == kind) & (layers.size > 0) & involved.any(axis=2)
        for flags in np.unique(involved[there], axis=0):
            yield Group(
                name,
                tuple(map(bool, flags)),
                tuple((int(members[d]), int(strides[d])) for d in np.flatnonzero(flags)),
                there & (involved == flags).all(axis=2),
            )


def _links(layers: Layers, dimensions: LogicalDimensions, network: NativeNetwork) -> Integers:
    """Return numbers of the links that collectives use; those that share any have the same."""
    owners: list[tuple[int, int]] = []
    for dimension, physical in enumerate(dimensions.physical):
        own_links = network.topology[physical] == "FullyConnected"
        owners.append((physical, dimension if own_links else 0))
    used = layers.involved & (np.array(dimensions.members) > 1)
    used &= ((layers.kind != NOWHERE) & (layers.size > 0))[:, :, None]
    patterns, where = np.unique(used.reshape(-1, used.shape[2]), axis=0, return_inverse=True)
    shared: list[set[tuple[int, int]]] = []
    wanted = [{owners[d] for d in np.flatnonzero(pattern)} for pattern in patterns]
    for links in wanted:
        apart = [other for other in shared if not other & links]
        joined = links.union(*(other for other in shared if other & links))
        shared = [*apart, joined] if joined else apart
    numbers = [next((i for i, s in enumerate(shared) if links & s), NOWHERE) for links in wanted]
    return np.array(numbers, np.int64)[where].reshape(layers.kind.shape)


def _machine(
    layers: Layers, system: NativeSystem, times: Floats, links: Integers
) -> tuple[Layers, System]:
    """Return a workload and a system whose collectives are single chunks of known time."""
    from perfmodel.kernels.workloads.astra_text.cost import NETWORK
    from perfmodel.kernels.workloads.astra_text.state import ASCENDING, FIRST_IN, UNSUPPORTED
    from perfmodel.kernels.workloads.astra_text.state import System as Machine

    count = max(int(links.max(initial=0)) + 1, 1)
    sent = (links != NOWHERE) | (layers.kind == UNSUPPORTED)
    unit = np.ones(count, np.int64)
    machine = Machine(
        members=2 * unit,
        stride=unit,
        physical=np.arange(count),
        algorithm=np.zeros((len(SIMULATED), count), np.int64),
        network=np.zeros(count, NETWORK).view(np.recarray),
        splits=1,
        queues=1,
        active=1,
        delay=1,
        last_in_first=system.scheduling_policy == "LIFO",
        whole_all_reduce=True,
        intra=FIRST_IN,
        inter=ASCENDING,
        fixed=np.nan_to_num(times) * 1e9,
    )
    own = layers._replace(
        kind=np.where(sent, layers.kind, NOWHERE),
        size=np.ones_like(layers.size),
        involved=links[:, :, None] == np.arange(count),
    )
    return own, machine


def _seconds(
    result: NativeResult, times: Floats, algorithm: NDArray[np.str_], links: Integers
) -> PhysicalResult:
    """Return what a run has counted, in seconds."""
    return PhysicalResult(
        names=result.names,
        total_time=result.total_ns / 1e9,
        pass_end=result.pass_end_ns / 1e9,
        collectives=result.collectives,
        compute_time=result.compute_ns / 1e9,
        exposed_time=result.exposed_ns / 1e9,
        communication_time=result.communication_ns / 1e9,
        collective_time=times,
        algorithm=tuple(tuple(map(str, row)) for row in algorithm),
        links=links,
    )
