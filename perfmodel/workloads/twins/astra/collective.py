"""Collectives to the nanosecond as ASTRA-sim's analytical backends time them.

A parity mode: it repeats what the simulator computes, its simplifications included
(docs/parity.md lists them), so that results and configurations can be carried over.
For real hardware there is :mod:`perfmodel.compute.collectives`.

Numba is imported inside the functions that need it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.errors import HardwareError
from perfmodel.workloads.formats.astra_machine import (
    ALGORITHMS,
    AstraNetwork,
    AstraSystem,
    check_name,
)
from perfmodel.workloads.twins.astra.machine import LATEST, Machine
from perfmodel.workloads.twins.astra.plan import (
    LogicalDimension,
    check_algorithms,
    logical_dimensions,
    network_table,
    phase_plan,
)

ENGINES = ("congestion-unaware", "congestion-aware")
LARGEST_SIZE = 2**50
MOST_DEVICES = 2**20
MOST_CHUNKS = 1_000_000


def simulate_collectives(
    network: AstraNetwork,
    system: AstraSystem,
    collective: str,
    sizes: ArrayLike,
    involved_dimensions: Sequence[bool] | None = None,
    engine: str = "congestion-unaware",
    members: Sequence[int] | None = None,
    least_size: int = 1,
    group_algorithm: str = "ring",
) -> NDArray[np.int64]:
    """Time one collective at many sizes, on an idle system.

    Parameters
    ----------
    network : AstraNetwork
    system : AstraSystem
    collective : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    sizes : array_like of int, shape (sizes,)
        Bytes of a device before the collective [B]: the buffer; for all-gather, the shard.
    involved_dimensions : sequence of bool, optional
        Which dimensions take part; by default all.
    engine : {"congestion-unaware", "congestion-aware"}
        Backend. The second knows one dimension and times all devices on it.
    members : sequence of int, optional
        Ids of a communicator group in the order of its ring. Unless all devices are in it,
        the simulator uses one flat ring, whatever `system` asks for.
    least_size : int
        0 lets collectives of no bytes through, as execution traces may have them: all but
        all-gathers then send a byte per device and chunk (Sys.cc:1215).
    group_algorithm : {"ring", "direct", "halvingDoubling"}
        Of a group that leaves devices out: ``ring``, or what `AstraVersion.group_keeps_algorithm`
        allows. If messages between its members do not all take the same time, those of the two
        others are those of the slowest pair.

    Returns
    -------
    int64[sizes, 2]
        When the slowest and the fastest member are done [ns].

    Raises
    ------
    HardwareError
        An argument is malformed, or the simulator itself stops there.

    Examples
    --------
    >>> network = AstraNetwork(("Ring",), (16,), (50.0,), (500.0,))
    >>> simulate_collectives(network, uniform_system(["ring"]), "all_reduce", [2**20]).tolist()
    [[53710, 53710]]
    """
    check_name("collective", collective, SIMULATED)
    check_name("engine", engine, ENGINES)
    amounts = _whole_sizes(sizes, least_size)
    _check_simulable(network, system)
    if collective == "all_gather" and amounts.size:
        whole = int(amounts.max()) * network.devices
        if whole > 16 * LARGEST_SIZE:
            raise HardwareError(
                f"size is that of a shard; the whole would have {whole} B, but 16 PiB is the most"
            )
    _check_range(network, system, collective, amounts, members)
    involved = _involved(network, involved_dimensions)
    if engine == "congestion-aware":
        if members is not None or not all(involved):
            raise HardwareError("the congestion-aware engine times all devices; name no members")
        return _shared_times(network, system, collective, amounts)
    table = network_table(network)
    if members is not None and len(members) != network.devices:
        times = _group_times(network, system, collective, amounts, members, table, group_algorithm)
    else:
        if members is not None:
            _check_members(network, members)
        times = _plan_times(network, system, collective, amounts, involved, table)
    _check_times(times, amounts, system)
    return times


def _shared_times(
    network: AstraNetwork, system: AstraSystem, collective: str, sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Times over links that messages share: the congestion-aware backend, device by device."""
    machine = Machine(network, system)
    most = LATEST // network.devices
    times = np.empty((sizes.size, 2), np.int64)
    for row, size in enumerate(sizes.tolist()):
        if size > most:
            raise HardwareError(f"size is {size} B; it should be {most} B at most")
        end = machine.run_collective(collective, size).end
        if end.min() < 0:
            raise HardwareError(f"{collective} of {network.devices} devices never ends")
        times[row] = end.max(), end.min()
    return times


def _plan_times(
    network: AstraNetwork,
    system: AstraSystem,
    collective: str,
    sizes: NDArray[np.int64],
    involved: Sequence[bool],
    table: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Times over the dimensions of the network; members keep step, but not in trees."""
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.astra import phase, ranks

    dimensions = [
        dimension
        for dimension in logical_dimensions(network, system.implementation(collective))
        if involved[dimension.index]
    ]
    if not dimensions:
        raise HardwareError("no dimension takes part; at least one should be involved")
    check_algorithms(collective, dimensions)
    settings = (
        system.preferred_dataset_splits,
        system.active_chunks_per_dimension,
        system.endpoint_delay_nanoseconds,
        float(system.local_memory_bandwidth_gb_per_second),
        network.devices,
        table,
    )
    chunks = sizes.size * system.preferred_dataset_splits
    if dimensions[0].algorithm == "doubleBinaryTree":
        tree = dimensions[0]
        with kernel_work(chunks=chunks * tree.members):
            return ranks.double_tree_times(sizes, tree.members, tree.stride, *settings)
    plan = phase_plan(collective, dimensions, system.collective_optimization)
    with kernel_work(chunks=chunks * len(plan)):
        times = phase.collective_times(SIMULATED.index(collective), sizes, plan, *settings)
    return np.stack([times, times], axis=1)


def _group_times(
    network: AstraNetwork,
    system: AstraSystem,
    collective: str,
    sizes: NDArray[np.int64],
    members: Sequence[int],
    table: NDArray[np.float64],
    algorithm: str,
) -> NDArray[np.int64]:
    """Times of a communicator group that is not the whole system."""
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.astra import ranks

    _check_members(network, members)
    messages = sizes.size * system.preferred_dataset_splits * len(members) ** 2
    settings = (
        system.preferred_dataset_splits,
        system.active_chunks_per_dimension,
        float(system.local_memory_bandwidth_gb_per_second),
        network.devices,
    )
    kind = SIMULATED.index(collective)
    if algorithm == "ring":
        with kernel_work(chunks=messages):
            return ranks.group_ring_times(kind, sizes, np.array(members), *settings, table)
    check_algorithms(collective, [LogicalDimension(algorithm, len(members), 1, 0)])
    slowest = np.array([[*slowest_pair(members, table)]])
    with kernel_work(chunks=messages):
        times = ranks.group_phase_times(
            kind, ALGORITHMS.index(algorithm), sizes, len(members), *settings, slowest
        )
    return np.stack([times, times], axis=1)


def slowest_pair(
    members: Sequence[int], table: NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """Return a dimension in which all pairs of a group are as far apart as its slowest.

    Parameters
    ----------
    members : sequence of int
    table : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    tuple of float
        A row of such a table: the least bandwidth and the greatest latency of any pair.
    """
    from perfmodel.kernels.workloads.astra.phase import FULLY_CONNECTED

    latency, bandwidth = pair_links(members, table)
    return FULLY_CONNECTED, float(len(members)), float(bandwidth.min()), float(latency.max())


def pair_links(
    members: Sequence[int], table: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what messages between members of a group pay for.

    Parameters
    ----------
    members : sequence of int
    table : float64[dimensions, NETWORK_COLUMNS]

    Returns
    -------
    latency, bandwidth : float64[pairs]
        Of all ordered pairs of different members [ns], [B/ns]: see
        `perfmodel.kernels.workloads.astra.phase.message_time`.
    """
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.astra.ranks import pair_links as kernel

    count = len(members)
    latency, bandwidth = np.empty((2, count * (count - 1)))
    with kernel_work(routes=latency.size):
        kernel(np.array(members, np.int64), table, latency, bandwidth)
    return latency, bandwidth


def _whole_sizes(sizes: ArrayLike, least: int) -> NDArray[np.int64]:
    """Return sizes as a column of whole numbers of bytes, or raise."""
    amounts = np.atleast_1d(np.asarray(sizes))
    if amounts.ndim != 1 or amounts.dtype.kind not in "iu":
        raise HardwareError("sizes should be one list of whole numbers of bytes")
    if amounts.size and (amounts.min() < least or amounts.max() > LARGEST_SIZE):
        wrong = amounts[(amounts < least) | (amounts > LARGEST_SIZE)][0]
        raise HardwareError(f"size is {wrong} B; it should be {least} B to 1 PiB")
    return amounts.astype(np.int64)


def _involved(network: AstraNetwork, involved: Sequence[bool] | None) -> Sequence[bool]:
    """Return one flag per dimension."""
    if involved is None:
        return [True] * network.dimensions
    if len(involved) != network.dimensions:
        raise HardwareError(
            f"involved_dimensions has {len(involved)} entries; the network has "
            f"{network.dimensions} dimensions"
        )
    return involved


def _check_simulable(network: AstraNetwork, system: AstraSystem) -> None:
    """Raise where the simulator stops, or times by rules that are not repeated here."""
    if system.endpoint_delay_nanoseconds == 0:
        raise HardwareError(
            "endpoint_delay is 0: ASTRA-sim aborts, because its first event would be at "
            "time 0 (EventQueue.cpp asserts that time moves on); it should be >= 1 ns"
        )
    if system.other.get("model-shared-bus", 0) not in (0, False):
        raise HardwareError("model-shared-bus is on; only 0 is covered")
    if network.devices > MOST_DEVICES:
        raise HardwareError(f"{network.devices} devices; {MOST_DEVICES} at most are simulated")
    if system.preferred_dataset_splits > MOST_CHUNKS:
        raise HardwareError(
            f"preferred_dataset_splits is {system.preferred_dataset_splits}; {MOST_CHUNKS} chunks "
            "at most are simulated"
        )


def _check_range(
    network: AstraNetwork,
    system: AstraSystem,
    collective: str,
    sizes: NDArray[np.int64],
    members: Sequence[int] | None,
) -> None:
    """Raise where times could leave the range of whole nanoseconds.

    An upper bound: a chunk of n members takes at most n^2 hops, and n times its bytes in
    all-to-all and all-gather, else 64 times (a double tree: 2 log2(n), n <= 2^20).
    """
    count = float(network.devices if members is None else len(members))
    links = 1.0 if members is None else float(network.devices)  # neighbours in a group
    chunk = max(float(sizes.max(initial=1)) / system.preferred_dataset_splits, network.devices)
    passed = chunk * (max(count, 64.0) if collective in ("all_to_all", "all_gather") else 64.0)
    hop = links * max(network.latency_nanoseconds) + system.endpoint_delay_nanoseconds
    byte = 1.0 / min(network.bandwidth_gib_per_second)
    byte += 3.0 / system.local_memory_bandwidth_gb_per_second
    chunks = 2.0 * system.preferred_dataset_splits
    slowest = 2.0 * network.dimensions * chunks * (count * count * hop + passed * byte)
    if slowest >= LATEST:
        raise HardwareError(
            f"times of up to {slowest:.3g} ns cannot be counted; bandwidth, latency, memory "
            "bandwidth or size is out of range"
        )


def _check_members(network: AstraNetwork, members: Sequence[int]) -> None:
    """Raise unless members are different devices, two at least."""
    wrong = [member for member in members if not 0 <= member < network.devices]
    if wrong:
        raise HardwareError(f"member {wrong[0]}; ids should be 0 to {network.devices - 1}")
    if len(set(members)) != len(members) or len(members) < 2:
        raise HardwareError("a group should have two different members at least")


def _check_times(times: NDArray[np.int64], sizes: NDArray[np.int64], system: AstraSystem) -> None:
    """Raise where the simulator gives no time."""
    from perfmodel.kernels.workloads.astra.phase import NO_CHUNK

    if times.size == 0 or times.min() >= 0:
        return
    row = int(times[:, 0].argmin() if times.min() == NO_CHUNK else (times[:, 0] < 0).argmax())
    if times[row, 0] == NO_CHUNK:
        reason = (
            f"it has fewer bytes than preferred_dataset_splits {system.preferred_dataset_splits}"
        )
    else:
        reason = "a message would be empty, and ASTRA-sim asserts that none is"
    raise HardwareError(f"size {sizes[row]} B cannot be simulated: {reason}; it should be larger")
