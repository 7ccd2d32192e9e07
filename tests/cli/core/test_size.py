"""``perfmodel size``: the fewest devices within limits."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from perfmodel.sweeps.size import size_deployment
from tests.cli.running import assert_one_line, document, run

ASKED = "--model llama-3.1-8b --hardware dgx-h100 --isl 2048 --osl 128 --rate 20 --tp 1,2"
LIMITED = f"{ASKED} --ttft-p95 0.5 --tpot-p95 0.02"


def size(text: str) -> Any:
    return run("size", *shlex.split(text))


def test_deployments_are_those_of_python() -> None:
    found = document("size", *shlex.split(LIMITED))
    expected = size_deployment(
        "llama-3.1-8b",
        "dgx-h100",
        rate=20,
        limits={"ttft_p95": 0.5, "tpot_p95": 0.02},
        loads={"input_length": 2048, "output_length": 128},
        deployments={"tensor_parallel": [1, 2]},
    )
    names = ("tensor_parallel", "workers", "devices")
    assert [[row[name] for name in names] for row in found["deployments"]] == [
        [row[name] for name in names] for row in expected
    ]
    assert found["limits"] == {"ttft_p95": 0.5, "tpot_p95": 0.02}
    for row in found["deployments"]:
        assert row["time_to_first_token_p95"] <= 0.5
        assert row["time_per_output_token_p95"] <= 0.02


def test_what_is_suggested_serves_the_rate() -> None:
    result = size(LIMITED)
    assert "Fewest devices for 20 requests/s of llama-3.1-8b" in result.stdout
    suggested = next(line for line in result.stderr.splitlines() if "perfmodel serve" in line)
    again = document(*shlex.split(suggested)[1:])
    assert again["time_per_output_token_p95"] <= 0.02
    assert again["devices"] == document("size", *shlex.split(LIMITED))["deployments"][0]["devices"]


def test_tighter_limits_take_more_devices() -> None:
    loose, tight = (
        document("size", *shlex.split(f"{ASKED} --limit tpot_p95={limit} --top 1"))["deployments"]
        for limit in (0.05, 0.008)
    )
    assert loose[0]["devices"] < tight[0]["devices"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (ASKED, ["a limit is needed", "--ttft-p95"]),
        (f"{ASKED} --ttft-p95 0", ["--ttft-p95"]),
        (f"{ASKED} --limit ttft_p95", ["VAR=NUMBER"]),
        (f"{ASKED} --limit fast=3", ["unknown limit 'fast'"]),
        (f"{ASKED} --limit itl=1 --limit itl=2", ["limited twice"]),
        (f"{ASKED} --ttft 1 --limit ttft=2", ["limited twice"]),
        (f"{ASKED} --tpot-p95 0.00001", ["no deployment", "the nearest has"]),
        (f"{LIMITED} --precision fp8,bf16", ["one format"]),
        (LIMITED.replace("--isl 2048", "--isl 1024,2048"), ["one value"]),
    ],
)
def test_bad_input_is_one_clear_line(text: str, parts: list[str]) -> None:
    assert_one_line(size(text), *parts)
