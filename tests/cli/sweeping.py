"""The sweep that the tests of ``sweep`` and ``best`` read."""

from __future__ import annotations

import shlex

from click.testing import Result

from tests.cli.running import run

PROBLEM = "--model llama-3.1-8b --devices 16 --seq-len 4096 --global-batch 64"
AXES = "--tp 1,2,3 --pp 1,2 --cp 1 --vpp 1 --micro-batch 1,2 --recompute none,full"


def run_sweep(text: str, *more: str) -> Result:
    return run("sweep", *shlex.split(f"{PROBLEM} {AXES} {text}"), *more)
