"""Folders of PyTorch's profiler, and paths with time stamps."""

from __future__ import annotations

import gzip
import json

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.convert.opening import open_traces, rank_files
from perfmodel.workloads.convert.recognise import workload_kind
from tests.workloads.convert.timelines import operator


def write(folder, name, rank=None, length=10, devices=2):
    """A recording as the profiler writes it: the description of the job before the events."""
    group = {"pg_name": "0", "pg_size": devices, "ranks": list(range(devices))}
    info = {"backend": "gloo", "rank": rank, "world_size": devices, "pg_config": [group]}
    content = {"schemaVersion": 1, "deviceProperties": []}
    content |= {} if rank is None else {"distributedInfo": info}
    text = json.dumps(content | {"traceEvents": [operator("aten::mm", 0, length)]}).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)


def names(path):
    return [file.name for file in rank_files(path)]


def test_the_rank_is_that_of_the_job_whatever_the_files_are_called(tmp_path):
    write(tmp_path, "node1_4711.1700000000000000002.pt.trace.json.gz", rank=0)
    write(tmp_path, "node1_4710.1700000000000000001.pt.trace.json.gz", rank=1, length=30)
    (tmp_path / "notes.txt").write_text("x")
    assert workload_kind(tmp_path) == "kineto"
    assert [name[:10] for name in names(tmp_path)] == ["node1_4711", "node1_4710"]
    traces = open_traces(tmp_path)
    assert traces.devices == 2
    assert [trace.duration.sum() for trace in traces.traces] == pytest.approx([10e-6, 30e-6])


def test_else_it_is_in_the_name(tmp_path):
    for rank in (0, 1, 2):
        write(tmp_path, f"host.example_rank{rank}.170000000{9 - rank}.pt.trace.json")
    assert [name.split(".17")[0] for name in names(tmp_path)] == [
        f"host.example_rank{rank}" for rank in range(3)
    ]


def test_of_several_recordings_the_last_one_of_each_rank_is_meant(tmp_path):
    for rank in (0, 1):
        for time in (999, 1002 + rank, 1001):  # as numbers, not as texts
            write(tmp_path, f"rank{rank}.{time}.pt.trace.json", rank)
    assert names(tmp_path) == ["rank0.1002.pt.trace.json", "rank1.1003.pt.trace.json"]
    pattern = tmp_path / "rank{rank}.{time}.pt.trace.json"
    assert names(pattern) == names(tmp_path)
    assert workload_kind(pattern) == "kineto"
    assert open_traces(pattern).devices == 2
    assert names(tmp_path / "rank{rank}.999.pt.trace.json") == [
        "rank0.999.pt.trace.json",
        "rank1.999.pt.trace.json",
    ]


def test_one_rank_stands_for_all(tmp_path):
    write(tmp_path, "host_12.1000.pt.trace.json", rank=3, devices=4)
    assert open_traces(tmp_path).devices == 4
    write(tmp_path, "host_12.2000.pt.trace.json")
    (tmp_path / "host_12.1000.pt.trace.json").unlink()
    assert open_traces(tmp_path).devices == 1


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ([("rank0.1", 0), ("rank2.1", 2)], "", "the file of rank 1 is missing"),
        (
            [("rank0.1", 0), ("rank0.2", 0), ("rank1.1", 1)],
            "",
            "rank 1 has 1 recordings, rank 0 has 2; all should have as many",
        ),
        ([("a_1.1", None), ("b_2.1", None)], "", "'.*a_1.1.pt.trace.json' does not say its rank"),
        ([("rank0.1", 0)], "{rank}.{time}.json", "no file is called"),
        ([("rank0.1", 0)], "{time}.json", "should stand once in the file's name"),
    ],
)
def test_what_is_unclear_is_refused_in_one_line(files, path, message, tmp_path):
    for name, rank in files:
        write(tmp_path, f"{name}.pt.trace.json", rank)
    with pytest.raises(FormatError, match=message) as error:
        open_traces(tmp_path / path)
    assert "\n" not in str(error.value)


def test_a_damaged_file_is_named(tmp_path):
    write(tmp_path, "rank0.1.pt.trace.json.gz", 0)
    file = tmp_path / "rank0.1.pt.trace.json.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(FormatError, match=r"rank0.1.pt.trace.json.gz': damaged gzip data"):
        rank_files(tmp_path)
