"""Comparing tables of measured runs: statistics, grouping, files, errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.measured.calibrate import calibrate_file
from perfmodel.measured.compare import Comparison, compare_file, statistics
from perfmodel.measured.kind import KernelKind
from perfmodel.measured.rows import ComparedRow, Outcome, Skip
from perfmodel.sweeps.workers import Workers
from tests.data import NO_BENCHMARKS, PUBLISHED_WAFERS
from tests.measured.korthikanti import KORTHIKANTI_TABLE_5
from tests.measured.toy import write_table

STATISTICS = (
    "count",
    "rows",
    "coverage",
    "median_absolute_error",
    "mean_absolute_error",
    "p90_absolute_error",
    "worst_absolute_error",
    "bias",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(KORTHIKANTI_TABLE_5, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    path.write_text(KORTHIKANTI_TABLE_5, encoding="utf-8")
    return compare_file("training", path)


def row(
    projected: float | None, measured: float, scorable: bool = True, **cells: str
) -> ComparedRow:
    if projected is None:
        outcome = Outcome.skipped(Skip("no reason", scorable=scorable))
    else:
        outcome = Outcome(measured, projected)
    return ComparedRow(cells, 2, outcome)


def test_json_has_the_keys_of_the_design_and_survives_a_round_trip(compared: Comparison) -> None:
    document = compared.to_json_dict()
    assert json.loads(json.dumps(document)) == document
    assert set(STATISTICS) <= set(document)
    assert document["kind"] == "training"
    assert document["error_of"] == "step_time"
    assert document["rows"] == document["count"] == 8
    assert document["coverage"] == 1.0
    assert document["skipped"] == {}
    assert set(document["groups"]) == {
        *("hardware", "precision", "architecture", "scale", "family", "assumed")
    }
    assert list(document["groups"]["scale"]) == ["1-8", "9-64", "65-512"]
    for values in document["groups"].values():
        assert sum(group["count"] for group in values.values()) == 8
        assert all(set(group) == set(STATISTICS) for group in values.values())


def test_error_is_projected_over_measured_and_throughput_error_its_inverse(
    compared: Comparison,
) -> None:
    for item in compared.rows:
        out = item.outcome
        assert out.projected is not None
        assert out.measured is not None
        assert item.error is not None
        assert item.throughput_error is not None
        assert item.error == pytest.approx(out.projected / out.measured - 1)
        assert (1 + item.error) * (1 + item.throughput_error) == pytest.approx(1)
    times, speeds = compared.to_json_dict(), compared.to_json_dict(throughput=True)
    assert speeds["error_of"] == "throughput"
    assert np.sign(times["bias"]) == -np.sign(speeds["bias"])


def test_statistics_computed_by_hand() -> None:
    rows = [row(1.1, 1.0), row(0.8, 1.0), row(1.5, 1.0), row(None, 1.0), row(None, 1.0, False)]
    found = statistics(rows)
    assert found["count"] == 3
    assert found["rows"] == 5
    assert found["coverage"] == pytest.approx(3 / 4)  # one row states nothing to be judged by
    assert found["median_absolute_error"] == pytest.approx(0.2)
    assert found["mean_absolute_error"] == pytest.approx(0.8 / 3)
    assert found["p90_absolute_error"] == pytest.approx(0.2 + 0.8 * 0.3)  # linear between 0.2, 0.5
    assert found["worst_absolute_error"] == pytest.approx(0.5)
    assert found["bias"] == pytest.approx(0.4 / 3)


def test_statistics_of_nothing_are_null() -> None:
    found = statistics([])
    assert found["count"] == 0
    assert found["coverage"] is None
    assert found["bias"] is None


def test_rank_correlation_computed_by_hand() -> None:
    measured, projected = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 3.0, 5.0, 4.0]
    rows = tuple(
        row(p, m, model="m", hardware="h") for m, p in zip(measured, projected, strict=True)
    )
    found = Comparison("training", "step_time", "f", None, (), ("model",), rows)
    (correlation,) = found.rank_correlation().values()
    assert correlation["count"] == 5
    assert correlation["spearman"] == pytest.approx(1 - 6 * 4 / (5 * 24))  # 1 - 6 Σd² / n(n²-1)


def test_where_chooses_rows_before_they_are_projected(table: Path) -> None:
    found = compare_file(
        "training", table, where='recompute == "full" and n_gpus <= 64', by=["model"]
    )
    assert len(found.rows) == 2
    assert set(found.to_json_dict()["groups"]) == {"model"}
    derived = compare_file("training", table, where='scale == "1-8" and architecture == "dense"')
    assert len(derived.rows) == 2


def test_where_that_chooses_nothing_gives_an_empty_comparison(table: Path) -> None:
    found = compare_file("training", table, where="n_gpus > 100000").to_json_dict()
    assert found["count"] == found["rows"] == 0
    assert found["median_absolute_error"] is None


def test_order_of_rows_does_not_matter(table: Path, compared: Comparison) -> None:
    head, *lines = KORTHIKANTI_TABLE_5.splitlines()
    table.write_text("\n".join([head, *reversed(lines)]), encoding="utf-8")
    reversed_ = compare_file("training", table)
    assert [r.outcome.projected for r in reversed(reversed_.rows)] == pytest.approx(
        [r.outcome.projected for r in compared.rows]
    )


def test_progress_counts_to_the_number_of_rows(table: Path) -> None:
    calls: list[tuple[int, int]] = []
    compare_file("training", table, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (8, 8)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_write_rows_keeps_every_row_and_adds_the_projection(
    compared: Comparison, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    compared.write_rows(path)
    with path.open(newline="", encoding="utf-8") as stream:
        written = list(csv.DictReader(stream))
    assert [item["model"] for item in written] == [r.cells["model"] for r in compared.rows]
    assert [int(item["line"]) for item in written] == list(range(2, 10))
    for item, source in zip(written, compared.rows, strict=True):
        assert float(item["error"]) == pytest.approx(source.error)
        assert item["projected_profile"] == "dgx-a100"
        assert float(item["projected_forward_time"]) > 0
    assert [child.name for child in tmp_path.iterdir()] == ["rows.csv"]


def test_unwritable_output_is_one_clear_error(compared: Comparison, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot write"):
        compared.write_rows(tmp_path / "missing" / "rows.csv")
    with pytest.raises(DataError, match="cannot write"):
        compared.write_rows(tmp_path)  # a folder
    assert list(tmp_path.iterdir()) == []


def test_unknown_kind_and_column_are_named(table: Path) -> None:
    with pytest.raises(DataError, match="unknown kind 'trainning'; did you mean training"):
        compare_file("trainning", table)
    with pytest.raises(DataError, match=r"cannot group by 'hardwar'.*hardware"):
        compare_file("training", table, by=["hardwar"])
    with pytest.raises(DataError, match="no column 'gpus'"):
        compare_file("training", table, where="gpus > 8")


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
