"""``perfmodel workload``: a projection as files of every kind."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from perfmodel.workloads.convert.summary import traces_summary
from perfmodel.workloads.formats.aicb.text import read_aicb_text
from perfmodel.workloads.formats.astra_text.text import read_astra_text
from perfmodel.workloads.formats.chakra.files import read_traces
from tests.cli.running import assert_one_line, changed, run
from tests.cli.workloads.workload.files import shown, workload

PROBLEM = "--model llama-3.1-8b --hardware dgx-h100 --devices 16 --tp 4 --pp 2 --global-batch 4"
PROJECTION = (*shlex.split(PROBLEM), "--seq-len", "1024")


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
        (["--nothing"], ["No such option", "--nothing"]),
    ],
)
def test_wrong_projections_are_one_line_and_write_nothing(
    command: str, more: list[str], parts: list[str], folder: Path
) -> None:
    assert_one_line(run("workload", command, *changed(PROJECTION, "-o", "out", *more)), *parts)
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
