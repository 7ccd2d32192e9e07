"""``perfmodel serve``: points, grids, phases, pools, and what is refused."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest

from perfmodel import load_grid, serving_grid
from perfmodel.kernels.serving.variables import TIME_COMPONENTS, VARIABLES
from perfmodel.serving.requests import read_requests
from perfmodel.store.results import open_table
from perfmodel.sweeps.serving import serve_table
from perfmodel.sweeps.serving_replay import replay_table
from tests.cli.running import assert_one_line, document, run
from tests.cli.serving import GRID, POINT, changed_text, point, serve


def test_a_point_is_what_python_projects() -> None:
    found = point()
    grid = serving_grid("llama-3.1-8b", "dgx-h100", tensor_parallel=1)
    loads = load_grid(input_length=2048, output_length=256, concurrency=16)
    table = serve_table("llama-3.1-8b", grid, loads, "dgx-h100")
    for name in VARIABLES:
        value = table[name].labelled().reshape(-1)[0]
        assert found[name] == (pytest.approx(value) if name != "status" else value)
    assert found["units"]["time_to_first_token_p95"] == "s"
    assert found["assumed"] == {"engine": grid.engines[0].name}


def test_a_grid_counts_ranks_and_is_kept(folder: Path) -> None:
    result = serve(GRID, "-o", "serve.nc", "--price", "3")
    assert result.exit_code == 0, result.stderr
    for words in (
        "deployments possible              4",
        "impossible            2",
        "operating points                 16",
        "Best by output tokens per second and device",
        "Best of each engine and hardware",
        "Not beaten in tokens per second per device and per user",
        "USD/Mtoken",
    ):
        assert words in result.stdout
    table = open_table("serve.nc")
    sizes = {"deployment": 4, "hardware": 2, "load": 2, "kernel_class": 7}
    assert dict(table.sizes) == sizes
    found = document("serve", *shlex.split(GRID), "--top", "3")
    assert found["impossible"] == {"heads_not_divisible": 2}
    assert found["statuses"] == {"valid": 16}
    rates = [row["tokens_per_second_per_device"] for row in found["best"]]
    assert rates == sorted(rates, reverse=True)
    assert len(rates) == 3
    assert rates[0] == pytest.approx(table["tokens_per_second_per_device"].values.max())


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_phase_of_a_static_batch(phase: str) -> None:
    text = f"{POINT} --phase {phase} --batch 1,64".replace(" --concurrency 16", "")
    found = point(text)
    assert found["points"] == 2
    first, second = sorted(found["best"], key=lambda row: row["concurrency"])
    name = "time_to_first_token" if phase == "prefill" else "time_per_output_token"
    other = "time_per_output_token" if phase == "prefill" else "time_to_first_token"
    assert first[f"{name}_mean"] < second[f"{name}_mean"]
    assert first[f"{other}_mean"] is None
    parts = sum(second[part] for part in TIME_COMPONENTS)
    if phase == "decode":
        assert parts == pytest.approx(second["inter_token_latency_mean"])
    result = serve(text)
    assert "tok/s" in result.stdout or "with prompts" in result.stdout


TRACE = "arrival,input_length,output_length\n0,2048,4\n0.5,1024,8\n30,512,2\n"
REPLAY = "--model llama-3.1-8b --hardware dgx-h100 --tp 1 --replay trace.csv"


def test_a_trace_is_replayed_as_in_python(folder: Path) -> None:
    (folder / "trace.csv").write_text(TRACE, encoding="utf-8")
    found = point(REPLAY)
    grid = serving_grid("llama-3.1-8b", "dgx-h100", tensor_parallel=1)
    table = replay_table(grid, read_requests("trace.csv"), "dgx-h100")
    for name in ("time_to_first_token_p99", "request_rate", "batch"):
        assert found[name] == pytest.approx(float(table[name].values[0, 0, 0]))
    assert (found["input_length"], found["output_length"]) == (2048, 8)
    several = point(REPLAY, "--concurrency", "1,2")
    assert [row["concurrency"] for row in several["best"]] == [2.0, 1.0]
    assert_one_line(serve(f"{REPLAY} --rate 2"), "drop --rate")
    assert_one_line(serve(f"{REPLAY} --disaggregate"), "one pool")
    (folder / "trace.csv").write_text(TRACE.replace("30", "-1"), encoding="utf-8")
    assert_one_line(serve(REPLAY), "trace.csv, line 4", "-1")


def test_pass_by_pass_agrees_with_the_closed_form() -> None:
    short = changed_text("--isl", "512", "--osl", "32", "--concurrency", "2")
    closed, exact = point(short), point(short, "--exact", "--rounds", "3")
    assert exact["time_per_output_token_mean"] == pytest.approx(
        closed["time_per_output_token_mean"], rel=0.1
    )
    assert_one_line(serve(changed_text("--exact", "--rate", "2")), "--exact takes closed loops")


def test_values_of_hardware_and_software_count() -> None:
    plain = point()
    faster = point(POINT, "--set", "device.memory.bandwidth=6.7e12")
    assert faster["time_per_output_token_mean"] < plain["time_per_output_token_mean"]
    slower = point(POINT, "--set", "software.pass_host=0.05")
    assert "[pass_host=0.05]" in slower["engine"]
    assert slower["time_per_output_token_mean"] > plain["time_per_output_token_mean"] + 0.04
    swept = point(POINT, "--sweep", "device.memory.bandwidth=3e12,6e12")
    assert swept["points"] == 2


def test_nothing_possible_is_exit_code_3() -> None:
    small = serve("--model llama-3.1-70b --hardware dgx-h100 --tp 1 --concurrency 1")
    assert small.exit_code == 3
    assert small.stdout == ""
    assert "leave no memory for a cache" in small.stderr
    assert "--tp" in small.stderr


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (POINT.replace(" --concurrency 16", ""), ["--concurrency", "--rate", "--phase"]),
        (f"{POINT} --rate 2 --phase decode", ["--batch"]),
        (f"{POINT} --phase decode --batch 2", ["drop --concurrency"]),
        (f"{POINT} --engine vlm", ["unknown engine", "vllm"]),
        (f"{POINT} --prefill cp=2", ["a pool has no 'cp'"]),
        (f"{POINT} --prefill tp", ["KEY=N"]),
        (f"{POINT} --decode tp=2", ["--decode and --tp both name tensor_parallel"]),
        (f"{POINT} --speculative 2", ["mtp:LENGTH:ACCEPTANCE"]),
        (f"{POINT} --speculative mtp:2:1.5", ["1.5 is above 1"]),
        (f"{POINT} --precision fp9", ["'fp9' is not known", "fp8"]),
        (f"{POINT} --precision fp8:int4", ["'int4' is not known"]),
        (f"{POINT} --prefix 4096", ["leave no prompt"]),
        (f"{POINT} --length-range 2", ["2 is above 1"]),
        (f"{POINT} --kv-precision int4", ["'int4' is not known"]),
        (changed_text("--tp", "3"), ["no deployment is possible", "heads"]),
        (changed_text("--concurrency", "-1"), ["-1", "below 0"]),
        (changed_text("--concurrency", "many"), ["'many' should be numbers"]),
        (changed_text("--isl", "1,2", "--explain"), ["one point"]),
        (f"{POINT} --set software.since=1", ["goes by the engine's name"]),
        (f"{POINT} --set software.hosts=1", ["unknown engine field"]),
        (f"{POINT} -o missing/serve.nc", ["does not exist"]),
    ],
)
def test_bad_input_is_one_clear_line(text: str, parts: list[str], folder: Path) -> None:
    assert_one_line(serve(text), *parts)
    assert list(folder.iterdir()) == []


def test_an_unstable_rate_is_a_status_not_a_number() -> None:
    found = point(changed_text("--rate", "1,100000").replace(" --concurrency 16", ""))
    assert found["statuses"] == {"valid": 1, "rate_above_capacity": 1}
    assert len(found["best"]) == 1
    assert math.isfinite(found["best"][0]["time_to_first_token_mean"])


def test_rates_up_to_and_beyond_capacity_are_answered_or_refused() -> None:
    """With a few decoding, prompts alone fill every pass: such states are left, not stayed in."""
    words = (
        "--model",
        "llama-3.1-70b",
        "--hardware",
        "dgx-h100",
        "--engine",
        "trtllm",
        "--tp",
        "4",
    )
    load = ("--isl", "467", "--osl", "16", "--length-range", "0.95", "--rate", "2,32,64")
    result = run("serve", *words, *load)
    assert result.exit_code == 0, result.stderr
    assert "requests arrive faster than they are served" in result.stdout
