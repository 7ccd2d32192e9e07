"""Constants of meshes, fitted to published runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.hwprofiles.mesh_loader import load_mesh
from tests.data import PUBLISHED_WAFERS, needed


def test_the_constants_that_ship_are_those_that_published_runs_give(
    script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.load("fit.wafer").main([str(needed(PUBLISHED_WAFERS)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    shipped = load_mesh("wse-2").constants
    both = [one for one in found["judgements"] if len(one["fitted"]) == 2]
    assert {one["phase"] for one in both} == {"prefill", "decode"}
    for one in both:
        assert {name: shipped[name] for name in one["constants"]} == pytest.approx(
            one["constants"], rel=0.02
        )
    for one in found["chips"]:
        assert one["rows"] == 12
        (name,) = one["constants"]
        assert load_mesh("n150").constant(name) == pytest.approx(one["constants"][name], rel=0.15)


def test_a_missing_table_is_one_line(
    script: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert script.load("fit.wafer").main([str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
