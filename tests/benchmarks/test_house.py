"""The counter of the house, on a small tree."""

from __future__ import annotations

from pathlib import Path

import pytest

FLOORS = """
[[tool.importlinter.contracts]]
name = "Floors"
layers = ["cli", "wafer", "model", "base"]
"""
FILES = {
    "perfmodel/base/a.py": "from perfmodel.base.b import y\n"
    "from perfmodel.model.m import z\nx = 1\n",
    "perfmodel/base/b.py": "def y():\n    from perfmodel.base.a import x\n    return x\n",
    "perfmodel/model/m.py": "z = 1\n",
    "perfmodel/wafer/w.py": "from perfmodel.model.m import z\n",
    "cli/wafer/c.py": "import click\nclick.option('--a')\n",
    "tests/test_a.py": "assert True\n",
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text(FLOORS)
    return tmp_path


def test_what_is_counted(script, small):
    found = script.load("house").count(small)
    assert found["lines"] == {"core": 7, "wafer": 3, "all": 10}
    assert found["files"] == {"core": 3, "wafer": 2, "all": 5}
    assert found["arrows"] == 2
    assert found["upward_arrows"] == ["base -> model"]
    assert found["circles"] == [["perfmodel.base.a", "perfmodel.base.b"]]
    assert found["options_by_hand"] == 1
    assert found["test_lines"] == 1
    assert found["function_length"] == {"median": 3, "percentile_95": 3}
