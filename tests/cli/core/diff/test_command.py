"""``perfmodel diff`` as a whole: projections, sweeps, help."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from perfmodel.cli.core.project import project_command
from perfmodel.kernels.variables import SCHEMA_VERSION
from tests.cli.core.diff.pairs import SWEEP, diff, printed
from tests.cli.running import run


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
