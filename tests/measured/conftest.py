"""Fixtures of tests that calibrate with the simple model of `tests.measured.toy`."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.measured.kind import KernelKind
from perfmodel.measured.kinds import gemm
from tests.measured.toy import KIND, PROFILE


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> KernelKind:
    """The kind ``gemm`` with the simple model."""
    monkeypatch.setattr(gemm, "KIND", KIND)
    return KIND


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile with two constants of that model, and one that it does not have."""
    path = tmp_path / "my-h100.toml"
    path.write_text(PROFILE, encoding="utf-8")
    return path
