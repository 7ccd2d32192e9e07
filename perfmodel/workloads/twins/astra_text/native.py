"""Text workloads as ASTRA-sim 1.0 runs them on its analytical backend, to the nanosecond.

A parity mode: it repeats the simulator's training loops, queues and times, its
simplifications included. Devices all do the same, so one of them is run. For the answer of
the physical network model there is :mod:`perfmodel.workloads.twins.astra_text.physical`.

Sources: astra-sim, branch ASTRA-sim-1.0 07d5d19 (``workload/Workload.cc``, ``Layer.cc``,
``system/Sys.cc``) and astra-network-analytical d27635b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.workloads.formats.astra_text import AstraTextWorkload
from perfmodel.workloads.formats.astra_text_machine import NativeNetwork, NativeSystem
from perfmodel.workloads.twins.astra_text.loop import (
    layers_table,
    loop_settings,
    split_dimensions,
    system_table,
)

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.astra_text.state import Layers, State, System

PHASES = ("forward", "input-gradient", "weight-gradient")


def reason_to_stop(
    workload: AstraTextWorkload, status: int, layer: int, phase: int, splits: int, size: int
) -> str:
    """Return what is wrong, where, and what would be right.

    Parameters
    ----------
    workload : AstraTextWorkload
    status : int
        As `perfmodel.kernels.workloads.astra_text.state` numbers the ends of a run.
    layer, phase : int
        Where it happened.
    splits : int
        Preferred chunks of the system.
    size : int
        Of the layer's collective, scaled [B].
    """
    from perfmodel.kernels.workloads.astra_text import state as ends

    where = f"layer {layer} ({workload.names[layer]})"
    own = workload.phases[phase]
    collective = f"{where}: the {PHASES[phase]} collective {own.collective[layer]}"
    reasons = {
        ends.EMPTY: f"{collective} has 0 bytes and would never end in ASTRA-sim 1.0; it should "
        "be NONE or have bytes",
        ends.NO_CHUNK: f"{collective} has fewer bytes ({size}) than "
        f"preferred-dataset-splits {splits}: ASTRA-sim 1.0 would cut chunks of 0 bytes for ever",
        ends.TOO_LARGE: f"{collective} has chunks of more than 2^31 - 1 bytes, which ASTRA-sim "
        "1.0 counts in 32 bits; preferred-dataset-splits should be larger",
        ends.PANIC: f"{collective}: ASTRA-sim 1.0 reads this collective and stops where it should "
        "run it ('no known collective operation')",
        ends.NO_CHECKPOINT: f"{where} initiates a forward pass, but neither it nor any layer "
        "before it is a checkpoint; ASTRA-sim 1.0 would read before its list of layers",
        ends.PAST_THE_END: f"the forward pass within the backward pass runs past {where}, the "
        "last one: no layer behind the checkpoint initiates another; ASTRA-sim 1.0 would read "
        "behind its list of layers",
        ends.UNEQUAL_STATUS: f"{collective} runs on half of a dimension, whose devices do not "
        "keep step at messages this small; ASTRA-sim 1.0 stops there ('Same key entry already "
        "exist')",
        ends.TOO_LONG_STATUS: f"{collective} has a message of more than 2^31 - 1 ns, which "
        "ASTRA-sim 1.0 counts in 32 bits",
        ends.TOO_LATE: "times beyond 2^52 ns cannot be counted; bandwidth, latency or a size is "
        "out of range",
        ends.STUCK: "nothing is left to do, but not all collectives have ended",
    }
    return reasons[status]


MOST_PASSES = 1_000_000
FIRST_POOL = 256  # chunks or collectives at once; grows as needed
MOST_POOL = 2**16
MOST_PLACES = 2**27  # in the lines of all queues, each as long as there are chunks [8 B]
MOST_EVENTS = 50_000_000
FEW_EVENTS = 20_000  # tried first: so few need no compiled kernels


@dataclass(frozen=True, slots=True)
class NativeResult:
    """What ASTRA-sim 1.0 reports of a run; times in whole nanoseconds, as it counts them.

    Attributes
    ----------
    names : tuple of str
        Of the layers.
    total_ns : int
        When everything has ended.
    pass_end_ns : int64[passes]
        When each pass ended; empty for ``MICRO`` and ``DISTRIBUTED_INFERENCE``, of which the
        simulator says nothing.
    collectives : int64[layers]
        Issued.
    compute_ns, exposed_ns, communication_ns : int64[3, layers]
        Forward, input gradient, weight gradient. Exposed: the loop waited for it. The
        communication of a collective counts from its issue to its end and includes the
        layer's update time.
    chunks : int
        Of all collectives.
    payload_bytes : int64[dimensions]
        Sent by a device on each dimension of the network.
    chunk_latency_ns : float64[logical dimensions]
        Mean time of a chunk's phase; nan where there was none.
    """

    names: tuple[str, ...]
    total_ns: int
    pass_end_ns: Integers
    collectives: Integers
    compute_ns: Integers
    exposed_ns: Integers
    communication_ns: Integers
    chunks: int
    payload_bytes: Integers
    chunk_latency_ns: NDArray[np.float64]


def run_machine(
    workload: AstraTextWorkload, layers: Layers, system: System, passes: int
) -> NativeResult:
    """Run a workload's training loop.

    Parameters
    ----------
    workload : AstraTextWorkload
    layers, system
        The same, and the system, as the kernel reads them.
    passes : int

    Raises
    ------
    FormatError
        The run stops or never ends; says at which layer and why.
    StrategyError
        `passes` is out of range, or the run would be too large.
    """
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.astra_text import machine as kernel
    from perfmodel.kernels.workloads.astra_text.state import (
        FULL,
        TOO_MANY_EVENTS,
        Loop,
        facts_of,
        new_state,
    )

    check_argument("passes", passes, MOST_PASSES)
    settings = loop_settings(workload)
    loop = Loop(**{name: getattr(settings, name) for name in settings.__slots__})
    facts = facts_of(layers, loop, system)
    queues = len(system.members) * system.queues
    most = min(MOST_POOL, MOST_PLACES // queues)
    pool, events = FIRST_POOL, min(FEW_EVENTS, MOST_EVENTS)
    while True:
        with kernel_work(events=events):
            state = new_state(facts, passes, pool, pool)
            kernel.run(state, plain(facts), passes, events)
        if state.cursor.status == TOO_MANY_EVENTS and events < MOST_EVENTS:
            events = MOST_EVENTS  # how many there are, only a run says
            continue
        if state.cursor.status != FULL:
            break
        if pool == most:
            raise StrategyError(
                f"more than {most} chunks or collectives would wait at once; fewer passes, "
                "preferred-dataset-splits or queues are needed"
            )
        pool = min(8 * pool, most)
    _check_end(workload, layers, system, state)
    return _result(workload, system, state)


def _check_end(workload: AstraTextWorkload, layers: Layers, system: System, state: State) -> None:
    """Raise where a run ended early."""
    from perfmodel.kernels.workloads.astra_text import state as kernel

    status, layer = int(state.cursor.status), int(state.cursor.status_layer)
    phase = int(state.cursor.status_phase)
    if status == kernel.FINISHED:
        return
    if status == kernel.TOO_MANY_EVENTS:
        raise StrategyError(
            f"more than {MOST_EVENTS} events; fewer passes or preferred-dataset-splits are needed"
        )
    size = int(layers.size[phase, layer])
    raise FormatError(reason_to_stop(workload, status, layer, phase, system.splits, size))


def _result(workload: AstraTextWorkload, system: System, state: State) -> NativeResult:
    """Return what a finished run has counted."""
    from perfmodel.kernels.events import CLOCK
    from perfmodel.kernels.plain import column

    silent = workload.policy in ("MICRO", "DISTRIBUTED_INFERENCE")
    phases = column(state.dims, "phase_count")
    latency = np.full(len(phases), np.nan)
    np.divide(column(state.dims, "phase_time"), phases, out=latency, where=phases > 0)
    payload = np.zeros(len(system.network), np.int64)
    np.add.at(payload, system.physical, column(state.dims, "sent"))
    return NativeResult(
        names=workload.names,
        total_ns=int(np.floor(state.calendar[0, CLOCK])),
        pass_end_ns=state.pass_end[: 0 if silent else None],
        collectives=column(state.collective, "issued").sum(axis=0),
        compute_ns=column(state.collective, "compute"),
        exposed_ns=column(state.collective, "exposed"),
        communication_ns=column(state.collective, "communication"),
        chunks=int(state.cursor.injected),
        payload_bytes=payload,
        chunk_latency_ns=latency,
    )


def check_argument(name: str, value: Any, most: int) -> None:
    """Raise unless a value is a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise StrategyError(f"{name} is {value}; it should be a whole number from 1 to {most}")


__all__ = ["NativeNetwork", "NativeResult", "NativeSystem", "run_native"]

MOST_QUEUES = 1024


def run_native(
    workload: AstraTextWorkload,
    network: NativeNetwork,
    system: NativeSystem,
    *,
    passes: int = 1,
    communication_scale: float = 1.0,
    compute_scale: float = 1.0,
    queues_per_dimension: int = 1,
) -> NativeResult:
    """Run a text workload as ASTRA-sim 1.0 does.

    Parameters
    ----------
    workload : AstraTextWorkload
    network : NativeNetwork
    system : NativeSystem
    passes : int
        Training steps, ``--num-passes``.
    communication_scale, compute_scale : float
        Factors on bytes and on compute times, ``--comm-scale`` and ``--compute-scale``; the
        products are cut to whole numbers. Update times are not scaled.
    queues_per_dimension : int
        ``--num-queues-per-dim``.

    Returns
    -------
    NativeResult

    Raises
    ------
    FormatError
        The simulator would stop or never end; says at which layer and why.
    HardwareError
        Network and system do not fit each other, or are not covered.
    StrategyError
        The workload's groups do not fit the network, or an argument is out of range.

    Examples
    --------
    >>> from perfmodel.workloads.formats.astra_text import parse_astra_text
    >>> text = "MICRO 1 sum -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5"
    >>> ring = NativeNetwork(("Ring",), (4,), (2,), (25,), (500,), (0,), (0,), (500,), (370,), (0,))
    >>> system = NativeSystem(("ring",), ("ring",), ("ring",), ("ring",))
    >>> run_native(parse_astra_text(text), ring, system).total_ns
    32367
    """
    check_argument("queues per dimension", queues_per_dimension, MOST_QUEUES)
    dimensions = split_dimensions(network.npus_count, workload.model_parallel_group)
    layers = layers_table(workload, dimensions, communication_scale, compute_scale)
    machine = system_table(workload, network, system, dimensions, queues_per_dimension)
    return run_machine(workload, layers, machine, passes)
