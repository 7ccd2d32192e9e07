"""Measured runs of served models: which are projected, as what, and how well."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel.cli.main import cli
from perfmodel.measured.compare import Comparison, compare_file
from perfmodel.measured.kinds.serving import METRICS
from tests.data import SERVING_RUNS, needed

# Rows as in docs/serving.md: one engine, model and device, four ways in which requests come.
RUN = {
    "hardware": "H100",
    "n_gpus": "2",
    "engine": "vLLM",
    "version": "0.12.0",
    "model": "Qwen3-32B",
    "tp": "2",
    "isl": "1024",
    "osl": "128",
}
CLOSED = {**RUN, "concurrency": "16", "ttft_ms": "187", "tpot_ms": "17.4", "out_tok_s": "850"}
OPEN = {**RUN, "offered_qps": "2", "mode": "online, 500 requests", "ttft_ms": "90", "itl_ms": "16"}
OVERRUN = {**OPEN, "offered_qps": "60"}
OFFLINE = {**RUN, "mode": "offline max throughput (1000 requests)", "out_tok_s": "2000"}
STATIC = {**RUN, "batch": "8", "mode": "static batch", "ttft_ms": "300", "tpot_ms": "17"}
TOO_LARGE = {**CLOSED, "model": "DeepSeek-R1", "n_gpus": "1", "tp": "1"}


def compare(folder: Path, metric: str, *rows: Mapping[str, str]) -> Comparison:
    path = folder / "runs.csv"
    names = list(dict.fromkeys(name for item in rows for name in item))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
    return compare_file("serving", path, metric=metric)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Comparison]:
    folder = tmp_path_factory.mktemp("runs")
    rows = (CLOSED, OPEN, OVERRUN, OFFLINE, STATIC, TOO_LARGE)
    return {metric: compare(folder, metric, *rows) for metric in METRICS}


def details(found: Comparison, row: int) -> Mapping[str, Any]:
    return found.rows[row].outcome.details


def test_every_way_in_which_requests_come_is_projected(compared: dict[str, Comparison]) -> None:
    found = compared["throughput"]
    assert [row.cells["load"] for row in found.rows[:5]] == [
        *("closed loop", "open loop", "open loop", "offline", "static batch"),
    ]
    assert all(details(compared["ttft"], i) for i in (0, 1, 2, 4))
    assert details(found, 3)


def test_metrics_are_compared_with_their_variables(compared: dict[str, Comparison]) -> None:
    for metric, (quantity, _) in METRICS.items():
        document = compared[metric].to_json_dict()
        assert document["kind"] == "serving"
        assert document["error_of"] == quantity
        name = quantity if metric == "throughput" else f"{quantity}_mean"
        assert compared[metric].rows[0].outcome.projected == details(compared[metric], 0)[name]
    between = compared["tpot"].rows[1].outcome
    assert between.projected == details(compared["tpot"], 1)["inter_token_latency_mean"]


def test_what_cannot_run_says_why_and_counts_against_coverage(
    compared: dict[str, Comparison],
) -> None:
    last = compared["tpot"].rows[-1]
    assert "memory" in last.outcome.skip_reason
    assert last.outcome.scorable
    assert compared["tpot"].rows[3].outcome.skip_reason == "no usable measurement"
    assert compared["tpot"].to_json_dict()["coverage"] == pytest.approx(4 / 5)


def test_a_run_beyond_capacity_waits_less_than_if_all_came_at_once(
    compared: dict[str, Comparison],
) -> None:
    steady, beyond = (details(compared["ttft"], i) for i in (1, 2))
    assert steady["queue_time"] < 1 < beyond["queue_time"]
    served = beyond["tokens_per_second_per_device"] * 2 / 128
    assert 0 < beyond["queue_time"] < 0.5 * 500 * (1 / served - 1 / 60)


def test_a_static_batch_runs_prompts_and_then_answers(compared: dict[str, Comparison]) -> None:
    found = details(compared["ttft"], 4)
    whole = found["time_to_first_token_mean"] + 127 * found["time_per_output_token_mean"]
    assert found["tokens_per_second_per_device"] == pytest.approx(8 * 128 / whole / 2)


def test_result_files_are_rows_too(tmp_path: Path) -> None:
    result = {
        "model_id": "Qwen/Qwen3-32B",
        "max_concurrency": 16,
        "completed": 160,
        "total_input_tokens": 160 * 1024,
        "total_output_tokens": 160 * 128,
        "mean_ttft_ms": 187.0,
        "mean_tpot_ms": 17.4,
        "n_gpus": 2,
        "tp": 2,
        "version": "0.12.0",
    }
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result), encoding="utf-8")
    arguments = ["compare", "serving", str(path), "--hardware", "dgx-h100", "--json"]
    found = CliRunner().invoke(cli, [*arguments, "--metric", "ttft"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["count"] == 1


def test_an_empty_column_of_hardware_is_a_reason(tmp_path: Path) -> None:
    found = compare(tmp_path, "tpot", {**CLOSED, "hardware": ""})
    assert found.skipped() == {"no hardware profile": 1}


def test_measured_runs_are_covered_and_near() -> None:
    where = 'model == "Llama-3.1-70B" and hardware == "H200-141GB" and is_latest_in_group == "yes"'
    document = compare_file("serving", needed(SERVING_RUNS), where, metric="tpot").to_json_dict()
    assert document["coverage"] == 1.0
    assert document["median_absolute_error"] < 0.12
