"""Timelines of a step: they end with it, and nothing of it is lost or there twice."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.kernels.variables import TIME_COMPONENTS
from perfmodel.training.stages import PASSES
from perfmodel.training.step.schedule import DEPTHS
from perfmodel.training.step.timeline import step_timeline
from tests.data import table_of
from tests.training.step.cases import CASES
from tests.workloads.formats.trace_events import check_events, read_events, sums_by_category

TIMES = 1e-9  # relative
TIMED = {**table_of(__file__, "timed"),
**CASES,
}  # fmt: skip
FRAMEWORKS = {"experts": "megatron-bridge@0.5", "sharded": "torchtitan", "shards": "torchtitan"}
AXES = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline", "data_parallel")


@pytest.fixture(scope="module")
def timeline_of(request, grid_of, h100):
    """Return a function that lays a case in time."""

    def make(case, **options):
        name, fields = TIMED[case]
        model = request.getfixturevalue(name)
        options.setdefault("framework", FRAMEWORKS.get(case, "megatron"))
        return step_timeline(model, grid_of(model, **fields), h100, **options)

    return make


@pytest.mark.parametrize("case", TIMED)
def test_a_step_is_all_there_once(timeline_of, project, request, h100, case):
    step = timeline_of(case)
    name, fields = TIMED[case]
    framework = FRAMEWORKS.get(case, "megatron")
    row = project(request.getfixturevalue(name), h100, framework, **fields)
    time = row["step_time"]
    assert step.end == pytest.approx(time, rel=TIMES)
    assert step.results["step_time"] == time
    totals, hidden = step.totals(step.critical), step.hidden(step.critical)
    for name in TIME_COMPONENTS:
        assert totals[name] == pytest.approx(row[name], abs=TIMES * time), name
    for axis in AXES:
        more = max(row[f"{axis}_total"] - row[f"{axis}_exposed"], 0.0)
        assert hidden.get(f"{axis}_exposed", 0.0) == pytest.approx(more, abs=TIMES * time), axis
    assert [one.stage for one in step.stages] == list(range(step.count))
    for one in step.stages:
        ends = one.shown.start + one.shown.duration
        assert one.shown.start[0] == 0.0
        assert ends[-1] == pytest.approx(time, rel=TIMES)
        np.testing.assert_allclose(one.shown.start[1:], ends[:-1], rtol=0, atol=TIMES * time)
        assert sum(step.totals(one.stage).values()) == pytest.approx(time, rel=TIMES)
    peaks = [float(one.memory.total.max()) for one in step.stages]
    assert max(peaks) == pytest.approx(row["memory_total"], rel=TIMES)
    assert step.drawn_work == 1.0


@pytest.mark.parametrize("case", TIMED)
def test_what_hides_has_room_beside_the_passes(timeline_of, case):
    step = timeline_of(case)
    for one in step.stages:
        for component in np.unique(one.hidden.component):
            own = one.hidden.at(one.hidden.component == component)
            ends = own.start + own.duration
            assert (own.start[1:] - ends[:-1]).min(initial=0.0) >= -TIMES * step.end
            assert own.start[0] >= 0.0
            assert ends[-1] <= step.end * (1.0 + TIMES)


@pytest.mark.parametrize(
    "case", ["interleaved", "zero bubble", "both ways", "two copies", "uneven"]
)
def test_passes_wait_for_those_that_they_need(timeline_of, case):
    """Forward from stage to stage, backward the other way, each pass of a stage after the other."""
    step = timeline_of(case)
    done = {}
    for one in step.stages:
        passes, ends = one.passes, one.passes.start + one.passes.duration
        assert (passes.start[1:] - ends[:-1]).min() >= -TIMES * step.end
        for row in zip(*(column.tolist() for column in passes), strict=True):
            start, duration, kind, micro_batch, chunk = row
            done[PASSES[kind], one.stage, chunk, micro_batch] = (start, start + duration)
    places = sorted({(chunk, stage) for kind, stage, chunk, _ in done if kind == "forward"})
    if case not in ("both ways", "two copies"):  # there chunks turn, or go the other way
        for (kind, stage, chunk, batch), (start, _) in done.items():
            at = places.index((chunk, stage))
            if kind == "forward" and at:
                before = places[at - 1]
                assert done[kind, before[1], before[0], batch][1] <= start + TIMES * step.end
    for (kind, stage, chunk, batch), (start, _) in done.items():
        if kind.startswith("backward"):
            assert done["forward", stage, chunk, batch][1] <= start + TIMES * step.end


@pytest.mark.parametrize("case", ["pipeline", "experts", "zero bubble", "sharded", "ring"])
def test_what_is_told_finely_comes_to_the_same(timeline_of, case):
    coarse, *finer = (timeline_of(case, depth=depth) for depth in DEPTHS)
    for step in finer:
        assert step.events > coarse.events
        for one in coarse.stages:
            for found in (step.totals, step.hidden):
                told = found(one.stage)
                wanted = getattr(coarse, found.__name__)(one.stage)
                assert set(told) == set(wanted)
                for name, value in wanted.items():
                    assert told[name] == pytest.approx(value, abs=TIMES * coarse.end), name
    assert any("layer 1" in name for name in finer[0].names)
    assert any("attention" in name for name in finer[1].names)


@pytest.mark.parametrize(
    "case", ["interleaved", "two copies", "sharded stages", "offloaded update"]
)
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_files_follow_the_rules_of_their_format(timeline_of, tmp_path, case, suffix):
    step = timeline_of(case, depth="operations" if suffix == "json" else "passes")
    path = tmp_path / f"step.{suffix}"
    written = step.write(path)
    events = read_events(path)
    check_events(events)
    assert written == sum(event["ph"] in "XC" for event in events)
    slowest = f"stage {step.critical} (slowest)"
    sums = sums_by_category(events, slowest)
    for name in TIME_COMPONENTS:
        assert sums.get(name, 0.0) == pytest.approx(step.results[name], abs=TIMES * step.end)
    last = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert last * 1e-6 == pytest.approx(step.results["step_time"], rel=TIMES)
    totals = [event for event in events if event["ph"] == "C" and "total" in event["args"]]
    parts = [event for event in events if event["ph"] == "C" and "total" not in event["args"]]
    for whole, one in zip(totals, parts, strict=True):
        assert sum(one["args"].values()) == pytest.approx(whole["args"]["total"])


def test_some_stages_are_as_among_all(timeline_of):
    step, some = timeline_of("pipeline"), timeline_of("pipeline", stages=[-1, 0])
    assert [one.stage for one in some.stages] == [0, 3]
    for one in some.stages:
        np.testing.assert_array_equal(one.shown.start, step.stages[one.stage].shown.start)
    with pytest.raises(StrategyError, match="stage 1 is not on the timeline"):
        some.totals(1)


def test_too_many_events_are_told_less_finely_and_then_refused(timeline_of):
    step = timeline_of("pipeline", depth="operations")
    coarse = timeline_of("pipeline")
    found = timeline_of("pipeline", depth="operations", most=coarse.events)
    assert (found.depth, found.events) == ("passes", coarse.events)
    assert step.depth == "operations"
    with pytest.raises(DataError, match="more than 10: fewer stages"):
        timeline_of("pipeline", most=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": [4]}, "stage 4; the strategy has stages 0 to 3"),
        ({"depth": "operation"}, "unknown depth 'operation'; did you mean operations"),
    ],
)
def test_what_is_refused(timeline_of, options, message):
    with pytest.raises(StrategyError, match=message):
        timeline_of("pipeline", **options)


def test_a_timeline_is_of_one_strategy(small_dense, grid_of, h100):
    grid = grid_of(small_dense)
    with pytest.raises(StrategyError, match="a timeline takes exactly one strategy, not 2"):
        step_timeline(small_dense, grid.take(np.array([0, 0])), h100)
