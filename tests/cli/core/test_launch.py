"""``perfmodel launch`` and ``--from``: what starts a strategy, and its projection again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import changed, document, run

PROBLEM = [
    "--model",
    "llama-3.1-8b",
    "--devices",
    "64",
    "--tp",
    "4",
    "--pp",
    "2",
    "--global-batch",
    "128",
    "--seq-len",
    "4096",
]


def test_a_picked_strategy_is_written_and_projects_the_same(file: Path, folder: Path) -> None:
    rows = document("best", file, "--top", "3", "--by", "step_time", "--where", "tp > 1")
    third = rows["strategies"][2]
    arguments = ["launch", file, "--pick", "3", "--by", "step_time", "--where", "tp > 1"]
    result = run(*arguments, "--for", "megatron", "-o", "run.sh")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert "wrote" in result.stderr
    text = (folder / "run.sh").read_text(encoding="utf-8")
    assert text.startswith("# llama-3.1-8b on 16 devices of ")
    assert "number 3 of" in text
    assert "by step_time where tp > 1" in text
    again = document("project", "--from", "run.sh", "--hardware", third["hardware"])
    for name in ("tensor_parallel", "pipeline_parallel", "micro_batch_size", "recompute"):
        assert again[name] == third[name]
    assert again["step_time"] == pytest.approx(third["step_time"], rel=1e-7)  # as stored
    assert again["memory_total"] == pytest.approx(third["memory_total"], rel=1e-7)
    assert list(folder.iterdir()) == [folder / "run.sh"]


def test_the_best_is_picked_where_nothing_is_said(file: Path) -> None:
    best = document("best", file, "--top", "1")["strategies"][0]
    found = document("launch", file, "--for", "megatron")
    assert found["strategy"]["tensor_parallel"] == best["tensor_parallel"]
    assert found["strategy"]["micro_batch_size"] == best["micro_batch_size"]
    assert found["settings"]["micro-batch-size"] == best["micro_batch_size"]
    assert found["devices"] == 16
    assert "torchrun" in found["text"]


def test_a_named_strategy_is_written_without_hardware() -> None:
    result = run("launch", *PROBLEM, "--for", "megatron")
    assert result.exit_code == 0, result.stderr
    assert "--nnodes 8 --nproc-per-node 8" in result.stdout
    assert "--tensor-model-parallel-size 4" in result.stdout


def test_a_named_strategy_runs_as_its_software_does() -> None:
    found = document("launch", *PROBLEM, "--for", "torchtitan", "--zero", "3")
    assert found["framework"] == "torchtitan"
    assert not any("projected as" in text for text in found["remarks"])
    found = document(
        "launch", *PROBLEM, "--for", "torchtitan", "--zero", "3", "--framework", "fsdp"
    )
    assert any("projected as fsdp; torchtitan overlaps" in text for text in found["remarks"])


@pytest.mark.parametrize(
    ("software", "framework", "more"),
    [
        ("megatron-bridge", "megatron-tuned", []),
        ("torchtitan", "torchtitan", ["--zero", "3"]),
        ("maxtext", "maxtext", ["--zero", "3", "--pp", "1", "--micro-batch", "2"]),
        ("deepspeed", "megatron-deepspeed", []),
        ("primus", "primus-turbo", []),
    ],
)
def test_every_software_projects_the_same_again(
    software: str, framework: str, more: list[str], folder: Path
) -> None:
    options = [*changed(PROBLEM, *more), "--framework", framework]
    direct = document("project", *options, "--hardware", "dgx-h100")
    result = run("launch", *options, "--hardware", "dgx-h100", "--for", software, "-o", "run")
    assert result.exit_code == 0, result.stderr
    again = document("project", "--from", "run", "--hardware", "dgx-h100")
    assert again["step_time"] == direct["step_time"]
    assert again["memory_total"] == direct["memory_total"]


def test_from_one_software_to_another(folder: Path) -> None:
    run("launch", *PROBLEM, "--for", "megatron", "-o", "run.sh")
    result = run("launch", "--from", "run.sh", "--for", "megatron-bridge")
    assert result.exit_code == 0
    assert "tensor_model_parallel_size: 4" in result.stdout
    assert "num_layers: 32" in result.stdout


def test_nodes_are_those_of_the_profile() -> None:
    result = run("launch", *PROBLEM, "--hardware", "gb200-nvl72", "--for", "megatron")
    assert "--nnodes 16 --nproc-per-node 4" in result.stdout


def test_options_win_over_the_file(folder: Path) -> None:
    run("launch", *PROBLEM, "--for", "megatron", "-o", "run.sh")
    found = document(
        "project", "--from", "run.sh", "--hardware", "dgx-h100", "--micro-batch", "2", "--tp", "2",
        "--dp", "16",
    )  # fmt: skip
    assert (found["micro_batch_size"], found["tensor_parallel"]) == (2, 2)
    assert (found["pipeline_parallel"], found["global_batch_size"]) == (2, 128)
    result = run("explain", "--from", "run.sh", "--hardware", "dgx-h100")
    assert result.exit_code == 0
    assert "tp 4 · pp 2 · vpp 8 · dp 8" in result.stdout


def test_what_the_file_switches_on_is_projected(folder: Path) -> None:
    run("launch", *PROBLEM, "--for", "megatron", "-o", "run.sh")
    before = document("project", "--from", "run.sh", "--hardware", "dgx-h100")
    text = (folder / "run.sh").read_text(encoding="utf-8")
    (folder / "run.sh").write_text(text.replace("--overlap-grad-reduce", ""), encoding="utf-8")
    after = document("project", "--from", "run.sh", "--hardware", "dgx-h100")
    assert after["data_parallel_exposed"] > before["data_parallel_exposed"]


def test_what_is_not_modelled_is_remarked(folder: Path) -> None:
    run("launch", *PROBLEM, "--for", "megatron", "-o", "run.sh")
    with (folder / "run.sh").open("a", encoding="utf-8") as file:
        file.write("--delay-wgrad-compute\n--lr 1e-4\n")
    result = run("project", "--from", "run.sh", "--hardware", "dgx-h100")
    assert result.exit_code == 0
    assert "run.sh: --delay-wgrad-compute: delayed weight gradients are not" in result.stderr
    assert "--lr" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--for", "megatron"], "Missing option '--model'"),
        (["--for", "megatrons", *PROBLEM], "'megatrons' is not"),
        ([*PROBLEM], "Missing option '--for'"),
        ([*PROBLEM, "--for", "megatron", "--pick", "2"], "--pick is for a results file"),
        ([*PROBLEM, "--for", "megatron", "--schedule", "gpipe"],
         "Megatron-LM cannot do pipeline_schedule gpipe: it offers 1f1b, interleaved"),
        ([*PROBLEM, "--for", "megatron", "-o", "no/where.sh"], "folder 'no' does not exist"),
        (["nothing.nc", "--for", "megatron"], "does not exist"),
        (["--from", "missing.sh", "--for", "megatron"], "cannot read 'missing.sh'"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(arguments: list[str], message: str, folder: Path) -> None:
    result = run("launch", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) <= 3  # with click's hint
    assert not list(folder.iterdir())


def test_options_of_a_strategy_do_not_go_with_a_results_file(file: Path) -> None:
    result = run("launch", file, "--tp", "4", "--for", "megatron")
    assert result.exit_code == 2
    assert "--tensor-parallel is for a strategy without a results file" in result.stderr


def test_a_pick_beyond_the_last_says_how_many_there_are(file: Path) -> None:
    result = run("launch", file, "--pick", "5000000", "--for", "megatron")
    assert result.exit_code == 3
    assert "not 5,000,000" in result.stderr


def test_from_and_config_exclude_each_other(folder: Path) -> None:
    run("launch", *PROBLEM, "--for", "megatron", "-o", "run.sh")
    (folder / "run.toml").write_text("tp = 2\n", encoding="utf-8")
    for first, second in (("--from", "--config"), ("--config", "--from")):
        names = {"--from": "run.sh", "--config": "run.toml"}
        given = [first, names[first], second, names[second]]
        result = run("project", *given, "--hardware", "dgx-h100")
        assert result.exit_code == 2
        assert "--from and --config exclude each other" in result.stderr


def test_a_sweep_that_does_not_say_its_model_is_refused(file: Path, folder: Path) -> None:
    import netCDF4

    copy = folder / "bare.nc"
    copy.write_bytes(file.read_bytes())
    with netCDF4.Dataset(copy, "a") as dataset:
        dataset.provenance = json.dumps({"model": {}})
    result = run("launch", copy, "--for", "megatron")
    assert result.exit_code == 2
    assert "no record of a model" in result.stderr or "does not say what was swept" in result.stderr
