"""Communication of parameters and gradients, sends and the optimizer of every stage.

Which bytes travel when, and over which ranks, says `kernels.step.sharding`, as to the closing pass
of the projection: what that prices once for all parameters of a stage is spread here over the
blocks of the stage by their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.compute.collectives import COLLECTIVES
from perfmodel.software.framework import Framework
from perfmodel.training.project import closing_settings
from perfmodel.training.step.types import (
    COMMUNICATION,
    ProjectedBlock,
    ProjectedOperation,
    ProjectedPart,
    ProjectedStage,
)
from perfmodel.training.workload import Workload

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.pipeline.actions import Order
    from perfmodel.kernels.step.placement import Group
    from perfmodel.kernels.step.sharding import Transfer


class _Groups:
    """Groups of one strategy's parameters, and prices of collectives over them."""

    def __init__(self, work: Workload, hardware: Hardware, framework: Framework) -> None:
        from perfmodel.compute.network import network_table
        from perfmodel.kernels.step.placement import data_groups

        strategy = work.strategies[0]
        self.zero = int(strategy.zero_stage)
        self.groups = data_groups(strategy, network_table(hardware))
        self.settings = closing_settings(work, hardware, framework)
        self.hardware = hardware
        self._times: dict[tuple[str, float, int, int], float] = {}

    def time(self, collective: str, size: float, members: int, stride: int) -> float:
        """Return the time of one collective [s]."""
        from perfmodel.compute.collectives import collective_times

        key = (collective, size, int(members), int(stride))
        if key not in self._times:
            self._times[key] = float(collective_times(self.hardware, *key)[0])
        return self._times[key]

    def gathers(self, parameters: float, share: float, experts: bool) -> list[ProjectedOperation]:
        """Return what gathers a `share` of the parameters of a stage or block."""
        from perfmodel.kernels.step.sharding import parameter_transfers, shards_optimizer

        if not shards_optimizer(self.zero):
            return []
        group = self._group(experts)
        transfers = parameter_transfers(float(parameters), group, self.settings)
        found = self._collectives("gather", "forward", transfers, share, experts)
        return _with_copies(found, self.settings.gather_copy_time * parameters * share)

    def reductions(
        self, parameters: float, share: float, experts: bool
    ) -> list[ProjectedOperation]:
        """Return what reduces a `share` of their gradients."""
        from perfmodel.kernels.step.sharding import gradient_transfers

        group = self._group(experts)
        transfers = gradient_transfers(self.zero, float(parameters), group, self.settings)
        found = self._collectives("gradients", "backward_weight", transfers, share, experts)
        return _with_copies(found, self.settings.reduce_copy_time * parameters * share)

    def _group(self, experts: bool) -> Group:
        return self.groups.sparse if experts else self.groups.dense

    def _collectives(
        self,
        what: str,
        phase: str,
        transfers: tuple[Transfer, Transfer],
        share: float,
        experts: bool,
    ) -> list[ProjectedOperation]:
        """Return a share of the collectives over the group of dense or expert parameters."""
        prefix = "expert_" if experts else ""
        name = f"{'experts' if experts else 'parameters'}.{what}"
        whole = "shard" if self._group(experts).shard_set else "data"
        found = []
        for transfer, label in zip(transfers, (whole, "shard_copies"), strict=True):
            if transfer.members <= 1 or transfer.size * share <= 0:
                continue
            kind = COLLECTIVES[transfer.kind]
            ranks = {"members": int(transfer.members), "stride": int(transfer.stride)}
            time = share * self.time(kind, transfer.size, **ranks)
            found.append(
                _communication(
                    f"{name}.{kind}",
                    phase,
                    time,
                    collective=kind,
                    axis="data",
                    group=prefix + label,
                    size=transfer.size * share,
                    **ranks,
                )
            )
        return found


def _with_copies(found: list[ProjectedOperation], time: float) -> list[ProjectedOperation]:
    """Let the first of some collectives last as much longer as copies around its buffer take."""
    if not found:
        return found
    longer = replace(found[0], time=found[0].time + time, exposed=found[0].exposed + time)
    return [longer, *found[1:]]


def _communication(name: str, phase: str, time: float, **about: Any) -> ProjectedOperation:
    return ProjectedOperation(name, phase, COMMUNICATION, time=time, exposed=time, **about)


def stage_data(
    work: Workload,
    hardware: Hardware,
    framework: Framework,
    chunks: Sequence[Sequence[tuple[str, ProjectedPart]]],
    order: Order,
    *,
    boundary_bytes: float,
    shared_weights: float,
) -> tuple[tuple[ProjectedStage, ...], ProjectedOperation | None]:
    """Return the stages of one strategy, and one send between them.

    Parameters
    ----------
    work : Workload
        Of one possible strategy.
    hardware : Hardware
    framework : Framework
    chunks : sequence of sequences of (str, ProjectedPart)
        Blocks of every model chunk, in the order of the model; then those of a second copy.
    order : Order
        Which stage each of them lies on.
    boundary_bytes : float
        Hidden state that a stage sends to the next, per device [B].
    shared_weights : float
        Parameters that embedding and output share, 0 unless tied.
    """
    from perfmodel.kernels.step.overlap import boundary_span

    groups = _Groups(work, hardware, framework)
    stride = int(groups.groups.pipeline_stride)
    pipeline = int(work.grid["pipeline_parallel"][0])
    table = boundary = None
    span = int(boundary_span(stride, pipeline))
    if pipeline > 1:
        boundary = _pair(
            groups, "pipeline.send", "point_to_point", "pipeline", boundary_bytes, span
        )
        placement = order.rank_of[: order.rank_of.size // order.copies]
        if shared_weights > 0 and placement[0] != placement[-1]:
            size = shared_weights * framework.gradient_bytes
            table = _pair(groups, "embedding.table", "all_reduce", "table", size, span)
    held = [
        [chunks[chunk] for chunk in np.flatnonzero(order.rank_of == number).tolist()]
        for number in range(pipeline)
    ]
    stages = []
    for number, own in enumerate(held):
        kept = _kept_parameters(own, shared_weights)
        edge = number in (0, pipeline - 1)
        stages.append(
            ProjectedStage(
                number,
                _blocks(groups, own, kept),
                _optimizer(groups, kept),
                table if edge else None,
                _mirror(groups, kept, span) if order.copies > 1 else None,
            )
        )
    return tuple(stages), boundary


def _mirror(
    groups: _Groups, parameters: list[list[tuple[float, float]]], span: int
) -> ProjectedOperation:
    """Return the sum of a stage's gradients with those of the other copy of the model."""
    from perfmodel.kernels.step.sharding import kept

    weights, experts = _summed(parameters)
    owned = kept(groups.zero, weights, experts, groups.groups).updated
    size = float(owned * groups.settings.reduce_bytes)
    return _pair(groups, "copies.gradients", "all_reduce", "mirror", size, span)


def _pair(
    groups: _Groups, name: str, collective: str, group: str, size: float, span: int
) -> ProjectedOperation:
    """Return communication between two stages that are `span` devices apart."""
    axis, phase = ("pipeline", "forward") if group == "pipeline" else ("data", "backward_weight")
    time = groups.time(collective, size, 2, span)
    about = {"collective": collective, "axis": axis, "group": group, "size": size}
    return _communication(name, phase, time, **about, members=2, stride=span)


def _kept_parameters(
    chunks: Sequence[Sequence[tuple[str, ProjectedPart]]], shared_weights: float
) -> list[list[tuple[float, float]]]:
    """Return the trained parameters (dense, experts) that each block adds to its stage.

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
            weights = part.trained
            if part.kind == "output":
                weights = 0.0 if heads else weights - (shared_weights if both else 0.0)
                heads += 1
            kept[-1].append((weights, part.trained_experts))
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
    from perfmodel.kernels.step.sharding import shards_parameters

    single = shards_parameters(groups.zero)
    chunked = []
    for chunk, rows in zip(chunks, kept, strict=True):
        blocks = []
        for (label, part), row in zip(chunk, rows, strict=True):
            gathers: list[ProjectedOperation] = []
            reductions: list[ProjectedOperation] = []
            whole = (part.trained, part.trained_experts) if single else totals
            held = (part.weights, part.experts) if single else totals
            for experts in (False, True):
                size, own = whole[experts], row[experts]
                share = 1.0 if single else own / size if size else 0.0
                gathers += groups.gathers(held[experts], share, experts)
                reductions += groups.reductions(size, share, experts)
            blocks.append(ProjectedBlock(label, part, tuple(gathers), tuple(reductions)))
        chunked.append(tuple(blocks))
    return tuple(chunked)


def _summed(kept: list[list[tuple[float, float]]]) -> tuple[float, float]:
    """Add up what a stage keeps; one without blocks keeps nothing."""
    rows = [row for rows in kept for row in rows]
    return float(sum(row[0] for row in rows)), float(sum(row[1] for row in rows))


def _optimizer(groups: _Groups, kept: list[list[tuple[float, float]]]) -> ProjectedOperation:
    """Return the update of a stage's parameters."""
    from perfmodel.compute.stream import stream_times
    from perfmodel.kernels.step.sharding import (
        OPTIMIZER_FLOPS,
        OPTIMIZER_LAUNCHES,
        optimizer_work,
    )

    weights, experts = _summed(kept)
    updated, read, written = optimizer_work(
        groups.zero, weights, experts, groups.groups, groups.settings
    )
    time = float(
        stream_times(
            groups.hardware,
            read,
            written,
            flops=OPTIMIZER_FLOPS * updated,
            launches=OPTIMIZER_LAUNCHES,
            cached=0.0,  # as `optimizer_time` has it
        ).time[0]
    )
    return ProjectedOperation(
        "optimizer", "optimizer", "stream", time=time, exposed=time, traffic=float(read + written)
    )
