"""The page that tells how a result variable is added, followed on a copy of the tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import ROOT

pytestmark = pytest.mark.skipif(
    not (ROOT / "perfmodel").is_dir(), reason="an installed package has no sources beside the tests"
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "add-a-result-variable.md"
BLOCK = re.compile(r'^```python title="([^"\n]+)"(?: after="([^"\n]+)")?\n(.*?)^```$', re.M | re.S)
PROGRAM = """
import json, sys
from perfmodel.cli.main import cli
from perfmodel.store.netcdf import read_netcdf
from perfmodel import open_results

path = sys.argv[1]
given = "--model llama-3-8b --hardware dgx-h100 --devices 8 --seq-len 4096 --global-batch 64"
given += f" --pp 2 --tp 1,2 --micro-batch 1 --quiet -o {path}"
cli.main(["sweep", *given.split()], standalone_mode=False)
one = open_results(path).isel(strategy=0, hardware=0)
names = ("bubble_fraction", "pipeline_bubble", "step_time", "model_flops_utilization")
found = {name: float(one[name]) for name in names}
stored = {"stored": read_netcdf(path)["bubble_fraction"].attrs}
print("\\nFOUND", json.dumps(found | stored))
cli.main(["best", path, "--where", "bubble_fraction < 0.9", "--json"], standalone_mode=False)
"""


@pytest.fixture
def tree(tmp_path):
    """A copy of the source files, with the folders that ship inside the package."""
    skip = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    for name in ("perfmodel", "kernels", "cli", "hwprofiles"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=skip)
    assert (tmp_path / "perfmodel" / "kernels").is_symlink()
    return tmp_path


def follow(page: str, tree: Path) -> set[str]:
    """Do to a tree what the blocks of a page say; return the files that were touched."""
    touched = set()
    for title, after, text in BLOCK.findall(page):
        path = tree / title
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        at = len(lines)
        if after:
            at = [line.strip() for line in lines].index(after) + 1
        path.write_text("".join([*lines[:at], text, *lines[at:]]))
        touched.add(title)
    return touched


def test_a_variable_takes_two_source_files(tree):
    page = PAGE.read_text()
    assert len(page.splitlines()) <= 45
    assert len(follow(page, tree)) <= 2
    environment = {**os.environ, "PYTHONPATH": str(tree), "PERFMODEL_JIT": "never"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tree / "out.nc")],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.returncode, done.stderr
    first, _, best = done.stdout.partition("\nFOUND ")[2].partition("\n")
    found = json.loads(first)
    assert found["stored"]["long_name"] == "fraction of the step that is pipeline bubble"
    share = found["pipeline_bubble"] / found["step_time"]
    assert share > 0.0
    assert found["bubble_fraction"] == pytest.approx(share, rel=1e-5)
    assert 0.0 < found["model_flops_utilization"] < 1.0
    answer = json.loads(best)
    assert answer["units"]["bubble_fraction"] == "1"
    assert answer["strategies"][0]["bubble_fraction"] < 0.9
