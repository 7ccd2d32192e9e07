"""How operating points look."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perfmodel.base.served_fields import DEPLOYMENT_FIELDS, LOAD_FIELDS
from perfmodel.cli.shared import serving_tables
from perfmodel.kernels.serving.variables import VARIABLES


def point(**changes: Any) -> dict[str, Any]:
    """A made-up point with every field and variable."""
    fields = {spec.name: spec.default for spec in (*DEPLOYMENT_FIELDS, *LOAD_FIELDS)}
    numbers = {name: 0.5 for name in VARIABLES} | {"tokens_per_second_per_device": 1234.5}
    given = {"engine": "vllm-0.16", "hardware": "dgx-h200", "devices": 8, "block_tokens": 16}
    given |= {"method": "closed"}
    return {**fields, **numbers, **given, "concurrency": 8.0, "memory_capacity": 2**37, **changes}


def test_points_show_the_fields_in_which_they_differ(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [point(tensor_parallel=1), point(tensor_parallel=2, hardware="dgx-b200")]
    serving_tables.print_points(rows)
    head, *lines, common = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["#", "hardware", "tp"]
    assert lines[0].split()[1:3] == ["dgx-h200", "1"]
    assert lines[1].split()[1:3] == ["dgx-b200", "2"]
    assert common == "all: vllm-0.16 · closed · isl 1,024 · osl 1,024 · concurrency 8"


def test_what_no_point_has_is_no_column(capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in VARIABLES if name.startswith("time_to_first_token")]
    without = dict.fromkeys(names, math.nan)
    serving_tables.print_points([point(**without), point(**without)])
    assert "ttft" not in capsys.readouterr().out
    serving_tables.print_points([point(**without), point()])
    out = capsys.readouterr().out
    assert "ttft" in out
    assert serving_tables.NOTHING in out


def test_latencies_have_percentiles_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    row = point(
        time_to_first_token_p95=2.0, time_to_first_token_low=0.4, time_to_first_token_high=0.6
    )
    serving_tables.print_latencies(row)
    line = next(it for it in capsys.readouterr().out.splitlines() if "first token" in it)
    assert "2.000 s" in line
    assert line.endswith("400–600 ms")


def test_shares_of_a_pass_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    serving_tables.print_pass(point(attention_time=3.0, host_time=0.0))
    out = capsys.readouterr().out
    assert "60.0 %" in out
    assert "waiting for the host" not in out
    assert "5.000 s" in out


def test_a_title_says_what_a_short_name_means() -> None:
    assert serving_tables.variable_title("ttft_p95").startswith("time from a request's arrival")
    assert serving_tables.variable_title("nothing") == "nothing"
