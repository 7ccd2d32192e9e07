"""Some damaged commands and files, as `benchmarks/fuzz/fuzz_commands.py` tries many."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import click
import pytest

from perfmodel.cli.group import report
from tests.amount import cases
from tests.data import BENCHMARKS, NO_BENCHMARKS

SCRIPT = BENCHMARKS / "fuzz/fuzz_commands.py"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason=NO_BENCHMARKS)


def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *words]
    environment = os.environ | {"PERFMODEL_JIT": "never"}  # as its workers
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_damaged_commands_are_answered_or_refused_in_one_line() -> None:
    count = cases(400)
    done = fuzz("--cases", str(count), "--seed", "1")
    assert f"{count} cases of seed 1: 0 findings" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_case_is_the_same_every_time_and_can_be_shown(script: Any, tmp_path: Path) -> None:
    shown = fuzz("--seed", "3", "--case", "8", "--only", "kernel gemm").stdout
    module = script.load("fuzz.fuzz_commands")
    module.command_examples.files(tmp_path)  # all that this command reads
    contents = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    case = module.case_of(3, 8, contents, "kernel gemm")
    assert shown.startswith(f"{case.shown()}\ncode ")
    assert shown.endswith("nothing wrong\n")


def test_what_goes_wrong_is_found(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worth nothing if it cannot fail: an exception, a warning, bad JSON, a leftover."""
    module = script.load("fuzz.fuzz_commands")

    @click.command()
    @click.argument("what")
    @click.option("--json", "as_json", is_flag=True)
    def broken(what: str, as_json: bool) -> None:
        if what == "raise":
            raise KeyError("x")
        if what == "warn":
            warnings.warn("careful", RuntimeWarning, stacklevel=1)
        if what == "leave":
            Path(".half").touch()
        if what == "exit":
            sys.exit(1)
        click.echo('{"a": NaN}' if what == "nan" else "{}")

    monkeypatch.chdir(tmp_path)  # the workplace goes elsewhere
    monkeypatch.setattr("perfmodel.cli.group.report", report)  # put back afterwards
    place = module.Workplace(tmp_path)
    place.cli = broken
    verdicts = {
        what: place.run(module.Case("broken", [what, "--json"]))[1]
        for what in ("raise", "warn", "leave", "exit", "nan", "fine")
    }
    assert verdicts.pop("fine") == ""
    for what, part in {
        "raise": "KeyError",
        "warn": "RuntimeWarning: careful",
        "leave": "temporary file",
        "exit": "no error line",
        "nan": "no JSON",
    }.items():
        assert part in verdicts[what], (what, verdicts)
