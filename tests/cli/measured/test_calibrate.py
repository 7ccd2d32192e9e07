"""``perfmodel calibrate``: from a CSV to a profile, and what it says on the way."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import load_hardware
from tests.cli.running import assert_one_line, run

# The adjustable constants of a matrix product whose meaning does not depend on how the
# model does the rest.
KEYS = ("launch_latency", "memory_efficiency")
TRUTH = {"launch_latency": 3.4e-6, "memory_efficiency": 0.77}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile in which the two constants are adjustable."""
    entries = load_hardware("dgx-h100").calibration["gemm"]
    lines = ['name = "base"', 'extends = "dgx-h100"', "[calibration.gemm]"]
    for key in KEYS:
        entry = entries[key]
        lines.append(
            f"{key} = {{ value = {entry.value!r}, prior = {entry.prior!r}, low = {entry.low!r}, "
            f"high = {entry.high!r}, unit = '{entry.unit}', adjustable = true, source = 'test' }}"
        )
    path = tmp_path_factory.mktemp("profile") / "base.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    """Times that the real model gives for other constants, with 3 % noise."""
    altered = load_hardware(base).with_values(
        {f"calibration.gemm.{key}": value for key, value in TRUTH.items()}
    )
    random = np.random.default_rng(11)
    shapes = [
        (m, n, k)
        for m in (1, 8, 48, 256, 2048)
        for n in (1024, 4096, 11008)
        for k in (512, 4096, 8192)
    ]
    columns = (np.array(column, float) for column in zip(*shapes, strict=True))
    time = gemm_times(altered, "bf16", *columns).time * np.exp(0.03 * random.normal(size=45))
    path = tmp_path_factory.mktemp("table") / "measured.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["hardware", "dtype", "m", "n", "k", "time_us"])
        for shape, seconds in zip(shapes, time.tolist(), strict=True):
            writer.writerow(["H100_SXM", "bf16", *shape, seconds * 1e6])
    return path


def calibrate(base: Path, table: Path, *arguments: str) -> Any:
    result = run("calibrate", str(base), str(table), "--only", ",".join(KEYS), "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_altered_constants_of_the_gemm_model_are_recovered(base: Path, table: Path) -> None:
    found = calibrate(base, table)
    by = {item["path"].rsplit(".", 1)[1]: item for item in found["parameters"]}
    for key, truth in TRUTH.items():
        assert by[key]["after"] == pytest.approx(truth, rel=0.06), key
        assert abs(by[key]["after"] - truth) < 4.0 * by[key]["uncertainty"], key
        assert by[key]["informed"]
    assert found["kind"] == "gemm"
    assert found["count"] == found["rows"] == found["fitted"] == 45
    errors = found["errors"]
    assert errors["after"]["all"]["median_absolute_error"] < 0.04
    assert errors["before"]["all"]["median_absolute_error"] > 0.05
    assert errors["cross_validated"]["all"]["median_absolute_error"] < 0.05
    assert set(errors["after"]) == {"all", "gemm_small", "gemm_middle"} | (
        {"gemm_large"} if "gemm_large" in errors["after"] else set()
    )


def test_the_report_names_constants_errors_and_bands(base: Path, table: Path) -> None:
    result = run("calibrate", str(base), str(table), "--only", "launch_latency")
    assert result.exit_code == 0, result.stderr
    for words in (
        "45 of 45 rows used",
        "gemm.launch_latency",
        "error, before",
        "error, after",
        "error, unseen rows",
        "10-90 % band",
    ):
        assert words in result.stdout, words
    assert "gemm.memory_efficiency" not in result.stdout


def test_the_new_profile_works_wherever_a_name_does(
    base: Path, table: Path, tmp_path: Path
) -> None:
    output = tmp_path / "mine.toml"
    found = calibrate(base, table, "-o", str(output))
    assert found["output"] == str(output)
    assert load_hardware(output).calibrated("gemm", "launch_latency") == pytest.approx(
        3.4e-6, rel=0.06
    )
    compared = run("compare", "gemm", str(table), "--hardware", str(output), "--json")
    assert compared.exit_code == 0, compared.stderr
    errors = json.loads(compared.stdout)
    after = found["errors"]["after"]["all"]
    assert errors["median_absolute_error"] == pytest.approx(
        after["median_absolute_error"], rel=0.01
    )
    shown = run("hardware", "show", str(output))
    assert shown.exit_code == 0
    assert "fit to measured.csv" in shown.stdout
    assert "calibration.uncertainty.gemm_small" in shown.stdout
    timed = run(
        "kernel", "gemm", "--hardware", str(output), "--m", "1", "--n", "1024", "--k", "512"
    )
    assert timed.exit_code == 0, timed.stderr


def test_an_existing_file_is_replaced_as_by_every_command(
    base: Path, table: Path, tmp_path: Path
) -> None:
    output = tmp_path / "mine.toml"
    output.write_text("former")
    calibrate(base, table, "-o", str(output))
    assert load_hardware(output).name == "mine"
    former = base.read_text()
    assert_one_line(run("calibrate", base, table, "-o", base), "would extend itself")
    assert base.read_text() == former


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--where", "m > 1e9"), "no row to calibrate 'base'"),
        (("--where", "rows > 8"), "no column 'rows'"),
        (("--kind", "gem"), "did you mean gemm"),
        (("--only", "launch_latncy"), "did you mean launch_latency"),
        (("--sample", "3"), "3 is not in the range"),
        (("-o", "new.txt"), "ends in .toml"),
        (("-o", "/nowhere/new.toml"), "folder '/nowhere' does not exist"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(
    base: Path, table: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run("calibrate", str(base), str(table), *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("time_us", "seconds", "not the columns of any kind"),
        ("H100_SXM,bf16,1,1024,512,", "H100_SXM,bf16,1,1024,512,x", "line 2, column 'time_us'"),
        ("H100_SXM,bf16,1,1024,512,", "H100_SXM,bf16,0,1024,512,", "line 2, column 'm'"),
        ("H100_SXM,bf16,1,1024,512,", "H100_SXM,bf16,nine,1024,512,", "line 2, column 'm'"),
        ("H100_SXM,bf16,1,1024,512,", "a,b,c,d,e,f,g,", "line 2: 8 cells"),
    ],
)
def test_bad_tables_name_file_and_line(
    base: Path, table: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    bad = tmp_path / "bad.csv"
    text = table.read_text()
    assert old in text
    bad.write_text(text.replace(old, new, 1))
    result = run("calibrate", str(base), str(bad))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "bad.csv" in result.stderr


def test_missing_files_and_profiles_are_named(base: Path, tmp_path: Path) -> None:
    result = run("calibrate", str(base), str(tmp_path / "none.csv"))
    assert result.exit_code == 2
    assert "cannot read" in result.stderr
    result = run("calibrate", "dgx-h1000", str(tmp_path / "none.csv"))
    assert result.exit_code == 2
    assert "unknown hardware 'dgx-h1000'; did you mean dgx-h100" in result.stderr
    result = run("calibrate", "nvidia-hopper", str(tmp_path / "none.csv"))
    assert result.exit_code == 2
    assert "is a family or chip" in result.stderr


# ---------------------------------------------------------------- families


def family(*arguments: str) -> Result:
    return run("calibrate", "--family", "nvidia-hopper", *arguments)


def test_a_family_is_fitted_to_several_tables_and_its_lines_written(
    table: Path, tmp_path: Path
) -> None:
    output = tmp_path / "lines.toml"
    only = ("--only", ",".join(KEYS), "--id", "gemm-mine")
    filters = ("--where", "m < 100", "--where", "m > 100")
    result = family(str(table), str(table), *only, *filters, "-o", str(output), "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["family"] == "nvidia-hopper"
    assert "dgx-h200" in found["systems"]
    assert [item["where"] for item in found["tables"]] == ["m < 100", "m > 100"]
    assert found["count"] == 45
    for key, truth in TRUTH.items():
        assert found["constants"]["gemm"][key] == pytest.approx(truth, rel=0.06), key
    written = tomllib.loads(output.read_text(encoding="utf-8"))
    assert written["calibration"]["gemm"]["launch_latency"] == {
        "value": found["constants"]["gemm"]["launch_latency"],
        "fit": "gemm-mine",
    }
    assert written["gemm-mine"] == {k: v for k, v in found["fit"].items() if k != "id"}
    assert written["gemm-mine"]["script"] == (
        "perfmodel calibrate --family nvidia-hopper measured.csv measured.csv --where 'm < 100' "
        "--where 'm > 100' --only launch_latency,memory_efficiency --sample 4000"
    )


def test_bands_of_a_family_fit_nothing(table: Path) -> None:
    result = family(str(table), "--bands")
    assert result.exit_code == 0, result.stderr
    assert "gemm judged by measured.csv" in result.stdout
    assert "10-90 % band" in result.stdout
    assert "after" not in result.stdout
    document = json.loads(family(str(table), "--bands", "--json").stdout)
    assert document["fit"]["id"] == "bands-nvidia-hopper"
    assert set(document["constants"]["uncertainty"]) == set(document["uncertainty"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calibrate", "--family", "nvidia-hoper", "T"), "did you mean nvidia-hopper"),
        (("calibrate", "--family", "nvidia-hopper"), "Missing argument 'MEASURED.csv'"),
        (("calibrate",), "Missing argument 'PROFILE'"),
        (("calibrate", "dgx-h100", "T", "T"), "several tables without --family"),
        (("calibrate", "dgx-h100", "T", "--bands"), "--bands without --family"),
        (("calibrate", "--family", "nvidia-hopper", "T", "--all-rows"), "--all-rows with --family"),
        (
            ("calibrate", "--family", "nvidia-hopper", "T", "T", "T", *("--where", "m > 1") * 2),
            "2 filters (--where) for 3 tables",
        ),
        (("calibrate", "--family", "nvidia-ampere", "T"), "no row to calibrate 'nvidia-ampere'"),
        (("calibrate", "--family", "nvidia-hopper", "T", "-o", "x.csv"), "ends in .toml"),
    ],
)
def test_wrong_input_about_families_is_one_line_and_code_2(
    table: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run(*(str(table) if word == "T" else word for word in arguments))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
