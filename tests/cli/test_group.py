"""Commands of one kind: errors of one line, interruptions, closed pipes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.cli.running import assert_one_line, run


def test_an_unexpected_failure_is_one_line_and_a_traceback_only_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> Any:
        raise RuntimeError("the roof\nis on fire")

    monkeypatch.setattr("perfmodel.model.presets.load_model", fail)
    assert_one_line(
        run("model", "show", "gpt2"), "unexpected RuntimeError: the roof is on fire", "-v", code=1
    )
    loud = run("model", "show", "gpt2", "-v")
    assert loud.exit_code == 1
    assert "Traceback" in loud.stderr


def test_an_interruption_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("perfmodel.model.presets.load_model", interrupt)
    result = run("model", "show", "gpt2")
    assert result.exit_code == 130
    assert result.stderr.strip() == "perfmodel: interrupted"


def test_a_closed_pipe_is_no_failure_with_a_traceback() -> None:
    code = "from perfmodel.cli.main import main; main()"
    program = subprocess.Popen(
        [sys.executable, "-c", code, "hardware", "show", "dgx-h100"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    assert b"Traceback" not in program.stderr.read()
    program.stderr.close()
    program.wait()
