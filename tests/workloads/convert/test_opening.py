"""Workloads of every kind opened as execution traces: files, folders, prefixes, sets of ranks."""

from __future__ import annotations

import gzip
import json

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.workloads.convert.opening import (
    CONVERTIBLE,
    MEANINGS,
    RUNNABLE,
    open_traces,
    rank_files,
    workload_kind,
)
from perfmodel.workloads.formats.chakra.files import write_traces
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    TraceBuilder,
    TraceSet,
)
from tests.workloads.convert.timelines import operator
from tests.workloads.formats.made_pytorch import event, host, node


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


CONTENTS = {
    "astra-text": "HYBRID_TRANSFORMER model_parallel_NPU_group: 4\r\n1\r\n",
    "aicb-text": "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 4\n",
    "aicb-csv": "comm_type,comm_group,comm_group_size,msg_size\n",
    "vidur-csv": "layer_id\tlayer_name\tcomp_time\tcomm_size\n",
    "aiob": "train_iter:10\nEmb:\n",
    "flexflow": "digraph taskgraph {\n",
    "pytorch": '{"schema": "1.0.2-chakra.0.0.4", "nodes": []}',
    "kineto": '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}',
    "chakra-json": '{"workload_graph": []}',
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_text_files_are_told_by_their_first_lines(tmp_path, kind):
    path = tmp_path / "file"
    path.write_text(CONTENTS[kind], newline="")
    assert workload_kind(path) == kind


def test_a_compressed_file_is_looked_into(tmp_path):
    path = tmp_path / "trace.0.json.gz"
    path.write_bytes(gzip.compress(CONTENTS["chakra-json"].encode()))
    assert workload_kind(path) == "chakra-json"


def test_ranks_are_found_by_folder_and_by_prefix(tmp_path):
    for rank in range(2):
        (tmp_path / f"run.{rank}.et").write_bytes(b"\0")
    assert workload_kind(tmp_path) == "chakra"
    assert workload_kind(tmp_path / "run") == "chakra"
    assert workload_kind(tmp_path / "run.1.et") == "chakra"


def test_a_prefix_is_a_whole_name(tmp_path):
    (tmp_path / "run2.0.et").write_bytes(b"\0")
    with pytest.raises(FormatError, match="no workload at"):
        workload_kind(tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"hello world\n", b"\x1f\x8b broken", bytes(range(256))])
def test_what_is_no_workload_is_named(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="file"):
        workload_kind(path)


TEXT = """DATA
2
conv -1 1000 NONE 0 2000 NONE 0 3000 ALLREDUCE 64 5
fc -1 10 NONE 0 20 NONE 0 30 ALLREDUCE 128 5
"""
GRAPH = """digraph taskgraph {
  node0 [label="{device_id=0|A|Forward|COMP_NODE|simulated_run_time=0.5}"];
  node1 [label="{device_id=9|A to B|Comm|COMM_SEND_RECV_NODE|src_device_id=0|dst_device_id=1|\
comm_size=64|run_time=0.1}"];
  node2 [label="{device_id=1|B|Forward|COMP_NODE|simulated_run_time=0.25}"];
  node0 -> node1;
  node1 -> node2;
}
"""
TENSOR = [4, 5, 0, 64, 4, "cuda:0"]
HOST = host(
    node(2, "aten::mm", 1),
    node(
        3,
        "record_param_comms",
        1,
        [[TENSOR], 7, ["0", ""], 0, "allreduce", [], [], 4],
        ["GenericList[Tensor(float)]", *["Int"] * 7],
    ),
)
KINETO = {
    "deviceProperties": [],
    "distributedInfo": {"rank": 0, "world_size": 2},
    "traceEvents": [event("kernel", "gemm", 4, 3.25, 7, stream=7)],
}
OTHERS = ("aicb-text", "aicb-csv", "vidur-csv", "aiob")  # what does not run as traces


def pair():
    """Two ranks that compute, send, and meet in a group."""
    traces = []
    for rank in (0, 1):
        builder = TraceBuilder()
        first = builder.add(f"rank {rank}", COMPUTE, duration=1e-6)
        kind = RECEIVE if rank else SEND
        builder.add("m", kind, source=0, destination=1, tag=0, communication_size=8, data=[first])
        builder.add("sum", COLLECTIVE, collective=0, communication_size=64, group="tp")
        traces.append(builder.build())
    return TraceSet(tuple(traces), {"tp": (0, 1)})


def uniform(ranks):
    """Ranks that all do the same: one all-reduce of everybody."""
    builder = TraceBuilder()
    builder.add("sum", COLLECTIVE, collective=0, communication_size=64)
    return TraceSet((builder.build(),) * ranks)


def written(folder, name, content):
    """A file, and its path."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


class TestKinds:
    def test_what_runs_is_known_by_name(self):
        assert set(CONVERTIBLE) < set(RUNNABLE) < set(MEANINGS)
        assert set(MEANINGS) - set(RUNNABLE) == set(OTHERS)

    @pytest.mark.parametrize("suffix", [".et", ".json"])
    def test_chakra_by_prefix_folder_and_file(self, suffix, tmp_path):
        traces = pair()
        write_traces(traces, tmp_path / "w", suffix)
        assert workload_kind(tmp_path) == ("chakra" if suffix == ".et" else "chakra-json")
        for path in (tmp_path / "w", tmp_path):
            assert open_traces(path).equals(traces)
        alone = open_traces(tmp_path / f"w.1{suffix}")
        assert (alone.devices, alone.traces[0].names[0]) == (1, "rank 1")

    @pytest.mark.parametrize("suffix", [".et", ".json"])
    def test_gzipped_chakra_sets(self, suffix, tmp_path):
        for path in write_traces(uniform(2), tmp_path / "w", suffix):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        for path in (tmp_path / "w", tmp_path):
            assert open_traces(path).equals(uniform(2))

    def test_astra_text(self, tmp_path):
        path = written(tmp_path, "w.txt", TEXT)
        traces = open_traces(path, devices=3, passes=2)
        # Forward, weight gradient and its sum per layer, input gradient but for the first one.
        assert (traces.devices, traces.nodes) == (3, 3 * 2 * 7)
        assert traces.traces[0].metadata["input_file"] == TEXT
        assert traces.traces[0].duration[0] == 1e-3  # the converter reads 1000 as microseconds

    @pytest.mark.parametrize("ends", ["\r\n", "\r"])
    def test_line_ends_of_a_text_are_quoted_as_plain_ones(self, ends, tmp_path):
        path = tmp_path / "w.txt"
        path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", ends).encode())
        assert open_traces(path, devices=1).traces[0].metadata["input_file"] == TEXT

    def test_a_text_does_not_say_its_devices(self, tmp_path):
        path = written(tmp_path, "w.txt", TEXT)
        with pytest.raises(StrategyError, match=r"w\.txt' does not say .*--devices N"):
            open_traces(path)

    def test_flexflow(self, tmp_path):
        path = written(tmp_path, "w.graph", GRAPH)
        traces = open_traces(path)
        assert [trace.kinds.tolist() for trace in traces.traces] == [
            [COMPUTE, SEND],
            [RECEIVE, COMPUTE],
        ]
        assert traces.traces[0].duration[0] == 0.5e-3  # ms
        # The upstream converter: 0.5 s at 2 MHz are 10^6 cycles, written as microseconds.
        assert open_traces(path, npu_frequency=2).traces[0].duration[0] == 1.0

    def test_pytorch_host(self, tmp_path):
        path = written(tmp_path, "w.json", HOST)
        traces = open_traces(path)
        assert traces.devices == 4  # the group of the collective
        assert traces.traces[0].names[-1] == "all_reduce 0"
        assert traces.traces[0].communication_size[-1] == 64 * 4
        assert open_traces(path, devices=4).equals(traces)

    def test_kineto_alone_and_beside_a_host_trace(self, tmp_path):
        device = written(tmp_path, "k.json", KINETO)
        traces = open_traces(device)
        assert (traces.devices, traces.traces[0].names) == (2, ("gemm",))
        assert traces.traces[0].duration[0] == pytest.approx(3.25e-6, rel=1e-12)
        beside = written(tmp_path, "h.json", host(node(2, "aten::mm", 1)))
        both = open_traces(beside, kineto=[device])
        assert both.traces[0].names == ("gemm",)
        assert open_traces(beside).traces[0].names == ("aten::mm",)

    def test_several_kineto_traces_beside_one(self, tmp_path):
        host = written(tmp_path, "h.json", HOST)
        device = written(tmp_path, "k.json", KINETO)
        with pytest.raises(FormatError, match="2 Kineto traces beside"):
            open_traces(host, kineto=[device, device])

    @pytest.mark.parametrize("kind", OTHERS)
    def test_what_is_no_set_of_operations_is_named(self, kind, tmp_path):
        path = written(tmp_path, "w", CONTENTS[kind])
        assert workload_kind(path) == kind
        with pytest.raises(FormatError) as error:
            open_traces(path)
        text = str(error.value)
        assert f"w' is {MEANINGS[kind]}; what runs as execution traces: " in text
        assert text.endswith(", ".join(RUNNABLE))

    def test_a_kind_given_counts_more_than_the_content(self, tmp_path):
        path = written(tmp_path, "w.txt", TEXT)
        with pytest.raises(FormatError, match="'DATA' should be"):
            open_traces(path, kind="flexflow")
        with pytest.raises(FormatError, match="is nonsense; what runs"):
            open_traces(path, kind="nonsense")
        plain = write_traces(uniform(1), tmp_path / "w", ".json")[0]
        plain.rename(tmp_path / "odd.json")
        assert open_traces(tmp_path / "odd.json", kind="chakra-json").equals(uniform(1))


class TestMissing:
    @pytest.mark.parametrize("missing", range(4))
    def test_a_rank(self, missing, tmp_path):
        paths = write_traces(uniform(4), tmp_path / "w")
        paths[missing].unlink()
        if missing == 3:  # a set of three
            assert open_traces(tmp_path / "w").devices == 3
            return
        message = f"rank {missing} is missing" if missing else "no workload at"
        for path in (tmp_path / "w", tmp_path):
            with pytest.raises(FormatError, match=message):
                open_traces(path)

    @pytest.mark.parametrize("name", ["w", "w.{rank}.et"])
    def test_a_rank_of_a_set_of_0_1_and_3(self, name, tmp_path):
        paths = write_traces(uniform(4), tmp_path / "w")
        assert open_traces(tmp_path / name).devices == 4
        paths[2].unlink()
        with pytest.raises(FormatError, match="the file of rank 2 is missing"):
            open_traces(tmp_path / name)

    @pytest.mark.parametrize("name", ["nothing", "nothing/at/all", "w.0", ""])
    def test_everything(self, name, tmp_path):
        with pytest.raises(FormatError, match=r"no workload at '.*NAME\.0\.et"):
            open_traces(tmp_path / name)

    @pytest.mark.parametrize("kind", RUNNABLE)
    def test_a_file_of_a_given_kind(self, kind, tmp_path):
        with pytest.raises(FormatError, match="nothing"):
            open_traces(tmp_path / "nothing", kind=kind, devices=1)

    @pytest.mark.parametrize("kind", ["astra-text", "flexflow"])
    def test_a_folder_in_the_place_of_a_file(self, kind, tmp_path):
        with pytest.raises(FormatError, match="Is a directory"):
            open_traces(tmp_path, kind=kind, devices=1)

    def test_a_kineto_trace(self, tmp_path):
        host = written(tmp_path, "h.json", HOST)
        with pytest.raises(FormatError, match=r"k\.json"):
            open_traces(host, kineto=[tmp_path / "k.json"])

    def test_two_prefixes_in_one_folder(self, tmp_path):
        write_traces(uniform(1), tmp_path / "v")
        write_traces(uniform(1), tmp_path / "w")
        with pytest.raises(FormatError, match="one prefix; found: v, w"):
            open_traces(tmp_path)
        assert open_traces(tmp_path / "v").devices == 1

    def test_a_damaged_rank_is_named(self, tmp_path):
        write_traces(uniform(3), tmp_path / "w")
        (tmp_path / "w.1.et").write_bytes(b"\0\x09")
        with pytest.raises(FormatError, match=r"w\.1\.et: byte 1: a message of 9 bytes"):
            open_traces(tmp_path / "w")


class TestGroups:
    def test_the_file_beside_the_prefix(self, tmp_path):
        write_traces(pair(), tmp_path / "w")
        assert (tmp_path / "w.groups.json").is_file()
        assert open_traces(tmp_path / "w").members(0, 2) == (0, 1)

    def test_a_file_given_counts_more(self, tmp_path):
        write_traces(pair(), tmp_path / "w")
        other = written(tmp_path, "other.txt", {"tp": [1, 0]})
        assert open_traces(tmp_path / "w", groups=other).members(1, 2) == (1, 0)

    def test_without_a_file_the_group_is_not_known(self, tmp_path):
        write_traces(pair(), tmp_path / "w")[-1].unlink()
        traces = open_traces(tmp_path / "w")
        assert not traces.groups
        with pytest.raises(FormatError, match=r"rank 1, node 2 \(sum\): .*'tp' has no list"):
            traces.members(1, 2)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('{"tp": [0, 2]}', "g.json: group 'tp': rank 2, but the ranks are 0 to 1"),
            ('{"tp": [0, 0]}', "g.json: group 'tp': rank 0 twice"),
            ('{"tp": []}', "g.json: group 'tp': expected a list"),
            ('{"tp": [0', "g.json:1: not JSON"),
            ("[]", "g.json: expected an object"),
        ],
    )
    def test_bad_files(self, content, message, tmp_path):
        write_traces(pair(), tmp_path / "w")
        groups = written(tmp_path, "g.json", content)
        with pytest.raises(FormatError, match=message):
            open_traces(tmp_path / "w", groups=groups)

    def test_a_missing_file(self, tmp_path):
        write_traces(pair(), tmp_path / "w")
        with pytest.raises(FormatError, match=r"cannot read '.*none\.json'"):
            open_traces(tmp_path / "w", groups=tmp_path / "none.json")
