"""``perfmodel search``: what it prints, writes and returns."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from click.testing import Result

from tests.cli.running import assert_one_line, run

PROBLEM = "--model llama-3.1-8b --devices 16 --seq-len 4096 --global-batch 64"
AXES = "--tp 1,2 --pp 1,2 --cp 1 --vpp 1 --micro-batch 1,2 --recompute none,full"


def run_search(text: str) -> Result:
    return run("search", *shlex.split(f"{PROBLEM} {AXES} {text}"))


def test_the_summary_counts_what_was_proved() -> None:
    result = run_search("--hardware dgx-h100 --top 2 --mapping all")
    assert result.exit_code == 0
    for text in (
        "llama-3.1-8b, 8.03 G parameters, on 16 devices",
        "need more memory than there is",
        "compute for longer than the best take",
        "compute and communicate for longer",
        "exactly",
        "Best by tokens per second and device",
        "proved in",
    ):
        assert text in result.stdout


def test_the_file_holds_the_winners_for_other_commands(tmp_path: Path) -> None:
    path = tmp_path / "best.nc"
    found = json.loads(run_search(f"--hardware dgx-h100 --top 3 --json -o {path}").stdout)
    ranked = json.loads(run("best", str(path), "--top", "3", "--json").stdout)
    asked = f"{PROBLEM} {AXES} --hardware dgx-h100 --top 3 --float64 --json"
    swept = run("sweep", *shlex.split(asked))
    rates = [
        [row["tokens_per_second_per_device"] for row in document["strategies"]]
        for document in (found, ranked, json.loads(swept.stdout))
    ]
    assert rates[0] == rates[1] == rates[2]
    assert run("launch", str(path), "--for", "megatron").exit_code == 0


def test_json_accounts_for_every_strategy() -> None:
    text = "--hardware dgx-h100 --json --by step_time --global-batch 64,80"
    document = json.loads(run_search(text).stdout)
    assert document["by"] == "step_time"
    assert document["bound"] is None
    assert document["gap"] == 0.0
    assert document["unsettled"] == 0
    assert sum(document["proved"].values()) + document["projected"] == document["possible"]
    assert sum(document["impossible"].values()) > 0


def test_out_of_time_it_says_the_gap() -> None:
    result = run_search("--hardware dgx-h100 --seconds 1e-9")
    assert result.exit_code == 0
    assert "stopped after" in result.stdout
    assert "unsettled" in result.stdout


def test_nothing_fits_is_exit_code_3() -> None:
    text = "--model llama-3.1-405b --hardware dgx-h100 --devices 8 --seq-len 4096 --global-batch 8"
    result = run("search", *text.split())
    assert result.exit_code == 3
    assert "no strategy fits in memory (dgx-h100 needs at least" in result.stderr


def test_bad_input_is_one_line_and_exit_code_2() -> None:
    for text, said in (
        ("--hardware dgx-h100 --by memory_total", "'memory_total' is not one of"),
        ("--hardware dgx-h100 --seconds 0", "0.0 is not in the range"),
        ("--hardware nowhere", "nowhere"),
        ("--hardware dgx-h100 --ep 3", "no strategy is possible on 16 devices"),
        ("--hardware dgx-a100 --precision fp8", "has a matrix rate for the wanted precision"),
        ("--hardware dgx-h100 -o best.txt", "its name ends in '.txt'"),
    ):
        assert_one_line(run_search(text), said)
