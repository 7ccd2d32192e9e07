"""Host facts of engines, fitted to measured runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

HEADER = (
    "hardware,n_gpus,engine,version,model,tp,isl,osl,concurrency,ttft_ms,tpot_ms,is_latest_in_group"
)


def runs(folder: Path, slower: float) -> Path:
    """Write runs of a model whose first tokens take some seconds more than declared."""
    from perfmodel.measured.compare import compare_file

    rows = [f"H100,{tp},vLLM,0.12.0,Qwen3-32B,{tp},1024,128,4,100,10,yes" for tp in (2, 4)]
    (folder / "e2e").mkdir()
    path = folder / "e2e/dev_serving_runs.csv"
    path.write_text("\n".join([HEADER, *rows]), encoding="utf-8")
    lines = []
    for text, row in zip(rows, compare_file("serving", path, metric="ttft").rows, strict=True):
        details = row.outcome.details
        first = 1e3 * (details["time_to_first_token_mean"] + slower)
        each = 1e3 * details["time_per_output_token_mean"]
        lines.append(text.replace(",100,10,", f",{first:.6f},{each:.6f},"))
    path.write_text("\n".join([HEADER, *lines]), encoding="utf-8")
    return folder


def test_what_runs_were_made_with_is_found(script: Any, tmp_path: Path) -> None:
    serving = script.load("fit.serving")
    groups = serving.read_groups(runs(tmp_path, 0.02) / "e2e/dev_serving_runs.csv")["vllm"]
    declared = groups[0].engines[0].request_host
    assert serving.errors(groups, {})["tpot"]["median_absolute_error"] < 1e-3
    found = serving.fit(groups, ["request_host"])
    assert found["request_host"] == pytest.approx(declared + 0.02, rel=0.1)
    ratios = groups[0].ratios(found)["ttft"]
    assert ratios == pytest.approx([1.0, 1.0], rel=0.02)


def test_the_script_prints_facts_and_errors(script: Any, tmp_path: Path) -> None:
    folder = runs(tmp_path, 0.0)
    arguments = ("--data", folder, "--free", "request_host")
    code, out, _ = script("fit.serving", *arguments, "--json")
    assert code == 0
    assert json.loads(out)["vllm"]["fitted"]["ttft"]["median_absolute_error"] < 0.01
    code, _, err = script("fit.serving", *arguments, "--engine", "tgi")
    assert code == 2
    assert "no runs of 'tgi'; there are vllm" in err
