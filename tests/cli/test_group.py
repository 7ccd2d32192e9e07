"""Commands of one kind: errors of one line, interruptions, closed pipes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import MachineError
from tests.cli.running import assert_one_line, run


def test_an_unexpected_failure_is_one_line_and_a_traceback_only_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*names: object, **others: object) -> Any:
        raise RuntimeError("the roof\nis on fire")

    monkeypatch.setattr("perfmodel.model.presets.load_model", fail)
    assert_one_line(
        run("model", "show", "gpt2"), "unexpected RuntimeError: the roof is on fire", "-v", code=1
    )
    loud = run("model", "show", "gpt2", "-v")
    assert loud.exit_code == 1
    assert "Traceback" in loud.stderr


def test_a_number_of_thousands_of_digits_is_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "perfmodel.model.presets.load_model", lambda *given, **named: int("9" * 5000)
    )
    assert_one_line(run("model", "show", "gpt2"), "a number has thousands of digits")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interruption_while_the_program_is_imported_is_one_line() -> None:
    done = program(
        "import sys, signal; sys.argv[0] = '/bin/perfmodel'\n"
        "import perfmodel; signal.raise_signal(signal.SIGINT)",
        preexec_fn=heed_signals,
    )
    assert (done.returncode, done.stderr) == (130, "perfmodel: interrupted\n")


def test_an_interruption_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*names: object, **others: object) -> Any:
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


def program(text: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, as the program runs."""
    given = {"capture_output": True, "text": True, "timeout": 120} | given
    return subprocess.run([sys.executable, "-c", text], check=False, **given)


WRITES_FOR_EVER = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from perfmodel.base.files import atomic_path
from perfmodel.cli.group import prepare_process
prepare_process()
with ThreadPoolExecutor() as pool, atomic_path(sys.argv[1]) as path:
    pool.submit(threading.Event().wait)  # unwinding would wait for it, without end
    path.write_text("half")
    print("ready", flush=True)
    threading.Event().wait()
"""


def heed_signals() -> None:
    """Signals act, even where whoever runs the tests ignores them, as nohup does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("name", "code", "word"),
    [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated"), ("SIGHUP", 129, "hung up")],
)
def test_a_signal_ends_the_run_at_once_without_leftovers(
    name: str, code: int, word: str, tmp_path: Path
) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path / "x.nc")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_signals,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    assert len(os.listdir(tmp_path)) == 1
    run.send_signal(getattr(signal, name))
    _, stderr = run.communicate(timeout=60)
    assert stderr.decode() == f"perfmodel: {word}\n"
    assert run.returncode == code
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_that_is_ignored_stays_so() -> None:
    done = program(
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from perfmodel.cli.group import prepare_process; prepare_process()\n"
        "signal.raise_signal(signal.SIGHUP); print('goes on')"
    )
    assert done.stdout == "goes on\n", done.stderr


MAIN = "from perfmodel.cli.main import main; main()"


def test_closed_output_is_said() -> None:
    text = f"import sys; sys.argv[1:] = ['--version']; sys.stdout = None; {MAIN}"
    done = program(text)
    assert done.returncode == 2
    assert done.stderr == "perfmodel: error: standard output is closed; results go there\n"
    quiet = program(f"import sys; sys.argv[1:] = ['best', 'no.nc']; sys.stderr = None; {MAIN}")
    assert quiet.returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_that_is_full_is_a_failure_of_one_line() -> None:
    text = f"import sys; sys.argv[1:] = ['hardware', 'list']; {MAIN}"
    with open("/dev/full", "w") as full:
        done = program(text, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == "perfmodel: error: no space left on device\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PermissionError(13, "Permission denied", "x.json"), 2, "'x.json': permission denied"),
        (OSError(28, "No space left on device", "x"), 1, "'x': no space left on device"),
        (OSError(5, "Input/output error"), 1, "input/output error"),
        (MachineError("the disk is full"), 1, "the disk is full"),
    ],
)
def test_what_the_system_refuses_is_expected(
    error: Exception, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*names: object, **others: object) -> Any:
        raise error

    monkeypatch.setattr("perfmodel.model.presets.load_model", fail)
    result = run("model", "show", "gpt2")
    assert_one_line(result, message, code=code)
    assert "unexpected" not in result.stderr


def test_messages_are_bounded_and_printable() -> None:
    result = run("hardware", "show", "x" * 5000)
    assert_one_line(result)
    assert len(result.stderr) < 1600
    assert_one_line(run("a\u202eb"), "No such command 'a\\u202eb'")


def test_verbose_says_what_was_taken_and_how_long_it_took() -> None:
    words = [
        "--model",
        "gpt2",
        "--hardware",
        "h100",
        "--devices",
        "8",
        "--seq-len",
        "1024",
        "--global-batch",
        "8",
    ]
    result = run("project", *words, "-v", "--framework", "fsdp")
    assert result.exit_code == 0
    assert "model gpt2: 124 M parameters in 12 layers" in result.stderr
    assert "hardware dgx-h100: " in result.stderr
    assert "software fsdp: PyTorch FSDP" in result.stderr
    assert re.search(r"^perfmodel project: \d+\.\d\d s", result.stderr, re.MULTILINE)
    quiet = run("project", *words, "--framework", "fsdp")
    assert quiet.stdout == result.stdout
    assert "perfmodel project" not in quiet.stderr
    assert re.search(r"^perfmodel hardware list: ", run("hardware", "list", "-v").stderr)
