"""What no simulation can run: columns of a trace, networks of another size."""

from __future__ import annotations

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Flags
from perfmodel.base.errors import FormatError, HardwareError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem
from perfmodel.workloads.simulation.costs import node_text
from perfmodel.workloads.trace import ABSENT, NODE_KINDS, Trace

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
