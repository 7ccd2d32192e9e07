"""``perfmodel hardware``, ``model`` and ``compare``."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perfmodel.cli.main import cli
from perfmodel.hwprofiles import list_hardware, load_hardware
from perfmodel.model.presets import load_model, preset_names


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="perfmodel")


def document(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["schema_version"]
    return found


def test_hardware_list_names_every_profile() -> None:
    names = [entry["name"] for entry in document("hardware", "list")["hardware"]]
    assert names == list_hardware()
    text = run("hardware", "list").stdout
    assert all(name in text for name in names)
    assert "nvidia-hopper" not in text
    assert "nvidia-hopper" in run("hardware", "list", "--all").stdout
    assert "nvidia-hopper" in document("hardware", "list", "--all")["parts"]


def test_hardware_show_gives_every_value_by_its_path() -> None:
    text = run("hardware", "show", "H100-80GB-SXM").stdout
    assert text.startswith("dgx-h100: ")
    for part in ("device.peak_flops.bf16", "9.894e+14", "FLOP/s", "system.network.1.bandwidth"):
        assert part in text
    found = document("hardware", "show", "dgx-h100", "--set", "device.tdp=500")
    assert found["device"]["tdp"] == 500
    assert found["calibration"]["gemm"]
    assert found["system"]["network"][0]["bandwidth"] == (
        load_hardware("dgx-h100").system.network[0].bandwidth
    )


def test_model_list_names_every_preset() -> None:
    entries = document("model", "list")["models"]
    assert [entry["name"] for entry in entries] == list(preset_names())
    assert all(name in run("model", "list").stdout for name in preset_names())


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "gemma-2-9b", "gpt-oss-120b"])
def test_model_show_splits_the_parameters_by_kind(name: str) -> None:
    parameters = document("model", "show", name)["parameters"]
    apart = ("total", "active", "multi_token_prediction")
    kinds = sum(count for kind, count in parameters.items() if kind not in apart)
    assert kinds == parameters["total"] == load_model(name).parameter_count()


def test_model_show_gives_both_flop_conventions() -> None:
    found = document("model", "show", "llama-3.1-70b", "--seq-len", "8192")
    flops = found["flops_per_token"]
    assert flops["sequence_length"] == 8192
    # Attention adds 6 layers x hidden x keys per token, half of the keys when causal
    # (Narayanan et al. 2021, eq. 3).
    assert flops["non_causal"] - flops["causal"] == pytest.approx(6 * 80 * 8192 * 8192)
    assert flops["causal"] > 6 * (found["parameters"]["total"] - found["parameters"]["embedding"])


def test_model_show_tells_the_kinds_of_layers() -> None:
    text = run("model", "show", "deepseek-v3").stdout
    assert "3 × mla attention, 128 heads of 192; gated MLP of 18,432" in text
    assert "58 × mla attention" in text
    assert "256 gated experts of 2,048, 8 per token, shared 2,048" in text
    assert "1 × multi-token-prediction module" in text
    assert "window" in run("model", "show", "gemma-2-9b").stdout


def test_model_show_reads_a_file(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    path = tmp_path / "small.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    found = document("model", "show", str(path))
    assert found["name"] == "small"
    # Tables 2 x 100 x 64; a layer: q and output 2 x 64 x 64, k and v 2 x 64 x 32,
    # three matrices 64 x 128, two norms of 64; the last norm 64.
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert found["parameters"]["total"] == 2 * 100 * 64 + 2 * layer + 64


RUN = {
    "id": "a",
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
    rows.append(RUN | {"id": "c", "tp": ""})
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
