"""Collectives as ASTRA-sim's congestion-aware analytical backend times them.

Links are shared here: of messages that need the same link, one waits. The backend knows
one dimension of Ring, FullyConnected or Switch, and here also the Mesh2D that its
tutorial adds; the simulation itself is :mod:`perfmodel.kernels.astra.aware`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.errors import HardwareError
from perfmodel.formats.astra.records import (
    AstraNetwork,
    AstraSystem,
    mesh_shape,
)
from perfmodel.parity.astra.plan import checked_algorithm

if TYPE_CHECKING:
    from perfmodel.kernels.astra.aware_state import Plan

MOST_MESSAGES = 20_000_000  # of one simulation: they take some gigabytes of memory
MOST_DEVICES = 8192  # the route from every device to every other one is stored
LATEST = 2**62  # [ns]
BYTES_PER_GIB = 2**30
NANOSECONDS_PER_SECOND = 1e9


@dataclass(frozen=True)
class CongestionAwareRun:
    """One simulated collective.

    Attributes
    ----------
    finish_nanoseconds : ndarray of int, shape (rank,)
        When each rank is done [ns].
    link_bytes : ndarray of int, shape (link,)
        Carried by each directed link [B].
    link_source, link_target : ndarray of int, shape (link,)
        Nodes at its ends: ranks, then the switch where there is one.
    messages : int
        Messages sent by all ranks together.
    events : int
        Events simulated.
    """

    finish_nanoseconds: np.ndarray
    link_bytes: np.ndarray
    link_source: np.ndarray
    link_target: np.ndarray
    messages: int
    events: int


def congestion_aware_time(
    network: AstraNetwork, system: AstraSystem, collective: str, size: int
) -> tuple[int, int]:
    """Return the times at which the slowest and the fastest rank are done [ns].

    Parameters
    ----------
    network, system : AstraNetwork, AstraSystem
        See :func:`congestion_aware_run`.
    collective : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    size : int
        [B]: the shard of a rank for all-gather, the full buffer otherwise.

    Raises
    ------
    HardwareError
        As :func:`congestion_aware_run`.
    """
    finish = congestion_aware_run(network, system, collective, size).finish_nanoseconds
    return int(finish.max()), int(finish.min())


def congestion_aware_run(
    network: AstraNetwork, system: AstraSystem, collective: str, size: int
) -> CongestionAwareRun:
    """Simulate one collective of all devices, alone on the network.

    Parameters
    ----------
    network : AstraNetwork
        One dimension.
    system : AstraSystem
        One algorithm for the collective.
    collective : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    size : int
        [B]: the shard of a rank for all-gather, the full buffer otherwise.

    Returns
    -------
    CongestionAwareRun

    Raises
    ------
    HardwareError
        The network has several dimensions, the algorithm cannot do the collective on
        so many devices, the size is too small to be cut, or there are too many devices or
        messages.
    """
    from perfmodel.kernels.astra import aware
    from perfmodel.kernels.astra.aware_state import SLOT
    from perfmodel.kernels.work import kernel_work

    if network.dimensions != 1:
        raise HardwareError(
            "the congestion-aware backend knows networks of one dimension; this one has "
            f"{network.dimensions}: use the congestion-unaware backend"
        )
    ranks = network.npus_count[0]
    if ranks > MOST_DEVICES:
        raise HardwareError(
            f"{ranks} devices; the congestion-aware backend covers {MOST_DEVICES} at most"
        )
    algorithm = _algorithm(system, collective, ranks)
    sends = _sends(algorithm, collective, ranks)
    chunk, streams = _chunks(system, collective, size, ranks)
    messages = streams * ranks * sends
    if messages > MOST_MESSAGES:
        raise HardwareError(
            f"{algorithm} {collective} of {ranks} devices in {streams} chunks takes "
            f"{messages:,} messages; at most {MOST_MESSAGES:,} are simulated"
        )
    plan = _plan(network, system, collective, algorithm, sends, chunk)
    _check_duration(plan, messages)
    active = system.active_chunks_per_dimension
    slots = int(plan.steps[:, SLOT].max()) + 1
    with kernel_work(hops=messages):
        finish, link_bytes, events = aware.simulate(plan, ranks, streams, active, slots)
    if finish.min() < 0:
        raise HardwareError(f"{algorithm} {collective} of {ranks} devices never ends")
    source, _ = np.nonzero(plan.next_link >= 0)
    link_source = np.empty(plan.target.size, np.int64)
    link_source[plan.next_link[plan.next_link >= 0]] = source
    return CongestionAwareRun(finish, link_bytes, link_source, plan.target, messages, events)


def _algorithm(system: AstraSystem, collective: str, ranks: int) -> str:
    """Return the algorithm of a collective on one dimension."""
    names = system.implementation(collective)
    if len(names) != 1:
        raise HardwareError(
            f"{len(names)} implementations of {collective}; a network of one dimension needs one"
        )
    name = checked_algorithm(names[0])
    # On one dimension "the whole system as one" is that dimension.
    whole = {"oneRing": "ring", "oneDirect": "direct", "oneHalvingDoubling": "halvingDoubling"}
    name = whole.get(name, name)
    if name == "doubleBinaryTree":
        raise HardwareError(
            "doubleBinaryTree is not covered with congestion; use ring, direct or halvingDoubling"
        )
    if name == "halvingDoubling" and collective == "all_to_all":
        raise HardwareError("halvingDoubling cannot do all_to_all; use ring or direct")
    if name == "halvingDoubling" and ranks & (ranks - 1):
        raise HardwareError(f"halvingDoubling on {ranks} devices; it needs a power of two")
    return name


def _chunks(system: AstraSystem, collective: str, size: int, ranks: int) -> tuple[int, int]:
    """Return the bytes of a chunk and the number of chunks."""
    from perfmodel.kernels.astra.queue import chunk_size_and_count

    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise HardwareError(f"size is {size!r}; it should be a whole number of bytes >= 1")
    if size > LATEST // ranks:
        raise HardwareError(f"size is {size} B; it should be {LATEST // ranks} B at most")
    kind = SIMULATED.index(collective)
    chunk, streams = chunk_size_and_count(kind, size, system.preferred_dataset_splits, ranks)
    if chunk == 0:
        raise HardwareError(
            f"size {size} B cannot be simulated: it has fewer bytes than "
            f"preferred_dataset_splits {system.preferred_dataset_splits}; it should be larger"
        )
    return chunk, streams


def _sends(algorithm: str, collective: str, ranks: int) -> int:
    """Messages that a rank sends per chunk (Ring.cc, AllToAll.cc, HalvingDoubling.cc)."""
    if algorithm == "ring" and collective == "all_to_all":
        return ranks * (ranks - 1) // 2
    one_way = _rounds(ranks) if algorithm == "halvingDoubling" else ranks - 1
    return 2 * one_way if collective == "all_reduce" else one_way


def _rounds(ranks: int) -> int:
    """Base-2 logarithm of a power of two."""
    return ranks.bit_length() - 1


def _plan(
    network: AstraNetwork,
    system: AstraSystem,
    collective: str,
    algorithm: str,
    sends: int,
    chunk: int,
) -> Plan:
    """Put the messages of a rank and the network into the kernel's form."""
    from perfmodel.kernels.astra.aware_state import Plan

    ranks = network.npus_count[0]
    parallel = ranks - 1 if algorithm == "direct" else 1
    count = sends + parallel
    size = _message_sizes(algorithm, collective, ranks, chunk, count)
    if size[:sends].min() == 0:
        raise HardwareError(
            f"a chunk of {chunk} B cannot be simulated: {algorithm} {collective} of {ranks} "
            "devices would send an empty message; it should be larger"
        )
    offset, slot = _peers(algorithm, collective, ranks, count)
    bandwidth = network.bandwidth_gib_per_second[0] * BYTES_PER_GIB / NANOSECONDS_PER_SECOND
    transfer = size / bandwidth
    reduction = _reductions(algorithm, collective, ranks, parallel, size, system)
    columns = [offset, slot, size, transfer, network.latency_nanoseconds[0] + transfer, reduction]
    table = np.stack([np.minimum(column, LATEST).astype(np.int64) for column in columns], axis=1)
    waits = algorithm == "direct" and collective == "all_reduce"
    return Plan(
        table,
        sends,
        parallel,
        ranks - 1 if waits else 0,
        algorithm == "halvingDoubling",
        system.endpoint_delay_nanoseconds,
        *_links(network.topology[0], ranks),
    )


def _message_sizes(
    algorithm: str, collective: str, ranks: int, chunk: int, count: int
) -> np.ndarray:
    """Bytes of the message of each step [B], int64[step].

    Ring.cc; HalvingDoubling.cc, whose doubling starts from half of the last halving's
    message: rounded down, then doubled.
    """
    if algorithm != "halvingDoubling":
        return np.full(count, chunk if collective == "all_gather" else chunk // ranks, np.int64)
    step = np.arange(count)
    if collective == "all_gather":
        return chunk << step
    rounds = _rounds(ranks)
    halving = chunk >> np.minimum(step + 1, rounds + 1)
    return np.where(step < rounds, halving, (halving * 2) << np.maximum(step - rounds, 0))


def _peers(
    algorithm: str, collective: str, ranks: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Offset to the peer of every step, and the place of that peer among all of them."""
    step = np.arange(count)
    if algorithm == "ring":
        return np.ones_like(step), np.zeros_like(step)
    if algorithm == "direct":
        return 1 + step % (ranks - 1), step % (ranks - 1)
    rounds = _rounds(ranks)
    if collective == "all_gather":
        level = rounds - 1 - step
    else:
        level = np.minimum(step, 2 * rounds - 1 - step)  # up and, for an all-reduce, down
    level = np.clip(level, 0, rounds - 1)  # the step after the last has no peer
    return 1 << level, level


def _reductions(
    algorithm: str,
    collective: str,
    ranks: int,
    parallel: int,
    size: np.ndarray,
    system: AstraSystem,
) -> np.ndarray:
    """Local reduction before each step [ns], int64[step].

    Steps come in turns of a group that goes out as it is and a group that adds what was
    received (Ring.cc, insert_packet); an all-reduce adds in every other turn only.
    """
    from perfmodel.kernels.astra.aware_state import NONE
    from perfmodel.kernels.astra.phase import reduction_time

    adding = {"ring": ranks - 1, "direct": parallel, "halvingDoubling": _rounds(ranks) - 1}
    turn, place = np.divmod(np.arange(size.size), parallel + adding[algorithm])
    adds = place >= parallel
    if collective == "all_reduce":
        adds &= turn % 2 == 0
    elif collective != "reduce_scatter":
        adds[:] = False
    bandwidth = float(system.local_memory_bandwidth_gb_per_second)
    values, which = np.unique(size, return_inverse=True)
    times = np.array([reduction_time(int(value), bandwidth) for value in values], np.int64)
    return np.where(adds, times[which], NONE)


def _check_duration(plan: Plan, messages: int) -> None:
    """Raise where times could leave the range of whole nanoseconds."""
    from perfmodel.kernels.astra.aware_state import FLIGHT, REDUCTION

    slowest = float(plan.steps[:, FLIGHT].max()) + plan.steps[:, REDUCTION].max() + plan.delay
    if slowest * messages * len(plan.next_link) >= LATEST:
        raise HardwareError(
            f"one message takes {slowest:.3g} ns and there are {messages:,}: bandwidth or latency "
            "of the network is out of range"
        )


def _links(topology: str, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Next directed link from every node to every rank, and the far end of each link.

    congestion_aware/basic-topology Ring.cpp (the shorter way, ties clockwise),
    FullyConnected.cpp, Switch.cpp; Mesh2D goes along the rows, which are its longer side,
    first.
    """
    from perfmodel.kernels.astra.aware_state import NONE

    nodes = ranks + 1 if topology == "Switch" else ranks
    node, rank = np.ogrid[:nodes, :ranks]
    if topology == "FullyConnected":
        neighbour = rank
    elif topology == "Switch":
        neighbour = np.where(node == ranks, rank, ranks)
    elif topology == "Ring":
        clockwise = (rank - node) % ranks
        neighbour = (node + np.where(clockwise <= ranks - clockwise, 1, -1)) % ranks
    else:
        width, _ = mesh_shape(ranks)
        along = np.sign(rank % width - node % width)
        across = np.sign(rank // width - node // width)
        neighbour = node + np.where(along != 0, along, width * across)
    neighbour = np.broadcast_to(neighbour, (nodes, ranks))
    there = np.broadcast_to(node == rank, (nodes, ranks))
    ends = np.broadcast_to(node, (nodes, ranks)) * nodes + neighbour
    # Every pair of neighbours is one directed link.
    pairs, number = np.unique(ends[~there], return_inverse=True)
    next_link = np.full((nodes, ranks), NONE, np.int32)
    next_link[~there] = number
    return next_link, pairs % nodes
