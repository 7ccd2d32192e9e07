"""What is shown of an operating point."""

from __future__ import annotations

import shlex

import pytest

from perfmodel.kernels.serving.variables import VARIABLES
from tests.cli.running import document
from tests.cli.serving import POINT, point, serve


def test_a_point_prints_times_rates_the_pass_and_the_memory() -> None:
    shown = serve(POINT).stdout
    for words in (
        "llama-3.1-8b on 1 × H100",
        "isl 2,048 · osl 256 · concurrency 16",
        "time to first token",
        "time per output token",
        "output tokens per second and device",
        "a mean pass",
        "weights on the fullest device",
        "on an attention rank",
        "assumed: --engine vllm",
    ):
        assert words in shown
    found = point()
    assert f"{1e3 * found['time_per_output_token_mean']:#.4g}".rstrip(".") in shown


def test_what_is_suggested_runs_and_is_the_point_again() -> None:
    given = f"{POINT} --precision fp8 --chunk 2048 --length-range 0.8 --prefix 0.25"
    suggested = next(
        line for line in serve(given).stderr.splitlines() if line.endswith("--explain")
    )
    again = document(*shlex.split(suggested)[1:-1])
    first = point(given)
    assert {name: again[name] for name in VARIABLES} == {name: first[name] for name in VARIABLES}


def test_explain_says_where_two_passes_go() -> None:
    found = point(POINT, "--explain")
    assert set(found["operations"]) == {"decode", "prefill"}
    for operations in found["operations"].values():
        assert {"part", "name", "kind", "shape", "calls", "time", "adds", "bound"} <= set(
            operations[0]
        )
    inter_token = found["inter_token_latency_p50"]
    assert sum(it["adds"] for it in found["operations"]["decode"]) == pytest.approx(
        inter_token, rel=0.05
    )
    shown = serve(POINT, "--explain", "--top", "2").stdout
    assert "A decode pass" in shown
    assert "more operations" in shown
    assert "layer0 mlp.up" in shown
