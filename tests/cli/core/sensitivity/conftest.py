"""Stored results whose sensitivities are asked for."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.core.diff.pairs import SWEEP
from tests.cli.running import run


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sensitivity") / "sweep.nc"
    assert run(*shlex.split(SWEEP), "-o", path).exit_code == 0
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "serve.nc"
    words = "serve --model llama-3.1-8b --hardware dgx-h200 --tp 1,2 --isl 1024 --osl 128"
    assert run(*shlex.split(words), "--concurrency", 8, "-o", path).exit_code == 0
    return path
