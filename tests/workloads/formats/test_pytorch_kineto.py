"""Kineto's traces: reading, and errors that say where."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_json
from perfmodel.workloads.formats.pytorch_host import read_host_trace
from perfmodel.workloads.formats.pytorch_kineto import (
    CALL,
    DEVICE,
    OPERATOR,
    WAIT,
    read_kineto,
)
from perfmodel.workloads.trace import ABSENT
from tests.data import table_of
from tests.workloads.formats.made_pytorch import VALUES, event, kineto, parse_kineto, reads


def test_events_are_ordered_and_joined():
    trace = kineto(
        event("kernel", "gemm", 30.5, 10, 7, device=0, stream=7, correlation=4),
        event("cuda_runtime", "cudaLaunchKernel", 22, 3, correlation=4),
        event("cpu_op", "aten::mm", 20, 8, **{"External id": 3, "Record function id": 11}),
        event("cpu_op", "aten::matmul", 20, 9),
        event("python_function", "f", 0, 100),
        {"ph": "M", "name": "process_name", "args": {}},
        {"ph": "s", "cat": "ac2g", "id": 4},
        distributedInfo={"backend": "nccl", "rank": 1, "world_size": 4},
    )
    assert trace.names == ("aten::matmul", "aten::mm", "cudaLaunchKernel", "gemm")
    assert trace.category.tolist() == [OPERATOR, OPERATOR, CALL, DEVICE]
    assert np.allclose(trace.start, [0, 0, 2e-6, 10.5e-6], rtol=0, atol=1e-15)
    assert np.allclose(trace.duration, [9e-6, 8e-6, 3e-6, 10e-6], rtol=0, atol=1e-15)
    assert trace.correlation.tolist() == [ABSENT, ABSENT, 4, 4]
    assert trace.record_function.tolist() == [ABSENT, 11, ABSENT, ABSENT]
    assert (trace.rank, trace.devices) == (1, 4)


def test_the_list_of_process_groups_says_what_was_cut():
    """``pg_config`` of PyTorch 2.4 and later."""
    keys = {
        "Collective name": "allreduce",
        "Process Group Name": "12",
        "Process Group Ranks": "[0, 1, 4, ...]",
        "Group size": 4,
    }
    config = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": list(range(8))},
        {"pg_name": "12", "pg_desc": "tp", "pg_size": 4, "ranks": [0, 1, 4, 5]},
    ]
    part = event("kernel", "ncclDevKernel_AllReduce", 0, 5, stream=1, **keys)
    trace = kineto(part, distributedInfo={"rank": 0, "world_size": 8, "pg_config": config})
    assert trace.collectives[0].ranks == (0, 1, 4, 5)
    for other in (None, 3, [None, 4, {"ranks": 5}], [{"pg_name": "12", "ranks": [0, 1]}]):
        trace = kineto(part, distributedInfo={"pg_config": other})
        assert trace.collectives[0].ranks is None
    with pytest.raises(FormatError, match=r"pg_config\[0\]: a rank appears twice"):
        kineto(part, distributedInfo={"pg_config": [{"pg_name": "12", "ranks": [0, 0]}]})


def test_waits_between_streams_are_read():
    trace = kineto(
        event(
            "cuda_sync",
            "Stream Wait Event",
            5,
            0,
            stream=20,
            wait_on_stream=7,
            wait_on_cuda_event_record_corr_id=3,
            correlation=8,
        ),
        event("kernel", "a", 0, 5, stream=7),
    )
    assert trace.category.tolist() == [DEVICE, WAIT]
    assert trace.waits == {1: (int(trace.stream[0]), 3)}
    assert trace.stream[1] != trace.stream[0]


@pytest.mark.parametrize(
    ("event_keys", "message"),
    table_of(__file__, "what_is_wrong_with_an_event_is_said_in_one_line"),
)
def test_what_is_wrong_with_an_event_is_said_in_one_line(event_keys, message):
    content = {"traceEvents": [event("cpu_op", "a", 0, 1) | event_keys]}
    with pytest.raises(FormatError, match=message) as error:
        parse_kineto(content, "x.json")
    assert str(error.value).startswith("x.json, traceEvents[0]")


def test_packed_files_are_read_and_damaged_ones_refused(tmp_path):
    content = json.dumps({"traceEvents": [event("cpu_op", "a", 0, 1)]}).encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(content))
    assert read_kineto(path).events == 1
    path.write_bytes(gzip.compress(content)[:-12])
    with pytest.raises(FormatError, match="damaged gzip data"):
        read_kineto(path)
    path.write_bytes(gzip.compress(b" " * 5000))
    with pytest.raises(FormatError, match="more than 4000 B of text"):
        read_json(path, largest=4000)
    with pytest.raises(FormatError, match="cannot read"):
        read_host_trace(tmp_path / "none.json")


@given(st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]), VALUES)
def test_any_value_in_an_event_is_read_or_refused(key, value):
    assert reads(parse_kineto, {"traceEvents": [event("kernel", "nccl", 0, 1) | {key: value}]})


@given(
    st.sampled_from(
        [
            "stream",
            "device",
            "correlation",
            "In msg nelems",
            "Process Group Ranks",
            "Group size",
            "dtype",
            "Collective name",
            "Seq",
            "Process Group Name",
        ]
    ),
    VALUES,
)
def test_any_argument_of_an_event_is_read_or_refused(key, value):
    keys = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 2, key: value}
    assert reads(parse_kineto, {"traceEvents": [event("kernel", "nccl", 0, 1, **keys)]})
