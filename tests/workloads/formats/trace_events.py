"""The rules of the Trace Event Format that viewers hold a file to, checked event by event.

Google, "Trace Event Format": complete events ("X") of a thread lie apart or within each other,
every process and thread that has events is named once, a flow's end is not before its begin,
counters of a process never go back in time. Where a file breaks them, viewers drop or misplace
what they show.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

ROUNDING = 1e-6  # [µs]: of two ends that are one number in seconds
PHASES = {"X", "M", "C", "s", "f"}


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, compressed or not."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    document = json.loads(text, parse_constant=_no_number)
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def _no_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def check_events(events: list[dict[str, Any]]) -> None:
    """Raise unless a viewer shows all events where they are."""
    named: dict[str, set[Any]] = {"process_name": set(), "thread_name": set()}
    slices: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    counters: dict[Any, list[float]] = defaultdict(list)
    series: dict[Any, set[str]] = {}
    flows: dict[Any, dict[str, float]] = defaultdict(dict)
    for event in events:
        assert event["ph"] in PHASES
        assert isinstance(event["name"], str)
        assert event["name"]
        if event["ph"] == "M":
            if event["name"] in named:
                key = (event["pid"], event["tid"])
                assert key not in named[event["name"]]
                assert event["args"]["name"]
                named[event["name"]].add(key)
            continue
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0.0
        if event["ph"] == "X":
            assert event["dur"] >= 0.0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            key = (event["pid"], event["name"])
            counters[key].append(event["ts"])
            assert all(isinstance(value, float | int) for value in event["args"].values())
            assert series.setdefault(key, set(event["args"])) == set(event["args"])
        else:
            flows[event["id"]][event["ph"]] = event["ts"]
    processes = {pid for pid, _ in named["process_name"]}
    assert set(slices) == named["thread_name"]
    assert {pid for pid, _ in [*slices, *counters]} == processes
    for own in slices.values():
        assert own == sorted(own, key=lambda it: it[0]), "begins of a thread fall"
        _check_nesting(own)
    for times in counters.values():
        assert times == sorted(times)
    for ends in flows.values():
        assert set(ends) == {"s", "f"}
        assert ends["s"] <= ends["f"]


def _check_nesting(own: list[tuple[float, float]]) -> None:
    """Raise unless slices, by their begins, lie apart or within each other."""
    within: list[float] = []
    for begin, end in own:
        while within and within[-1] <= begin + ROUNDING:
            within.pop()
        assert not within or end <= within[-1] + ROUNDING, (begin, end, within[-1])
        within.append(end)


def sums_by_category(events: list[dict[str, Any]], process: str) -> dict[str, float]:
    """Return what the slices of a process take by category [s]."""
    (pid,) = {
        event["pid"]
        for event in events
        if event["name"] == "process_name" and event["args"]["name"] == process
    }
    found: dict[str, float] = defaultdict(float)
    for event in events:
        if event["ph"] == "X" and event["pid"] == pid:
            found[event.get("cat", "")] += event["dur"] * 1e-6
    return dict(found)
