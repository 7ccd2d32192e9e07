"""``perfmodel project`` and ``perfmodel explain``: the same numbers, told twice."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perfmodel import load_hardware, load_model, strategies_from_rows, sweep
from perfmodel.base.variables import MEMORY_COMPONENTS, SCHEMA_VERSION, TIME_COMPONENTS, VARIABLES
from perfmodel.cli.main import cli
from perfmodel.strategy.grid import FIELDS
from perfmodel.sweeps.explain import OPERATION_COMPONENTS, explain

DENSE = (
    "--model llama-3.1-8b --hardware dgx-h100 --devices 32 --tp 4 --pp 2 --global-batch 64 "
    "--seq-len 8192"
)
PROBLEMS = {
    "dense": DENSE,
    "recompute": f"{DENSE} --recompute full --cp 2",
    "interleaved": f"{DENSE} --vpp 4 --recompute selective",
    "sharded": "--model llama-3.1-8b --hardware dgx-h100 --devices 32 --zero 3 --seq-len 4096 "
    "--global-batch 64 --recompute full",
    "experts": "--model mixtral-8x7b --hardware dgx-b200 --devices 64 --ep 8 --pp 4 --tp 2 "
    "--seq-len 4096 --global-batch 256 --precision fp8",
    "latent": "--model deepseek-v3 --hardware dgx-h100 --devices 512 --ep 32 --pp 16 "
    "--seq-len 4096 --global-batch 1024 --recompute full",
}


def run(command: str, text: str, *more: str) -> Result:
    return CliRunner().invoke(cli, [command, *shlex.split(text), *more], prog_name="perfmodel")


def document(command: str, text: str) -> Any:
    result = run(command, text, "--json")
    assert result.exit_code in (0, 3), result.stderr
    return json.loads(result.stdout)


def test_the_projection_is_what_the_python_interface_gives() -> None:
    model = load_model("llama-3.1-8b")
    row = {
        "tensor_parallel": 4,
        "pipeline_parallel": 2,
        "global_batch_size": 64,
        "sequence_length": 8192,
    }
    expected = sweep(model, strategies_from_rows(model, 32, [row]), load_hardware("dgx-h100"))
    found = document("project", DENSE)
    for name in VARIABLES:
        if name not in ("fits", "status"):
            assert found[name] == expected[name].values.flat[0], name


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_components_add_up(problem: str) -> None:
    found = document("project", problem)
    assert sum(found[name] for name in TIME_COMPONENTS) == pytest.approx(found["step_time"])
    assert sum(found[name] for name in MEMORY_COMPONENTS) == pytest.approx(found["memory_total"])


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_explained_operations_add_up_to_the_projected_components(problem: str) -> None:
    projected, explained = document("project", problem), document("explain", problem)
    sums = dict.fromkeys(OPERATION_COMPONENTS, 0.0)
    for operation in explained["operations"]:
        sums[operation["component"]] += operation["exposed"]
    for name in OPERATION_COMPONENTS:
        assert sums[name] == pytest.approx(projected[name], rel=1e-9, abs=1e-12), name
    for name in ("step_time", "memory_total"):
        assert explained[name] == projected[name]


def test_json_names_the_strategy_the_units_and_the_schema() -> None:
    found = document("project", f"{DENSE} --framework fsdp")
    assert found["schema_version"] == SCHEMA_VERSION
    assert found["framework"] == "fsdp"
    assert found["hardware"] == "dgx-h100"
    assert found["devices"] == 32
    assert found["data_parallel"] == 4
    assert found["sequence_parallel"] is True
    assert found["fits"] is True
    assert found["units"]["memory_total"] == "B"
    assert {spec.name for spec in FIELDS} <= {*found}


def test_the_projection_reads_as_text() -> None:
    text = run("project", PROBLEMS["interleaved"]).stdout
    for part in (
        "llama-3.1-8b on 32 × H100 SXM5 80GB (dgx-h100)",
        "tp 4 · pp 2 · vpp 4",
        "tokens per second and device",
        "model FLOPs utilization",
        "time of one training step",
        "the rest hidden",
        "10–90 %: ",
        "optimizer state on the fullest stage",
        "fits in 79.1 GiB",
    ):
        assert part in text


def test_what_does_not_fit_is_projected_with_a_warning_and_exit_code_3() -> None:
    problem = "--model llama-3.1-70b --hardware dgx-h100 --devices 8 --tp 8 --seq-len 4096 "
    for command in ("project", "explain"):
        result = run(command, problem + "--global-batch 8")
        assert result.exit_code == 3
        assert "does NOT fit in 79.1 GiB" in result.stdout
        assert result.stderr.startswith("perfmodel: warning: does not fit: ")
        assert result.stderr.count("\n") == 1
    assert document("project", problem + "--global-batch 8")["fits"] is False


def test_a_set_value_changes_the_projection_and_is_named() -> None:
    base = document("project", DENSE)
    faster = document("project", f"{DENSE} --set system.network.nvlink.bandwidth=900e9")
    assert faster["tensor_parallel_exposed"] < base["tensor_parallel_exposed"]
    assert faster["hardware"] == "dgx-h100[system.network.0.bandwidth=9e+11]"


def test_flags_of_the_sequence_parallel_option() -> None:
    assert document("project", f"{DENSE} --sp")["sequence_parallel"] is True
    assert document("project", f"{DENSE} --sp false")["sequence_parallel"] is False


def test_long_option_names_mean_the_same() -> None:
    long = DENSE.replace("--tp", "--tensor-parallel").replace("--pp", "--pipeline-parallel")
    assert document("project", long) == document("project", DENSE)


def test_an_ambiguous_alias_is_noted_on_stderr() -> None:
    from perfmodel.hwprofiles import list_ambiguous

    alias = next(iter(list_ambiguous()))
    problem = f"--model gpt2 --hardware '{alias}' --devices 1 --seq-len 1024 --global-batch 1"
    result = run("project", problem)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith(f"note: '{alias}'")


def test_explain_sorts_by_time_and_sums_up_the_rest() -> None:
    operations = document("explain", DENSE)["operations"]
    times = [operation["exposed"] for operation in operations]
    assert times == sorted(times, reverse=True)
    assert {operation["bound"] for operation in operations} >= {"compute", "memory", "network"}
    text = run("explain", DENSE, "--top", "5").stdout
    assert f"{len(operations) - 5} more operations" in text
    assert "all operations" in text
    assert "memory of the fullest stage" in text


def test_explain_shows_one_phase() -> None:
    operations = document("explain", f"{DENSE} --phase backward_weight")["operations"]
    assert {operation["phase"] for operation in operations} == {"backward_weight"}
    assert "whole step" not in run("explain", DENSE, "--phase", "backward_weight").stdout


def test_explain_takes_exactly_one_possible_strategy() -> None:
    from perfmodel.base.errors import StrategyError

    model, hardware = load_model("llama-3.1-8b"), load_hardware("dgx-h100")
    row = {"global_batch_size": 8, "sequence_length": 4096}
    with pytest.raises(StrategyError, match="exactly one strategy, not 2"):
        explain(model, strategies_from_rows(model, 8, [row, row]), hardware)
    with pytest.raises(StrategyError, match="impossible strategy"):
        explain(model, strategies_from_rows(model, 7, [row | {"tensor_parallel": 7}]), hardware)
