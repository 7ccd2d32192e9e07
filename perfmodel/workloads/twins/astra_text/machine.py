"""One run of the training loop's kernel, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.workloads.formats.astra_text import AstraTextWorkload
from perfmodel.workloads.twins.astra_text.loop import loop_settings
from perfmodel.workloads.twins.astra_text.stops import reason_to_stop

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.astra_text.state import Layers, State, System

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
