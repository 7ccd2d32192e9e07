"""Communication of parameters and gradients, sends and the optimizer of every stage.

Sizes, groups and times as the closing pass of the projection has them (`kernels.step.close`,
`kernels.step.data_parallel`): what it prices once for all parameters of a stage is spread here over
the blocks of the stage by their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.export.types import (
    COMMUNICATION,
    ProjectedBlock,
    ProjectedOperation,
    ProjectedPart,
    ProjectedStage,
)
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.training.project import GATHER_BYTES

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


class _Groups:
    """Groups of one strategy's parameters, and prices of collectives over them."""

    def __init__(self, grid: StrategyGrid, hardware: Hardware, framework: Framework) -> None:
        from perfmodel.kernels.step.close import data_groups
        from perfmodel.network.table import network_table

        def field(name: str) -> int:
            return int(grid[name][0])

        self.hardware = hardware
        self.framework = framework
        self.zero = field("zero_stage")
        spread = field("expert_parallel") * field("expert_tensor_parallel")
        self.dense, self.sparse, self.pipeline_stride = data_groups(
            field("mapping"),
            field("tensor_parallel"),
            field("context_parallel"),
            field("data_parallel"),
            field("pipeline_parallel"),
            spread,
            field("shard_group"),
            network_table(hardware),
        )
        self._times: dict[tuple[str, float, int, int], float] = {}

    def time(self, collective: str, size: float, members: int, stride: int) -> float:
        """Return the time of one collective [s]."""
        from perfmodel.network.collectives import collective_times

        key = (collective, size, int(members), int(stride))
        if key not in self._times:
            self._times[key] = float(collective_times(self.hardware, *key)[0])
        return self._times[key]

    def collectives(
        self, what: str, phase: str, first: str, size: float, share: float, experts: bool
    ) -> list[ProjectedOperation]:
        """Return what moves a `share` of `size` bytes over the group of dense or expert parameters.

        Hierarchically where shards repeat (HSDP), see `kernels.step.data_parallel.sharded_reduce`.
        """
        group = self.sparse if experts else self.dense
        if group.members <= 1 or size * share <= 0:
            return []
        prefix = "expert_" if experts else ""
        name = f"{'experts' if experts else 'parameters'}.{what}"
        rows: list[tuple[str, str, float, int, int]] = []
        if group.shard_set == 0:
            rows.append((first, f"{prefix}data", size, group.members, group.stride))
        else:
            rows.append((first, f"{prefix}shard", size, group.shard_set, group.set_stride))
            if first == "reduce_scatter":
                copies = group.members // group.shard_set
                inside = size / group.shard_set
                label = f"{prefix}shard_copies"
                rows.append(("all_reduce", label, inside, copies, group.copies_stride))
        return [
            _communication(
                f"{name}.{collective}",
                phase,
                collective,
                "data",
                label,
                whole * share,
                int(members),
                int(stride),
                share * self.time(collective, whole, members, stride),
            )
            for collective, label, whole, members, stride in rows
            if members > 1
        ]

    def gathers(self, size: float, share: float, experts: bool) -> list[ProjectedOperation]:
        """Return the gather of parameters."""
        if self.zero == 0:
            return []
        size *= GATHER_BYTES
        return self.collectives("gather", "forward", "all_gather", size, share, experts)

    def reductions(self, size: float, share: float, experts: bool) -> list[ProjectedOperation]:
        """Return the reduction of gradients."""
        kind = "all_reduce" if self.zero == 0 else "reduce_scatter"
        size *= self.framework.gradient_reduce_bytes
        return self.collectives("gradients", "backward_weight", kind, size, share, experts)


def _communication(
    name: str,
    phase: str,
    collective: str,
    axis: str,
    group: str,
    size: float,
    members: int,
    stride: int,
    time: float,
) -> ProjectedOperation:
    return ProjectedOperation(
        name,
        phase,
        COMMUNICATION,
        time=time,
        exposed=time,
        collective=collective,
        axis=axis,
        group=group,
        size=size,
        members=members,
        stride=stride,
    )


def stage_data(
    grid: StrategyGrid,
    hardware: Hardware,
    framework: Framework,
    chunks: Sequence[Sequence[tuple[str, ProjectedPart]]],
    *,
    boundary_bytes: float,
    shared_weights: float,
) -> tuple[tuple[ProjectedStage, ...], ProjectedOperation | None]:
    """Return the stages of one strategy, and one send between them.

    Parameters
    ----------
    grid : StrategyGrid
        One possible strategy.
    hardware : Hardware
    framework : Framework
    chunks : sequence of sequences of (str, ProjectedPart)
        Blocks of every model chunk; chunk c is on stage ``c % pipeline_parallel``.
    boundary_bytes : float
        Hidden state that a stage sends to the next, per device [B].
    shared_weights : float
        Parameters that embedding and output share, 0 unless tied.
    """
    from perfmodel.kernels.step.close import boundary_span

    groups = _Groups(grid, hardware, framework)
    pipeline = int(grid["pipeline_parallel"][0])
    table = boundary = None
    if pipeline > 1:
        span = int(boundary_span(groups.pipeline_stride, pipeline))
        boundary = _pair(
            groups, "pipeline.send", "point_to_point", "pipeline", boundary_bytes, span
        )
        if shared_weights > 0:
            size = shared_weights * framework.gradient_bytes
            span = int(groups.pipeline_stride) * (pipeline - 1)
            table = _pair(groups, "embedding.table", "all_reduce", "table", size, span)
    stages = []
    for number in range(pipeline):
        own = chunks[number::pipeline]
        kept = _kept_parameters(own, shared_weights)
        edge = number in (0, pipeline - 1)
        stages.append(
            ProjectedStage(
                number,
                _blocks(groups, own, kept),
                _optimizer(groups, kept),
                table if edge else None,
            )
        )
    return tuple(stages), boundary


def _pair(
    groups: _Groups, name: str, collective: str, group: str, size: float, span: int
) -> ProjectedOperation:
    """Return communication between two stages that are `span` devices apart."""
    axis, phase = ("data", "backward_weight") if group == "table" else ("pipeline", "forward")
    time = groups.time(collective, size, 2, span)
    return _communication(name, phase, collective, axis, group, size, 2, span, time)


def _kept_parameters(
    chunks: Sequence[Sequence[tuple[str, ProjectedPart]]], shared_weights: float
) -> list[list[tuple[float, float]]]:
    """Return the parameters (dense, experts) that each block adds to its stage.

    Several heads share one output matrix, and a tied table is kept once
    (`kernels.step.stages.sum_stages`).
    """
    kinds = [part.kind for chunk in chunks for _, part in chunk]
    both = "embedding" in kinds and "output" in kinds
    heads = 0
    kept: list[list[tuple[float, float]]] = []
    for chunk in chunks:
        kept.append([])
        for _, part in chunk:
            weights = part.weights
            if part.kind == "output":
                weights = 0.0 if heads else weights - (shared_weights if both else 0.0)
                heads += 1
            kept[-1].append((weights, part.experts))
    return kept


def _blocks(
    groups: _Groups,
    chunks: Sequence[Sequence[tuple[str, ProjectedPart]]],
    kept: list[list[tuple[float, float]]],
) -> tuple[tuple[ProjectedBlock, ...], ...]:
    """Return the blocks of a stage, with the communication of their parameters.

    With ZeRO-3 every block moves its own parameters; otherwise a stage's parameters are
    priced together and every block has its share.
    """
    totals = _summed(kept)
    chunked = []
    for chunk, rows in zip(chunks, kept, strict=True):
        blocks = []
        for (label, part), row in zip(chunk, rows, strict=True):
            gathers: list[ProjectedOperation] = []
            reductions: list[ProjectedOperation] = []
            whole = (part.weights, part.experts) if groups.zero == 3 else totals
            for experts in (False, True):
                size, own = whole[experts], row[experts]
                share = 1.0 if groups.zero == 3 else own / size if size else 0.0
                gathers += groups.gathers(size, share, experts)
                reductions += groups.reductions(size, share, experts)
            blocks.append(ProjectedBlock(label, part, tuple(gathers), tuple(reductions)))
        chunked.append(tuple(blocks))
    return tuple(chunked)


def _summed(kept: list[list[tuple[float, float]]]) -> tuple[float, float]:
    """Add up what a stage keeps; one without blocks keeps nothing."""
    rows = [row for rows in kept for row in rows]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


def _optimizer(groups: _Groups, kept: list[list[tuple[float, float]]]) -> ProjectedOperation:
    """Return the update of a stage's parameters."""
    from perfmodel.compute.stream import stream_times
    from perfmodel.kernels.step.data_parallel import (
        OPTIMIZER_FLOPS,
        OPTIMIZER_LAUNCHES,
        optimizer_work,
    )

    weights, experts = _summed(kept)

    def shards(group: Any) -> int:
        if groups.zero == 0:
            return 1
        return int(group.shard_set if group.shard_set > 0 else group.members)

    updated, read, written = optimizer_work(
        weights,
        experts,
        shards(groups.dense),
        shards(groups.sparse),
        groups.zero,
        groups.framework.gradient_bytes,
        groups.framework.optimizer_bytes,
    )
    time = float(
        stream_times(
            groups.hardware,
            read,
            written,
            flops=OPTIMIZER_FLOPS * updated,
            launches=OPTIMIZER_LAUNCHES,
            cached=0.0,  # as `close_strategies` has it
        ).time[0]
    )
    return ProjectedOperation(
        "optimizer", "optimizer", "stream", time=time, exposed=time, traffic=float(read + written)
    )
