"""Options as every command has them: required ones, lists, and values given twice."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest

from perfmodel.cli.main import cli
from perfmodel.cli.shared.types import ListType
from tests.cli.running import assert_one_line, document, run

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
