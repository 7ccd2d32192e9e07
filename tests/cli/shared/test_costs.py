"""Options of costs and how costs are printed: ``project``, ``sweep`` and ``best`` alike."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from perfmodel.cli.shared.costs import duration
from tests.cli.running import assert_one_line, document, run
from tests.data import table_of

PROJECT = (
    "project --model llama-3.1-8b --devices 16 --tp 2 --global-batch 64 --seq-len 4096 --zero 1"
)
SWEEP = (
    "sweep --model llama-3.1-8b --devices 16 --tp 2,4 --pp 1 --cp 1 --vpp 1 --global-batch 64 "
    "--seq-len 4096 --hardware dgx-h100 --hardware dgx-b200 --hardware mi325x-server"
)


def projected(*more: str, hardware: str = "dgx-h100") -> Any:
    return document(*shlex.split(PROJECT), "--hardware", hardware, *more)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("costs") / "sweep.nc"
    assert run(*shlex.split(SWEEP), "-o", str(path)).exit_code == 0
    return path


def test_a_projection_has_its_cost_where_asked() -> None:
    assert "cost_per_token" not in projected()
    found = projected("--tokens", "15e12", "--price", "2.5")
    hours = found["device_time"] / 3600
    assert hours == pytest.approx(15e12 / found["tokens_per_second_per_device"] / 3600)
    assert found["training_cost"] == pytest.approx(2.5 * hours)
    assert found["training_time"] == pytest.approx(found["device_time"] / 16)
    assert found["units"]["training_cost"] == "USD"
    assert found["cost"]["price"] == {"dgx-h100": 2.5}
    assert found["cost"]["tokens"] == 15e12
    assert "goodput" not in found
    assert 0 < projected("--restart-time", "0")["goodput"] < 1


def test_a_projection_prints_days_device_hours_money_and_energy() -> None:
    result = run(*shlex.split(PROJECT), "--hardware", "h100", "--tokens", "15e12", "--goodput")
    assert result.exit_code == 0
    text = result.stdout.partition("\ncost")[2].partition("\ngroups")[0]
    lines = {line[:16].strip(): line[16:] for line in text.splitlines()}
    assert "days" in lines["training time"]
    assert "1.5e+13 tokens" in lines["training time"]
    assert "6.88 USD per device-hour" in lines["price"]
    assert "MWh" in lines["energy"]
    assert "a checkpoint of" in lines["goodput"]
    assert max(map(len, text.splitlines())) <= 100


def test_no_price_and_no_power_are_said_not_invented() -> None:
    command = [*shlex.split(PROJECT), "--tokens", "1e12", "--hardware"]
    assert "–  no price is known: --price" in run(*command, "mi325x-server").stdout
    text = "–  no power limit is known: --set device.tdp=WATT"
    assert text in run(*command, "tpu-v5p-pod").stdout
    found = projected("--tokens", "1e12", hardware="mi325x-server")
    assert found["training_cost"] is None
    assert found["training_energy"] > 0
    free = projected("--price", "0", hardware="mi325x-server")
    assert free["cost_per_token"] == 0.0


def test_a_sweep_writes_costs_and_best_ranks_by_them(file: Path, tmp_path: Path) -> None:
    priced = tmp_path / "priced.nc"
    given = ["--tokens", "1e12", "--price", "h100=2.5,b200=4", "--price", "mi325x=2"]
    result = run(*shlex.split(SWEEP), *given, "-o", str(priced))
    assert result.exit_code == 0
    assert "device-hours" in result.stdout
    stored = document("best", priced, "--by", "training_cost")
    later = document("best", file, *given, "--by", "training_cost")
    assert stored["strategies"] == later["strategies"]
    costs = [row["training_cost"] for row in stored["strategies"]]
    assert costs == sorted(costs)
    assert stored["cost"]["price"] == {"dgx-h100": 2.5, "dgx-b200": 4.0, "mi325x-server": 2.0}
    # What the file knows counts where nothing else is said.
    cheaper = document("best", priced, "--price", "b200=0.1", "--by", "training_cost")
    assert cheaper["strategies"][0]["hardware"] == "dgx-b200"
    assert cheaper["cost"]["tokens"] == 1e12
    assert cheaper["cost"]["price"]["mi325x-server"] == 2.0


def test_naming_a_cost_is_enough(file: Path) -> None:
    rows = document("best", file, "--by", "energy_per_token")["strategies"]
    values = [row["energy_per_token"] for row in rows]
    assert values == sorted(values)
    limit = values[2]
    few = document("best", file, "--where", f"energy_per_token <= {limit!r}", "--price", "1")
    assert few["selected"] == 3
    best = document("best", file, "--by", "goodput", "--top", "1")["strategies"][0]
    assert 0.9 < best["goodput"] < 1
    front = document("best", file, "--pareto", "cost_per_token,memory_total")["strategies"]
    assert [row["cost_per_token"] for row in front] == sorted(r["cost_per_token"] for r in front)
    assert "cost" not in document("best", file)


def test_costs_stand_below_the_strategies(file: Path) -> None:
    result = run("best", file, "--top", "2", "--tokens", "1e12", "--goodput")
    table = result.stdout.rstrip().splitlines()[-3:]
    assert table[0].split() == [
        "#", "days", "device-hours", "USD", "MWh", "USD/Mtoken", "J/token", "goodput", "%",
    ]  # fmt: skip
    assert len(table[1].split()) == 8


@pytest.mark.parametrize(
    ("arguments", "parts"),
    table_of(__file__, "wrong_input_is_one_line"),
)
def test_wrong_input_is_one_line(file: Path, arguments: str, parts: tuple[str, ...]) -> None:
    assert_one_line(run("best", str(file), *shlex.split(arguments)), *parts)


def test_ranking_by_a_cost_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "amd.nc"
    assert run(*shlex.split(SWEEP.partition(" --hardware")[0]), "--hardware", "mi325x-server",
               "-o", str(path)).exit_code == 0  # fmt: skip
    result = run("best", str(path), "--by", "cost_per_token")
    assert_one_line(result, "'cost_per_token' has no value: no price is known for mi325x-server")
    assert document("best", path, "--price", "2", "--by", "cost_per_token")["strategies"]


def test_durations_read_well() -> None:
    texts = [duration(seconds) for seconds in (2.5, 119.0, 600.0, 9000.0, 86400 * 70.5)]
    assert texts == ["2.500 s", "119.0 s", "10.0 min", "2.5 h", "70.5 days"]
