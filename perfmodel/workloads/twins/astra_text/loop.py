"""What the kinds of parallelism of ASTRA-sim 1.0 do: dimensions of collectives, order of work.

Source: astra-sim, branch ASTRA-sim-1.0 07d5d19, ``workload/Workload.cc``
(``decode_involved_dimensions``, the ``iterate_...`` functions) and ``system/Sys.cc``
(``break_dimension``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.astra_text import (
    CUSTOMIZED,
    RECOMMENDERS,
    TRANSFORMERS,
    AstraTextWorkload,
)

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
