"""``perfmodel wafer project``, and the group that stands for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.running import run
from tests.data import table_of

MODEL = ("--model", "llama-3-8b", "--hardware", "wse-2")


def document(*arguments: str) -> Any:
    result = run("wafer", *MODEL, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_one_mapping_with_and_without_the_name_of_the_command() -> None:
    asked = (*MODEL, "--grid", "420x420", "--phase", "decode", "--context", "4096")
    short, long = run("wafer", *asked), run("wafer", "project", *asked)
    assert short.exit_code == long.exit_code == 0
    assert short.stdout == long.stdout
    for words in ("tokens/s of a user", "network, exposed", "longest context", "4 regions"):
        assert words in short.stdout


def test_values_are_those_of_the_table() -> None:
    from perfmodel.wafer.project import wafer_table

    found = document("--grid", "420x300", "--phase", "decode,prefill", "--batch", "2")
    table = wafer_table("llama-3-8b", "wse-2", grid="420x300", batch=2, phase=["decode", "prefill"])
    assert [row["latency"] for row in found["mappings"]] == table["latency"].values.ravel().tolist()
    assert found["units"]["latency"] == "s"


def test_sweeps_and_files(tmp_path: Any) -> None:
    target = tmp_path / "grids.nc"
    result = run("wafer", *MODEL, "--sweep", "grid=300:720:8", "-o", target)
    assert result.exit_code == 0
    assert "300 × 300" in result.stdout
    assert "720 × 720" in result.stdout
    assert "wrote" in result.stderr
    import xarray as xr

    with xr.open_dataset(target) as stored:
        assert dict(stored.sizes) == {"mapping": 8, "hardware": 1, "phase": 1}
        assert stored["latency"].attrs["units"] == "s"


def test_parts_of_a_layer() -> None:
    result = run("wafer", *MODEL, "--grid", "420", "--explain")
    assert "softmax_max" in result.stdout
    assert {row["part"] for row in document("--grid", "420", "--explain")["parts"]} > {"scores"}


def test_a_whole_request() -> None:
    asked = ("--isl", "2048", "--osl", "128", "--prefill-grid", "660", "--decode-grid", "360")
    found = document(*asked)
    whole = found["time_to_first_token"] + 128 * found["time_per_output_token"]
    assert found["request_time"] == pytest.approx(whole)
    assert "output tokens/s" in run("wafer", *MODEL, *asked).stdout


@pytest.mark.parametrize(
    ("asked", "word"),
    table_of(__file__, "wrong_input_is_one_line"),
)
def test_wrong_input_is_one_line(asked: tuple[str, ...], word: str) -> None:
    result = run("wafer", *MODEL, *asked)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert word in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (("--model", "codellama-34b", "--grid", "420"), "3 of it hold it"),
        (("--model", "llama-3-8b", "--grid", "360", "--cache-layout", "row"), "key 'context'"),
    ],
)
def test_what_does_not_fit_is_shown_and_said(asked: tuple[str, ...], word: str) -> None:
    result = run("wafer", "--hardware", "wse-2", *asked)
    assert result.exit_code == 3
    assert "time of a layer" in result.stdout
    assert word in result.stderr


def test_chips_with_memory_beside_their_cores() -> None:
    result = run(
        "wafer", "--model", "llama-3.1-8b", "--hardware", "n150,n300", "--batch", "32",
        "--context", "128",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "n300" in result.stdout
    result = run("wafer", "--model", "llama-3.1-8b", "--hardware", "n150", "--context", "128")
    assert "memory beside the cores" in result.stdout
    result = run("wafer", "--model", "llama-3.1-70b", "--hardware", "n150", "--context", "128")
    assert (result.exit_code, "key 'hardware'" in result.stderr) == (2, True)


def test_a_command_that_is_none_is_named() -> None:
    result = run("wafer", "prject")
    assert result.exit_code == 2
    assert "'prject'" in result.stderr


def test_as_json_all_mappings_or_the_fastest() -> None:
    asked = ("--grid", "300,600,700", "--phase", "decode")
    assert [row["grid_rows"] for row in document(*asked)["mappings"]] == [300, 600, 700]
    (fastest,) = document(*asked, "--top", "1")["mappings"]
    assert fastest["grid_rows"] == 300
