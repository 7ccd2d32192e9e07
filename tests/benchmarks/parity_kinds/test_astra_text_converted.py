"""The script that compares converted text workloads with runs of ASTRA-sim 2.x."""

from __future__ import annotations

import csv

import pytest

from perfmodel.base.errors import FormatError
from tests.data import ASTRA, needed


@pytest.fixture
def comparison(script):
    return script.load("parity_kinds.astra_text_converted")


HEADER = (
    "workload,npus,passes,backend,network,topology,npus_count,bandwidth_GiBps,latency_ns,"
    "ar_ag_rs_algo,a2a_algo,splits,active_chunks,endpoint_delay,policy,collective_opt,"
    "local_mem_bw,status,wall_sys0,exposed_sys0,gpu_time_sys0,comm_time_sys0\n"
)

ROW = (
    "micro,4,1,unaware,ring4,Ring,4,50,500,ring,ring,{splits},1,10,LIFO,localBWAware,1600,ok,"
    "{wall},{wall},,{wall}\n"
)


def folder_with(path, rows):
    (path / "workloads").mkdir()
    (path / "workloads" / "micro.txt").write_text(
        "MICRO 1\nconv1 -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5\n"
    )
    (path / "et_runs.csv").write_text(HEADER + rows)
    return path


def test_parity_counts_rows_that_are_equal_and_rows_that_are_not(tmp_path, comparison):
    rows = ROW.format(splits=1, wall=33829) + ROW.format(splits=4, wall=43001)
    rows += rows.splitlines(keepends=True)[0].replace("unaware", "aware")
    rows += rows.splitlines(keepends=True)[0].replace(",ok,", ",failed,")
    result = comparison.compare_converted(folder_with(tmp_path, rows))
    assert (result["count"], result["exact"]) == (3, 2)
    assert result["errors"] == [0.0, 1 / 43001, 0.0]
    assert result["uncovered"] == {"the reference run ended 'failed'": 1}
    assert len(result["unequal"]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("wall_sys0", "wall"), "column 'wall_sys0' is missing"),
        ((",500,", ",x,"), "latency_ns 'x' is not a number"),
        ((",unaware,", ",neither,"), "backend 'neither'"),
    ],
)
def test_parity_says_which_line_is_wrong(tmp_path, comparison, change, message):
    folder = folder_with(tmp_path, ROW.format(splits=1, wall=33829))
    path = folder / "et_runs.csv"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(FormatError, match=message):
        comparison.compare_converted(folder)


def test_every_twentieth_run_of_astra_sim_is_exact(tmp_path, comparison):
    source = needed(ASTRA / "text/et_runs.csv").parent
    with (source / "et_runs.csv").open(newline="") as file:
        reader = csv.reader(file)
        rows = [next(reader), *list(reader)[::20]]
    (tmp_path / "workloads").symlink_to((source / "workloads").resolve())
    with (tmp_path / "et_runs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    result = comparison.compare_converted(tmp_path)
    assert result["count"] == len(rows) - 1 > 40
    assert result["unequal"] == []
