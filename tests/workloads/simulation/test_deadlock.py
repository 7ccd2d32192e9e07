"""Runs that stand still: one line that says who waits for whom."""

from __future__ import annotations

from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
)
from tests.workloads.simulation.refusals import SUM, built, refused


def test_circle_of_parents():
    trace = built(
        ("start", COMPUTE, {"identifier": 1}),
        ("a", COMPUTE, {"identifier": 2, "data": [4, 1]}),
        ("b", COMPUTE, {"identifier": 3, "data": [2]}),
        ("c", COMPUTE, {"identifier": 4, "control": [3]}),
    )
    text = refused(trace, trace)
    assert "6 nodes never end" in text  # three of each rank
    assert "rank 0, node 2 (a) waits for its parent → rank 0, node 4 (c)" in text
    assert "start" not in text


def test_long_circles_are_shortened():
    nodes = [(f"n{i}", COMPUTE, {"data": [(i + 1) % 50]}) for i in range(50)]
    text = refused(built(*nodes), built(*nodes))
    assert "… 44 more" in text
    assert len(text) < 500


def test_collectives_in_opposite_order():
    one = built(
        ("first", COLLECTIVE, SUM | {"group": "a"}), ("x", COLLECTIVE, SUM | {"group": "b"})
    )
    two = built(
        ("first", COLLECTIVE, SUM | {"group": "b"}), ("x", COLLECTIVE, SUM | {"group": "a"})
    )
    text = refused(one, two, groups={"a": (0, 1), "b": (0, 1)})
    assert "node 0 (first) waits for another member → rank 1, node 1 (x) waits for its turn" in text


def test_a_node_that_waits_for_itself():
    trace = built(("a", COMPUTE, {"data": [0]}))
    assert "node 0 (a) waits for its parent → rank 0, node 0 (a)" in refused(trace, trace)


def test_receives_that_wait_for_each_other():
    traces = [
        built(
            ("get", RECEIVE, {"source": 1 - rank, "communication_size": 8}),
            ("give", SEND, {"destination": 1 - rank, "communication_size": 8, "data": [0]}),
        )
        for rank in (0, 1)
    ]
    text = refused(*traces)
    assert "node 0 (get) waits for its message → rank 1, node 1 (give) waits for its parent" in text


def test_standstill_of_ranks_that_one_stands_for_names_different_ranks():
    """Every rank waits for its neighbour's message before it sends its own."""
    traces = [
        built(
            ("get", RECEIVE, {"source": (rank - 1) % 3}),
            ("give", SEND, {"destination": (rank + 1) % 3, "communication_size": 8, "data": [0]}),
        )
        for rank in range(3)
    ]
    text = refused(*traces, members=3)
    assert "6 nodes never end" in text
    for rank in range(3):
        assert f"rank {rank}, node 0 (get) waits for its message" in text
