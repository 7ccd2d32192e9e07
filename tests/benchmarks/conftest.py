"""Scripts of `benchmarks`, run as a user runs them: they are in the repository only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.data import BENCHMARKS, NO_BENCHMARKS


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Return a function that runs a script by its name: exit code, stdout, stderr.

    Its ``load`` only imports one, such as "parity_kinds.stage". What was imported is forgotten
    afterwards: names like `common` are not the scripts' own.
    """
    if not BENCHMARKS.is_dir():
        pytest.skip(NO_BENCHMARKS)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)

    def run(name: str, *arguments: Any) -> tuple[int, str, str]:
        module = importlib.import_module(name)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        code = module.main()
        return code, *capsys.readouterr()

    run.load = importlib.import_module  # type: ignore[attr-defined]
    yield run
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def parity(script: Any) -> Any:
    """Return a function that runs ``benchmarks/parity.py``: exit code, stdout, stderr."""
    return partial(script, "parity")
