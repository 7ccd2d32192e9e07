"""Served models that the tests of ``serve``, ``size`` and ``best`` ask for."""

from __future__ import annotations

import shlex
from typing import Any

from click.testing import Result

from tests.cli.running import changed, document, run

POINT = "--model llama-3.1-8b --hardware dgx-h100 --tp 1 --isl 2048 --osl 256 --concurrency 16"
GRID = (
    "--model llama-3.1-8b --hardware dgx-h100,dgx-h200 --engine vllm,sglang --tp 1,2,3 "
    "--isl 2048 --osl 256 --concurrency 1,64"
)


def serve(text: str, *more: str) -> Result:
    return run("serve", *shlex.split(text), *more)


def point(text: str = POINT, *more: str) -> Any:
    return document("serve", *shlex.split(text), *more)


def changed_text(*more: str) -> str:
    return shlex.join(changed(shlex.split(POINT), *more))
