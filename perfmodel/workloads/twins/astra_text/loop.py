"""Text workloads of ASTRA-sim 1.0 as the kernels read them: dimensions, order of work, tables.

What the kinds of parallelism of ASTRA-sim 1.0 do: dimensions of collectives, order of work.

Source: astra-sim, branch ASTRA-sim-1.0 07d5d19, ``workload/Workload.cc``
(``decode_involved_dimensions``, the ``iterate_...`` functions) and ``system/Sys.cc``
(``break_dimension``).

Text workloads, systems and networks of ASTRA-sim 1.0 as the kernels read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import SIMULATED, WORDS
from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError, HardwareError, StrategyError
from perfmodel.workloads.formats.astra_machine import ALGORITHMS, UNAWARE_TOPOLOGIES
from perfmodel.workloads.formats.astra_text import (
    COLLECTIVES,
    CUSTOMIZED,
    RECOMMENDERS,
    TRANSFORMERS,
    AstraTextWorkload,
)
from perfmodel.workloads.formats.astra_text_machine import (
    INTER_DIMENSION,
    INTRA_DIMENSION,
    NativeNetwork,
    NativeSystem,
)

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.astra_text.state import Layers, System

EVERYWHERE = "everywhere"  # a rule that no file names: all phases on all dimensions


@dataclass(frozen=True, slots=True)
class LogicalDimensions:
    """Dimensions that collectives work on: the network's, one of them perhaps split in two.

    Attributes
    ----------
    members, stride, physical : tuple of int
        Devices; difference of neighbours' positions on the physical dimension; its index.
    model_parallel : int
        How many dimensions, from the first, the devices that share a layer fill.
    """

    members: tuple[int, ...]
    stride: tuple[int, ...]
    physical: tuple[int, ...]
    model_parallel: int

    @property
    def count(self) -> int:
        """Number of logical dimensions."""
        return len(self.members)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What distinguishes the training loops; named as in `kernels.workloads.astra_text.state`."""

    micro: bool
    inference: bool
    weight_first: bool
    reorder: bool
    recommender: bool
    forward_blocking: bool
    input_collective: bool
    first_input_collective: bool
    weight_collective: bool
    weight_waits: bool
    weight_first_in: bool
    last_bottom: int


def split_dimensions(npus_count: Sequence[int], group: int) -> LogicalDimensions:
    """Return the logical dimensions for devices that share layers in groups.

    Parameters
    ----------
    npus_count : sequence of int
        Of the network, innermost dimension first.
    group : int
        Devices that share a layer; 0 where the parallelism has no such groups.

    Raises
    ------
    StrategyError
        The group does not fill whole dimensions and divide one.

    Notes
    -----
    A group larger than the network has no collectives of its own, as a group of 1 has none:
    the simulator does not notice.
    """
    plain = (tuple(npus_count), (1,) * len(npus_count), tuple(range(len(npus_count))))
    if group <= 1:
        return LogicalDimensions(*plain, 0)
    before = 1
    for dimension, members in enumerate(npus_count):
        if before * members == group:
            return LogicalDimensions(*plain, dimension + 1)
        if before * members > group:
            inner = group // before
            if inner * before != group or members % inner:
                raise StrategyError(
                    f"a model-parallel group of {group} devices does not divide the network's "
                    f"dimensions {', '.join(map(str, npus_count))}: it would need {group} / "
                    f"{before} of the {members} devices of dimension {dimension}"
                )
            sizes, strides, physical = (list(column) for column in plain)
            sizes[dimension : dimension + 1] = [inner, members // inner]
            strides.insert(dimension + 1, inner)
            physical.insert(dimension + 1, dimension)
            return LogicalDimensions(tuple(sizes), tuple(strides), tuple(physical), dimension + 1)
        before *= members
    return LogicalDimensions(*plain, 0)


def involved_dimensions(
    workload: AstraTextWorkload, dimensions: LogicalDimensions
) -> NDArray[np.bool_]:
    """Return which dimensions each collective uses.

    Returns
    -------
    bool[3, layers, dimensions]
        Forward, input gradient, weight gradient.

    Raises
    ------
    StrategyError
        A layer's own policy needs groups, which only a whole workload can have.
    """
    policies = [workload.policy] * workload.layers
    if workload.policy == CUSTOMIZED:
        policies = list(workload.layer_policy)
        wrong = [i for i, policy in enumerate(policies) if policy in (*TRANSFORMERS, CUSTOMIZED)]
        if wrong:
            raise StrategyError(
                f"layer {wrong[0]} ({workload.names[wrong[0]]}) has the policy "
                f"{policies[wrong[0]]}; a single layer cannot have it, as the header states no "
                "model-parallel group then"
            )
    elif workload.policy in RECOMMENDERS and policies:
        policies[0] = EVERYWHERE
    rules = {policy: _rule(policy, dimensions) for policy in set(policies)}
    return np.array([rules[policy] for policy in policies]).transpose(1, 0, 2)


def _rule(policy: str, dimensions: LogicalDimensions) -> NDArray[np.bool_]:
    """Return bool[3, dimensions] of a kind of parallelism."""
    position = np.arange(dimensions.count)
    everywhere, nowhere = position >= 0, position < 0
    if policy == EVERYWHERE:
        return np.array([everywhere] * 3)
    if policy in ("MODEL", "DISTRIBUTED_INFERENCE"):
        return np.array([everywhere, everywhere, nowhere])
    if policy == "HYBRID_MODEL_DATA":
        return np.array([position > 0, position > 0, position == 0])
    if policy == "HYBRID_DATA_MODEL":
        return np.array([position == 0, position == 0, position > 0])
    if policy in TRANSFORMERS:
        model = position < dimensions.model_parallel
        return np.array([model, model, ~model])
    return np.array([nowhere, nowhere, everywhere])


def loop_settings(workload: AstraTextWorkload) -> LoopSettings:
    """Return the training loop of a workload.

    Forward collectives block, except the recommender's exchanges, which run beside the
    bottom layers, and data parallelism has none. Gradients' collectives do not block, but
    all loops except those of data parallelism and of ``HYBRID_DLRM_ENHANCED`` wait, after a
    layer's weight gradient, for its input gradient's.
    """
    policy = workload.policy
    data = policy in ("DATA", "DATA_REORDER")
    recommender = policy in RECOMMENDERS
    return LoopSettings(
        micro=policy == "MICRO",
        inference=policy == "DISTRIBUTED_INFERENCE",
        weight_first=policy == "DATA" or recommender,
        reorder=policy == "DATA_REORDER",
        recommender=recommender,
        forward_blocking=not (data or recommender),
        input_collective=not (data or recommender),
        first_input_collective=policy in TRANSFORMERS,
        weight_collective=policy != "MODEL",
        weight_waits=not data and policy != "HYBRID_DLRM_ENHANCED",
        weight_first_in=not (data or recommender or policy == "MICRO"),
        last_bottom=workload.last_bottom_layer,
    )


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
