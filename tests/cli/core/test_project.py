"""``perfmodel project`` and ``perfmodel explain``: the same numbers, told twice."""

from __future__ import annotations

import pytest

from perfmodel import load_hardware, load_model, strategies_from_rows, sweep
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.kernels.variables import (
    MEMORY_COMPONENTS,
    SCHEMA_VERSION,
    TIME_COMPONENTS,
    VARIABLES,
)
from tests.cli.projecting import DENSE, PROBLEMS, document, run


def test_the_projection_is_what_the_python_interface_gives() -> None:
    model = load_model("llama-3.1-8b")
    row = {
        "tensor_parallel": 4,
        "pipeline_parallel": 2,
        "global_batch_size": 64,
        "sequence_length": 8192,
    }
    expected = sweep(
        model, strategies_from_rows(model, 32, [row]), load_hardware("dgx-h100"), dtype="float64"
    )
    found = document("project", f"{DENSE} --vpp 1 --micro-batch 1 --recompute none")
    for name in VARIABLES:
        if name not in ("fits", "tight", "status"):
            assert found[name] == expected[name].values.flat[0], name


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_components_add_up(problem: str) -> None:
    found = document("project", problem)
    assert sum(found[name] for name in TIME_COMPONENTS) == pytest.approx(found["step_time"])
    assert sum(found[name] for name in MEMORY_COMPONENTS) == pytest.approx(found["memory_total"])


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


def test_a_large_bubble_is_named_with_what_shrinks_it() -> None:
    words = (
        "--model llama-3.1-405b --hardware dgx-h100 --devices 1024 --tp 8 --pp 16 --seq-len 8192 "
        "--global-batch 128 --recompute full"
    )
    result = run("project", words, "--vpp", "1")
    assert "% of the step is the pipeline's bubble" in result.stderr
    assert "(--vpp 2, 4, 8)" in result.stderr
    finer = run("project", words, "--vpp", "8")
    assert "--vpp" not in finer.stderr
    assert "bubble" not in run("project", words.replace("128", "2048"), "--vpp", "8").stderr
    assert "bubble" not in run("project", f"{DENSE} --vpp 2", "--quiet").stderr


def test_what_is_tight_is_said_and_does_not_fit_safely():
    problem = "--model llama-3-70b --hardware dgx-h100 --devices 64 --tp 8 --pp 2 --seq-len 8192 "
    problem += "--micro-batch 1 --global-batch 128 --framework fsdp "
    found, safe = document("project", problem), document("project", problem + "--safe")
    assert (found["fits"], found["tight"]) == (True, True)
    assert (safe["fits"], safe["tight"]) == (False, False)
    assert found["memory_total"] < found["memory_capacity"] < found["memory_high"]
    assert ", but tightly: one run in ten needs more than" in run("project", problem).stdout
