"""From what was typed to hardware, software and what was assumed."""

from __future__ import annotations

import pytest

from perfmodel.analysis.single import one_strategy
from perfmodel.base.errors import StrategyError
from perfmodel.cli.shared.inputs import (
    assumed,
    assumed_text,
    load_rows,
    load_software,
    of_hardware,
    of_software,
)
from perfmodel.model.presets import load_model
from tests.cli.running import run

KERNEL = ("--m", "16", "--n", "16", "--k", "16")
SETTINGS = {"software.dropout": True, "device.tdp": 500.0}


def test_settings_part_into_hardware_and_software() -> None:
    assert of_software(SETTINGS) == {"dropout": True}
    assert of_hardware(SETTINGS) == {"device.tdp": 500.0}
    assert load_software("fsdp", SETTINGS).name == "fsdp[dropout=true]"
    assert load_software(None, {}).name == "megatron"
    with pytest.raises(StrategyError, match="no training software"):
        load_rows(["dgx-h100"], SETTINGS, {})


def test_only_what_matters_was_assumed() -> None:
    run = {"sequence_length": 4096, "global_batch_size": 64}
    model = load_model("llama-3.1-8b")
    single = one_strategy(model, 1, run)
    found = assumed("megatron", single, run)
    assert found == {"precision": "bf16", "micro-batch": 1, "recompute": "none"}
    wide = run | {"tensor_parallel": 2, "context_parallel": 2, "precision": "fp8"}
    found = assumed(None, one_strategy(model, 16, wide), wide, tried=["recompute"])
    assert found == {
        "framework": "megatron",
        "sp": True,
        "cp-kind": "ring",
        "zero": 1,
        "micro-batch": 1,
    }
    text = "assumed: --framework megatron --sp true --cp-kind ring --zero 1 --micro-batch 1"
    assert assumed_text(found) == text
    assert assumed_text({}) == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "--set device.memory.bandwidth=3350",
            "device.memory.bandwidth=3350 is 1e+09 times below the profile's 3.352e+12 B/s; values "
            "are in SI units",
        ),
        ("--set device.boost_clock=1.8", "device.boost_clock=1.8 is 1e+09 times below"),
        ("--sweep device.memory.bandwidth=25:400:4", "device.memory.bandwidth=25 is 1e+11"),
    ],
)
def test_a_value_in_another_unit_gets_a_remark(words: str, text: str) -> None:
    result = run("kernel", "gemm", "--hardware", "dgx-h100", *KERNEL, *words.split())
    assert result.exit_code == 0
    assert text in result.stderr
    assert (
        run("-q", "kernel", "gemm", "--hardware", "dgx-h100", *KERNEL, *words.split()).stderr == ""
    )


@pytest.mark.parametrize(
    "words",
    [
        "--set device.memory.bandwidth=4.8e12",
        "--set device.boost_clock=1.2e9",
        "--sweep device.compute_units=66,132",
    ],
)
def test_a_plausible_value_gets_none(words: str) -> None:
    result = run("kernel", "gemm", "--hardware", "dgx-h100", *KERNEL, *words.split())
    assert result.stderr == ""
