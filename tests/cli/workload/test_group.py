"""``perfmodel workload``: projections and STAGE as files, what files hold, progress, examples."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from perfmodel.cli.main import cli
from perfmodel.cli.shared import parsing
from perfmodel.convert.summary import traces_summary
from perfmodel.formats.aicb.text import read_aicb_text
from perfmodel.formats.astra_text.text import read_astra_text
from perfmodel.formats.chakra.files import read_traces

PROBLEM = "--model llama-3.1-8b --hardware dgx-h100 --devices 16 --tp 4 --pp 2 --global-batch 4"
PROJECTION = (*shlex.split(PROBLEM), "--seq-len", "1024")
STAGE = shlex.split(
    "--dp 2 --tp 2 --sp 1 --pp 2 --num-stacks 2 --dmodel 64 --dff 128 --head 4 --seq 32 "
    "--batch 4 --din 32 --dout 32"
)
TEXT = "DATA\n1\nlayer\t-1\t1000\tNONE\t0\t2000\tNONE\t0\t3000\tALLREDUCE\t1048576\t10\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="perfmodel")


def workload(*arguments: str) -> Result:
    result = run("workload", *arguments)
    assert result.exit_code == 0, result.stderr
    return result


def shown(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(workload("show", *arguments, "--json").stdout)
    assert found["schema_version"] == "1"
    assert found["workload"] == arguments[0]
    return found


def assert_one_line(result: Result, *parts: str) -> None:
    """The run ended with code 2, one line on stderr, and nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("perfmodel: error: ")
    for part in parts:
        assert part in result.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---------------------------------------------------------------- projections


def test_chakra_writes_a_file_per_rank_and_the_groups(folder: Path) -> None:
    result = workload("chakra", *PROJECTION, "-o", "traces/llama")
    names = {f"llama.{rank}.et" for rank in range(16)} | {"llama.groups.json"}
    assert {item.name for item in (folder / "traces").iterdir()} == names
    traces = read_traces("traces/llama")
    assert result.stdout == ""
    assert f"wrote {traces.nodes:,} nodes of 16 ranks: traces/llama.0.et … " in result.stderr
    found = shown("traces/llama")
    assert found["format"] == "chakra"
    assert (found["ranks"], found["nodes"]) == (16, traces.nodes)
    assert found["num_ops"] == traces_summary(traces)["num_ops"] > 0
    layers = workload("chakra", *PROJECTION, "--granularity", "layer", "-o", "coarse")
    assert "nodes of 16 ranks" in layers.stderr
    assert 0 < read_traces("coarse").nodes < traces.nodes
    # Bytes are kept whatever a node stands for.
    fine, coarse = (shown(name)["collectives"] for name in ("traces/llama", "coarse"))
    assert {name: row["bytes"] for name, row in coarse.items()} == {
        name: row["bytes"] for name, row in fine.items()
    }
    run_ = run("simulate", "traces/llama", "--hardware", "dgx-h100", "--json")
    assert json.loads(run_.stdout)["ranks"] == 16


def test_chakra_has_a_json_form_and_two_ways_to_name_groups(folder: Path) -> None:
    options = ("--granularity", "layer", "--json-traces")
    workload("chakra", *PROJECTION, *options, "-o", "x")
    assert json.loads((folder / "x.0.json").read_text("utf-8"))
    assert all(name.isdecimal() for name in read_traces("x").groups)
    workload("chakra", *PROJECTION, *options, "--named-groups", "-o", "y")
    assert "tensor 0" in read_traces("y").groups
    assert shown("x")["format"] == "chakra-json"


def test_a_projection_as_astra_sim_text(folder: Path) -> None:
    result = workload("astra-text", *PROJECTION, "-o", "llama.txt")
    assert result.stderr == "wrote llama.txt\n"
    first = read_astra_text("llama.txt")
    assert first.forward.compute_time.sum() > 0
    text = workload("astra-text", *PROJECTION, "-o", "-")
    assert text.stdout.encode() == (folder / "llama.txt").read_bytes()
    assert text.stderr == ""
    stages = [
        workload("astra-text", *PROJECTION, "--stage", stage, "-o", "-").stdout for stage in "01"
    ]
    assert "\nembedding\t" in stages[0]
    assert "\nlayer_16\t" in stages[1]
    assert shown("llama.txt")["layers"] == first.layers


def test_a_projection_as_aicb_text_of_the_corrected_dialect(folder: Path) -> None:
    workload("aicb", *PROJECTION, "--compat", "corrected", "-o", "x.txt")
    found = read_aicb_text("x.txt")
    assert found.header.whole("all_gpus") == 16
    assert found.header.whole("pp") == 2
    assert shown("x.txt")["rows"] == found.rows
    simulated = run("simulate", "x.txt", "--gpu-type", "H100", "--json")
    assert json.loads(simulated.stdout)["total_time"] > 0
    assert "--granularity" not in workload("aicb", "--model", "x", "--help").stdout
    assert "AICB's own options and dialect" in workload("aicb", "--model=x", "--help").stdout


def test_a_projection_from_a_configuration_file(folder: Path) -> None:
    content = 'model = "llama-3.1-8b"\nhardware = "dgx-h100"\ndevices = 16\ntp = 4\npp = 2\n'
    (folder / "run.toml").write_text(f"{content}global-batch = 4\nseq-len = 1024\n", "utf-8")
    for command in ("aicb", "astra-text"):
        by_file = workload(command, "--config", "run.toml", "-o", "-").stdout
        assert by_file == workload(command, *PROJECTION, "-o", "-").stdout


@pytest.mark.parametrize("command", ["chakra", "astra-text", "aicb"])
@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (["--model", "llama-3.1-8c"], ["llama-3.1-8c", "did you mean"]),
        (["--hardware", "dgx-h101"], ["unknown hardware 'dgx-h101'"]),
        (["--tp", "3"], ["not a multiple of tp 3"]),
        (["--seq-len", "nan"], ["--seq-len"]),
        (["--devices", "-1"], ["--devices"]),
        (["--framework", "nothing"], ["nothing"]),
        (["--nothing"], ["No such option '--nothing'"]),
    ],
)
def test_wrong_projections_are_one_line_and_write_nothing(
    command: str, more: list[str], parts: list[str], folder: Path
) -> None:
    assert_one_line(run("workload", command, *PROJECTION, "-o", "out", *more), *parts)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("astra-text -o /nowhere/x.txt", "folder '/nowhere' does not exist"),
        ("aicb -o /nowhere/x.txt", "folder '/nowhere' does not exist"),
        ("astra-text --stage 2 -o x.txt", "2"),
        ("astra-text --stage -1 -o x.txt", "--stage"),
        ("aicb --compat aicb -o x.txt", "--compat"),
        ("chakra --granularity node -o x", "--granularity"),
        ("chakra", "Missing option '-o'"),
    ],
)
def test_wrong_forms_of_projections_are_one_line(words: str, part: str, folder: Path) -> None:
    command, *more = words.split()
    assert_one_line(run("workload", command, *PROJECTION, *more), part)
    assert not list(folder.iterdir())


# ---------------------------------------------------------------- STAGE


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
    assert_one_line(run("workload", "stage", *STAGE, *more, "-o", "x/y"), part)
    assert not list(folder.iterdir())


# ---------------------------------------------------------------- prefixes

CHAIN = ("synthetic", "chained", "--count", "2", "--devices")


@pytest.mark.parametrize(
    ("prefix", "part"),
    [
        ("here", "'here' is a folder; name a prefix in it, as 'here/rank'"),
        ("here/", "is a folder"),
        ("", "is a folder"),
        ("file/x", "cannot write to the folder 'file'"),
        ("file/x/y", "cannot write to the folder"),
    ],
)
def test_prefixes_that_cannot_be_written(prefix: str, part: str, folder: Path) -> None:
    (folder / "here").mkdir()
    (folder / "file").touch()
    assert_one_line(run("workload", *CHAIN, "4", "-o", prefix), part)
    assert sorted(item.name for item in folder.iterdir()) == ["file", "here"]
    assert not list((folder / "here").iterdir())


def test_traces_are_not_mixed_with_those_of_another_run(folder: Path) -> None:
    workload(*CHAIN, "4", "-o", "x")
    workload(*CHAIN, "4", "-o", "x")
    before = {item.name: item.read_bytes() for item in folder.iterdir()}
    assert_one_line(run("workload", *CHAIN, "2", "-o", "x"), "'x.2.et' is of other traces")
    assert_one_line(
        run("workload", "stage", *STAGE, "--json-traces", "-o", "x"), "'x.0.et' is of other traces"
    )
    assert {item.name: item.read_bytes() for item in folder.iterdir()} == before
    workload(*CHAIN, "8", "-o", "x")
    workload(*CHAIN, "2", "-o", "xx")
    workload(*CHAIN, "4", "--group-size", "2", "-o", "groups")
    assert_one_line(run("workload", *CHAIN, "4", "-o", "groups"), "'groups.groups.json' is of")


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


# ---------------------------------------------------------------- show


def test_show_says_what_a_text_holds_alone_and_on_devices(folder: Path) -> None:
    (folder / "w.txt").write_text(TEXT, "utf-8")
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
    assert "compute time          forward 1 µs, input_gradient 2 µs" in "\n".join(lines)
    assert lines[-1].split() == ["ALLREDUCE", "1", "1", "MiB"]


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
    (folder / "w.txt").write_text(TEXT, "utf-8")
    (folder / "broken.txt").write_text(TEXT[:-20], "utf-8")
    (folder / "empty.txt").touch()
    (folder / "binary.et").write_bytes(b"\x00\xff" * 50)
    (folder / "object.json").write_text('{"a": NaN}', "utf-8")
    assert_one_line(run("workload", "show", *words.split(), "--json"), part)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", "-1"])
def test_finite_ranges_are_finite(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parsing.FiniteRange(min=0.0).convert(text, None, None)
