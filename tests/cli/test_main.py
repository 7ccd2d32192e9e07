"""The program as a whole: help, versions, errors of one line, what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import __version__
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.base.wings import WINGS
from perfmodel.cli.group import commands_by_wing
from perfmodel.cli.main import cli
from perfmodel.cli.shared import options
from perfmodel.model.presets import load_model
from perfmodel.software.framework import framework_names
from perfmodel.strategy.enumerate import strategy_grid
from tests.cli.running import assert_one_line, changed, run

RUN = ["--devices", "8", "--seq-len", "4096", "--global-batch", "64"]
SMALL = ["--model", "llama-3.1-8b", "--hardware", "dgx-h100", *RUN]


def commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [()]
    for name, command in cli.commands.items():
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, inner) for inner in command.commands]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_a_help_page_with_examples(command: tuple[str, ...]) -> None:
    for flag in ("--help", "-h"):
        result = run(*command, flag)
        assert result.exit_code == 0
        assert "Examples:" in result.stdout
        assert " ".join(["perfmodel", *command]) in result.stdout
        assert result.stderr == ""


def test_help_of_sweep_and_project_covers_every_strategy_field() -> None:
    for command in ("sweep", "project", "explain"):
        text = run(command, "--help").stdout
        for spec in FIELDS:
            assert f"--{spec.option}" in text
            for choice in spec.choices:
                assert choice.split("-")[0] in text
        together = "".join(text.split())  # lines break at hyphens, too
        for name in framework_names():
            assert name in together


def test_axes_said_to_be_swept_are_those_that_a_grid_varies() -> None:
    grid = strategy_grid(
        load_model("mixtral-8x7b"), 64, sequence_length=32768, global_batch_size=512
    )
    varied = {spec.name for spec in FIELDS if np.unique(grid[spec.name]).size > 1}
    assert varied - set(options.DERIVED) == set(options.SWEPT_FIELDS)


def test_version() -> None:
    assert run("--version").stdout == f"perfmodel {__version__}\n"


def test_lines_of_the_help_page_are_those_of_the_commands() -> None:
    for name, (_, line) in commands_by_wing().homes.items():
        assert line == cli.commands[name].short_help, name
        assert cli.commands[name].name == name


def test_asking_for_help_imports_no_command() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from perfmodel.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0\n"
        "ours = [name for name in sys.modules if name.startswith('perfmodel.')]\n"
        "print(*sorted(ours))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = "base base.errors base.version base.wings cli cli.group cli.main kernels kernels._jit"
    wings = [f"cli.{wing}" for wing in ("core", *WINGS)]
    verbs = [f"{wing}.verbs" for wing in wings]
    named = sorted((*modules.split(), *wings, *verbs))
    assert done.stdout.split() == [f"perfmodel.{name}" for name in named]


def test_the_help_page_lists_commands_by_wing() -> None:
    text = run("--help").stdout
    places = [text.index(f"{title}:") for title in commands_by_wing().sections]
    assert places == sorted(places)
    assert len(places) == 1 + len(WINGS)


def test_no_arguments_show_the_help() -> None:
    result = run()
    assert result.exit_code == 2
    assert "Project, choose and launch:" in result.stdout


def test_importing_and_asking_for_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from perfmodel.cli.main import cli\n"
        "for name in [[], *([name] for name in cli.commands)]:\n"
        "    assert CliRunner().invoke(cli, [*name, '--help']).exit_code == 0\n"
        "heavy = ('numpy', 'numba', 'xarray', 'scipy', 'rich', 'netCDF4')\n"
        "print([name for name in heavy if name in sys.modules], end='')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["sweep"], ["Missing option '--model'", "perfmodel sweep --help"]),
        (["swep"], ["No such command 'swep'"]),
        (["project", "--tpp", "2"], ["No such option", "--tpp"]),
        (
            ["project", *changed(SMALL, "--model", "llama-3.1-7b")],
            ["did you mean", "llama-3.1-70b"],
        ),
        (["project", *changed(SMALL, "--model", "./none.json")], ["none.json: no such file"]),
        (["project", *changed(SMALL, "--hardware", "dgx-h10")], ["unknown hardware", "dgx-h100"]),
        (["project", *changed(SMALL, "--hardware", "./none.toml")], ["none.toml"]),
        (["project", *changed(SMALL, "--hardware", "nvidia-hopper")], ["not a complete system"]),
        (["project", *SMALL, "--framework", "megatrn"], ["did you mean megatron"]),
        (["project", *changed(SMALL, "--devices", "0")], ["--devices", "0 is below 1"]),
        (["project", *changed(SMALL, "--devices", "-8")], ["--devices"]),
        (["project", *changed(SMALL, "--seq-len", "nan")], ["--seq-len", "not a whole number"]),
        (["project", *changed(SMALL, "--seq-len", "0")], ["0 is below 1"]),
        (["project", *changed(SMALL, "--global-batch", "-64")], ["-64 is below 1"]),
        (["project", *SMALL, "--micro-batch", "1.5"], ["'1.5' is not a whole number"]),
        (["project", *SMALL, "--tp", "2,4"], ["should be one value"]),
        (["project", *SMALL, "--tp", "3"], ["8 devices are not a multiple of tp 3", "6 or 9"]),
        (["project", *SMALL, "--tp", "16"], ["not a multiple of tp 16", "16 would be"]),
        (["project", *SMALL, "--tp", "2", "--dp", "8"], ["= 16 is not the 8", "--dp 4"]),
        (
            ["project", *changed(SMALL, "--devices", "63", "--global-batch", "63", "--tp", "3")],
            ["tensor_parallel 3", "32 heads in 8 groups"],
        ),
        (
            ["project", *SMALL, "--pp", "8", "--vpp", "8"],
            ["pipeline_parallel × virtual_pipeline exceeds", "32 layers"],
        ),
        (["project", *SMALL, "--micro-batch", "16"], ["global_batch_size 64", "data_parallel 8"]),
        (["project", *SMALL, "--ep", "2"], ["or the model has none"]),
        (["project", *SMALL, "--sp", "maybe"], ["neither true nor false"]),
        (["project", *SMALL, "--precision", "fp9"], ["did you mean fp8"]),
        (["project", *SMALL, "--precision", "nvfp4"], ["no matrix rate for precision 'nvfp4'"]),
        (["project", *SMALL, "--precision", "mxfp8"], ["no matrix rate for precision 'mxfp8'"]),
        (["project", *SMALL, "--set", "device.memory.bandwidth"], ["PATH=VALUE"]),
        (["project", *SMALL, "--set", "device.memory.bandwith=1e12"], ["device.memory.bandwidth"]),
        (["project", *SMALL, "--set", "device.memory.bandwidth=-1"], ["above 0"]),
        (["project", *SMALL, "--set", "device.memory.bandwidth=nan"], ["finite"]),
        (["project", *SMALL, "--set", "device.memory.bandwidth=fast"], ["a finite number"]),
        (["explain", *SMALL, "--phase", "sideways"], ["--phase"]),
        (["explain", *SMALL, "--top", "0"], ["--top"]),
        (["sweep", *SMALL, "--tp", "1,,2"], ["empty value"]),
        (["sweep", *SMALL, "--tp", "two"], ["'two' is not a whole number"]),
        (["sweep", *SMALL, "--tp", "2", "--dp", "3"], ["never multiply to 8", "--dp"]),
        (["sweep", *SMALL, "--tp", "16"], ["no strategy is possible on 8 devices"]),
        (
            ["sweep", *SMALL, "--tp", "16", "--keep-impossible"],
            ["no strategy is possible on 8 devices"],
        ),
        (["sweep", *SMALL, "--sweep", "device.memory.bandwidth=1:2"], ["START:STOP:COUNT"]),
        (["sweep", *SMALL, "--sweep", "device.memory.bandwidth=1e12:2e12:1"], ["count 1"]),
        (["sweep", *SMALL, "--sweep", "device.memory.bandwidth=0:2e12:3:log"], ["positive ends"]),
        (["sweep", *SMALL, "--sweep", "device.memory.bandwidth=1:2:3:cubic"], ["START:STOP"]),
        (["sweep", *SMALL, "--sweep", "device.memory.bandwidth=1e12,inf"], ["not a finite"]),
        (["sweep", *SMALL, "--sweep", "device.memory.bandwidth=1e12:x:3"], ["'x' is not a number"]),
        (["sweep", *SMALL, "--sweep", "device.memory.speed=1e12,2e12"], ["no value at"]),
        (
            ["sweep", *SMALL, "--sweep", "device.tdp=1,2", "--set", "device.tdp=3"],
            ["both set and swept"],
        ),
        (["sweep", *SMALL, "-o", "missing/sweep.nc"], ["folder 'missing' does not exist"]),
        (["sweep", *SMALL, "-o", "."], ["its name has no ending"]),
        (["sweep", *SMALL, "--threads", "0"], ["--threads"]),
        (["sweep", "--config", "none.toml"], ["cannot read 'none.toml'"]),
        (["best", "none.nc"], ["'none.nc' does not exist"]),
        (["best", "none.nc", "--pareto", "a,b", "--by", "c"], ["exclude each other"]),
        (["hardware", "show", "dgx-h10"], ["unknown hardware"]),
        (["model", "show", "lama-3.1-8b"], ["did you mean llama-3.1-8b"]),
        (["model", "show", "llama-3.1-8b", "--seq-len", "0"], ["--seq-len"]),
        (["compare", "trainin", "runs.csv"], ["did you mean training"]),
        (["compare", "training", "none.csv"], ["none.csv"]),
        (["compare", "training", "none.csv", "--max-error", "lots"], ["10% or 0.1"]),
        (["compare", "training", "none.csv", "--output", "missing/x.csv"], ["does not exist"]),
        (["completion", "tcsh"], ["tcsh"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    arguments: list[str], parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(run(*arguments), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not valid JSON, line 1"),
        ("[]", "should hold a JSON object"),
        ('{"model_type": "llama", "hidden_size": -1}', "hidden_size"),
        ('{"model_type": "rwkv"}', "not modelled yet"),
        ("\x00\x01", "not valid JSON"),
    ],
)
def test_a_broken_model_file_is_one_line(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    assert_one_line(run("model", "show", path), part, str(path))
    assert_one_line(run("project", *changed(SMALL, "--model", str(path))), part, str(path))


def test_a_broken_hardware_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("name = ", encoding="utf-8")
    assert_one_line(run("hardware", "show", str(path)), "not valid TOML", str(path))


def test_the_program_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"perfmodel {__version__}\n"


STEP = "--model llama-3.1-8b --hardware dgx-h100 --seq-len 4096"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"workload chakra {STEP} --devices 131072 --global-batch 131072 -o x", "131,072 files"),
        (f"workload chakra {STEP} --devices 8 --global-batch 4000000 -o x", "traces of 8 ranks"),
        ("workload synthetic chained --devices 1000000 --count 1 --size 1MiB -o x", "files"),
        (f"timeline {STEP} --devices 8 --global-batch 4000000 --dp 8 -o x.json", "events"),
        (f"timeline {STEP} --devices 8 --global-batch 4000000 --dp 8 --pipeline", "events"),
        (
            "serve --model llama-3.1-8b --hardware dgx-h100 --tp 1 --isl 64 --osl 64 --exact "
            "--concurrency 10000000",
            "10,000,000 clients one by one",
        ),
    ],
)
def test_what_takes_too_much_is_refused_before_it_begins(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, words.split())
    assert result.exit_code == 2
    assert said in result.stderr
    assert not list(tmp_path.iterdir())


def test_large_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("perfmodel.base.memory.MANY_FILES", 1)
    monkeypatch.chdir(tmp_path)
    words = ["workload", "synthetic", "chained", "--devices", "2", "--count", "1", "-o", "x"]
    refused = CliRunner().invoke(cli, words)
    assert "2 files" in refused.stderr
    assert "'perfmodel --large'" in refused.stderr
    assert CliRunner().invoke(cli, ["--large", *words]).exit_code == 0
    assert "PERFMODEL_LARGE" not in os.environ
