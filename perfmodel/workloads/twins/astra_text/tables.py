"""Text workloads, systems and networks of ASTRA-sim 1.0 as the kernels read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.collectives import SIMULATED, WORDS
from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError, HardwareError, StrategyError
from perfmodel.workloads.formats.astra_machine import ALGORITHMS, UNAWARE_TOPOLOGIES
from perfmodel.workloads.formats.astra_text import COLLECTIVES, AstraTextWorkload
from perfmodel.workloads.formats.astra_text_machine import (
    INTER_DIMENSION,
    INTRA_DIMENSION,
    NativeNetwork,
    NativeSystem,
)
from perfmodel.workloads.twins.astra_text.loop import LogicalDimensions, involved_dimensions

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.astra_text.state import Layers, System

LARGEST_INT = 2**31 - 1
LARGEST_SCALE = 1e9
MOST_DEVICES = 2**16
KIND_OF_WORD = {word: kind for kind, word in enumerate(WORDS.values())}


def layers_table(
    workload: AstraTextWorkload,
    dimensions: LogicalDimensions,
    communication_scale: float,
    compute_scale: float,
) -> Layers:
    """Return the workload as the kernels read it."""
    from perfmodel.kernels.workloads.astra_text.state import NONE, UNSUPPORTED, Layers

    if not workload.layers:
        raise FormatError("the workload has no layers; it should have one at least")
    compute = np.array([phase.compute_time for phase in workload.phases])
    size = np.array([phase.size for phase in workload.phases])
    compute = _scaled("compute scale", compute, compute_scale)
    size = _scaled("communication scale", size, communication_scale)
    for name, times in (("compute", compute.max(axis=0)), ("update", workload.update_time)):
        if times.max() > LARGEST_INT:
            layer = int(times.argmax())
            raise FormatError(
                f"layer {layer} ({workload.names[layer]}) has a {name} time of "
                f"{times[layer]} ns; ASTRA-sim 1.0 counts delays in 32 bits, so it should be at "
                f"most {LARGEST_INT}"
            )
    kinds = {word: KIND_OF_WORD.get(word, UNSUPPORTED) for word in COLLECTIVES}
    kind = [[kinds.get(word, NONE) for word in phase.collective] for phase in workload.phases]
    position = np.arange(workload.layers)
    return Layers(
        compute,
        np.array(kind, np.int64),
        size,
        workload.update_time.copy(),
        involved_dimensions(workload, dimensions).copy(),
        np.isin(position, workload.checkpoints),
        np.isin(position, workload.checkpoint_initiates),
    )


def _scaled(name: str, values: Integers, scale: float) -> Integers:
    """Return whole numbers times a factor, cut to whole numbers."""
    if not (isinstance(scale, int | float) and 0 <= scale <= LARGEST_SCALE):
        raise StrategyError(f"{name} is {scale}; it should be a number from 0 to {LARGEST_SCALE:g}")
    product = values * float(scale)
    if product.max(initial=0) >= 2.0**62:
        raise FormatError(f"a number of the workload times {name} {scale} is beyond 62 bits")
    return product.astype(np.int64)


def system_table(
    workload: AstraTextWorkload,
    network: NativeNetwork,
    system: NativeSystem,
    dimensions: LogicalDimensions,
    queues: int,
) -> System:
    """Return system and network as the kernels read them."""
    from perfmodel.kernels.workloads.astra_text.state import System

    if network.devices > MOST_DEVICES:
        raise HardwareError(f"{network.devices} devices; {MOST_DEVICES} at most are simulated")
    if system.endpoint_delay_nanoseconds == 0:
        raise HardwareError("endpoint-delay is 0; ASTRA-sim needs at least 1 ns")
    used = {word for phase in workload.phases for word in phase.collective}
    algorithm = np.zeros((len(SIMULATED), dimensions.count), np.int64)
    for word, kind in KIND_OF_WORD.items():
        if word in used:
            algorithm[kind] = _algorithms(SIMULATED[kind], network, system, dimensions)
    return System(
        np.array(dimensions.members),
        np.array(dimensions.stride),
        np.array(dimensions.physical),
        algorithm,
        network_table(network),
        system.preferred_dataset_splits,
        queues,
        -(-system.active_chunks_per_dimension // queues),
        system.endpoint_delay_nanoseconds,
        system.scheduling_policy == "LIFO",
        system.collective_optimization == "baseline",
        INTRA_DIMENSION.index(system.intra_dimension_scheduling),
        INTER_DIMENSION.index(system.inter_dimension_scheduling),
        np.empty((3, 0)),
    )


def network_table(network: NativeNetwork) -> np.recarray[Any, Any]:
    """Return the network as the kernels read it (NETWORK of `kernels.astra_text.cost`)."""
    from perfmodel.kernels.workloads.astra_text.cost import NETWORK

    links = [max(network.links(dimension), 1) for dimension in range(network.dimensions)]
    # Themis asks for the bandwidth of all links of a device, whatever one message uses.
    own = np.array(network.links_count)
    own -= own % 2 * (np.array(network.topology) == "Ring")
    bandwidth = np.array(network.link_bandwidth_gib_per_second) * np.maximum(own, 1)
    columns = [
        [UNAWARE_TOPOLOGIES.index(name) for name in network.topology],
        network.npus_count,
        np.array(network.link_bandwidth_gib_per_second) * links * 2**30 / 1e9,
        network.link_latency_nanoseconds,
        network.nic_latency_nanoseconds,
        network.router_latency_nanoseconds,
        network.memory_latency_nanoseconds,
        network.memory_bandwidth_gb_per_second,
        network.memory_scale,
        bandwidth / bandwidth[0],
    ]
    return np.rec.fromarrays(columns, NETWORK)


def _algorithms(
    collective: str,
    network: NativeNetwork,
    system: NativeSystem,
    dimensions: LogicalDimensions,
) -> list[int]:
    """Return the algorithm's number on each logical dimension, or raise."""
    names = system.implementation(collective)
    if len(names) != network.dimensions:
        raise HardwareError(
            f"{collective} has {len(names)} implementations ({'_'.join(names)}) for "
            f"{network.dimensions} dimensions; there should be one per dimension"
        )
    numbers = []
    for dimension, physical in enumerate(dimensions.physical):
        name, members = names[physical], dimensions.members[dimension]
        if name not in ALGORITHMS:
            raise HardwareError(
                f"{name} is not covered for text workloads; it should be one of "
                + ", ".join(ALGORITHMS)
            )
        if name == "halvingDoubling" and (members & (members - 1) or collective == "all_to_all"):
            raise HardwareError(
                f"halvingDoubling cannot do {collective} on {members} devices; it needs a power "
                "of two and cannot do all_to_all"
            )
        numbers.append(ALGORITHMS.index(name))
    return numbers
