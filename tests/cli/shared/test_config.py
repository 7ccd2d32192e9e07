"""Configuration files: options from a file, and files at fault."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.running import run

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
