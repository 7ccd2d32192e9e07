"""The list of all operations of a strategy adds up to the projection it is made from."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from perfmodel.analysis.explain import operation_costs
from perfmodel.base.errors import StrategyError
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.kernels.variables import OPERATION_COMPONENTS
from perfmodel.model.build import dense_model
from perfmodel.model.presets import load_model
from perfmodel.operations.parts import model_parts
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.training.schedule import stage_compositions
from perfmodel.training.step.workload import projected_workload
from tests.data import table_of
from tests.training.step.cases import cases_of

CASES = cases_of("operations")


@pytest.fixture(scope="session")
def tied_dense():
    return dense_model(
        "tied-dense",
        layers=8,
        hidden_size=2048,
        heads=16,
        intermediate_size=5632,
        vocab_size=32768,
        tied_embeddings=True,
    )


@pytest.fixture(scope="session")
def workload_of(request, made_workloads):
    """Return a function that makes the workload of a case, or of a model and its fields."""
    return made_workloads(CASES, lambda name: model_of(request, name))


def model_of(request, name):
    return request.getfixturevalue(name) if "_" in name else load_model(name, mtp="stated")


def data_time(workload, stage):
    """Time of all data-parallel communication of a stage per step."""
    total = 0.0
    for block in workload.stages[stage].blocks():
        total += workload.gathers * sum(item.time for item in block.gathers)
        total += workload.reductions * sum(item.time for item in block.reductions)
    return total + sum(item.time for item in workload.stages[stage].sums())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("framework", ["megatron", "fsdp"])
def test_operations_add_up_to_the_projected_step(case, framework, workload_of):
    workload = workload_of(case, framework)
    totals = workload.totals(workload.slowest)
    for name in OPERATION_COMPONENTS:
        assert totals.components[name] == pytest.approx(
            workload.projection[name], rel=1e-9, abs=1e-15
        ), name
    parts = [block.part for block in workload.stages[workload.slowest].blocks()]
    host = workload.runs * sum(part.host_forward + part.host_backward for part in parts)
    assert host + workload.step_overhead == pytest.approx(
        workload.projection["host_time"], rel=1e-6
    )


@pytest.mark.parametrize("case", CASES)
def test_what_the_projection_prices_per_stage_is_there(case, workload_of):
    # The reduction of delayed scales is no operation of a block or a stage, and left out.
    workload = workload_of(case, load_framework("megatron", reduces_scales=False))
    stages = range(len(workload.stages))
    most = max(data_time(workload, stage) for stage in stages)
    assert most == pytest.approx(workload.projection["data_parallel_total"], rel=1e-9)
    slowest = max(workload.totals(stage).optimizer_time for stage in stages)
    assert slowest == pytest.approx(workload.projection["optimizer_time"], rel=1e-9)
    pipeline, virtual = len(stages), len(workload.stages[0].chunks)
    sends = workload.boundary.time if workload.boundary else 0.0
    each = 2 * (workload.runs * virtual + pipeline - 1) * sends
    # What sends lose to gradients on the same links is in the projection's total as well.
    assert each <= workload.projection["pipeline_total"] * (1 + 1e-9)
    if case in ("pipeline", "gpipe", "interleaved", "llama"):
        assert each == pytest.approx(workload.projection["pipeline_total"], rel=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_flops_of_all_stages_are_the_hardware_utilization(case, workload_of, h100):
    workload = workload_of(case)
    mean = np.mean([workload.totals(stage).flops for stage in range(len(workload.stages))])
    peak = h100.device.peak(workload.strategy["precision"])
    utilization = mean / (workload.projection["step_time"] * peak)
    assert utilization == pytest.approx(workload.projection["hardware_flops_utilization"], rel=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_totals_are_those_of_explain(case, request, workload_of, grid_of, h100):
    name, fields = CASES[case]
    model = model_of(request, name)
    workload = workload_of(case)
    totals = workload.totals(workload.slowest)
    flops, time, sizes = 0.0, 0.0, defaultdict(float)
    for cost in operation_costs(model, grid_of(model, **fields), h100):
        axis, _, collective = cost.kind.partition(" ")
        if collective:
            sizes[axis, collective] += cost.calls * cost.traffic
        else:
            flops += cost.calls * cost.flops
            time += cost.calls * cost.time
    assert totals.flops == pytest.approx(flops, rel=1e-9)
    assert totals.compute_time == pytest.approx(time, rel=1e-9)
    layers = {k: v for k, v in totals.bytes_by_collective.items() if k[0] not in EDGES}
    assert layers == pytest.approx(dict(sizes), rel=1e-9)


EDGES = ("data", "pipeline")  # axes that `explain` does not list


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_those_of_the_schedule(case, request, workload_of):
    model = model_of(request, CASES[case][0])
    workload = workload_of(case)
    names = [part.name for part in model_parts(model)]
    strategy = workload.strategy
    counts = stage_compositions(
        model,
        strategy["pipeline_parallel"],
        strategy["virtual_pipeline"],
        placement=SCHEDULE_FACTS[strategy["pipeline_schedule"]].placement,
    )
    for stage, expected in zip(workload.stages, counts, strict=True):
        held = [block.part.name for block in stage.blocks()]
        assert [held.count(name) for name in names] == expected.tolist()
    labels = [block.label for stage in workload.stages for block in stage.blocks()]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("axis", "fields"),
    [
        ("tensor", {"tensor_parallel": 2}),
        ("context", {"context_parallel": 2}),
        ("pipeline", {"pipeline_parallel": 2}),
        ("data", {"data_parallel": 2}),
        ("expert", {"data_parallel": 2, "expert_parallel": 2}),
    ],
)
def test_only_a_degree_above_one_communicates(axis, fields, workload_of):
    def axes(**fields):
        workload = workload_of("small_moe", **fields)
        totals = [workload.totals(stage) for stage in range(len(workload.stages))]
        return {key[0] for total in totals for key in total.bytes_by_collective}

    assert axis not in axes()
    assert axis in axes(**fields)


CHANGES: dict[str, dict[str, Any]] = table_of(__file__, "changes")


@pytest.mark.parametrize("field", CHANGES)
def test_every_strategy_field_changes_what_runs(field, workload_of):
    base = {"tensor_parallel": 2, "data_parallel": 4}
    # Experts need sequence parallelism.
    model = "small_dense" if field == "sequence_parallel" else "small_moe"
    before, changed = (workload_of(model, **base, **fields) for fields in ({}, CHANGES[field]))
    assert before.strategy[field] != changed.strategy[field]

    def said(workload):
        stages = workload.stages
        return (
            workload.micro_batches,
            [[len(chunk) for chunk in stage.chunks] for stage in stages],
            [
                item
                for stage in stages
                for block in stage.blocks()
                for item in block.part.operations
            ],
            [b.reductions + b.gathers for stage in stages for b in stage.blocks()],
        )

    assert said(before) != said(changed)


def test_framework_decides_what_hides(workload_of):
    def hiding(framework):
        workload = workload_of("tensor", framework)
        items = workload.stages[0].chunks[0][1].part.operations
        return {(item.name, item.phase) for item in items if item.hides}

    none = hiding(load_framework("megatron", overlap_tensor_parallel="none"))
    backward = hiding("megatron")
    assert not none
    assert ("mlp.input.reduce_scatter", "backward_weight") in backward
    assert ("mlp.input.all_gather", "forward") not in backward
    assert ("mlp.input.all_gather", "forward") in hiding("megatron-tuned")


def test_impossible_strategies_say_why(small_dense, grid_of, h100, a100):
    grid = strategies_from_rows(
        small_dense,
        3,
        [{"tensor_parallel": 3, "global_batch_size": 1, "sequence_length": 2048}],
    )
    with pytest.raises(StrategyError, match="impossible strategy: attention heads"):
        projected_workload(small_dense, grid, h100)
    with pytest.raises(StrategyError, match="precision"):
        projected_workload(small_dense, grid_of(small_dense, precision="fp8"), a100)
    two = strategies_from_rows(
        small_dense, 1, [{"global_batch_size": n, "sequence_length": 2048} for n in (1, 2)]
    )
    with pytest.raises(StrategyError, match="exactly one strategy, not 2"):
        projected_workload(small_dense, two, h100)


def test_chunks_of_a_v_lie_up_and_down_the_stages(workload_of):
    workload = workload_of("zero bubble in a V")
    held = [[chunk[-1].label for chunk in stage.chunks] for stage in workload.stages]
    assert held == [["layer 1", "output"], ["layer 3", "layer 5"]]
    assert workload.chunk_stages == [0, 1, 1, 0]
    # Both ends of the model, with the table that they share, lie on the first stage.
    assert [stage.table for stage in workload.stages] == [None, None]
    # Nothing is sent from the second chunk to the third, on the same stage.
    assert [workload.sends(stage) for stage in (0, 1)] == [2 * workload.micro_batches] * 2


def test_stages_hold_a_chunk_of_either_copy(workload_of):
    workload = workload_of("two copies")
    assert workload.chunk_stages == [0, 1, 2, 3, 3, 2, 1, 0]
    assert workload.runs == workload.micro_batches / 2
    first = [[block.part.name for block in chunk] for chunk in workload.stages[0].chunks]
    last = [[block.part.name for block in chunk] for chunk in workload.stages[3].chunks]
    assert first == last[::-1]
    assert first[0][0] == "embedding"
    assert first[1][-1] == "output"
    gradients = workload.stages[1].mirror
    assert gradients is not None
    assert (gradients.collective, gradients.members) == ("all_reduce", 2)


def test_layouts_are_stated(small_dense, grid_of, h100):
    grid = grid_of(small_dense, pipeline_parallel=2)
    with pytest.raises(StrategyError, match="stage_split best: workload files are written of"):
        projected_workload(
            small_dense, grid, h100, framework=load_framework("megatron", stage_split="best")
        )
    framework = load_framework("megatron", stage_split="first=1")
    workload = projected_workload(small_dense, grid, h100, framework=framework)
    labels = [block.label for block in workload.stages[0].blocks()]
    assert labels == ["embedding", "layer 0"]
