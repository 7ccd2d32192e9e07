"""Files and folders that the tests of several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.sweeping import run_sweep


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored sweep of two devices."""
    path = tmp_path_factory.mktemp("sweep") / "sweep.nc"
    result = run_sweep("--hardware dgx-h100 --hardware dgx-b200", "-o", str(path))
    assert result.exit_code == 0, result.stderr
    return path
