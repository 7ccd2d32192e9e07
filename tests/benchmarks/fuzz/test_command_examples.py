"""Every command has good command lines to damage, and they are good."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from perfmodel.cli.main import cli
from tests.amount import cases
from tests.cli.running import run


def commands(command: Any, name: str = "") -> Iterator[str]:
    """Yield the names of all commands below one."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            yield from commands(command.get_command(context, each), f"{name} {each}")
    else:
        yield name.strip()


@pytest.fixture
def examples(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    module = script.load("fuzz.fuzz_commands").command_examples
    monkeypatch.chdir(tmp_path)
    module.files(tmp_path)
    return module


def test_every_command_has_examples(examples: Any) -> None:
    assert sorted(examples.COMMANDS) == sorted(set(commands(cli)))


def test_every_example_is_good(examples: Any, tmp_path: Path) -> None:
    """All of them before a release; else as many of each command's as `cases` says."""

    def check(line: str) -> None:
        result = run(*shlex.split(line))
        above = "--max-error" in line and "above --max-error" in result.stderr
        assert result.exit_code in (0, 3) or above, f"{line}: {result.stderr}"

    for line in examples.MADE:
        check(line)
    for name, line in examples.PRINTED.items():
        (tmp_path / name).write_text(run(*shlex.split(line)).stdout)
    made = set(tmp_path.iterdir())
    asked = {name: lines for name, (_, lines) in examples.COMMANDS.items() if name != "ui"}
    for line in (line for lines in asked.values() for line in lines[: cases(len(lines), 1)]):
        check(line)
        for path in set(tmp_path.iterdir()) - made:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
