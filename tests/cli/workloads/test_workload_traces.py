"""``perfmodel workload … --for astra-sim``: files, what is said of them, and both commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import Result

from perfmodel.workloads.formats.astra_files import read_network, read_system
from perfmodel.workloads.formats.chakra.files import read_traces
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND
from tests.cli.running import assert_one_line, changed, document, run
from tests.cli.workloads.files import LAYER, STAGE, shown, workload
from tests.data import table_of

PROJECTION = shlex.split(
    "chakra --model llama-3.1-8b --hardware dgx-h100 --devices 8 --tp 4 --global-batch 2 "
    "--seq-len 512 --granularity layer"
)
FOR_STAGE = shlex.split(
    "stage --dp 2 --tp 2 --num-stacks 2 --dmodel 64 --dff 128 --head 4 --seq 32 --batch 4 "
    "--din 32 --dout 32 --hardware dgx-h100"
)
SYNTHETIC = shlex.split("synthetic pipeline --devices 4 --count 2 --hardware mi300x-server")


def commands(result: Result) -> tuple[list[str], list[str]]:
    """Return the words of the real simulator's command, and of ours."""
    real, ours = map(shlex.split, result.stdout.splitlines())
    return real, ours


@pytest.mark.parametrize("words", [PROJECTION, FOR_STAGE, SYNTHETIC], ids=lambda words: words[0])
@pytest.mark.parametrize("name", ["astra-sim", "astra-sim@af2492b"])
def test_both_commands_name_files_that_are_there_and_ours_runs(
    words: list[str], name: str, folder: Path
) -> None:
    result = workload(*words, "--for", name, "-o", "out/t")
    real, ours = commands(result)
    assert real[0] == "AstraSim_Analytical_Congestion_Unaware"
    files = [word.split("=")[1] for word in real[1:] if "workload" not in word]
    assert files
    assert all((folder / file).is_file() for file in files)
    assert ours[0] == "perfmodel"
    version = "main" if name == "astra-sim" else "af2492b"
    assert ours[-1] == f"astra-sim@{version}"
    found = document(*ours[1:])
    assert (
        found["ranks"] == read_traces("out/t").devices == read_network("out/t.network.yml").devices
    )
    assert found["wall_time"] > 0
    assert f"for astra-sim@{version}: out/t.network.yml, out/t.system.json" in result.stderr


def test_collectives_of_a_rank_have_one_order_and_the_host_is_told_of(folder: Path) -> None:
    result = workload(*PROJECTION, "--for", "astra-sim", "-o", "new")
    assert "of each rank left out, since astra-sim@main loses its statistics" in result.stderr
    old = workload(*PROJECTION, "--for", "astra-sim@af2492b", "--named-groups", "-o", "old")
    assert "ASTRA-sim counts it as exposed communication too" in old.stderr
    workload(*PROJECTION, "--serial-communication", "-o", "plain")
    plain, both = read_traces("plain").traces[0], read_traces("old").traces[0]
    assert (plain.control_parents.values == both.control_parents.values).all()
    assert "tensor 0" in json.loads((folder / "old.groups.json").read_text())


def test_operations_that_are_given_are_for_the_roofline(folder: Path) -> None:
    workload(*SYNTHETIC, "--for", "astra-sim", "-o", "timed")
    workload(*SYNTHETIC, "--num-ops", "1000000000", "--for", "astra-sim", "-o", "priced")
    assert not read_system("timed.system.json").roofline_enabled
    assert read_system("priced.system.json").roofline_enabled
    note = workload(*SYNTHETIC, "--for", "astra-sim", "-o", "again").stderr
    assert "nodes state as many operations as the peak does in their time" in note


def test_the_profile_may_be_changed(folder: Path) -> None:
    change = ("--set", "system.network.0.latency=2e-6")
    workload(*FOR_STAGE, *change, "--for", "astra-sim", "-o", "x")
    assert set(read_network("x.network.yml").latency_nanoseconds) == {1000.0}
    quiet = workload(*FOR_STAGE, "--for", "astra-sim", "-o", "y", "--quiet")
    assert quiet.stderr == ""
    assert len(commands(quiet)) == 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([*PROJECTION, "--for", "astra"], "astra-sim@af2492b or astra-sim@main"),
        ([*PROJECTION, "--for", "astra-sim@2"], "no version '2'"),
        ([*FOR_STAGE[:-2], "--for", "astra-sim"], "--for astra-sim needs --hardware NAME"),
        (FOR_STAGE, "--hardware is for traces with --for astra-sim"),
        (
            [*FOR_STAGE[:-2], "--set", "device.tdp=1"],
            "--set is for traces with --for astra-sim",
        ),
        (
            [*FOR_STAGE, "--for", "astra-sim", "--json-traces"],
            "ASTRA-sim reads .et files only",
        ),
        ([*PROJECTION, "--for", "astra-sim", "--json-traces"], "ASTRA-sim reads .et files only"),
        ([*PROJECTION, "--for", "astra-sim", "--named-groups"], "reads names of groups as numbers"),
        ([*SYNTHETIC, "--size", "0", "--for", "astra-sim"], "is a message of 0 B"),
        ([*SYNTHETIC, "--num-ops", "9", "--for", "astra-sim"], "takes less than a nanosecond"),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(
    words: list[str], part: str, folder: Path
) -> None:
    assert_one_line(run("workload", *words, "-o", "x/y"), part)
    assert not list(folder.iterdir())


def test_a_path_that_astra_sim_takes_for_none_is_refused(folder: Path) -> None:
    refused = run("workload", *FOR_STAGE, "--for", "astra-sim", "-o", "empty/t")
    assert_one_line(refused, "reads no communicator groups from a path with 'empty' in it")
    assert not list(folder.iterdir())


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
def test_convert_text(folder: Path, suffix: str) -> None:
    (folder / "w.txt").write_text(TEXT, "utf-8")
    form = ["--json-traces"] if suffix == ".json" else []
    result = workload(*["convert", "w.txt", "--devices", "2", "--passes", "3", "-o", "o/t"], *form)
    assert "wrote 18 nodes of 2 ranks" in result.stderr
    assert (folder / f"o/t.1{suffix}").is_file()
    assert read_traces("o/t").nodes == 18


def test_convert_flexflow_with_a_frequency(folder: Path) -> None:
    (folder / "g.graph").write_text(GRAPH, "utf-8")
    workload(*["convert", "g.graph", "--npu-frequency", "1000", "-o", "g"])
    traces = read_traces("g")
    assert [trace.kinds.tolist() for trace in traces.traces] == [[COMPUTE, SEND], [RECEIVE]]
    assert traces.traces[0].duration[0] == 500.0  # 0.5e9 cycles as microseconds


def test_convert_profiles_of_all_ranks(folder: Path) -> None:
    for rank in range(2):
        (folder / f"profile_{rank}.json").write_text(kineto(rank), "utf-8")
    workload("convert", "profile_{rank}.json", "-o", "job")
    traces = read_traces("job")
    assert [trace.kinds.tolist() for trace in traces.traces] == [[COLLECTIVE]] * 2
    workload(*["convert", "profile_0.json", "--devices", "4", "-o", "four"])
    assert read_traces("four").devices == 4


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


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("w.txt", "--devices N does"),
        ("nothing.et", "no workload at"),
        ("x{rank}.json", "no workload at"),
        ("w.txt --format flexflow", "w.txt, line 1"),
    ],
)
def test_convert_says_what_is_wrong_in_one_line(words: str, part: str, folder: Path) -> None:
    (folder / "w.txt").write_text(TEXT, "utf-8")
    assert_one_line(run("workload", "convert", *words.split(), "-o", "o"), part)


@pytest.mark.parametrize(
    ("pattern", "options", "kinds"),
    [
        ("compute", "--num-ops 2000 --tensor-size 3kB", {COMPUTE}),
        ("chained", "--collective all_gather", {COLLECTIVE}),
        ("concurrent", "--group-size 2", {COLLECTIVE}),
        ("pipeline", "--schedule gpipe", {COMPUTE, SEND, RECEIVE}),
    ],
)
def test_synthetic(folder: Path, pattern: str, options: str, kinds: set[int]) -> None:
    workload("synthetic", pattern, *f"--devices 4 --count 3 {options} -o s".split())
    traces = read_traces("s")
    assert traces.devices == 4
    assert {int(kind) for trace in traces.traces for kind in trace.kinds} == kinds
    if "--group-size" in options:
        assert traces.groups == {"1": (0, 1), "2": (2, 3)}


@pytest.mark.parametrize(
    ("words", "part"),
    table_of(__file__, "wrong_options_of_synthetic_are_one_line"),
)
def test_wrong_options_of_synthetic_are_one_line(words: str, part: str, folder: Path) -> None:
    assert_one_line(run("workload", "synthetic", *words.split(), "-o", "x"), part)
    assert not list(folder.iterdir())


def test_show_says_what_a_text_holds_alone_and_on_devices(folder: Path) -> None:
    (folder / "w.txt").write_text(LAYER, "utf-8")
    found = shown("w.txt")
    assert (found["format"], found["policy"], found["layers"]) == ("astra-text", "DATA", 1)
    times = {"forward": 1e-6, "input_gradient": 2e-6, "weight_gradient": 3e-6}
    assert found["compute_time"] == pytest.approx(times)
    assert found["collectives"] == {"ALLREDUCE": {"count": 1, "bytes": 2**20}}
    on_devices = shown("w.txt", "--devices", "4", "--passes", "2")
    assert on_devices["ranks"] == 4
    assert on_devices["collectives"]["all_reduce"] == {"count": 8, "bytes": 8 * 2**20}
    lines = workload("show", "w.txt").stdout.splitlines()
    assert lines[0] == "w.txt: ASTRA-sim 1.0 text workload"
    assert "compute time          forward 1.000 µs, input_gradient 2.000 µs" in "\n".join(lines)
    assert lines[-1].split() == ["ALLREDUCE", "1", "1.05", "MB"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("none.txt", "no workload at 'none.txt'"),
        ("w.txt --format aicb", "--format"),
        ("w.txt --format chakra-json", "w.txt"),
        ("w.txt --groups x.json", "--groups is for Chakra traces; 'w.txt' is of another kind"),
        ("w.txt --kineto x.json", "--kineto is for PyTorch"),
        ("broken.txt", "broken.txt"),
        ("empty.txt", "'empty.txt' is no workload that is known"),
        ("binary.et", "binary.et"),
        ("object.json", "object.json"),
    ],
)
def test_show_says_what_is_wrong_in_one_line(words: str, part: str, folder: Path) -> None:
    (folder / "w.txt").write_text(LAYER, "utf-8")
    (folder / "broken.txt").write_text(LAYER[:-20], "utf-8")
    (folder / "empty.txt").touch()
    (folder / "binary.et").write_bytes(b"\x00\xff" * 50)
    (folder / "object.json").write_text('{"a": NaN}', "utf-8")
    assert_one_line(run("workload", "show", *words.split(), "--json"), part)


def test_stage_writes_what_its_arguments_say(folder: Path) -> None:
    result = workload("stage", *STAGE, "-o", "st/age")
    traces = read_traces("st/age")
    assert traces.devices == 8
    assert f"wrote {traces.nodes:,} nodes of 8 ranks" in result.stderr
    spelled = ["--weight_sharded", "1", "--activation_recompute", "1"]
    joined = ["--weight-sharded=true", "--activation-recompute=true"]
    workload("stage", *STAGE, *spelled, "-o", "a")
    workload("stage", *STAGE, *joined, "--json-traces", "-o", "b")
    assert shown("a")["num_ops"] > shown("st/age")["num_ops"]
    keys = ("ranks", "nodes", "groups", "num_ops", "tensor_size", "collectives", "sent")
    assert [shown("a")[key] for key in keys] == [shown("b")[key] for key in keys]


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--dp", "nan"], "(dp) is 'nan'"),
        (["--dp", "0"], "(dp) is 0"),
        (["--dp", "-2"], "(dp)"),
        (["--dp", "100000"], "devices; at most"),
        (["--tp", "3"], "divisible"),
        (["--weight_sharded", "maybe"], "true or false"),
        (["--dq", "1"], "--dq"),
    ],
)
def test_wrong_arguments_of_stage_are_one_line(more: list[str], part: str, folder: Path) -> None:
    assert_one_line(run("workload", "stage", *changed(STAGE, *more, "-o", "x/y")), part)
    assert not list(folder.iterdir())
