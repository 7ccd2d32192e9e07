"""Timelines for Perfetto: the events that its JSON form asks for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.timelines import Counter, Track, write_timeline
from tests.workloads.formats.trace_events import check_events, read_events


def two_tracks():
    compute = Track(
        "rank 0",
        "compute",
        ["forward", "backward"],
        np.array([0.0, 1e-3]),
        np.array([5e-4, 2e-3]),
        "compute",
        {"FLOP": np.array([10, 20]), "note": [None, "long"]},
    )
    send = Track(
        "rank 0", "communication", ["send"], np.array([1e-3]), np.array([1e-6]), flow_out={0: 7}
    )
    receive = Track(
        "rank 1", "communication", ["recv"], np.array([0.0]), np.array([2e-3]), flow_in={0: 7}
    )
    return [compute, send, receive]


def test_events_keep_names_times_and_arguments(tmp_path):
    path = tmp_path / "timeline.json"
    assert write_timeline(two_tracks(), path, {"wall": 3.0}) == 4
    document = json.loads(path.read_text())
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["forward", "backward", "send", "recv"]
    assert (slices[1]["ts"], slices[1]["dur"]) == (1000.0, 2000.0)  # microseconds
    assert slices[0]["args"] == {"FLOP": 10}
    assert slices[1]["args"] == {"FLOP": 20, "note": "long"}
    assert document["metadata"] == {"wall": 3.0}


def test_every_rank_is_a_process_and_every_resource_a_thread(tmp_path):
    write_timeline(two_tracks(), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M" and e["args"]]
    assert names == [
        ("process_name", "rank 0"),
        ("thread_name", "compute"),
        ("thread_name", "communication"),
        ("process_name", "rank 1"),
        ("thread_name", "communication"),
    ]
    slices = [e for e in events if e["ph"] == "X"]
    assert slices[0]["pid"] == slices[2]["pid"] != slices[3]["pid"]
    assert len({e["tid"] for e in slices}) == 3


def test_a_message_flows_from_the_begin_of_its_send_to_the_end_of_its_receive(tmp_path):
    write_timeline(two_tracks(), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    (start,) = [e for e in events if e["ph"] == "s"]
    (finish,) = [e for e in events if e["ph"] == "f"]
    assert start["id"] == finish["id"] == 7
    assert (start["ts"], finish["ts"]) == (1000.0, 2000.0)


@pytest.mark.parametrize("start", [np.nan, -1.0, np.inf])
def test_impossible_times_are_refused_and_nothing_is_written(tmp_path, start):
    track = Track("rank 0", "compute", ["a"], np.array([start]), np.array([1.0]))
    with pytest.raises(DataError, match="negative or not finite"):
        write_timeline([track], tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []


def test_columns_of_different_length_are_refused(tmp_path):
    track = Track("rank 0", "compute", ["a", "b"], np.array([0.0]), np.array([1.0]))
    with pytest.raises(DataError, match="differ in length"):
        write_timeline([track], tmp_path / "t.json")


def counter(**changes):
    series = {"weights": np.array([2.0, 2.0]), "rest": [0.5, 1.5]}
    return Counter(**{"process": "rank 0", "name": "memory", "start": np.array([0.0, 1e-3]),
                      "series": series, **changes})  # fmt: skip


def test_counters_have_a_value_of_every_number_from_when_on(tmp_path):
    path = tmp_path / "t.json"
    assert write_timeline([*two_tracks(), counter()], path) == 6
    events = read_events(path)
    check_events(events)
    values = [event for event in events if event["ph"] == "C"]
    assert [event["ts"] for event in values] == [0.0, 1000.0]
    assert values[1]["args"] == {"weights": 2.0, "rest": 1.5}
    (pid,) = {event["pid"] for event in values}
    assert pid == next(event["pid"] for event in events if event["ph"] == "X")


def test_compressed_files_hold_the_same_and_are_equal(tmp_path):
    paths = [tmp_path / name for name in ("a.json", "b.json.gz", "c.json.gz")]
    for path in paths:
        write_timeline([*two_tracks(), counter()], path)
    assert read_events(paths[0]) == read_events(paths[1])
    assert paths[1].read_bytes() == paths[2].read_bytes()


def test_operations_may_have_a_category_each(tmp_path):
    track = Track("rank 0", "a", ["x", "y"], np.zeros(2), np.zeros(2), ["one", "two"])
    write_timeline([track], tmp_path / "t.json")
    events = read_events(tmp_path / "t.json")
    assert [event["cat"] for event in events if event["ph"] == "X"] == ["one", "two"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": np.array([1.0, 0.0])}, "goes back in time"),
        ({"start": np.array([0.0, np.nan])}, "negative or not finite"),
        ({"series": {"a": [1.0, np.inf]}}, "a value is not finite"),
        ({"series": {"a": [1.0]}}, "differ in length"),
    ],
)
def test_impossible_counters_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        write_timeline([counter(**changes)], tmp_path / "t.json.gz")
    assert list(tmp_path.iterdir()) == []
