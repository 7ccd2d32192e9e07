"""Timelines of served models: their passes are those that projections run through."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.serving.variables import TIME_COMPONENTS
from perfmodel.serving import timeline as home
from perfmodel.serving.enumerate import load_grid, serving_grid
from perfmodel.serving.requests import random_trace
from perfmodel.serving.timeline import replay_timeline, serving_timeline
from perfmodel.sweeps.serving import serve_table
from perfmodel.sweeps.serving_replay import replay_table
from tests.workloads.formats.trace_events import check_events, read_events, sums_by_category

COMPARED = (*TIME_COMPONENTS, "utilization")


@pytest.fixture(scope="module")
def h200():
    return load_hardware("dgx-h200")


def grid_of(hardware, **fields):
    return serving_grid("llama-3.1-8b", hardware, engine="vllm", **{"tensor_parallel": 1, **fields})


def same(found, table):
    totals = found.totals()
    for name in COMPARED:
        wanted = float(table[name].values.item())
        assert totals[name] == pytest.approx(wanted, rel=1e-9, abs=1e-9 * totals["pass_time"]), name
    assert totals["pass_time"] == pytest.approx(sum(totals[name] for name in TIME_COMPONENTS))


@pytest.mark.parametrize(
    ("fields", "load"),
    [
        ({}, {"concurrency": 4, "rounds": 3}),
        ({}, {"concurrency": 2}),
        ({"workers": 2}, {"concurrency": 5, "rounds": 2}),
        ({"pipeline_parallel": 2}, {"concurrency": 8, "rounds": 2}),
    ],
)
def test_closed_loops_come_to_what_is_projected(h200, fields, load):
    grid = grid_of(h200, **fields)
    loads = load_grid(input_length=1024, output_length=32, **load)
    found = serving_timeline(grid, loads, h200)
    same(found, serve_table(grid.model, grid, loads, [h200], method="recursion"))
    assert not found.note


def test_replays_come_to_what_is_projected(h200):
    grid = grid_of(h200, workers=2)
    trace = random_trace(30, 6.0, (50, 2000), (1, 40))
    found = replay_timeline(grid, trace, h200)
    same(found, replay_table(grid, trace, [h200]))
    assert len(found.batches) == 2
    clients = replay_timeline(grid, trace, h200, concurrency=4)
    same(clients, replay_table(grid, trace, [h200], concurrency=[4]))


def test_a_log_without_room_is_kept_again(h200, monkeypatch):
    grid, trace = grid_of(h200), random_trace(10, 6.0, (50, 2000), (1, 40))
    whole = replay_timeline(grid, trace, h200)
    monkeypatch.setattr(home, "ENTRIES", 2)
    few = replay_timeline(grid, trace, h200)
    np.testing.assert_array_equal(whole.batches[0].log, few.batches[0].log)
    loads = load_grid(input_length=512, output_length=16, concurrency=3, rounds=2)
    short = serving_timeline(grid, loads, h200)
    monkeypatch.undo()
    np.testing.assert_array_equal(
        short.batches[0].log, serving_timeline(grid, loads, h200).batches[0].log
    )


def test_passes_follow_each_other_and_files_the_rules(h200, tmp_path):
    grid = grid_of(h200)
    loads = load_grid(input_length=2048, output_length=32, concurrency=4, rounds=3)
    found = serving_timeline(grid, loads, h200)
    (batch,) = found.batches
    ends = batch.start + batch.duration
    assert (batch.start[1:] - ends[:-1]).min() >= -1e-9 * found.end
    assert found.end == pytest.approx(ends[-1])
    path = tmp_path / "passes.json"
    written = found.write(path)
    events = read_events(path)
    check_events(events)
    assert written == sum(event["ph"] in "XC" for event in events)
    sums, totals = sums_by_category(events, batch.name), found.totals()
    for name in TIME_COMPONENTS:
        whole = totals[name] * totals["passes"]
        assert sums.get(name, 0.0) == pytest.approx(whole, abs=1e-9 * found.end), name
    cache = [event["args"]["cache"] for event in events if event["name"] == "cache in use [B]"]
    assert cache[-1] == 0.0
    # Four requests of 2,080 tokens in blocks of 16, 128 KiB a token.
    assert max(cache) == pytest.approx(4 * 2080 * 131072, rel=0.02)
    assert found.write(path, 3) == sum(event["ph"] in "XC" for event in read_events(path))


@pytest.mark.parametrize(
    ("fields", "load", "message"),
    [
        ({}, {"arrival_rate": 2.0}, "a rate of arrivals is closed in formulas"),
        ({"prefill_workers": 1}, {"concurrency": 2}, "two pools are closed in formulas"),
        ({}, {"concurrency": [1, 2]}, "exactly one operating point, not 2"),
        ({}, {"concurrency": 1, "input_length": 200_000}, "impossible deployment"),
    ],
)
def test_what_is_refused(h200, fields, load, message):
    grid = grid_of(h200, **fields)
    with pytest.raises(StrategyError, match=message):
        serving_timeline(
            grid, load_grid(**{"input_length": 512, "output_length": 16, **load}), h200
        )
