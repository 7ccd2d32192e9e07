"""``perfmodel workload cores``."""

import shlex
from pathlib import Path

import pytest

from perfmodel.wafer.formats.core_columns import read_cores
from tests.cli.running import assert_one_line, changed, document, run
from tests.data import WAFER, needed

CORES = shlex.split(
    "workload cores out --model llama-3-8b --node-grid 1x2 --tp 2 --tp-ffn 2 --core-grid 2x3 "
    "--batch 3 --isl 40 --layers decode1,lm_head"
)


def test_text_columns_and_totals(folder: Path) -> None:
    found = document(*CORES)
    assert found["macs"] == found["executed_macs"]
    assert found["occupancy"] > 0.97
    system, several = read_cores(folder / "out")
    assert system.cores == 6
    lines = sum(len(made.lines) for _, _, _, made in several)
    assert sum(found["instructions"].values()) == lines
    text = list((folder / "out/traces").glob("decode/node_*/decode0/core_*.csv"))
    assert sum(len(path.read_text().splitlines()) for path in text) == lines
    result = run(*CORES, "--form", "columns")
    assert "multiply-adds" in result.stdout


def test_prompts_have_cores_too(folder: Path) -> None:
    words = changed(CORES, "--layers", "prefill1,lm_head")
    assert document(*words, "--phase", "prefill")["macs"] > 0
    assert (folder / "out/traces/prefill/node_1/prefill/core_5.csv").exists()


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (["--tp", "3"], ["parallel"]),
        (["--node-grid", "2"], ["--node-grid", "6x6"]),
        (["--core-grid", "999x999"], ["'core_grid'"]),
        (["--layers", "decode32"], ["decode32", "decode31"]),
        (["--nodes", "2"], ["'nodes'", "0 to 1"]),
        (["--steps", "10"], ["'steps'", "0 to 9"]),
        (["--isl", "100000"], ["'isl'", "8192"]),
        (["--routing", "x.npz"], ["no experts"]),
        (["--system", "x.json"], ["--system"]),
        (["--tiling", "x.json"], ["--compat"]),
        (["--compat", "wse"], ["--model"]),
        (["--batch", "0"], ["--batch"]),
    ],
)
def test_what_cannot_be_is_one_line(folder: Path, more: list[str], parts: list[str]) -> None:
    assert_one_line(run(*changed(CORES, *more)), *parts)
    assert not (folder / "out").exists()


def test_nodes_say_what_their_cores_are_of(folder: Path) -> None:
    words = [word for word in changed(CORES, "--layers", "decode1") if word]
    words[1] = "nodes"
    words[2:3] = ["-o", "out"]
    result = run(*words, "--no-graph")
    assert result.exit_code == 0, result.stderr
    stated = document("workload", "cores", "out", "--layers", "decode1")
    assert stated == document(*changed(CORES, "--layers", "decode1"))
    (folder / "out/nodes.nc").write_text("no")
    assert_one_line(run("workload", "cores", "out"), "not a readable netCDF-4 file")


def test_a_model_is_needed(folder: Path) -> None:
    assert_one_line(run("workload", "cores", "out"), "--model")


def test_the_generators_need_its_nodes(folder: Path) -> None:
    words = ["workload", "cores", "out", "--compat", "wse"]
    grid = ["--node-grid", "2x2", "--tp", "4", "--ep", "4", "--core-grid", "4x4"]
    assert_one_line(run(*words, *grid), "holds no tree of nodes")
    assert_one_line(run(*words, *grid, "--steps", "all"), "--steps")
    assert_one_line(run(*words, *grid, "--phase", "prefill"), "--phase")
    system = needed(WAFER / "configs/system.json")
    assert_one_line(run(*words, "--system", system), "holds no tree of nodes")
