"""Measured peaks of memory: which parts of a projection a row means, and in what unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import DataError
from perfmodel.kernels.variables import MEMORY_COMPONENTS
from perfmodel.measured.compare import compare_file
from perfmodel.measured.kinds.memory import (
    case_of,
    measured_peak,
    reading_of,
    stated_elsewhere,
)
from perfmodel.measured.rows import MeasuredRow, Skip, words
from tests.measured.kinds.test_training import row as run
from tests.measured.kinds.test_training import write


def row(**cells: Any) -> MeasuredRow:
    return run(meas_tokens_s_gpu="", **{"meas_peak_mem_GB": 70.0, **cells})


def test_the_unit_and_what_was_read_are_obeyed() -> None:
    smi = "nvidia-smi snapshot max of first/last node (includes CUDA context)"
    torch = "max over ranks of torch max_memory_allocated"
    assert reading_of(row(unit="GB", meaning=smi)) == ("device", 1e9)
    assert reading_of(row(unit="GiB", meaning=torch)) == ("allocated", 2.0**30)
    assert reading_of(row(meaning="torch peak reserved as logged")) == ("reserved", 2.0**30)
    assert reading_of(row()) == ("device", 1e9)
    assert measured_peak(row(unit="GiB", meaning=torch)) == 70.0 * 2**30


def test_training_tables_say_it_in_notes_or_by_their_software() -> None:
    assert reading_of(row(framework="nanotron")) == ("reserved", 2.0**30)
    noted = "peak = max over ranks of max_memory_allocated (GiB)"
    assert reading_of(row(notes=noted)) == ("allocated", 2.0**30)
    assert reading_of(row(notes="memory 80.784 GiB = 28.05 % of 288 (peak)")) == ("device", 1e9)


def test_readings_add_up_to_parts_of_one_projection(tmp_path: Path) -> None:
    told = {
        "device": "nvidia-smi",
        "reserved": "torch peak reserved",
        "allocated": "torch max_memory_allocated",
    }
    path = write(tmp_path / "t.csv", *(row(unit="GB", meaning=it) for it in told.values()))
    found = [it.outcome for it in compare_file("memory", path).rows]
    details = found[0].details
    device, reserved, allocated = (it.projected for it in found)
    assert device == pytest.approx(details["memory_total"])
    assert device == pytest.approx(sum(details[name] for name in MEMORY_COMPONENTS))
    assert reserved == pytest.approx(device - details["memory_reserve"])
    assert allocated == pytest.approx(reserved - details["memory_fragmentation"])


def test_nanotron_writes_the_peak_of_the_first_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """helpers.py, log_throughput: the global rank 0; the logits of large batches are elsewhere."""
    sizes = {"layers": 4, "mbs": 8, "gbs": 256}
    cells = {"framework": "nanotron", "tp": 1, "pp": 2, "vpp": 1, **sizes}
    path = write(tmp_path / "t.csv", row(**cells))
    (first,) = compare_file("memory", path).rows
    monkeypatch.setitem(words("memory"), "rank_0", {})
    (fullest,) = compare_file("memory", path).rows
    assert first.outcome.projected < fullest.outcome.projected
    assert first.outcome.details["fits"] == fullest.outcome.details["fits"]


def test_crashed_runs_are_counted_as_refused_or_admitted_and_not_scored(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        row(meas_peak_mem_GB=75, recompute="full"),
        row(meas_peak_mem_GB="", outcome="crashed_unknown", recompute="full"),
        row(meas_peak_mem_GB="", outcome="crashed_unknown", tp=1, pp=1, vpp=1, mbs=2),
        row(meas_peak_mem_GB=""),
    )
    found = compare_file("memory", path).to_json_dict()
    assert (found["count"], found["rows"]) == (1, 4)
    assert found["skipped"] == {"the run crashed": 2, "no usable measurement": 1}
    measured, crashed = found["further"]["runs that fit"]
    assert (measured["runs"], measured["admitted"]) == (1, 1)
    assert (crashed["runs"], crashed["refused"]) == (2, 1)


def test_rows_far_below_their_peak_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", row(meas_peak_mem_GB=500), row(meas_peak_mem_GB=10))
    found = compare_file("memory", path).to_json_dict()
    assert found["share_below_peak"] == 0.5
    assert found["groups"]["hardware"]["H100-80GB-SXM"]["share_below_peak"] == 0.5


def test_relative_activations_have_their_own_baseline(tmp_path: Path) -> None:
    told = "activation memory relative to tensor-parallel baseline"
    cells = {"meas_peak_mem_GB": "", "meaning": told, "sequence_parallel": "no"}
    path = write(
        tmp_path / "t.csv",
        row(**cells, relative_activation_pct=100),
        row(**cells | {"sequence_parallel": "yes"}, relative_activation_pct=50),
    )
    base, less = (it.outcome for it in compare_file("memory", path).rows)
    assert (base.measured, base.projected) == (1.0, 1.0)
    assert less.measured == 0.5
    assert less.projected is not None
    assert less.projected < 1.0


def test_words_of_other_cells_stand_in_for_missing_columns() -> None:
    def release(**cells: str) -> str:
        return stated_elsewhere(row(version="", **cells)).text("version")

    assert release(framework="Megatron-LM 0.14 + TE 2.11") == "0.14"
    assert release(source="MLPerf Training v5.0 closed, NVIDIA") == "MLPerf v5.0"
    assert release(source="Korthikanti 2022 Fig.1") == "2022"
    assert release(model="BLOOM-proto 181B") == "2022"
    assert release() == ""
    # SimuMax's four layers of DeepSeek-V2; its config.json has the ranks.
    cells = {"hidden": "5120", "heads": "128", "layers": "4", "model": "DeepSeek-V2-4layers"}
    filled = stated_elsewhere(row(**cells))
    assert (filled.text("mla_kv_lora"), filled.text("mla_q_lora")) == ("512", "1536")
    assert (filled.text("n_shared_experts"), filled.text("first_dense_layers")) == ("2", "1")
    assert stated_elsewhere(row(**{**cells, "hidden": "512"})).text("mla_kv_lora") == ""


def test_a_row_without_a_peak_or_with_a_broken_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="no usable measurement"):
        case_of(row(meas_peak_mem_GB=""))
    path = write(tmp_path / "t.csv", row(unit="MB"))
    with pytest.raises(DataError, match=r"line 2, column 'unit': 'MB' should be GB or GiB"):
        compare_file("memory", path)
