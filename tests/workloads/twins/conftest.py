"""Files that runs of `perfmodel.workloads.twins.engines` need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.workloads.formats.chakra.files import write_traces
from tests.cli.workloads.test_simulate import (
    AICB,
    MICRO,
    NATIVE_NETWORK,
    NATIVE_SYSTEM,
    NETWORK,
    SYSTEM,
    step,
)


@pytest.fixture
def run_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of every kind, which is the current one."""
    monkeypatch.chdir(tmp_path)
    contents = {
        "network.yml": NETWORK,
        "system.json": json.dumps(SYSTEM),
        "native.json": json.dumps(NATIVE_NETWORK),
        "system.txt": NATIVE_SYSTEM,
        "micro.txt": MICRO,
        "aicb.txt": AICB,
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    write_traces(step(4), tmp_path / "step")
    return tmp_path
