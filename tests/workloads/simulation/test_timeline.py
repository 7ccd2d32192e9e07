"""Timelines of simulations: what ran, when, on which resource."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.hwprofiles import Hardware
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.simulation.timeline import simulation_tracks, write_simulation
from tests.cli.workloads.test_simulate import step


def test_every_distinct_rank_has_a_track_per_resource(h100: Hardware) -> None:
    traces = step(8)
    result = simulate(traces, HardwareCosts(h100))
    tracks = {(track.process, track.thread): track for track in simulation_tracks(traces, result)}
    assert {process for process, _ in tracks} == {"rank 0", "rank 1"}  # sends, and receives
    assert {thread for process, thread in tracks if process == "rank 0"} == {
        "compute",
        "communication",
    }
    compute = tracks["rank 0", "compute"]
    assert list(compute.names) == ["mul"]
    assert compute.start.tolist() == [0.0]
    assert compute.duration.tolist() == pytest.approx([2e-3])  # as recorded
    communication = tracks["rank 0", "communication"]
    assert list(communication.names) == ["sum", "pass"]
    assert (communication.start >= compute.duration[0]).all()
    assert list(communication.arguments["collective"]) == ["all_reduce", None]
    assert list(communication.arguments["bytes"]) == [2**20, 4096]


def test_the_file_holds_all_operations_until_the_end(h100: Hardware, tmp_path: Path) -> None:
    traces = step(8)
    result = simulate(traces, HardwareCosts(h100))
    written = write_simulation(traces, result, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text("utf-8"))["traceEvents"]
    operations = [event for event in events if event["ph"] == "X"]
    assert written == len(operations) > 0
    end = max(event["ts"] + event["dur"] for event in operations)
    assert end == pytest.approx(float(result.wall_time.max()) * 1e6)
