"""``perfmodel workload nodes``: trees of the wafer workload generator, and wrong questions."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from perfmodel.wafer.core_columns import read_cores
from perfmodel.wafer.generator_files import read_node_table
from tests.cli.running import assert_one_line, changed, document, run
from tests.cli.workloads.files import workload
from tests.data import WAFER, needed, table_of

SMALL = shlex.split(
    "nodes --model deepseek-v3 --tp 2 --sp 2 --batch 4 --isl 16 --layers decode10 --compat wse "
    "--nodes 1 -o out"
)


@pytest.fixture(autouse=True)
def _folder(folder: Path) -> None:
    """Run in a folder of its own."""


def test_degrees_and_files_of_systems_say_the_same() -> None:
    result = workload(*SMALL)
    assert "rows of nodes/" in result.stderr
    assert result.stdout == ""
    first = read_node_table("out/nodes/decode/node_1/decode0.csv")
    block = {
        "num_nodes": 4,
        "node_grid": [2, 2],
        "core_grid": [4, 4],
        "dp_attn": 1,
        "dp_ffn": 1,
        "tp_attn": 2,
        "tp_ffn": 1,
        "pp": 1,
        "sp": 2,
        "ep": 4,
        "n_redundant_shared_exp": 1,
        "expert_workload_model": "uniform",
        "moe_comm": "alltoall",
    }
    Path("system.json").write_text(json.dumps({"decode": block}))
    left = [word for word in SMALL if word not in ("--tp", "--sp", "2")]
    workload(*left, "--system", "system.json")
    assert read_node_table("out/nodes/decode/node_1/decode0.csv") == first
    assert_one_line(
        run("workload", *SMALL, "--system", "system.json"), "--tp stands beside --system"
    )
    assert_one_line(
        run("workload", *left, "--system", "system.json", "--phase", "both"),
        "has no block 'prefill'",
    )


def test_routing_of_a_file() -> None:
    np.savez("routing.npz", experts=np.arange(32).reshape(1, 4, 1, 8))
    workload(*SMALL, "--routing", "routing.npz")
    rows = read_node_table("out/nodes/decode/node_1/decode9.csv")
    assert not [row for row in rows if row.name.endswith("_up")]  # experts 64 to 127 rest


@pytest.mark.parametrize(
    ("more", "part"),
    table_of(__file__, "wrong_questions"),
)
def test_wrong_questions(more: list[str], part: str) -> None:
    result = run("workload", *changed(SMALL, *more))
    assert_one_line(result, part)
    assert not Path("out").exists()


TRUE = shlex.split(
    "nodes --model deepseek-v3 --tp 2 --sp 2 --node-grid 2x2 --ep 4 --batch 4 --isl 16 "
    "--layers decode0,decode10 -o out"
)


def test_the_true_level_is_one_file_and_a_graph() -> None:
    result = workload(*TRUE, "--routing", "two_level", "--save-routing", "experts.npz", "--json")
    totals = json.loads(result.stdout)["phases"]["decode"]
    assert totals["steps"] == 2
    assert totals["sent"] == totals["received"] > 0
    assert totals["graph_edges"] > totals["graph_vertices"] > 0
    again = workload(*TRUE, "--routing", "experts.npz", "--no-graph", "--json")
    assert json.loads(again.stdout)["phases"]["decode"]["macs"] == totals["macs"]
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "chakra",
        "graph.graphml",
        "nodes.nc",
    ]


def test_both_phases_have_folders_of_their_own() -> None:
    plain = changed(TRUE, "--layers", "all", "--model", "llama-3.1-8b", "--ep", "1")
    workload(*plain, "--tp-ffn", "4", "--phase", "both", "--no-graph")
    assert Path("out/prefill/nodes.nc").exists()
    assert Path("out/decode/nodes.nc").exists()


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--layers", "decode61"], "has no 'decode61'"),
        (["--routing", "three_level"], "three_level"),
        (["--routing", "none.npz"], "none.npz"),
        (["--isl", "999999"], "exceed the 163840 positions"),
        (["--model", "llama-3.1-8b", "--routing", "uniform"], "has no experts"),
        (["--pp", "3"], "not the 12 of 'nodes'"),
    ],
)
def test_wrong_questions_of_the_true_level(more: list[str], part: str) -> None:
    assert_one_line(run("workload", *changed(TRUE, *more)), part)
    assert not Path("out").exists()


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
    table_of(__file__, "what_cannot_be_is_one_line"),
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
