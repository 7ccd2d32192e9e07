"""The script that compares STAGE workloads with runs: what it finds and refuses."""

from __future__ import annotations

import json

from tests.workloads.twins.stage.runs import CASE_NAMES, HASH_ORDER_RUNS, figures, run_point


def test_parity_script(tmp_path, script):
    """A table as that of the runs, one of its rows wrong."""
    columns = [f"{who}_{name}" for who in ("sim", "rep") for name in
               ("wall", "exposed", "gpu", "comm", "peak")]  # fmt: skip
    lines = [",".join(["case,dp,tp,sp,ar,layers", *columns])]
    for model, strategy, layers, times, peak in HASH_ORDER_RUNS[:2]:
        ours = figures(run_point(model, strategy, layers))
        lines.append(
            ",".join(map(str, (CASE_NAMES[model], *strategy, layers, *times, peak, *ours)))
        )
    lines.append(lines[-1].replace("6756887552", "6756887553"))
    (tmp_path / "dse_real_unordered.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    code, output, _ = script("parity", "stage", tmp_path, "--json")
    document = json.loads(output)
    assert code == 0
    assert document["groups"]["runs in hash order"]["count"] == 3
    assert document["groups"]["runs in hash order"]["exact"] == 2
    assert document["groups"]["replica"]["exact"] == 3
    assert document["uncovered"] == {}
    code, output, _ = script("parity", "stage", tmp_path)
    assert "5 of 6 exact" in output
    code, _, errors = script("parity", "stage", tmp_path / "nothing")
    assert code == 2
    assert "has none of" in errors


def test_parity_script_on_the_references(development_table, script):
    """Everything that the references state, none of it left out."""
    code, output, _ = script("parity", "stage", development_table("astra"), "--json")
    document = json.loads(output)
    assert code == 0
    assert document["exact"] == document["count"] >= 157
    assert document["uncovered"] == {}
    assert document["other_order"]["worst_relative_error"] < 0.015
    needed = {"exploration", "runs", "winners", "sanity", "sanity in hash order", "traces",
              "runs in hash order", "sanity times within 1.5%"}  # fmt: skip
    assert needed <= set(document["groups"])
