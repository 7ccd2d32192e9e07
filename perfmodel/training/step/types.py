"""What a projected strategy runs: operations, parts, blocks, stages, and their totals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.kernels.variables import OPERATION_COMPONENTS
from perfmodel.model.layers import layer_parameters
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operations import Role
from perfmodel.operations.parts import model_parts
from perfmodel.software.framework import Framework

if TYPE_CHECKING:
    from perfmodel.kernels.pipeline.actions import Order
    from perfmodel.kernels.step.sharding import Repeats

COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class ProjectedOperation:
    """One operation; times, FLOP and traffic are of all its `count` calls per run.

    Attributes
    ----------
    name, phase, role : str
        As in `perfmodel.operations.operations`; no role outside of the parts of the model.
    kind : {"gemm", "attention", "stream", "communication"}
    count : float
        Calls per micro-batch and layer, or per run of a data-parallel operation.
    time, exposed : float
        Predicted [s], and the part of it that delays the step. Data-parallel operations and
        sends state all their time as exposed: what hides them is the schedule.
    flops : float
        Matrix FLOP executed.
    traffic : float
        Bytes to and from memory [B]; 0 for communication.
    collective, axis : str
        Of communication: kind (`perfmodel.base.collectives.COLLECTIVES`) and parallel axis.
    group : str
        Which ranks: "tensor", "context", "expert", "expert_tensor", "data", "expert_data",
        "shard", "shard_copies", "expert_shard", "expert_shard_copies", "pipeline", "table",
        "mirror".
    size : float
        Of one call [B]: the whole buffer of a rank (nccl-tests), also for gathers.
    members, stride : int
        As the projection prices the group.
    beside : tuple of (str, str)
        Operations (name, phase) that run at the same time, where `hides` is not 0.
    hides : float
        Share of their time that can hide this one.
    tail : float
        Share of its own time that nothing can hide: the first or the last piece, where it
        is pipelined with its product.
    """

    name: str
    phase: str
    kind: str
    count: float = 1.0
    time: float = 0.0
    exposed: float = 0.0
    flops: float = 0.0
    traffic: float = 0.0
    collective: str = ""
    axis: str = ""
    group: str = ""
    size: float = 0.0
    members: int = 1
    stride: int = 1
    beside: tuple[tuple[str, str], ...] = ()
    hides: float = 0.0
    tail: float = 0.0
    role: Role = Role.NONE

    @property
    def communicates(self) -> bool:
        """Whether this is communication."""
        return self.kind == COMMUNICATION


@dataclass(frozen=True, slots=True)
class ProjectedPart:
    """A distinct part of the model and what it runs per micro-batch.

    Attributes
    ----------
    name : str
        "layer0", …, "embedding", "output" or "mtp" (`perfmodel.operations.parts.Part`).
    kind : str
    operations : tuple of ProjectedOperation
        Of all phases, in the order in which `explain` lists them.
    host_forward, host_backward : float
        What the device waits for the host in either pass [s].
    weights, experts : float
        Parameters on one device: replicated over data ranks, and of its experts.
    trained, trained_experts : float
        Those of them that have gradients.
    """

    name: str
    kind: str
    operations: tuple[ProjectedOperation, ...]
    host_forward: float
    host_backward: float
    weights: float
    experts: float
    trained: float
    trained_experts: float


@dataclass(frozen=True, slots=True)
class ProjectedBlock:
    """One part at its place in the model, with the communication of its parameters.

    Attributes
    ----------
    label : str
        "layer 3", "embedding", "output", "multi-token layer 0", …
    part : ProjectedPart
    gathers, reductions : tuple of ProjectedOperation
        What one gather of its parameters and one reduction of its gradients take.
    """

    label: str
    part: ProjectedPart
    gathers: tuple[ProjectedOperation, ...]
    reductions: tuple[ProjectedOperation, ...]


@dataclass(frozen=True, slots=True)
class ProjectedStage:
    """What one pipeline stage runs.

    Attributes
    ----------
    number : int
    chunks : tuple of tuple of ProjectedBlock
        Its model chunks, in the order of the model; one without virtual stages. Then those of
        a second copy of the model.
    optimizer : ProjectedOperation
    table : ProjectedOperation or None
        Sum of the gradients of a tied table, on the first and the last stage.
    mirror : ProjectedOperation or None
        Sum of all gradients with those of the other copy of the model, on the mirrored stage.
    """

    number: int
    chunks: tuple[tuple[ProjectedBlock, ...], ...]
    optimizer: ProjectedOperation
    table: ProjectedOperation | None
    mirror: ProjectedOperation | None = None

    def sums(self) -> list[ProjectedOperation]:
        """Return what adds up gradients of stages once all of them are there."""
        return [item for item in (self.table, self.mirror) if item]

    def blocks(self) -> Iterator[ProjectedBlock]:
        """Yield the blocks of all chunks."""
        for chunk in self.chunks:
            yield from chunk


@dataclass(frozen=True, slots=True)
class StageTotals:
    """What one device of a stage does in one step.

    Attributes
    ----------
    flops : float
        Matrix FLOP executed.
    compute_time : float
        Of all operations of all layers, without the optimizer [s].
    optimizer_time : float
        [s].
    bytes_by_collective : mapping of (str, str) to float
        Sizes of all calls by axis and collective, whole buffers [B]. A send counts on the
        stage that sends.
    components : mapping of str to float
        Components of the step time that add up from operations [s].
    """

    flops: float
    compute_time: float
    optimizer_time: float
    bytes_by_collective: Mapping[tuple[str, str], float]
    components: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ProjectedWorkload:
    """What every rank of one strategy runs in one step.

    Attributes
    ----------
    model : ModelSpec
    strategy : mapping of str to int, bool or str
        Its fields, with labels.
    devices : int
    hardware : str
        Name of the profile.
    framework : Framework
    micro_batches : int
    order : Order
        What every stage does when.
    stages : tuple of ProjectedStage
        By number.
    boundary : ProjectedOperation or None
        One send from a stage to the next, forward or backward; None with a single stage.
    arrival : ProjectedOperation or None
        What tensor ranks do with the shares that they received; None where they receive all.
    sizes : tuple of int
        Sizes of the network levels, innermost first; 0: unbounded.
    step_overhead : float
        Host time per step that nothing hides [s].
    projection : mapping of str to float
        The projected step: every variable of `perfmodel.kernels.variables.STEP_VARIABLES`.
    """

    model: ModelSpec
    strategy: Mapping[str, Any]
    devices: int
    hardware: str
    framework: Framework
    micro_batches: int
    order: Order
    stages: tuple[ProjectedStage, ...]
    boundary: ProjectedOperation | None
    arrival: ProjectedOperation | None
    sizes: tuple[int, ...]
    step_overhead: float
    projection: Mapping[str, float]

    @property
    def gathers_per_micro_batch(self) -> bool:
        """Whether the parameters of a block are gathered for every pass."""
        from perfmodel.kernels.step.sharding import shards_parameters

        return bool(shards_parameters(self.strategy["zero_stage"]))

    @property
    def reductions_per_micro_batch(self) -> bool:
        """Whether the gradients of a block are reduced after every backward pass."""
        from perfmodel.kernels.step.sharding import shards_gradients

        return bool(shards_gradients(self.strategy["zero_stage"]))

    @property
    def gathers(self) -> int:
        """How often the parameters of a block are gathered per step."""
        return int(self._repeats.gathers)

    @property
    def chunk_stages(self) -> list[int]:
        """Stage of each model chunk, in the order of the model; then those of a second copy."""
        places: list[int] = self.order.rank_of.tolist()
        return places

    @property
    def runs(self) -> int:
        """How many micro-batches pass through each chunk per step."""
        return self.micro_batches // self.order.copies

    @property
    def reductions(self) -> int:
        """How often the gradients of a block are reduced per step."""
        return int(self._repeats.reductions)

    @property
    def _repeats(self) -> Repeats:
        from perfmodel.kernels.step.sharding import repeats

        found: Repeats = repeats(self.strategy["zero_stage"], float(self.runs))
        return found

    def sends(self, stage: int) -> int:
        """How many messages a stage sends to its neighbours per step."""
        ways = pairwise(self.chunk_stages)
        crossed = sum((a == stage) + (b == stage) for a, b in ways if a != b)
        return crossed * self.runs

    def totals(self, stage: int) -> StageTotals:
        """Add up what one device of a stage does in one step."""
        flops = compute = 0.0
        components = dict.fromkeys(OPERATION_COMPONENTS, 0.0)
        sizes: dict[tuple[str, str], float] = defaultdict(float)
        for block in self.stages[stage].blocks():
            for item in block.part.operations:
                components[component_of(item)] += self.runs * item.exposed
                if item.communicates:
                    _add_size(sizes, item, self.runs)
                else:
                    flops += self.runs * item.flops
                    compute += self.runs * item.time
            for items, runs in ((block.gathers, self.gathers), (block.reductions, self.reductions)):
                for item in items:
                    _add_size(sizes, item, runs)
        if self.boundary:
            _add_size(sizes, self.boundary, self.sends(stage))
        if self.arrival:  # a stage receives as often as it sends
            _add_size(sizes, self.arrival, self.sends(stage))
        for item in self.stages[stage].sums():
            _add_size(sizes, item, 1)
        optimizer = self.stages[stage].optimizer.time
        return StageTotals(flops, compute, optimizer, dict(sizes), components)

    def norm_parameters(self, stage: ProjectedStage) -> int:
        """Return how many parameters the norms of a stage have."""
        layers = {part.name: part.layer for part in model_parts(self.model)}
        parameters = 0
        for block in stage.blocks():
            layer = layers[block.part.name]
            if layer is not None:
                parameters += layer_parameters(layer, self.model.hidden_size).norms
            elif block.part.kind == "output":
                parameters += self.model.final_norm_parameters()
        return parameters

    def number_of(self, stage: int | None) -> int:
        """Return the number of a stage; None stands for the slowest.

        Raises
        ------
        StrategyError
            No such stage.
        """
        number = self.slowest if stage is None else stage
        if not 0 <= number < len(self.stages):
            raise StrategyError(
                f"stage {number}; the strategy has stages 0 to {len(self.stages) - 1}"
            )
        return number

    @property
    def slowest(self) -> int:
        """Number of the first stage on which the projection found the step's components."""
        projected = np.array([self.projection[name] for name in OPERATION_COMPONENTS])
        away = [
            np.abs(np.array(list(self.totals(i).components.values())) - projected).sum()
            for i in range(len(self.stages))
        ]
        return int(np.argmin(np.round(np.array(away) / self.projection["step_time"], 12)))


def _add_size(sizes: dict[tuple[str, str], float], item: ProjectedOperation, runs: float) -> None:
    if runs:
        sizes[item.axis, item.collective] += runs * item.count * item.size


def component_of(item: ProjectedOperation) -> str:
    """Return the component of the step time to which an operation of a layer adds."""
    if item.communicates:
        return f"{item.axis}_parallel_exposed"
    return {"forward": "forward_time", "recompute": "recompute_time"}.get(
        item.phase, "backward_time"
    )
