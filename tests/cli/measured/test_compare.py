"""``perfmodel compare``: statistics, groups, filters, rows, figures."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import document, run

RUNS = """\
hardware,framework,op,phase,rows,cols,dtype,time_us
H100_SXM,sglang,rms_norm,fwd,4096,8192,bf16,50
H100_SXM,sglang,rms_norm,fwd,16,8192,bf16,4
A100_SXM,sglang,gelu,fwd,16384,8192,bf16,330
nobody's card,sglang,gelu,fwd,16384,8192,bf16,330
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "stream.csv"
    path.write_text(RUNS, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_compare_draws_what_it_compared(table: Path, suffix: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (the extra 'plot') is not installed")
    figure = table.with_name(f"figure.{suffix}")
    result = run("compare", "stream", str(table), "--plot", str(figure))
    assert result.exit_code == 0, result.stderr
    assert figure.read_bytes().startswith(begins)
    assert f"wrote {figure}" in result.stderr
    if suffix == "svg":
        text = figure.read_text()
        for words in ("H100_SXM (2)", "A100_SXM (1)", "measured time", "±10%"):
            assert words in text


def test_figures_that_cannot_be_drawn_are_refused_before_the_work(table: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (the extra 'plot') is not installed")
    result = run("compare", "stream", str(table), "--plot", "figure.jpg")
    assert result.exit_code == 2
    assert "a figure's name ends in .png, .svg, .pdf" in result.stderr
    result = run("compare", "stream", str(table), "--plot", "/nowhere/figure.png")
    assert result.exit_code == 2
    figure = table.with_name("figure.png")
    result = run("compare", "stream", str(table), "--where", "rows > 1e9", "--plot", str(figure))
    assert result.exit_code == 2
    assert "no row was scored" in result.stderr
    assert not figure.exists()


def test_compare_with_another_profile_prices_every_row_with_it(table: Path) -> None:
    def document(*arguments: str) -> Any:
        result = run("compare", "stream", str(table), "--by", "hardware", "--json", *arguments)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    own, other = document(), document("--hardware", "dgx-b200")
    assert own["count"] == 3
    assert other["count"] == 4  # a device without a profile has one now
    assert set(other["groups"]["hardware"]) == {"A100_SXM", "H100_SXM", "nobody's card"}
    assert own["bias"] > other["bias"]
    result = run("compare", "stream", str(table), "--hardware", "nothing")
    assert result.exit_code == 2
    assert "unknown hardware 'nothing'" in result.stderr


RUN = {
    "id": "a",
    "framework": "",
    "family": "test",
    "model": "Llama",
    "hardware": "H100-80GB-SXM",
    "n_gpus": 8,
    "gpus_per_node": 8,
    "arch_known": "yes",
    "layers": 32,
    "hidden": 4096,
    "ffn": 14336,
    "gated_mlp": 1,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "vocab": 128256,
    "seq": 4096,
    "tp": 2,
    "pp": 1,
    "dp": 4,
    "mbs": 1,
    "gbs": 64,
    "precision": "bf16",
    "recompute": "none",
    "meas_iter_s": 3.5,
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    rows = [RUN, RUN | {"id": "b", "meas_iter_s": 2.5, "precision": "fp8"}]
    rows.append(RUN | {"id": "c", "tp": "", "framework": "Megatron-LM"})
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(RUN))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_compare_reports_the_fixed_statistics(runs: Path) -> None:
    found = document("compare", "training", str(runs), "--by", "precision,hardware")
    assert {
        "kind",
        "count",
        "rows",
        "coverage",
        "median_absolute_error",
        "mean_absolute_error",
        "p90_absolute_error",
        "worst_absolute_error",
        "bias",
        "groups",
        "skipped",
    } <= {*found}
    assert found["kind"] == "training"
    assert (found["rows"], found["count"]) == (3, 2)
    assert {*found["groups"]} == {"precision", "hardware"}
    assert sum(found["skipped"].values()) == 1
    assert found["groups"]["precision"]["fp8"]["count"] == 1


def test_compare_prints_groups_and_skips(runs: Path) -> None:
    text = run("compare", "training", str(runs), "--by", "precision").stdout
    for part in ("2 of 3 rows scored", "median", "by precision", "bf16", "not scored"):
        assert part in text


def test_compare_filters_and_writes_every_row(runs: Path, tmp_path: Path) -> None:
    output = tmp_path / "errors.csv"
    where = 'precision == "bf16"'
    result = run(
        "compare", "training", str(runs), "--where", where, "--output", str(output), "--json"
    )
    assert json.loads(result.stdout)["rows"] == 2
    with output.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == ["a", "c"]
    assert float(rows[0]["projected"]) > 0
    assert rows[1]["skip_reason"]


def test_compare_fails_where_the_median_error_is_too_large(runs: Path) -> None:
    assert run("compare", "training", str(runs), "--max-error", "10000%").exit_code == 0
    result = run("compare", "training", str(runs), "--max-error", "0.0001%")
    assert result.exit_code == 1
    assert "above --max-error" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--where", "precison == 'bf16'"], "did you mean precision"),
        (["--by", "precison"], "did you mean precision"),
    ],
)
def test_compare_names_unknown_columns(runs: Path, arguments: list[str], message: str) -> None:
    result = run("compare", "training", str(runs), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_compare_says_how_many_scored_runs_do_not_fit(runs: Path) -> None:
    """Runs of the table did run: what does not fit is wrong about their memory."""
    result = run("compare", "training", str(runs), "--json")
    (line,) = json.loads(result.stdout)["further"]["runs that fit"]
    assert line["outcome"] == "measured"
    assert line["runs"] == line["admitted"] + line["refused"] == json.loads(result.stdout)["count"]
    assert line["tight"] <= line["admitted"]
    assert "runs that fit" in run("compare", "training", str(runs)).stdout
