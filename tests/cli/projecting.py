"""Projections that the tests of ``project`` and ``explain`` ask for."""

from __future__ import annotations

import json
import shlex
from typing import Any

from click.testing import CliRunner, Result

from perfmodel.cli.main import cli

DENSE = (
    "--model llama-3.1-8b --hardware dgx-h100 --devices 32 --tp 4 --pp 2 --global-batch 64 "
    "--seq-len 8192"
)

PROBLEMS = {
    "dense": DENSE,
    "recompute": f"{DENSE} --recompute full --cp 2",
    "interleaved": f"{DENSE} --vpp 4 --recompute selective",
    "sharded": "--model llama-3.1-8b --hardware dgx-h100 --devices 32 --zero 3 --seq-len 4096 "
    "--global-batch 64 --recompute full",
    "experts": "--model mixtral-8x7b --hardware dgx-b200 --devices 64 --ep 8 --pp 4 --tp 2 "
    "--seq-len 4096 --global-batch 256 --precision fp8",
    "latent": "--model deepseek-v3 --mtp stated --hardware dgx-h100 --devices 512 --ep 32 --pp 16 "
    "--seq-len 4096 --global-batch 1024 --recompute full",
}


def run(command: str, text: str, *more: str) -> Result:
    return CliRunner().invoke(cli, [command, *shlex.split(text), *more], prog_name="perfmodel")


def document(command: str, text: str) -> Any:
    result = run(command, text, "--json")
    assert result.exit_code in (0, 3), result.stderr
    return json.loads(result.stdout)
