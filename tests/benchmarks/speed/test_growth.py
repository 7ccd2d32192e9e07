"""The script that prints how the cost of a sweep grows."""

from __future__ import annotations

import pytest


@pytest.fixture
def growth(script, monkeypatch):
    module = script.load("speed.growth")
    monkeypatch.setattr(module, "run", lambda *_, **__: (1000, 2.0, 2.0))
    return module


def test_a_line_of_strategies_is_a_sweep_of_so_many(growth):
    found = growth.line("strategies, best kept", 0)
    assert (found["value"], found["count"]) == (1000, 1000)
    assert found["rate_per_core"] == 500.0


@pytest.mark.parametrize("subject", ["devices", "rows of hardware"])
def test_other_lines_count_pairs_of_strategies_and_devices(growth, subject):
    few, more = (growth.line(subject, number) for number in (0, 1))
    assert more["value"] > few["value"]
    if subject == "rows of hardware":
        assert more["count"] == 4 * few["count"]
    assert few["rate_per_core"] * few["cpu_seconds"] == pytest.approx(few["count"])


def test_a_line_of_ranks_writes_and_runs_their_traces(growth):
    found = growth.trace_line(32)
    assert found["value"] == 32
    assert found["count"] > 32 * 100  # nodes: several of each of 20 layers
    assert found["cpu_seconds"] > 0.0


def test_a_line_of_requests_replays_them(growth):
    found = growth.replay_line(100)
    assert (found["value"], found["count"], found["pieces"]) == (100, 100, 100)
    assert found["cpu_seconds"] > 0.0


def test_passes_that_run_one_by_one_are_counted(growth, monkeypatch):
    from perfmodel.strategy import pipelines

    monkeypatch.setattr(pipelines, "linked_pipeline", pipelines.linked_pipeline)  # put back after
    passes = growth.counted_passes()
    pipelines._pipeline.__wrapped__("1f1b", 2, 1, 4, 4)
    assert passes == [2 * 2 * 4]


def test_an_exponent_leaves_the_fixed_part_out(growth):
    lines = [{"value": n, "pieces": 7, "cpu_seconds": 3.0 + n * n} for n in (0, 10, 100)]
    assert growth.exponent(lines, "value") == pytest.approx(2.0)
    assert growth.exponent(lines, "pieces") is None
    assert growth.exponents(lines) == "| – exponents | 2.00 | –: 7 to 7 | | | |"
