"""The script that compares AICB texts with runs of SimAI-Analytical."""

from __future__ import annotations

import pytest

from perfmodel.workloads.formats.aicb_text import TRANSFORMER

GIB = 2**30
ROW = "x\t-1\t1000\tNONE\t0\t2000\tNONE\t0\t3000\tNONE\t0\t100"


@pytest.fixture
def comparison(script):
    return script.load("parity_kinds.simai")


def test_every_reference_run_is_reproduced_to_the_microsecond(development_table, comparison):
    result = comparison.compare(development_table("aicb/simai_analytical"))
    assert result["count"] == result["exact"] == 25
    assert result["worst_relative_error"] == 0
    assert result["uncovered"] == {}
    assert result["end_to_end"]["exact"] == result["end_to_end"]["count"] == 18948


def write_run(folder, total, rc="0", error="", options="-g_type A100 -nic_t cx6"):
    """Write a folder with one run of a workload that computes for 6 µs."""
    (folder / "workloads").mkdir()
    header = f"{TRANSFORMER} model_parallel_NPU_group: 1 ep: 1 pp: 1 vpp: 1 ga: 1"
    text = f"{header}\n1\n{ROW}\n"
    (folder / "workloads/w.txt").write_text(text, encoding="utf-8")
    runs = folder / "runs"
    runs.mkdir()
    (runs / "summary.csv").write_text(
        "workload,net,command,rc,DP_exposed_us,DP_EP_exposed_us,TP_exposed_us,EP_exposed_us,"
        "PP_exposed_us,bubble_us,compute_us,exposed_comm_us,total_us,error\n"
        f"w,n,sim -w w.txt -g 8 {options} -n_p_s 8 -g_p_s 8 -r w-,{rc},"
        f"0,0,0,0,0,0,6,0,{total},{error}\n",
        encoding="utf-8",
    )
    return runs


def test_a_wrong_total_is_found(tmp_path, comparison):
    result = comparison.compare(write_run(tmp_path, total=8))
    assert (result["count"], result["exact"]) == (1, 0)
    assert result["worst_relative_error"] == pytest.approx(0.25)
    assert result["components"]["compute_us"]["exact"] == 1


def test_a_wrong_line_is_found(tmp_path, comparison):
    runs = write_run(tmp_path, total=6)
    right = "x,run,1,3,2,0,0,0,0,-nan,0.00,0,-nan,0.00,0,-nan,0.00"
    for line, exact in ((right, 1), (right.replace("1,3,2", "1,3,4"), 0), (right[:-4] + "-nan", 0)):
        (runs / "w-EndToEnd.csv").write_text(f"a\nb\nc\n{line}\n", encoding="utf-8")
        lines = comparison.compare(runs)["end_to_end"]
        assert (lines["count"], lines["exact"]) == (1, exact), line


def test_a_failed_run_is_uncovered(tmp_path, comparison):
    result = comparison.compare(write_run(tmp_path, total="", rc="1", error="killed"))
    assert result["count"] == 0
    assert result["uncovered"] == {"SimAI failed: killed": 1}


def test_a_run_that_both_refuse_agrees(tmp_path, comparison):
    runs = write_run(tmp_path, total="", rc="1", error="Data size out of range")
    file = tmp_path / "workloads/w.txt"
    text = file.read_text(encoding="utf-8").replace("1000\tNONE\t0", f"1\tALLGATHER\t{17 * GIB}")
    file.write_text(text, encoding="utf-8")
    result = comparison.compare(runs)
    assert (result["count"], result["exact"], result["uncovered"]) == (1, 1, {})


def test_a_run_without_its_workload_is_uncovered(tmp_path, comparison):
    runs = write_run(tmp_path, total="", rc="1", error="killed")
    (tmp_path / "workloads/w.txt").unlink()
    assert comparison.compare(runs)["uncovered"] == {"no workload file": 1}


def test_an_unknown_option_is_uncovered(tmp_path, comparison):
    result = comparison.compare(write_run(tmp_path, total=6, options="-g_type A100 -busbw x.yaml"))
    assert result["count"] == 0
    assert list(result["uncovered"].values()) == [1]
