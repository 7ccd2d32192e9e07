"""What a declared fact moves: runs projected with it and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.measured.kinds.training import case_of
from perfmodel.measured.rows import MeasuredRow

HEADER = (
    "family,quality,is_latest_in_group,task,source,hardware,n_gpus,model,layers,hidden,ffn,heads,"
    "vocab,seq,gbs,precision,framework,version,tp,pp,vpp,mbs,recompute,meas_iter_s"
)
# Narayanan et al. 2021, Table 1 (arXiv:2104.04473): its rows of 1.7 and 3.6 billion parameters.
ROWS = (
    "one,A,yes,pretrain,t,dgx-a100,32,1.7B,24,2304,9216,24,51200,2048,512,fp16,Megatron-LM,2021-04,"
    "1,1,1,16,full,4.05",
    "other,A,yes,pretrain,t,dgx-a100,64,3.6B,30,3072,12288,32,51200,2048,512,fp16,Megatron-LM,"
    "2021-04,2,1,1,16,full,4.10",
)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "dev_training_runs_filled.csv").write_text("\n".join([HEADER, *ROWS]))
    (tmp_path / "dev_training_runs.csv").write_text("\n".join([HEADER, ROWS[0]]))
    return tmp_path


def test_a_switch_says_whom_it_moves(
    script: Any, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families, switches = (script.load(f"accuracy.{name}") for name in ("families", "switches"))
    monkeypatch.setattr(families, "TABLES", {"training": "dev_training_runs_filled.csv"})
    code, out, _ = script("accuracy.switches", tables, "--only", "dropout", "fused_elementwise")
    assert code == 0
    lines = out.splitlines()[2:]
    # Megatron-LM of 2021 has dropout on, and fused kernels.
    assert "one" in lines[0]
    assert "other" in lines[0]
    assert lines[1].endswith("| none |")
    assert set(switches.SWITCHES) >= {"dropout", "fused_elementwise"}


def test_every_fact_that_a_switch_changes_exists(script: Any) -> None:
    cells = dict(zip(HEADER.split(","), ROWS[0].split(","), strict=True))
    case = case_of(MeasuredRow(cells, "table.csv", 2))
    for change in script.load("accuracy.switches").SWITCHES.values():
        assert change(case) is not case
