"""Figures of execution traces, added up by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import DataError
from perfmodel.workloads.convert import summary
from perfmodel.workloads.convert.summary import trace_summary, traces_summary, workload_summary
from perfmodel.workloads.formats.chakra.files import write_traces
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    MEM_LOAD,
    METADATA,
    RECEIVE,
    SEND,
    TraceBuilder,
    TraceSet,
)

ALL_REDUCE, ALL_GATHER = TRACED.index("all_reduce"), TRACED.index("all_gather")


def sender():
    """Two computations, three collectives of two kinds, a load and a message."""
    builder = TraceBuilder()
    builder.add("groups", METADATA)
    builder.add("weights", MEM_LOAD, tensor_size=4096)
    builder.add("a", COMPUTE, num_ops=1000, tensor_size=30, duration=1.5, data=[0, 1])
    builder.add("b", COMPUTE, num_ops=2**62, duration=0.25, data=[2], control=[0])
    builder.add("sum", COLLECTIVE, collective=ALL_REDUCE, communication_size=64, data=[3])
    builder.add("sum again", COLLECTIVE, collective=ALL_REDUCE, communication_size=36)
    builder.add("collect", COLLECTIVE, collective=ALL_GATHER, communication_size=0)
    builder.add("what", COLLECTIVE, communication_size=1)  # no kind stated
    builder.add("to 1", SEND, destination=1, communication_size=512)
    return builder.build()


def receiver():
    """A message and the other half of a sum, and no computation."""
    builder = TraceBuilder()
    builder.add("from 0", RECEIVE, source=0, communication_size=512)
    builder.add("from 0 too", RECEIVE, source=0)  # size not stated
    builder.add("sum", COLLECTIVE, collective=ALL_REDUCE, communication_size=64)
    return builder.build()


def test_one_rank():
    assert trace_summary(sender()) == {
        "nodes": {"METADATA": 1, "MEM_LOAD": 1, "COMP": 2, "COMM_SEND": 1, "COMM_COLL": 4},
        "dependencies": 5,
        "num_ops": 1000 + 2**62,
        "tensor_size": 30,  # of computation: not the load's
        "duration": 1.75,
        "collectives": {
            "all_reduce": {"count": 2, "bytes": 100},
            "all_gather": {"count": 1, "bytes": 0},
        },
        "sent": {"count": 1, "bytes": 512},
        "received": {"count": 0, "bytes": 0},
    }


def test_what_is_not_stated_counts_nothing():
    found = trace_summary(receiver())
    assert (found["num_ops"], found["tensor_size"], found["duration"]) == (0, 0, 0.0)
    assert found["received"] == {"count": 2, "bytes": 512}


def test_all_ranks():
    first, second = sender(), receiver()
    found = traces_summary(TraceSet((first, second, second), {"x": (0, 1), "y": (2,)}))
    assert found.pop("first_rank") == trace_summary(first)
    assert found == {
        "ranks": 3,
        "nodes": 15,
        "groups": 2,
        "num_ops": 1000 + 2**62,
        "tensor_size": 30,
        "collectives": {
            "all_reduce": {"count": 4, "bytes": 228},
            "all_gather": {"count": 1, "bytes": 0},
        },
        "sent": {"count": 1, "bytes": 512},
    }


def test_sums_are_larger_than_64_bits():
    builder = TraceBuilder()
    largest = 2**63 - 1
    for name in "abc":
        builder.add(name, COMPUTE, num_ops=largest, tensor_size=largest)
    found = traces_summary(TraceSet((builder.build(),) * 2))
    assert (found["num_ops"], found["tensor_size"]) == (6 * largest, 6 * largest)
    assert isinstance(found["num_ops"], int)
    assert not isinstance(found["num_ops"], np.integer)


def test_ranks_that_share_a_trace_are_added_up_once(monkeypatch):
    calls = []
    real = summary.trace_summary
    monkeypatch.setattr(summary, "trace_summary", lambda trace: calls.append(0) or real(trace))
    traces = TraceSet((sender(),) * 50 + (receiver(),) * 50)
    assert traces_summary(traces)["sent"] == {"count": 50, "bytes": 50 * 512}
    assert len(calls) == 2


def test_no_rank_and_no_node():
    assert traces_summary(TraceSet(()))["first_rank"] is None
    found = traces_summary(TraceSet((TraceBuilder().build(),)))
    assert (found["ranks"], found["nodes"], found["first_rank"]["nodes"]) == (1, 0, {})


TEXT = (
    "DATA\n2\n"
    "first\t-1\t1000\tNONE\t0\t2000\tNONE\t0\t3000\tALLREDUCE\t1048576\t10\n"
    "second\t-1\t4000\tNONE\t0\t5000\tNONE\t0\t6000\tALLREDUCE\t2097152\t10\n"
)


def test_a_text_is_described_by_layer_or_as_the_traces_that_it_becomes(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text(TEXT, encoding="utf-8")
    alone = workload_summary(path)
    assert (alone["policy"], alone["layers"]) == ("DATA", 2)
    expected = {"forward": 5e-6, "input_gradient": 7e-6, "weight_gradient": 9e-6}
    assert alone["compute_time"] == pytest.approx(expected)
    assert alone["collectives"] == {"ALLREDUCE": {"count": 2, "bytes": 3 * 2**20}}
    traces = workload_summary(path, devices=4)
    assert traces["ranks"] == 4
    assert traces["collectives"]["all_reduce"] == {"count": 8, "bytes": 4 * 3 * 2**20}


def test_traces_are_described_from_their_files(tmp_path):
    traces = TraceSet((sender(), receiver()))
    write_traces(traces, tmp_path / "pair")
    assert workload_summary(tmp_path / "pair") == traces_summary(traces)


def test_a_text_on_many_devices_is_described_once_and_tells_how_far(tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("DATA\n1\nfirst -1 1 NONE 0 2 NONE 0 3 ALLREDUCE 1024 1\n")
    calls = []
    real = summary.trace_summary
    monkeypatch.setattr(summary, "trace_summary", lambda trace: calls.append(0) or real(trace))
    told = []
    found = workload_summary(path, devices=2500, progress=lambda *done: told.append(done))
    assert len(calls) == 1
    assert found["collectives"]["all_reduce"] == {"count": 2500, "bytes": 2500 * 1024}
    assert told == [(0, 2500), (1000, 2500), (2000, 2500)]
    with pytest.raises(DataError, match=r"^1,000,000 devices; at most 250,000 are converted"):
        workload_summary(path, devices=10**6)
