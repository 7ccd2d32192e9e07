"""Everything that one strategy runs, operation by operation and stage by stage.

The operations and their times are those that the projection adds up (`part_table`,
`pricing`, `kernels.step.close`); workload files of any format are written from this one list, so
that they agree with the projection and with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import OFFLOAD
from perfmodel.kernels.variables import STEP_VARIABLES
from perfmodel.model.presets import load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operations import Communication, LayerKeys, Role
from perfmodel.operations.parts import Part
from perfmodel.operations.priced import Priced
from perfmodel.software.framework import Framework, load_framework
from perfmodel.strategy.grid import StrategyGrid, batches_of
from perfmodel.strategy.pipelines import named_pipeline
from perfmodel.strategy.rules import check_one_strategy
from perfmodel.training.best_layout import BEST
from perfmodel.training.layout import stage_layout
from perfmodel.training.memory import shared_table
from perfmodel.training.part_table import (
    arrival_gather,
    host_times_of,
    part_table,
    pass_times,
    price_parts,
    sent_bytes,
    step_overhead,
)
from perfmodel.training.project import framework_of_run, project_grid
from perfmodel.training.schedule import chunk_parts, parts_with, recomputed_of
from perfmodel.training.scheduled import groups_of
from perfmodel.training.step.data_parallel import stage_data
from perfmodel.training.step.types import (
    COMMUNICATION,
    ProjectedOperation,
    ProjectedPart,
    ProjectedWorkload,
)
from perfmodel.training.workload import PIPELINE_FIELDS, Workload, layer_columns

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.pipeline.actions import Order


def projected_workload(
    model: ModelSpec | str,
    grid: StrategyGrid,
    hardware: Hardware | str,
    *,
    framework: str | Framework = "megatron",
) -> ProjectedWorkload:
    """List everything that every rank of one strategy runs in one training step.

    Parameters
    ----------
    model : ModelSpec
    grid : StrategyGrid
        Exactly one strategy.
    hardware : Hardware
    framework : str or Framework

    Returns
    -------
    ProjectedWorkload
        Its totals are those of the projection.

    Raises
    ------
    StrategyError
        As of `perfmodel.strategy.rules.check_one_strategy`; or nothing is written of a
        layout that is not stated.
    """
    from perfmodel.hwprofiles import load_hardware

    model = load_model(model)
    hardware = load_hardware(hardware)
    check_one_strategy(grid, hardware, "a workload is made of")
    for name in OFFLOAD:
        if grid[name][0] > 0.0:
            raise StrategyError(f"{name}: workloads have no copies to and from a host")
    framework = framework_of_run(load_framework(framework), model, hardware, grid)
    if framework.stage_split == BEST and grid["pipeline_parallel"][0] > 1:
        raise StrategyError(
            "stage_split best: workload files are written of stated layers (--stage-layers 5,8,8,7)"
        )
    strategy, order = grid.row(0), order_of(grid)
    keys = LayerKeys(layer_columns(grid.columns))
    chunks = model_chunks(model, grid, hardware, framework, order, framework.stage_split)
    out = np.empty((len(STEP_VARIABLES), 1))
    work = Workload(model, grid)
    project_grid(work, hardware, framework, out, threads=1)
    stages, boundary = stage_data(
        work,
        hardware,
        framework,
        chunks,
        order,
        boundary_bytes=float(sent_bytes(model, keys, framework)[0]),
        shared_weights=float(shared_table(model, keys, framework)[0]) * (model.adapters is None),
    )
    return ProjectedWorkload(
        model,
        strategy,
        grid.devices,
        hardware.name,
        framework,
        order.micro_batches,
        order,
        stages,
        boundary,
        _arrival(model, keys, hardware, framework) if boundary else None,
        tuple(level.size for level in hardware.system.network),
        step_overhead(hardware, framework),
        {item.name: float(out[i, 0]) for i, item in enumerate(STEP_VARIABLES)},
    )


def model_chunks(
    model: ModelSpec,
    grid: StrategyGrid,
    hardware: Hardware,
    framework: Framework,
    order: Order,
    split: str,
) -> list[list[tuple[str, ProjectedPart]]]:
    """Return labels and parts of every model chunk of one strategy, in the order of the model.

    Parameters
    ----------
    model : ModelSpec
    grid : StrategyGrid
        Of one strategy.
    hardware : Hardware
    framework : Framework
    order : Order
        Of its pipeline.
    split : str
        Layers over stages: as of `perfmodel.training.layout.stage_layout`.

    Returns
    -------
    list of list of (str, ProjectedPart)
        Those of a second copy of the model follow.
    """
    keys = LayerKeys(layer_columns(grid.columns))
    pipeline, virtual = (int(grid[name][0]) for name in PIPELINE_FIELDS[:2])
    layout = stage_layout(model, pipeline, virtual, split)
    recomputed = recomputed_of(*(int(grid[name][0]) for name in PIPELINE_FIELDS[3:]))
    stages_of_chunks = order.rank_of[: len(layout.layers)].tolist()
    held = chunk_parts(model, layout, stages_of_chunks, recomputed)
    parts = _parts(model, keys, hardware, framework, grid.devices, parts_with(model, held))
    chunks = _chunks(held, parts)
    if order.copies > 1:
        chunks += [[(f"{label} of the other copy", part) for label, part in it] for it in chunks]
    return chunks


def _arrival(
    model: ModelSpec, keys: LayerKeys, hardware: Hardware, framework: Framework
) -> ProjectedOperation | None:
    """Return the gather of a hidden state that came in shares, None where it comes whole."""
    item = arrival_gather(model, keys, hardware, framework)
    return _operation(item) if _number(item.operation.count) > 0 else None


def _parts(
    model: ModelSpec,
    keys: LayerKeys,
    hardware: Hardware,
    framework: Framework,
    devices: int,
    held: Sequence[Part],
) -> list[tuple[Part, ProjectedPart]]:
    """Price the distinct parts of the model."""
    table = part_table(model, keys, hardware, framework, devices, held)[0]
    times = host_times_of(hardware, framework)
    parts = []
    for row, (part, priced) in zip(
        table, price_parts(model, keys, hardware, framework, devices, held), strict=True
    ):
        items = tuple(_operation(item) for item in priced if _number(item.operation.count) > 0)
        device, window = pass_times(part, priced, keys, times, framework)
        forward_host, backward_host = map(float, (window - device)[:, 0])
        parts.append(
            (
                part,
                ProjectedPart(
                    part.name,
                    part.kind,
                    items,
                    forward_host,
                    backward_host,
                    float(row.weights),
                    float(row.experts),
                    float(row.trained),
                    float(row.trained_experts),
                ),
            )
        )
    return parts


def _operation(item: Priced) -> ProjectedOperation:
    operation = item.operation
    shared: dict[str, Any] = {
        "role": operation.role,
        "count": _number(operation.count),
        "time": float(item.time[0]),
        "exposed": float(item.exposed[0]),
    }
    if not isinstance(operation, Communication):
        kind = type(operation).__name__.lower()
        shared |= {"flops": float(item.flops[0]), "traffic": float(item.traffic[0])}
        return ProjectedOperation(operation.name, operation.phase, kind, **shared)
    # Ranks that share an expert speak to each other on the tensor axis, in a group of their own.
    group = "expert_tensor" if operation.role == Role.EXPERT_SHARING else operation.axis
    return ProjectedOperation(
        operation.name,
        operation.phase,
        COMMUNICATION,
        **shared,
        collective=operation.collective,
        axis=operation.axis,
        group=group,
        size=_number(operation.size),
        members=int(_number(operation.members)),
        stride=max(1, int(_number(operation.stride))),
        beside=operation.hidden_by,
        hides=_number(operation.hides),
        tail=_number(operation.tail),
    )


def order_of(grid: StrategyGrid) -> Order:
    """Return what the stages of a strategy do when."""
    if grid.table is not None:
        return grid.table.order
    return named_pipeline(
        str(grid.row(0)["pipeline_schedule"]),
        int(grid["pipeline_parallel"][0]),
        int(batches_of(grid)[0]),
        int(grid["virtual_pipeline"][0]),
        int(groups_of(grid.columns, batches_of(grid))[0]),
    ).order


def _number(value: Any) -> float:
    return float(np.asarray(value).reshape(-1)[0])


def _chunks(
    chunks: Sequence[Sequence[Part]], parts: list[tuple[Part, ProjectedPart]]
) -> list[list[tuple[str, ProjectedPart]]]:
    """Return labels and parts of every model chunk, in the order in which they run."""
    made = dict(parts)
    found, layers, modules = [], 0, 0
    for chunk in chunks:
        labelled: list[tuple[str, ProjectedPart]] = []
        module = False  # one that predicts further tokens
        for part in chunk:
            if part.kind == "group":  # no operations of its own
                continue
            label = part.kind
            if part.kind == "mtp":
                module, label = True, f"multi-token projection {modules}"
            elif module:
                label = f"multi-token {part.kind} {modules}"
                module = part.kind != "output"
                modules += not module
            elif part.kind == "layer":
                label, layers = f"layer {layers}", layers + 1
            labelled.insert(0 if part.kind == "embedding" else len(labelled), (label, made[part]))
        found.append(labelled)
    return found
