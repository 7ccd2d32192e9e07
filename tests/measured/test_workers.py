"""Tables compared and profiles fitted on workers: every digit and every word as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.workers import Workers
from perfmodel.measured.calibrate import calibrate_file
from perfmodel.measured.compare import compare_file
from perfmodel.measured.kind import KernelKind
from tests.data import NO_BENCHMARKS, PUBLISHED_WAFERS
from tests.measured.korthikanti import KORTHIKANTI_TABLE_5
from tests.measured.toy import write_table

GEMM = "hardware,dtype,m,n,k,time_us\n" + "".join(
    f"H100_SXM,bf16,{m},{n},4096,{time}\n"
    for m, n, time in [(64, 4096, 20), (4096, 4096, 250), (0, 1, ""), (8192, 4096, 500)] * 4
)


def same(kind: str, path: Path, workers: Workers, **more: Any) -> None:
    told: list[tuple[int, int]] = []
    alone = compare_file(kind, path, **more)
    shared = compare_file(kind, path, **more, workers=workers, progress=lambda *it: told.append(it))
    assert repr(shared) == repr(alone)  # floats are written to their last digit
    assert shared.to_json_dict() == alone.to_json_dict()
    assert told[-1:] == [(len(alone.rows), len(alone.rows))] * bool(alone.rows)


@pytest.mark.parametrize("kind", ["training", "memory"])
def test_runs_are_compared_as_in_one_process(kind, two_workers, tmp_path):
    path = tmp_path / "runs.csv"
    text = KORTHIKANTI_TABLE_5
    if kind == "memory":
        text = text.replace("meas_iter_s", "meas_peak_mem_GB", 1)
    path.write_text(text, encoding="utf-8")
    same(kind, path, two_workers)


def test_kernels_are_compared_as_in_one_process(two_workers, tmp_path):
    path = tmp_path / "gemm.csv"
    path.write_text(GEMM.replace("0,1,4096,\n", ",1,4096,\n"), encoding="utf-8")
    same("gemm", path, two_workers)
    same("gemm", path, two_workers, hardware="dgx-h200", where="m < 0")  # no row at all


@pytest.mark.skipif(not PUBLISHED_WAFERS.is_file(), reason=NO_BENCHMARKS)
def test_rows_that_other_rows_explain_are_compared_as_in_one_process(two_workers):
    same("wafer", PUBLISHED_WAFERS, two_workers, where='run == "mapping" or phase == "decode"')


def test_the_first_broken_row_is_named_as_in_one_process(two_workers, tmp_path):
    path = tmp_path / "gemm.csv"
    lines = GEMM.replace("0,1,4096,\n", "1,1,4096,9\n").splitlines()
    for number in (8, 4, 13):  # longer than any time, which no check of single cells knows
        lines[number - 1] = lines[number - 1].rpartition(",")[0] + ",1e30"
    path.write_text("\n".join(lines), encoding="utf-8")
    said = []
    for workers in (None, two_workers):
        with pytest.raises(DataError) as error:
            compare_file("gemm", path, workers=workers)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert f"{path}, line 4, column 'time_us': '1e30' should be" in said[0]


def test_a_profile_that_workers_do_not_see_is_refused(two_workers, tmp_path, monkeypatch):
    path, profile = tmp_path / "gemm.csv", tmp_path / "mine.toml"
    path.write_text(GEMM.replace("0,1,4096,\n", "1,1,4096,9\n"), encoding="utf-8")
    profile.write_text('name = "mine"\nextends = "dgx-h100"\n', encoding="utf-8")
    far = Workers(two_workers.client, shares_files=False, name="far ones")
    same("gemm", path, far, hardware=str(profile))  # they do
    monkeypatch.setattr(far.client, "run", lambda *given: {"tcp://far:1": ""})
    monkeypatch.setattr(far, "_check_versions", lambda: None)
    text = "far ones: worker tcp://far:1 does not see '.*mine.toml'; give the path of a file that"
    with pytest.raises(DataError, match=text):
        compare_file("gemm", path, hardware=str(profile), workers=far)


def test_a_profile_is_fitted_as_in_one_process(
    toy: KernelKind, profile: Path, two_workers: Workers, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.55, noise=0.02)
    told: list[tuple[int, int]] = []
    alone = calibrate_file(str(profile), table, limit=200)
    shared = calibrate_file(
        str(profile),
        table,
        limit=200,
        workers=two_workers,
        progress=lambda *it: told.append(it),
    )
    assert shared.to_json_dict() == alone.to_json_dict()
    assert shared.parameters == alone.parameters
    for which, ratios in alone.log_ratios.items():
        np.testing.assert_array_equal(shared.log_ratios[which], ratios, which)
    assert told == [(done, 6) for done in range(1, 7)]
