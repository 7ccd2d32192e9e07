"""Options as every command has them: required ones, lists, and values given twice."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from perfmodel.cli.group import Command
from perfmodel.cli.main import cli
from perfmodel.cli.shared import options
from perfmodel.cli.shared.types import ListType
from tests.cli.running import assert_one_line, document, run

CONFIG = """
model = "llama-3.1-8b"
hardware = ["dgx-h100", "dgx-b200"]
devices = 16
seq-len = 4096
global_batch_size = 64
tp = [1, 2]
sp = [true, false]
pp = 1
micro-batch = [1]
recompute = "full"
json = true
[set]
device.tdp = 500
[sweep]
"system.network.1.bandwidth" = "25e9:50e9:2"
"""


def test_a_configuration_file_gives_options_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(CONFIG, encoding="utf-8")
    result = run("sweep", "--config", str(path), "--hardware", "dgx-h200", "--tp", "4")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert len(document["hardware"]) == 2
    assert all("dgx-h200[device.tdp=500" in name for name in document["hardware"])
    assert {row["tensor_parallel"] for row in document["strategies"]} == {4}
    assert {row["sequence_parallel"] for row in document["strategies"]} == {True, False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = ", "not valid TOML"),
        ("modl = 'x'", "did you mean model"),
        ("tp = 2\ntensor-parallel = 4", "there twice"),
        ("json = 'yes'", "'json' should be true or false"),
        ("tp = { a = 1 }", "not a table"),
        ("devices = 2020-01-01", "should be text, a number"),
        ("tp = [0]", "0 is below 1"),
        ("devices = -4", "--devices"),
        ("set = 'device.tdp'", "PATH=VALUE"),
    ],
)
def test_a_bad_configuration_file_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    problem = "--model llama-3.1-8b --hardware dgx-h100 --seq-len 4096 --global-batch 64"
    devices = [] if "devices" in text else ["--devices", "8"]
    result = run("sweep", *shlex.split(problem), *devices, "--config", str(path))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


TABLES = {path.parent.name: path for path in sorted(options.FOLDER.glob(f"*/{options.FILE}"))}


def test_every_wing_has_a_table():
    assert set(TABLES) >= {"core", "shared", "workloads", "wafer", "measured", "report"}


@pytest.mark.parametrize("wing", TABLES)
def test_every_row_of_a_table_makes_an_option(wing):
    for table, rows in tomllib.loads(TABLES[wing].read_text(encoding="utf-8")).items():
        found = options.fields_of(f"{wing}.{table}")
        assert list(found) == list(rows)
        for field in found.values():
            assert field.kind in options.TYPES, field.name
            assert field.description, field.name


@pytest.mark.parametrize("wing", sorted(TABLES.keys() - {"shared"}))
def test_every_page_is_that_of_a_command(wing):
    pages = tomllib.loads((options.FOLDER / wing / "pages.toml").read_text(encoding="utf-8"))
    for path, text in pages.items():
        parent: Any = cli
        command: Any = cli
        for name in path.split():
            context = click.Context(command)
            if name.startswith("--"):  # AICB's text of one of our models
                name, command, _ = parent.resolve_command(context, ["aicb", name])
            else:
                parent, command = command, command.get_command(context, name)
        assert command.help == text


@pytest.fixture
def command(monkeypatch):
    table = {
        "count": {"kind": "int", "minimum": 1, "default": 3, "description": "How many."},
        "names": {"kind": "names", "spellings": ["-n", "--names"], "description": "Which."},
        "loud": {"kind": "flag", "description": "Say more."},
    }
    monkeypatch.setattr(options, "_document", lambda wing: {"made": table})
    options.fields_of.cache_clear()

    @click.command(cls=Command)
    @options.options_of("core.made", "count", "names", "loud")
    def made(count, names, loud):
        click.echo(repr((count, names, loud)))

    yield made
    options.fields_of.cache_clear()


def test_values_are_read_and_checked(command):
    run = CliRunner()
    assert run.invoke(command, []).output == "(3, None, False)\n"
    given = ["--count", "2", "-n", "a,b", "--names", "b", "--loud"]
    assert run.invoke(command, given).output == "(2, ['a', 'b'], True)\n"
    refused = run.invoke(command, ["--count", "0"])
    assert refused.exit_code == 2
    assert "--count" in refused.output


def test_the_help_page_has_words_defaults_and_order(command):
    text = CliRunner().invoke(command, ["--help"]).output
    places = [text.index(word) for word in ("How many.", "Which.", "Say more.")]
    assert places == sorted(places)
    assert "[default: 3" in text


ONE = "--model gpt2 --hardware dgx-h100 --devices 1 --seq-len 1024 --global-batch 2"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by what is typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(cli))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_required_option_is_missing_where_it_is_not_given(command: click.Command) -> None:
    context = click.Context(command)
    for option in command.params:
        if not isinstance(option, click.Option) or option.is_eager:
            continue
        if option.required:
            with pytest.raises(click.MissingParameter, match=option.name):
                option.handle_parse_result(context, {}, [])
        else:
            option.handle_parse_result(context, {}, [])


def test_what_takes_a_list_may_be_repeated() -> None:
    once = [
        f"{name} {option.opts[0]}"
        for name, command in COMMANDS.items()
        for option in command.params
        if isinstance(option, click.Option)
        and isinstance(option.type, ListType)
        and not option.multiple
    ]
    assert not once


@pytest.mark.parametrize("command", ["project", "explain", "workload chakra", "sweep"])
@pytest.mark.parametrize("left_out", ["--seq-len", "--global-batch", "--devices", "--model"])
def test_nothing_required_has_a_silent_default(command: str, left_out: str) -> None:
    words = shlex.split(ONE)
    at = words.index(left_out)
    output = ["-o", "x"] if command.startswith("workload") else []
    result = run(*command.split(), *words[:at], *words[at + 2 :], *output)
    assert_one_line(result, "Missing option", left_out)


@pytest.mark.parametrize(
    ("command", "more", "parts"),
    [
        ("project", "--hardware h200", ("--hardware is given twice",)),
        ("explain", "--model gpt2 --model gpt2", ("--model is given 3 times",)),
        ("project", "--tp 1 --tp 1", ("--tp is given twice",)),
        ("sweep", "-o a.nc -o b.nc", ("-o is given twice",)),
        ("sweep", "--set device.tdp=1 --set device.tdp=2", ("'device.tdp' is set twice",)),
        ("sweep", "--sweep device.tdp=1,2 --sweep device.tdp=3", ("'device.tdp' is swept twice",)),
    ],
)
def test_a_second_value_is_refused_where_one_is_taken(
    command: str, more: str, parts: tuple[str, ...]
) -> None:
    assert_one_line(run(command, *shlex.split(f"{ONE} {more}")), *parts)


@pytest.mark.parametrize("option", ["--hardware a,b", "--model a,b", "--devices 1,2"])
def test_a_list_is_refused_where_one_is_taken(option: str) -> None:
    name = option.split()[0]
    words = shlex.split(ONE)
    at = words.index(name)
    result = run("project", *words[:at], *words[at + 2 :], *option.split())
    assert_one_line(result, name, "should be one value; 'perfmodel sweep' takes lists")


def test_switches_may_be_repeated() -> None:
    assert run("-q", "project", *shlex.split(ONE), "-q", "-q", "--json", "--json").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        "kernel gemm --m 16 --n 64 --k 64",
        "collective all_reduce --members 8 --size 1MiB",
        "sweep --model gpt2 --devices 1 --seq-len 1024 --global-batch 1",
    ],
)
def test_hardware_is_a_list_or_repeated(arguments: str) -> None:
    words = shlex.split(arguments)
    joined = document(*words, "--hardware", "dgx-h100,b200", "--hardware", "h200")
    apart = document(*words, *shlex.split("--hardware dgx-h100 --hardware b200 --hardware h200"))
    assert joined == apart
    rows = joined.get("rows")
    found = joined["hardware"] if rows is None else [row["hardware"] for row in rows]
    assert list(dict.fromkeys(found)) == ["dgx-h100", "dgx-b200", "dgx-h200"]


STEP = "--model gpt2 --hardware dgx-h100 --devices 8 --seq-len 1024 --global-batch 64"


def test_a_clock_is_set_in_any_spelling(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('gpu-clock = "1200MHz"')
    words = (
        ["--set", "device.boost_clock=1.2e9"],
        ["--gpu-clock", "1.2GHz"],
        ["--gpu-clock-mhz", "1200"],
        ["--config", str(path)],
    )
    found = [document("project", *shlex.split(STEP), *more) for more in words]
    assert found[0]["hardware"] == "dgx-h100[device.boost_clock=1.2e+09]"
    assert found[0]["step_time"] > document("project", *shlex.split(STEP))["step_time"]
    assert all(it == found[0] for it in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--gpu-clock 12", "'12' should be a clock from 1MHz to 100GHz, as in 1.2GHz"),
        ("--gpu-clock-mhz fast", "'fastMHz' should be a clock"),
        ("--gpu-clock 1GHz --gpu-clock-mhz 1000", "'device.boost_clock' is set twice"),
        ("--gpu-clock 1GHz --set device.boost_clock=1e9", "'device.boost_clock' is set twice"),
    ],
)
def test_a_wrong_clock_is_refused(text: str, message: str) -> None:
    assert_one_line(run("project", *shlex.split(f"{STEP} {text}")), message)
