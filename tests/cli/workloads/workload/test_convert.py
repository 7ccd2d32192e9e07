"""``perfmodel workload convert`` and ``synthetic``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.workloads.formats.chakra.files import read_traces
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND
from tests.cli.running import assert_one_line, run

TEXT = "DATA\n1\na -1 10 NONE 0 20 NONE 0 30 ALLREDUCE 300 7\n"

GRAPH = (
    'digraph taskgraph {\nnode0 [label="{device_id=0|A|Forward|COMP_NODE|'
    'simulated_run_time=0.5}"];\nnode2 [label="{device_id=9|A to B|Comm|COMM_SEND_RECV_NODE|'
    'src_device_id=0|dst_device_id=1|comm_size=4096|run_time=0.1}"];\nnode0 -> node2;\n}'
)


def kineto(rank: int) -> str:
    keys = {"stream": 20, "Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float",
            "Group size": 2, "Process Group Ranks": "[0, 1]"}  # fmt: skip
    event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 20,
             "ts": 20, "dur": 30, "args": keys}  # fmt: skip
    info = {"rank": rank, "world_size": 2}
    return json.dumps({"distributedInfo": info, "traceEvents": [event]})


@pytest.mark.parametrize("suffix", [".et", ".json"])
def test_convert_text(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "w.txt").write_text(TEXT, "utf-8")
    form = ["--json-traces"] if suffix == ".json" else []
    result = run(
        "workload",
        "convert",
        tmp_path / "w.txt",
        "--devices",
        2,
        "--passes",
        3,
        "-o",
        tmp_path / "o/t",
        *form,
    )
    assert result.exit_code == 0, result.stderr
    assert "wrote 18 nodes of 2 ranks" in result.stderr
    assert (tmp_path / f"o/t.1{suffix}").is_file()
    assert read_traces(tmp_path / "o/t").nodes == 18


def test_convert_flexflow_with_a_frequency(tmp_path: Path) -> None:
    (tmp_path / "g.graph").write_text(GRAPH, "utf-8")
    arguments = (
        "workload",
        "convert",
        tmp_path / "g.graph",
        "--npu-frequency",
        1000,
        "-o",
        tmp_path / "g",
    )
    assert run(*arguments).exit_code == 0
    traces = read_traces(tmp_path / "g")
    assert [trace.kinds.tolist() for trace in traces.traces] == [[COMPUTE, SEND], [RECEIVE]]
    assert traces.traces[0].duration[0] == 500.0  # 0.5e9 cycles as microseconds


def test_convert_profiles_of_all_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"profile_{rank}.json").write_text(kineto(rank), "utf-8")
    result = run("workload", "convert", tmp_path / "profile_{rank}.json", "-o", tmp_path / "job")
    assert result.exit_code == 0, result.stderr
    traces = read_traces(tmp_path / "job")
    assert [trace.kinds.tolist() for trace in traces.traces] == [[COLLECTIVE]] * 2
    result = run(
        "workload", "convert", tmp_path / "profile_0.json", "--devices", 4, "-o", tmp_path / "four"
    )
    assert result.exit_code == 0, result.stderr
    assert read_traces(tmp_path / "four").devices == 4


def test_a_folder_of_the_profiler_is_converted_and_what_is_missing_is_said(tmp_path: Path) -> None:
    """Two threads, and a collective of gloo's without shapes; .et files keep all of it."""
    for rank in (0, 1):
        events = [
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": at, "dur": 1000}
            for cat, name, thread, at in (
                ("cpu_op", "aten::mm", 1, 0),
                ("cpu_op", "aten::mm", 2, 0),
                ("cpu_op", "c10d::allreduce_", 1, 1000),
                ("user_annotation", "gloo:all_reduce", 9, 1500),
            )
        ]
        group = {"pg_name": "0", "ranks": [0, 1]}
        info = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_config": [group]}
        content = json.dumps({"distributedInfo": info, "traceEvents": events})
        (tmp_path / f"rank{rank}.1700.pt.trace.json").write_text(content, "utf-8")
    note = "note: rank 0: 1 × gloo:all_reduce: its size is not recorded (record_shapes=True does)"
    converted = run("workload", "convert", tmp_path, "-o", tmp_path / "o/t")
    assert converted.exit_code == 0, converted.stderr
    assert "of 2 ranks" in converted.stderr
    for source in (tmp_path, tmp_path / "o/t"):
        shown = run("workload", "show", source)
        assert note in shown.stdout
        ran = run("simulate", source, "--hardware", "dgx-h100", "--json")
        assert note in ran.stderr
        wall_time = json.loads(ran.stdout)["wall_time"]
        assert wall_time == pytest.approx(2.5e-3)


def test_convert_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text(TEXT, "utf-8")
    for arguments, text in (
        ((tmp_path / "w.txt",), "--devices N does"),
        ((tmp_path / "nothing.et",), "no workload at"),
        ((tmp_path / "x{rank}.json",), "no workload at"),
        ((tmp_path / "w.txt", "--format", "flexflow"), "w.txt, line 1"),
    ):
        result = run("workload", "convert", *arguments, "-o", tmp_path / "o")
        assert result.exit_code != 0
        assert text in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("pattern", "options", "kinds"),
    [
        ("compute", ["--num-ops", "2000", "--tensor-size", "3kB"], {COMPUTE}),
        ("chained", ["--collective", "all_gather"], {COLLECTIVE}),
        ("concurrent", ["--group-size", "2"], {COLLECTIVE}),
        ("pipeline", ["--schedule", "gpipe"], {COMPUTE, SEND, RECEIVE}),
    ],
)
def test_synthetic(tmp_path: Path, pattern: str, options: list[str], kinds: set[int]) -> None:
    result = run(
        "workload",
        "synthetic",
        pattern,
        "--devices",
        4,
        "--count",
        3,
        *options,
        "-o",
        tmp_path / "s",
    )
    assert result.exit_code == 0, result.stderr
    traces = read_traces(tmp_path / "s")
    assert traces.devices == 4
    assert {int(kind) for trace in traces.traces for kind in trace.kinds} == kinds
    if "--group-size" in options:
        assert traces.groups == {"1": (0, 1), "2": (2, 3)}


def test_synthetic_groups_that_do_not_come_out(tmp_path: Path) -> None:
    result = run(
        "workload", "synthetic", "chained", "--devices", 4, "--group-size", 3, "-o", tmp_path / "s"
    )
    assert result.exit_code != 0
    assert "--devices 4 is not a multiple of --group-size 3" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("compute --devices 2 --collective all_gather", "--collective is for chained and"),
        ("compute --devices 2 --size 1MiB", "--size is for collectives and pipelines"),
        ("chained --devices 2 --schedule gpipe", "--schedule is for pipelines"),
        ("chained --devices 2 --duration 1", "--duration is for compute and pipelines"),
        ("pipeline --devices 2 --group-size 2", "--group-size is for chained and"),
        ("compute --devices 2 --duration nan", "'nan' is not a finite number"),
        ("compute --devices 2 --duration inf", "'inf' is not a finite number"),
        ("compute --devices 2 --num-ops nan", "--num-ops"),
        ("chained --devices 2 --size nan", "nan"),
        ("chained --devices 2 --size -1", "-1"),
        ("chains --devices 2", "chained"),
    ],
)
def test_wrong_options_of_synthetic_are_one_line(words: str, part: str, folder: Path) -> None:
    assert_one_line(run("workload", "synthetic", *words.split(), "-o", "x"), part)
    assert not list(folder.iterdir())
