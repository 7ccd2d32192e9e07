"""The program run as a user runs it, and what every run has to keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from click.testing import CliRunner, Result

from perfmodel.cli.main import cli


def run(*arguments: Any) -> Result:
    """Run ``perfmodel`` with arguments."""
    return CliRunner().invoke(cli, [*map(str, arguments)], prog_name="perfmodel")


def document(*arguments: Any) -> Any:
    """Run a command that succeeds with ``--json``, and return what it prints."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["schema_version"]
    return found


def changed(words: Sequence[str], *more: str) -> list[str]:
    """Return a command with the options of `more` in place of its own."""
    left, given = list(words), {word for word in more if word.startswith("--")}
    for name in given & set(left):
        at = left.index(name)
        del left[at : at + 2]
    return [*left, *more]


def assert_one_line(result: Result, *parts: str, code: int = 2) -> None:
    """The run ended with a code, one line on stderr, and nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("perfmodel: error: ")
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr
