"""``perfmodel report``: what it prints, and how it leaves; ``perfmodel ui``, started and ended."""

import json
import signal
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.cli.main import cli
from perfmodel.cli.report.server.run import bound
from tests.cli.running import assert_one_line
from tests.cli.running import run as perfmodel

COMPARED = "id,line,measured,projected,error,throughput_error,skip_reason\na,2,2.0,2.2,0.1,-0.1,\n"


def run(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "errors.csv"
    path.write_text(COMPARED)
    return path


def test_it_says_what_it_wrote(runs, tmp_path):
    path = tmp_path / "report.html"
    done = run(runs, "-o", path, "--json", "--title", "Runs", "--top", 3)
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert said["bytes"] == path.stat().st_size
    assert said["populations"] == [
        {"kind": "comparison", "rows": 1, "exact": 1, "total": 1, "selection": "", "pictures": 0}
    ]
    assert "<title>Runs</title>" in path.read_text()
    assert f"wrote {path}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["errors.csv", "-o", "no/report.html"], 2, "does not exist"),
        (["errors.csv", "-o", "errors.csv"], 2, "ends in .html"),
        (["missing.nc", "-o", "report.html"], 2, "does not exist"),
        (["errors.csv", "-o", "report.html", "--where", "erro > 1"], 2, "error"),
        (["errors.csv", "-o", "report.html", "--where", "error > 1"], 3, "passes the filter"),
        (["errors.csv", "-o", "report.html", "--price", "2"], 2, "costs"),
        (["-o", "report.html"], 2, "FILE"),
    ],
)
def test_wrong_input_is_one_line(runs, tmp_path, monkeypatch, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == code
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert [it.name for it in tmp_path.iterdir()] == ["errors.csv"]


needs_ui = pytest.mark.skipif(
    find_spec("uvicorn") is None, reason="the extra 'ui' is not installed"
)


@needs_ui
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


@needs_ui
def test_a_port_in_use_ends_with_one_line() -> None:
    with bound(0) as taken:
        port = taken.getsockname()[1]
        result = perfmodel("ui", "--no-browser", "--port", port)
        assert_one_line(result, f"port {port} is in use; name another one: --port")


@needs_ui
def test_what_cannot_be_offered_is_refused_at_once(tmp_path: Path) -> None:
    result = perfmodel("ui", "--no-browser", "--model", tmp_path / "none.json")
    assert_one_line(result, "none.json")
    assert_one_line(perfmodel("ui", "--no-browser", "--hardware", "dgx-h10"), "dgx-h100")
    assert perfmodel("ui", "--port", "70000").exit_code == 2
