"""Published runs on wafers and meshes of chips: what is scored, and how well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfmodel.measured.compare import Comparison, compare_file
from perfmodel.measured.kinds.wafer import ALL, FITS, MAPPINGS, SERVICES
from tests.cli.running import document, run
from tests.data import PUBLISHED_WAFERS, needed

HEADER = "kind,system,units,core_grid,clock_GHz,model,batch,isl,osl,metric,value,unit\n"
TOKEN = "decode,Cerebras WSE-2,1,420x420,1.1,llama-3-8b,1,4096,,,2700,tok/s\n"


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare_file("wafer", needed(PUBLISHED_WAFERS))


@pytest.fixture(scope="module")
def groups(compared: Comparison) -> Mapping[str, Any]:
    found: Mapping[str, Any] = compared.to_json_dict()["groups"]["run"]
    return found


def test_every_run_that_says_enough_is_scored(compared: Comparison) -> None:
    assert compared.to_json_dict()["coverage"] == 1.0
    assert sum(row.scored for row in compared.rows) == 43


@pytest.mark.parametrize(
    ("run_of", "mean", "worst"),
    [
        ("Cerebras decode", 0.04, 0.10),
        ("Cerebras prefill", 0.08, 0.15),
        ("Cerebras end to end", 0.10, 0.10),
        ("Cerebras capacity", 0.15, 0.15),
    ],
)
def test_published_runs_are_near(
    groups: Mapping[str, Any], run_of: str, mean: float, worst: float
) -> None:
    assert groups[run_of]["mean_absolute_error"] <= mean
    assert groups[run_of]["worst_absolute_error"] <= worst


def test_chips_with_memory_beside_them_are_within_a_third(compared: Comparison) -> None:
    errors = sorted(
        abs(row.error)
        for row in compared.rows
        if row.error is not None and row.cells["system"].startswith("Tenstorrent")
    )
    assert len(errors) == 24
    assert 0.5 * (errors[11] + errors[12]) <= 0.30


def test_constants_of_one_model_predict_the_other(compared: Comparison) -> None:
    lines = compared.further[FITS]
    crossed = {
        (line["run"], line["fitted to"], line["judged on"]): line
        for line in lines
        if line["judged on"] != ALL
    }
    models = ("llama-3-8b", "codellama-34b")
    assert {key[1:] for key in crossed} == {models, models[::-1]}
    for (run_of, _, _), line in crossed.items():
        mean, worst = (0.04, 0.10) if run_of == "wse-2 decode" else (0.08, 0.15)
        assert line["mean_error"] <= mean
        assert line["worst_error"] <= worst
    both = [line for line in lines if line["fitted to"] == ALL]
    shipped = [line for line in lines if line["fitted to"] == "as shipped"]
    for one, other in zip(both, shipped, strict=True):
        assert other["mean_error"] == pytest.approx(one["mean_error"], abs=0.005)


def test_a_mapping_that_ignores_distance_is_slower_and_worsens(compared: Comparison) -> None:
    lines = compared.further[MAPPINGS]
    assert len(lines) == 12
    for phase, least in (("decode", 3.0), ("prefill", 30.0)):
        for model in ("LLaMA3-8B", "CodeLLaMA-34B"):
            found = [line for line in lines if (line["phase"], line["model"]) == (phase, model)]
            for key in ("projected", "measured"):
                slower = [line[key] for line in found]
                assert min(slower) >= least
                assert slower == sorted(slower)


def test_services_are_context(compared: Comparison) -> None:
    lines = compared.further[SERVICES]
    assert {line["system"].split(" ")[0] for line in lines} == {"Cerebras", "Groq", "SambaNova"}
    assert all(not row.scored for row in compared.rows if "public service" in row.cells["kind"])


def test_the_command_prints_every_table(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    blind = TOKEN.replace("decode", '"decode, mapping of T10"').replace("2700", "400")
    service = '"decode, public service",Groq LPU,,,,llama-3-8b,not stated,,,,750,tok/s/user\n'
    path.write_text(HEADER + TOKEN + blind + service, encoding="utf-8")
    shown = run("compare", "wafer", str(path)).stdout
    for words in ("Cerebras decode", MAPPINGS, SERVICES, "judged by how much slower it is"):
        assert words in shown
    found = document("compare", "wafer", str(path))
    (mapping,) = found["further"][MAPPINGS]
    assert mapping["measured"] == pytest.approx(2700 / 400)
    assert json.dumps(found)  # no NaN, no arrays
    other = document("compare", "wafer", str(path), "--hardware", "wse-3")
    assert other["bias"] != found["bias"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TOKEN.replace("420x420", "420x"), "line 2, column 'core_grid': '420x' should be rows x"),
        (TOKEN.replace("2700", "-1"), "line 2, column 'value'"),
        (TOKEN.replace("tok/s", "tok"), "line 2, column 'unit': 'tok' should be one of"),
    ],
)
def test_broken_tables_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + text, encoding="utf-8")
    result = run("compare", "wafer", str(path))
    assert result.exit_code == 2
    assert words in result.stderr
    unknown = run("compare", "wafer", str(path), "--hardware", "wse-9")
    assert unknown.exit_code == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TOKEN.replace("420x420", "5000x5000"), "the grid of cores exceeds the mesh"),
        (TOKEN.replace("420x420", ""), "grid of cores not stated"),
        (TOKEN.replace("llama-3-8b", "mamba-2.8b"), "the projection refuses the row"),
    ],
)
def test_rows_that_are_refused_are_counted(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + text, encoding="utf-8")
    assert document("compare", "wafer", str(path))["skipped"] == {reason: 1}
