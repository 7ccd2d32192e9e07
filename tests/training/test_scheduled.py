"""Schedules in projections: what adds up, what follows from order, what closed forms agree with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.analysis.single import one_strategy
from perfmodel.base.errors import StrategyError
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.kernels.variables import MEMORY_COMPONENTS, STEP_VARIABLES, TIME_COMPONENTS
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategies_from_rows, strategy_grid
from perfmodel.strategy.pipelines import named_pipeline
from perfmodel.training import scheduled
from perfmodel.training.project import project_grid
from perfmodel.training.scheduled import FILLED
from perfmodel.training.workload import Workload

NAMED = tuple(name for name in SCHEDULE_FACTS if name != "table")
RUN = {"global_batch_size": 64, "sequence_length": 2048}


@pytest.fixture(scope="module")
def model():
    return load_model("llama-3.1-8b")


def project_rows(model, hardware, rows, framework="megatron"):
    """Project strategies on 8 devices together; variable -> values."""
    if isinstance(framework, str):
        framework = load_framework(framework)
    grid = strategies_from_rows(model, 8, [{**RUN, **row} for row in rows])
    assert not grid.status.any()
    out = np.empty((len(STEP_VARIABLES), len(rows)))
    project_grid(Workload(model, grid), hardware, framework, out, threads=1)
    return {item.name: out[i] for i, item in enumerate(STEP_VARIABLES)}


@pytest.fixture(scope="module")
def all_schedules(model, h100):
    rows = [{"pipeline_parallel": 4, "pipeline_schedule": name} for name in NAMED]
    found = project_rows(model, h100, rows)
    return {name: {k: v[i] for k, v in found.items()} for i, name in enumerate(NAMED)}


@pytest.mark.parametrize("name", NAMED)
def test_components_add_up(all_schedules, name):
    found = all_schedules[name]
    step = sum(found[component] for component in TIME_COMPONENTS)
    assert step == pytest.approx(found["step_time"], rel=1e-12)
    memory = sum(found[component] for component in MEMORY_COMPONENTS)
    assert memory == pytest.approx(found["memory_total"], rel=1e-12)
    assert found["pipeline_bubble"] >= 0
    assert found["pipeline_exposed"] <= found["pipeline_total"] * (1 + 1e-12)


def test_a_lone_stage_has_no_second_copy_of_the_model(model, h100):
    rows = [{"pipeline_schedule": name, "tensor_parallel": 4} for name in ("1f1b", "dualpipe")]
    found = project_rows(model, h100, rows)
    for name in ("step_time", "memory_total"):
        assert found[name][0] == found[name][1]


@pytest.mark.parametrize("name", NAMED)
def test_alone_as_together(model, h100, all_schedules, name):
    alone = project_rows(model, h100, [{"pipeline_parallel": 4, "pipeline_schedule": name}])
    for variable, value in alone.items():
        assert value[0] == all_schedules[name][variable], variable


def test_zero_bubble_schedules_wait_less_and_v_schedules_keep_less(all_schedules):
    """arXiv:2401.10241 and arXiv:2405.15362: who trades waiting for memory."""
    waits = {name: found["pipeline_bubble"] for name, found in all_schedules.items()}
    keeps = {name: found["memory_activations"] for name, found in all_schedules.items()}
    assert waits["zb_v"] < waits["zb_h1"] < waits["1f1b"]
    assert waits["zb_h2"] <= waits["zb_h1"]
    assert waits["v_min"] > waits["v_half"] > waits["zb_v"]
    assert keeps["v_min"] < keeps["v_half"] < keeps["zb_v"]
    assert keeps["zb_h1"] < keeps["zb_h2"]
    assert keeps["gpipe"] == pytest.approx(keeps["looped_bfs"])


def test_both_copies_of_the_model_are_there(all_schedules):
    one, two = all_schedules["1f1b"], all_schedules["dualpipe"]
    assert 1.7 < two["memory_parameters"] / one["memory_parameters"] < 2.1


@pytest.mark.parametrize(
    "row",
    [
        {"pipeline_schedule": "gpipe"},
        {"pipeline_schedule": "1f1b"},
        {"virtual_pipeline": 2},
        {"virtual_pipeline": 4},
        {"pipeline_schedule": "1f1b", "recompute": "full"},
    ],
)
def test_closed_forms_are_what_passes_come_to(model, h100, row, monkeypatch):
    """The last chunk has the output matrix: no chunk takes longer."""
    rows = [{"pipeline_parallel": 4, **row, "global_batch_size": batch} for batch in (16, 64, 128)]
    closed = project_rows(model, h100, rows)
    monkeypatch.setattr(scheduled, "needs_events", lambda work: work.grid["pipeline_parallel"] > 1)
    run = project_rows(model, h100, rows)
    np.testing.assert_allclose(run["pipeline_bubble"], closed["pipeline_bubble"], rtol=1e-9)
    if row.get("pipeline_schedule") != "gpipe":  # where the last stage keeps all logits
        np.testing.assert_allclose(run["memory_total"], closed["memory_total"], rtol=0.05)


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("virtual", [1, 3])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_closed_forms_hold_where_the_first_chunk_is_slowest(
    h100, schedule, virtual, zero, monkeypatch
):
    """So wide a tensor axis shares the output matrix that embedding takes longer."""
    if (virtual > 1) != (schedule == "interleaved"):
        pytest.skip("no such schedule")
    model = load_model("gpt3-175b")
    rows = [
        {
            "tensor_parallel": 32, "pipeline_parallel": 8, "virtual_pipeline": virtual,
            "pipeline_schedule": schedule, "zero_stage": zero, "data_parallel": 2,
            "global_batch_size": batch, "sequence_length": 2048,
        }
        for batch in (16, 32, 160, 512)
    ]  # fmt: skip
    grid = strategies_from_rows(model, 512, rows)
    assert not grid.status.any()
    found = []
    for _ in range(2):
        out = np.empty((len(STEP_VARIABLES), len(rows)))
        project_grid(Workload(model, grid), h100, load_framework("megatron"), out, threads=1)
        found.append({item.name: out[i] for i, item in enumerate(STEP_VARIABLES)})
        monkeypatch.setattr(
            scheduled, "needs_events", lambda work: work.grid["tensor_parallel"] > 1
        )
    closed, run = found
    tolerance = 1e-9 if zero < 3 else 2e-3  # of the last reduction, events give each chunk a share
    np.testing.assert_allclose(
        closed["pipeline_bubble"], run["pipeline_bubble"], rtol=tolerance, atol=1e-12
    )


def test_a_table_runs_as_the_schedule_that_it_is_of(model, h100):
    table = named_pipeline("zb_v", 4, 32)
    axes = {**RUN, "pipeline_parallel": 4}
    named = one_strategy(model, 8, {**axes, "pipeline_schedule": "zb_v"})
    read = one_strategy(model, 8, axes, table=table)
    found = []
    for grid in (named, read):
        out = np.empty((len(STEP_VARIABLES), 1))
        project_grid(Workload(model, grid), h100, load_framework("megatron"), out, threads=1)
        found.append(out[:, 0])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("axes", "what"),
    [
        ({"global_batch_size": 32}, "table has 32 micro-batches.*16; --global-batch 64"),
        ({"pipeline_parallel": 2}, "--pp 2: the schedule's table has 4"),
        ({"pipeline_schedule": "1f1b"}, "--schedule 1f1b: the schedule's table has table"),
    ],
)
def test_fields_that_a_table_denies_are_refused(model, axes, what):
    with pytest.raises(StrategyError, match=what):
        one_strategy(model, 8, {**RUN, **axes}, table=named_pipeline("zb_v", 4, 32))


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"pipeline_schedule": "table"}, "a file says, and none is given"),
        ({"pipeline_schedule": "zb_v", "virtual_pipeline": 4}, "does not go with the schedule"),
        ({"pipeline_schedule": "dualpipe", "global_batch_size": 12}, "two micro-batches per stage"),
        ({"virtual_pipeline": 2, "micro_batch_group": 3}, "micro_batch_group"),
        ({"virtual_pipeline": 2, "global_batch_size": 20, "micro_batch_group": 8}, "rest of at"),
    ],
)
def test_impossible_strategies_say_why(model, row, what):
    with pytest.raises(StrategyError, match=what):
        one_strategy(model, 8, {**RUN, "pipeline_parallel": 4, **row})


def test_groups_with_a_rest_are_possible_as_in_megatron(model, h100):
    """10 micro-batches in groups of 6 and 4, on 4 stages."""
    row = {"pipeline_parallel": 4, "virtual_pipeline": 2, "micro_batch_group": 6}
    found = project_rows(model, h100, [{**row, "global_batch_size": 20}])
    assert found["pipeline_bubble"][0] > 0


def test_every_schedule_may_be_asked_for(model):
    grid = strategy_grid(
        model, 8, **RUN, pipeline_parallel=[1, 4], pipeline_schedule="all", tensor_parallel=1,
        micro_batch_size=1, recompute="none", zero_stage=1, hardware="dgx-h100",
    )  # fmt: skip
    found = {str(grid.row(i)["pipeline_schedule"]) for i in range(len(grid))}
    assert found == set(NAMED)


@pytest.mark.parametrize("split", ["8,9,9,6", "9,8,8,7", "6,9,9,8", "4,5,5,4,4,4,4,2"])
def test_pipelines_that_repeat_themselves_run_as_if_to_the_end(model, h100, split, monkeypatch):
    """Runs of some micro-batches, extended, are those of all; those of just as many, too."""
    virtual = {"virtual_pipeline": 2} if split.count(",") == 7 else {}
    framework = replace(load_framework("megatron"), stage_split=split)
    rows = [
        {"pipeline_parallel": 4, **virtual, "recompute": level, "global_batch_size": batch}
        for level in ("none", "full")
        for batch in (8 * FILLED[0], 56, 128, 512)
    ]
    extended = project_rows(model, h100, rows, framework)
    none = np.zeros(len(SCHEDULE_FACTS), bool)
    without = {"repeats": none, "closed_if_uneven": none}
    facts = scheduled.schedule_facts
    monkeypatch.setattr(scheduled, "schedule_facts", lambda it: without.get(it, facts(it)))
    run = project_rows(model, h100, rows, framework)
    for name, values in run.items():
        np.testing.assert_allclose(extended[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
