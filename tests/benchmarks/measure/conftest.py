"""Measuring scripts, imported as they run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.benchmarks.measure.scripts import FOLDER, SCRIPTS
from tests.data import NO_BENCHMARKS


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports a script as it runs, beside `common`."""
    if not FOLDER.is_dir():
        pytest.skip(NO_BENCHMARKS)
    monkeypatch.syspath_prepend(str(FOLDER))
    before = {name: sys.modules.pop(name, None) for name in ("common", "state", "timing", *SCRIPTS)}
    yield importlib.import_module
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.fixture
def common(script: Any) -> ModuleType:
    module: ModuleType = script("common")
    return module
