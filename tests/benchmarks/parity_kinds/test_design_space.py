"""The script that explores STAGE's design space: its table, its JSON, its reference."""

from __future__ import annotations

import json

import pytest

HEADER = "case,dp,tp,sp,pp,ar,layers,wall_ns,gpu_ns,comm_ns,exposed_ns,peak_mem_B,nodes"

# Of the replica that the runs in tests/parity/stage confirm.
REFERENCE_ROW = "llama70b@system1,32,1,2,1,0,2,108600710,108184748,19030920,415962,5182062592,122"


def test_design_space_side_by_side_and_with_a_reference(tmp_path, script):
    wrong = REFERENCE_ROW.replace(",32,1,2,", ",4,4,4,")
    text = "\n".join([HEADER, REFERENCE_ROW, wrong]) + "\n"
    (tmp_path / "dse_replica_full.csv").write_text(text, encoding="utf-8")
    code, output, _ = script("parity_kinds.design_space", "--layers", 2, "--reference", tmp_path)
    assert code == 0
    assert "reference: 1 of 2 points equal to the nanosecond and the byte" in output
    lines = {line[:16]: line for line in output.splitlines()}
    assert "=" in lines[" 32   1   2   no"]
    assert "≠" in lines["  4   4   4   no"]
    assert len([line for line in lines if line.endswith((" no", "yes"))]) == 56
    assert "wall s  exposed s   peak GB" in output
    assert "ms per point" in output


def test_design_space_as_json(script):
    design_space = script.load("parity_kinds.design_space")
    # Wall time [ns] and memory [B] of Llama's fastest, alone and within 80 GB, and of a third.
    points = [
        design_space.Point(strategy, wall, wall, wall // 4, wall // 9, memory, nodes=122)
        for strategy, wall, memory in (
            ((64, 1, 1, 0), 3_179_500_000, 144_200_000_000),
            ((32, 2, 1, 1), 3_881_000_000, 39_400_000_000),
            ((1, 8, 8, 0), 9_000_000_000, 20_000_000_000),
        )
    ]
    document = design_space.document_of({"llama70b@system1": points}, 2.0, None)
    document = json.loads(json.dumps(document))
    assert document["count"] == 3
    assert document["rate_per_core"] == 1.5
    best = document["best"]["llama70b@system1"]
    assert best["unlimited memory"]["dp"] == 64
    found = best["80 GB"]
    assert (found["dp"], found["tp"], found["sp"], found["activation_recompute"]) == (32, 2, 1, 1)
    assert found["wall_time_s"] == pytest.approx(3.881)
    assert found in document["points"]["llama70b@system1"]
    assert "reference" not in document
    assert design_space.document_of({"llama70b@system1": points}, 2.0, {1: True, 2: False})[
        "reference"
    ] == {"compared": 2, "exact": 1}


def test_design_space_says_what_is_wrong(tmp_path, script):
    code, _, errors = script("parity_kinds.design_space", "--layers", 1)
    assert code == 2
    assert "layers (num_stacks) is 1" in errors
    code, _, errors = script("parity_kinds.design_space", "--layers", 2, "--reference", tmp_path)
    assert code == 2
    assert "dse_replica_full.csv" in errors
    assert errors.count("\n") == 1
