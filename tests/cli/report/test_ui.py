"""``perfmodel ui``: the process as a user starts and ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from perfmodel.report.server.run import bound
from tests.cli.running import assert_one_line, run

pytest.importorskip("uvicorn", reason="the extra 'ui' is not installed")


def test_it_prints_its_link_answers_and_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-m", "perfmodel", "ui", "--no-browser", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        link = process.stdout.readline().strip()
        assert link.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(link, timeout=30) as reply:
            assert b"ask-grid" in reply.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (130, 0)  # older uvicorn keeps the signal to itself
        assert "Traceback" not in process.stderr.read()


def test_a_port_in_use_ends_with_one_line() -> None:
    with bound(0) as taken:
        port = taken.getsockname()[1]
        result = run("ui", "--no-browser", "--port", port)
        assert_one_line(result, f"port {port} is in use; name another one: --port")


def test_what_cannot_be_offered_is_refused_at_once(tmp_path: Path) -> None:
    result = run("ui", "--no-browser", "--model", tmp_path / "none.json")
    assert_one_line(result, "none.json")
    assert_one_line(run("ui", "--no-browser", "--hardware", "dgx-h10"), "dgx-h100")
    assert run("ui", "--port", "70000").exit_code == 2
