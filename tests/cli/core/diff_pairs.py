"""What the tests of ``diff`` compare."""

from __future__ import annotations

import shlex
from typing import Any

from click.testing import Result

from tests.cli.running import document, run

OPEN = (
    "--model llama-3.1-8b --hardware dgx-h100 --devices 16 --tp 2 --global-batch 64 --seq-len 4096"
)
"""Leaves open what has likely values."""
RUN = f"{OPEN} --micro-batch 1 --recompute none"
SWEEP = (
    "sweep --model llama-3.1-8b --devices 16 --tp 2,4 --pp 1 --cp 1 --vpp 1 --global-batch 64 "
    "--seq-len 4096 --hardware dgx-h100"
)


def diff(a: Any, b: Any, more: str = RUN) -> Any:
    return document("diff", a, b, *shlex.split(more))


def printed(a: Any, b: Any, more: str = RUN) -> Result:
    return run("diff", a, b, *shlex.split(more))
