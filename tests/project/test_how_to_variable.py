"""The page that tells how a result variable is added, followed on a copy of the tree."""

from __future__ import annotations

import json

import pytest

from tests.data import DOCS, in_repository
from tests.how_to import copy_sources, follow, run_python

pytestmark = in_repository
PAGE = "add-a-result-variable.md"
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


def test_a_variable_takes_two_source_files(tmp_path):
    assert len((DOCS / "how-to" / PAGE).read_text(encoding="utf-8").splitlines()) <= 45
    assert len(follow(PAGE, copy_sources(tmp_path))) <= 2
    done = run_python(tmp_path, "-c", PROGRAM, str(tmp_path / "out.nc"))
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
