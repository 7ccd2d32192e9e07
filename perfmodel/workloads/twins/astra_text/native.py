"""Text workloads as ASTRA-sim 1.0 runs them on its analytical backend, to the nanosecond.

A parity mode: it repeats the simulator's training loops, queues and times, its
simplifications included. Devices all do the same, so one of them is run. For the answer of
the physical network model there is :mod:`perfmodel.workloads.twins.astra_text.physical`.

Sources: astra-sim, branch ASTRA-sim-1.0 07d5d19 (``workload/Workload.cc``, ``Layer.cc``,
``system/Sys.cc``) and astra-network-analytical d27635b.
"""

from __future__ import annotations

from perfmodel.workloads.formats.astra_text import AstraTextWorkload
from perfmodel.workloads.formats.astra_text_machine import NativeNetwork, NativeSystem
from perfmodel.workloads.twins.astra_text.loop import split_dimensions
from perfmodel.workloads.twins.astra_text.machine import NativeResult, check_argument, run_machine
from perfmodel.workloads.twins.astra_text.tables import layers_table, system_table

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
