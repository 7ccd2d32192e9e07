"""The script that compares collectives with runs of ASTRA-sim: what it finds and refuses."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import pytest

from tests.data import BENCHMARKS

HEADER = (
    "case,backend,topology,npus,bw_GiBps,lat_ns,coll,algos,size_B,splits,active,endpoint_ns,"
    "local_mem_bw,opt,sim_ns,sim_min_rank_ns"
)
ROW = "mine,congestion_unaware,Ring,16,50,500,AR,ring,1024,1,1,10,1600,localBWAware,15340,15340"


def write(path, *rows):
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return path


def test_every_deterministic_reference_row_is_exact(parity, development_table):
    path = development_table("astra/collectives_unaware.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    failed = sum(row["sim_ns"] == "ASSERT_FAIL" for row in rows)
    code, out, _ = parity("astra", path, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["kind"] == "astra"
    assert document["count"] == document["exact"] == len(rows) - failed
    assert document["fastest_exact"] == document["count"]
    assert document["worst_relative_error"] == document["median_relative_error"] == 0.0
    assert list(document["uncovered"].values()) == [failed]
    assert set(document["groups"]) == {"case", "topology", "algos", "coll"}


def test_parity_counts_errors_and_what_is_not_covered(parity, tmp_path):
    wrong = ROW.replace("15340,15340", "15000,15340")
    failed = ROW.replace("15340,15340", "ASSERT_FAIL,")
    uncovered = ROW.replace("AR,ring", "A2A,halvingDoubling")
    path = write(tmp_path / "rows.csv", ROW, wrong, failed, uncovered)
    code, out, _ = parity("astra", path, "--json")
    document = json.loads(out)
    assert (code, document["rows"], document["count"], document["exact"]) == (0, 4, 2, 1)
    assert document["worst_relative_error"] == pytest.approx(340 / 15000)
    assert document["median_relative_error"] == pytest.approx(170 / 15000)
    assert sorted(document["uncovered"].values()) == [1, 1]
    _, out, _ = parity("astra", path)
    assert "1 of 2 exact; worst 2.267%" in out
    assert "ASSERT_FAIL" in out


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW.replace(",AR,", ",AX,"), "rows.csv:2: unknown coll 'AX'"),
        (ROW.replace("15340,15340", "fast,15340"), "rows.csv:2: sim_ns is 'fast'"),
        (ROW.replace(",50,", ",nan,"), "rows.csv:2: bw_GiBps is 'nan'"),
        (ROW.replace("15340,15340", "0,0"), "sim_ns is 0; it should be > 0"),
        (ROW.replace("congestion_unaware", "ns3"), "unknown backend 'ns3'"),
    ],
)
def test_bad_rows_end_with_one_line(parity, tmp_path, row, words):
    code, out, error = parity("astra", write(tmp_path / "rows.csv", row))
    assert (code, out) == (2, "")
    assert error.count("\n") == 1
    assert words in error


def test_bad_files_and_kinds_end_with_one_line(parity, tmp_path):
    no_column = tmp_path / "short.csv"
    no_column.write_text("case,backend\na,b\n", encoding="utf-8")
    for arguments, words in (
        (("astra", tmp_path / "nothing.csv"), "cannot read"),
        (("astra", tmp_path), "cannot read"),
        (("astra", no_column), "short.csv:1: column 'topology' is missing"),
        (("astra", write(tmp_path / "empty.csv")), "has no rows"),
        (("abcd", tmp_path), "unknown kind 'abcd'"),
    ):
        code, out, error = parity(*arguments)
        assert (code, out, error.count("\n")) == (2, "", 1)
        assert words in error
    assert "astra, simai" in parity("abcd", tmp_path)[2]


def test_a_table_may_begin_with_a_byte_order_mark(parity, tmp_path):
    path = write(tmp_path / "rows.csv", ROW)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert parity("astra", path, "--json")[0] == 0


def test_a_reader_that_has_seen_enough_is_no_traceback(parity, tmp_path):
    command = [sys.executable, str(BENCHMARKS / "parity.py"), "astra"]
    command.append(str(write(tmp_path / "rows.csv", ROW)))
    path = os.pathsep.join([str(BENCHMARKS.parent), *filter(None, [os.getenv("PYTHONPATH")])])
    closed, stdout = os.pipe()
    os.close(closed)
    try:
        done = subprocess.run(
            command,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    finally:
        os.close(stdout)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_fastest_rank_without_a_time_is_refused(parity, tmp_path):
    path = write(tmp_path / "rows.csv", ROW.replace("15340,15340", "15340,0"))
    code, out, err = parity("astra", path)
    assert (code, out) == (2, "")
    assert "rows.csv:2: sim_min_rank_ns is 0; it should be > 0" in err
