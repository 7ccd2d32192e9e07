"""What is shown while work runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import run
from tests.data import ROOT

CHAIN = ("workload", "synthetic", "chained", "--count", "2", "--devices")


def on_terminal(*arguments: str) -> tuple[str, str]:
    """Run the program with a terminal as stderr; return stdout and what was on it."""
    pty = pytest.importorskip("pty", reason="terminals are tested where there are any")
    ours, theirs = pty.openpty()
    # Read while it runs: a terminal holds a few kilobytes, and then whoever writes waits.
    with subprocess.Popen(
        [sys.executable, "-m", "perfmodel", *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)},
    ) as program:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed and everything was read
                break
            if not part:
                break
            seen += part
        assert program.stdout is not None
        stdout = program.stdout.read()
    assert program.returncode == 0
    os.close(ours)
    return stdout.decode(), seen.decode()


def test_progress_is_shown_on_a_terminal_and_to_nobody_else(folder: Path) -> None:
    chain = (*CHAIN, "8", "-o", "x")
    stdout, stderr = on_terminal(*chain)
    assert stdout == ""
    assert "writing x" in stderr
    assert "8/8" in stderr
    assert "writing x" not in on_terminal(*chain, "--quiet")[1]
    assert "writing x" not in run(*chain).stderr
    stdout, stderr = on_terminal("simulate", "x", "--hardware", "dgx-h100")
    assert "reading x" in stderr
    assert "running 16 nodes of 8 ranks" in stderr
    assert "reading" not in stdout
    stdout, stderr = on_terminal("simulate", "x", "--hardware", "dgx-h100", "--json")
    assert json.loads(stdout)["ranks"] == 8
    assert "reading" not in stderr
