"""How comparisons look: what changed, in which order, in how many columns."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from perfmodel.cli.core.project import project_command
from perfmodel.kernels.variables import SCHEMA_VERSION
from tests.cli.core.diff_pairs import RUN, SWEEP, diff, printed
from tests.cli.running import run


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_what_changed_is_shown_and_the_rest_stands_in_one_line() -> None:
    text = printed("-", "zero=3").stdout
    head, _, rest = text.partition("the same: ")
    assert "zero stage" in head
    assert "tensor parallel exposed" in rest
    assert "tensor parallel exposed" not in head
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_components_are_sorted_by_what_they_change() -> None:
    lines = printed("-", "tp=4 --recompute=full").stdout.partition("adds up")[2].splitlines()[1:]
    names = [line.split("  ")[0] for line in lines[: lines.index("")]]
    assert names[0] in ("recompute time", "tensor parallel exposed")
    assert "backward time" in names


def test_a_quantity_that_was_nothing_before_is_new() -> None:
    text = printed("-", "recompute=full").stdout
    assert next(line for line in text.splitlines() if line.startswith("recompute time")).endswith(
        "new"
    )


def test_what_does_not_fit_is_said() -> None:
    lacking = RUN.replace("--tp 2", "--tp 1").replace("--micro-batch 1", "--micro-batch 4")
    assert "A and B do NOT fit in memory" in printed("-", "zero=0", lacking).stdout
    text = printed("-", "tp=4 micro-batch=1", lacking).stdout
    assert "A does NOT fit in memory" in text
    assert "fits " in text


def test_equal_projections() -> None:
    text = printed("-", "tp=2").stdout
    assert "changed" not in text
    assert text.count("the same: ") == 1


def test_costs_by_line() -> None:
    text = printed("-", "hardware=b200", f"{RUN} --tokens 1e12 --price 2").stdout
    lines = text.partition("\ncost ")[2].splitlines()
    assert [line.split("  ")[0] for line in lines[1:8]] == [
        "power per device",
        "energy per token",
        "cost per token",
        "training time",
        "device time",
        "training energy",
        "training cost",
    ]
    assert "USD" in lines[7]
    assert "days" in lines[4]


def test_sweeps_say_who_gains_most(tmp_path: Path) -> None:
    a, b = tmp_path / "a.nc", tmp_path / "b.nc"
    assert run(*shlex.split(SWEEP), "-o", a).exit_code == 0
    assert run(*shlex.split(SWEEP.replace("h100", "b200")), "-o", b).exit_code == 0
    text = printed(a, b, "").stdout
    assert "strategies that both hold" in text
    assert "gains most (-" in text
    assert "fit in memory only in A 0, only in B" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "gains most" not in printed(a, tmp_path / "." / "a.nc", "").stdout


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("diff")
    faster = f"{SWEEP} --set device.memory.bandwidth=4.8e12"
    for name, command in (("a.nc", SWEEP), ("b.nc", faster)):
        assert run(*shlex.split(command), "-o", folder / name).exit_code == 0
    return folder / "a.nc", folder / "b.nc"


def test_changes_are_those_of_the_two_projections() -> None:
    found = diff("tp=2", "tp=4")
    assert found["schema_version"] == SCHEMA_VERSION
    assert found["changed"]["tensor_parallel"] == {"a": 2, "b": 4}
    for name, change in found["changes"].items():
        assert change["a"] == found["a"][name]
        assert change["absolute"] == pytest.approx(found["b"][name] - found["a"][name])
        assert name in found["units"]
    times = [name for name in found["changes"] if found["units"][name] == "s"]
    assert "step_time" in times
    assert "matched" not in found


def test_two_sweeps_are_compared_over_what_both_hold(sweeps: tuple[Path, Path]) -> None:
    shared = diff(*sweeps, "")["matched"]
    step = shared["changes"]["step_time"]
    assert shared["count"] == step["better"] > 10
    assert step["worse"] == shared["only_a"] == shared["only_b"] == 0
    assert step["lowest"] <= step["median"] <= step["highest"] < 0
    assert step["best"]["hardware"] == "dgx-h100"
    assert shared["changes"]["memory_total"]["same"] == shared["count"]


def test_single_strategies_of_sweeps_are_not(sweeps: tuple[Path, Path]) -> None:
    a, b = sweeps
    assert "matched" not in diff(f"{a}#1", f"{b}#1", "")
    assert "matched" not in diff(a, "-")


def test_sweeps_that_share_nothing_say_so(sweeps: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.nc"
    command = SWEEP.replace("--seq-len 4096", "--seq-len 8192")
    assert run(*shlex.split(command), "-o", other).exit_code == 0
    result = printed(sweeps[0], other, "")
    assert result.exit_code == 0
    assert "share no possible strategy" in result.stderr
    assert "step time" in result.stdout


def test_every_option_of_a_projection_is_on_the_help_page() -> None:
    text = run("diff", "--help").stdout
    for param in project_command.params:
        assert max(param.opts, key=len) in text
    assert "[required]" not in text
